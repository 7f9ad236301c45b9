"""The three clients of a node: one for its work, one for events, one for heartbeats, each with its own limits.

Heartbeats have no rate limit and short deadlines, so that a burst of other requests never makes a node look dead.
Importing this module imports the HTTP library; a node without a kubeconfig never does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.kubeconfig import Kubeconfig
from pykubelet.clients.kube.metrics import request_metrics
from pykubelet.clients.kube.transport import Transport, user_agent
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.settings.schema_node import NodeSettings
from pykubelet.settings.versions import KUBERNETES_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClients:
    main: RestKubeClient
    events: RestKubeClient
    heartbeat: RestKubeClient

    async def renew(self) -> None:
        """New connections for all, e.g. after the client certificate was rotated."""
        for client in (self.main, self.events, self.heartbeat):
            await client.renew()


@asynccontextmanager
async def connected(
    config: Kubeconfig, settings: NodeSettings, *, clock: Clock, metrics: Registry
) -> AsyncIterator[NodeClients]:
    """The clients for as long as the block lasts. Raises KubeconfigError for credentials that cannot be read; does
    not wait for the server."""
    agent, observe = user_agent(KUBERNETES_VERSION), request_metrics(metrics)
    heartbeat_timeout = min(settings.node_status_update_frequency, settings.node_lease_duration_seconds)
    main = Transport(
        config,
        clock=clock,
        agent=agent,
        qps=settings.kube_api_qps,
        burst=settings.kube_api_burst,
        observe=observe,
    )
    events = Transport(
        config,
        clock=clock,
        agent=agent,
        qps=settings.event_record_qps,
        burst=settings.event_burst,
        observe=observe,
    )
    heartbeat = Transport(config, clock=clock, agent=agent, qps=-1, timeout=heartbeat_timeout, observe=observe)
    try:
        for transport in (main, events, heartbeat):
            await transport.open()
        yield NodeClients(main=RestKubeClient(main), events=RestKubeClient(events), heartbeat=RestKubeClient(heartbeat))
    finally:
        for transport in (main, events, heartbeat):
            await transport.close()
