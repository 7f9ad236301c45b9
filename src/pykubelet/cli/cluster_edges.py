"""The real API server and what else only a cluster node stands on.

Three clients of one login: pods and objects, heartbeats without a rate limit, events with a rate of their own, so that
none of them ever waits for another. Does not cover getting a certificate first (joining.py).
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from pykubelet.cli.joining import log_in
from pykubelet.clients.host.machine import filesystem_size
from pykubelet.clients.host.network import InterfaceNetwork
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.metrics import request_metrics, wait_metrics
from pykubelet.clients.kube.transport import Transport, user_agent
from pykubelet.clients.kube.unreadable import UnreadableObjects
from pykubelet.edges import ClusterEdges
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.runtime_status import RuntimeVersion
from pykubelet.settings.settings import Settings

logger = logging.getLogger(__name__)

NO_LIMIT = -1


def leave(why: str) -> None:
    """Only a new start can help, perhaps with bootstrap credentials: ask for it as an administrator would."""
    logger.error("the agent ends, it can no longer log in to its cluster", extra={"reason": why})
    os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def connected_cluster(
    settings: Settings, *, clock: Clock, metrics: Registry, runtime: RuntimeVersion, root: Path, node_name: str
) -> AsyncIterator[ClusterEdges | None]:
    """The edges of a cluster node; None for a node without an API server. Raises KubeconfigError."""
    if settings.flags.standalone:
        yield None
        return
    node, login = settings.config.node, await log_in(settings, clock=clock, node_name=node_name)
    clients: list[RestKubeClient] = []
    unreadable = UnreadableObjects(metrics)
    requests, waits = request_metrics(metrics), wait_metrics(metrics)
    async with AsyncExitStack() as stack:

        async def client(qps: float, burst: int) -> RestKubeClient:
            agent = user_agent(settings.kubernetes_version)
            transport = Transport(
                login.config, clock=clock, agent=agent, qps=qps, burst=burst, observe=requests, observe_wait=waits
            )
            made = RestKubeClient(transport, unreadable=unreadable)
            stack.push_async_callback(made.close)
            await transport.open()
            clients.append(made)
            return made

        async def renew() -> None:
            for each in clients:
                await each.renew()

        async def abandon() -> None:
            for each in clients:
                await each.abandon()

        yield ClusterEdges(
            client=await client(node.kube_api_qps, node.kube_api_burst),
            heartbeat=await client(NO_LIMIT, 1),
            events=await client(node.event_record_qps, node.event_burst),
            network=InterfaceNetwork(),
            storage_size=lambda: filesystem_size(root),
            runtime_version=f"{runtime.name}://{runtime.version}",
            renew=renew,
            abandon=abandon,
            certificates=login.certificates,
            locked_out=leave,
        )
