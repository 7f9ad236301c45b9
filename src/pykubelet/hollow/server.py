"""The API server as all hollow nodes of a process see it: shared connections, a client with limits of its own for each.

One login serves all nodes. Where it may impersonate, each node's requests are made as `system:node:NAME`, so that Node
authorization and NodeRestriction judge them as they judge a kubelet's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.decoding import UnreadableObjects
from pykubelet.clients.kube.kubeconfig import load_kubeconfig
from pykubelet.clients.kube.port import KubeClient, WatchLists
from pykubelet.clients.kube.transport import RequestMetrics, Transport, user_agent
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import gather_all
from pykubelet.settings.settings import Settings

NO_LIMIT = -1


class NodeClients:
    """The three clients of one node, as a real one has them."""

    def __init__(self, pods: KubeClient, heartbeat: KubeClient, events: KubeClient) -> None:
        self.pods = pods
        self.heartbeat = heartbeat
        self.events = events


ClientsOf = Callable[[str], NodeClients]
"""Of the node with this name."""


@asynccontextmanager
async def connected(
    settings: Settings, *, clock: Clock, metrics: Registry, impersonate: bool
) -> AsyncIterator[ClientsOf]:
    """Clients over shared connections. Raises KubeconfigError."""
    server = ServerConnections(load_kubeconfig(Path(settings.flags.kubeconfig)), clock=clock, metrics=metrics)
    beats = server.apart()
    requests = RequestMetrics(metrics)
    agent = user_agent(settings.kubernetes_version)
    watch_lists = WatchLists(enabled=settings.gates.enabled("WatchListClient"))
    node = settings.config.node

    def clients(name: str) -> NodeClients:
        headers = (("Impersonate-User", f"system:node:{name}"), ("Impersonate-Group", "system:nodes"))
        unreadable = UnreadableObjects(metrics)

        def client(server: ServerConnections, qps: float, burst: int) -> RestKubeClient:
            transport = Transport(
                server, agent=agent, qps=qps, burst=burst, metrics=requests, headers=headers if impersonate else ()
            )
            return RestKubeClient(transport, unreadable=unreadable, watch_lists=watch_lists)

        return NodeClients(
            pods=client(server, node.kube_api_qps, node.kube_api_burst),
            heartbeat=client(beats, NO_LIMIT, 1),
            events=client(server, node.event_record_qps, node.event_burst),
        )

    try:
        await gather_all(server.open(), beats.open())
        yield clients
    finally:
        await gather_all(server.close(), beats.close())
