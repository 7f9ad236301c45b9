"""All hollow nodes of one process: started a few at a time, run until cancelled.

What nodes can share they share: the connections to the API server, one registry of metrics that is never scraped, the
settings. Each has its own watches, lease, workers and limits, as real nodes have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.hollow.history import Histories
from pykubelet.hollow.network import MOST_NODES
from pykubelet.hollow.node import HollowNode, Shared
from pykubelet.hollow.server import connected
from pykubelet.hollow.workload import Workload
from pykubelet.kit.clock import Clock
from pykubelet.kit.memory import freeze_start_up
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import PykubeletError
from pykubelet.settings.load import PrintAndExit, load_settings
from pykubelet.settings.settings import Settings

logger = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""Nodes that start at the same time: the API server is asked for six lists by each of them."""
READY_WITHIN: Final = 60.0
"""Seconds after which the next node starts even if this one is not ready."""
HOLLOW_LABEL: Final = "pykubelet.local/hollow"
CLUSTER_DNS: Final = ("--cluster-dns=10.96.0.10", "--cluster-domain=cluster.local")
"""Without a configuration file: kubeadm's, as without any every pod would get a warning."""


class FleetPlan(Struct, frozen=True, kw_only=True):
    nodes: int
    kubeconfig: Path
    folder: Path
    """For everything that is on disk; temporary."""
    config: Path | None = None
    """A KubeletConfiguration for all nodes."""
    workload: Workload = Workload()
    history: Histories | None = None
    prefix: str = "hollow-"
    first: int = 0
    """The number of the first node: several processes divide a fleet."""
    impersonate: bool = True
    seed: str = "0"

    def names(self) -> Sequence[tuple[int, str]]:
        return [(number, f"{self.prefix}{number}") for number in range(self.first, self.first + self.nodes)]


class UnscrapedRegistry(Registry):
    """Counts for all nodes together. It is never scraped, so what would be refreshed before that is not kept."""

    def on_scrape(self, refresh: Callable[[], None]) -> None:
        return None


def fleet_settings(plan: FleetPlan) -> Settings:
    """The settings that all nodes share. Raises SettingsError."""
    labels = {HOLLOW_LABEL: "true", **plan.workload.machine.labels}
    arguments = [
        f"--kubeconfig={plan.kubeconfig}",
        f"--root-dir={plan.folder}",
        f"--cert-dir={plan.folder / 'pki'}",
        f"--max-pods={plan.workload.machine.pods}",
        f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        *([f"--config={plan.config}"] if plan.config is not None else CLUSTER_DNS),
    ]
    loaded = load_settings(arguments, environ={})
    if isinstance(loaded, PrintAndExit):
        raise PykubeletError(loaded.text)
    settings = loaded.settings
    # Nothing listens, and the Node says so.
    server = replace(settings.config.server, enable_server=False, port=0)
    logs = replace(settings.config.container_logs, max_size="-1")  # nothing is written, so nothing is rotated
    return replace(settings, config=replace(settings.config, server=server, container_logs=logs))


class Fleet:
    def __init__(self, nodes: Sequence[HollowNode], clock: Clock, say: Callable[[str], None]) -> None:
        self.nodes = nodes
        self._clock = clock
        self._say = say

    async def start(self, tasks: TaskSet) -> None:
        """Start every node; returns when all were ready once, or had their time."""
        began, room = self._clock.monotonic(), asyncio.Semaphore(AT_ONCE)
        step = max(1, min(100, len(self.nodes) // 10))
        for number, node in enumerate(self.nodes, 1):
            await room.acquire()
            tasks.spawn(node.run(), name=node.name)
            tasks.spawn(self._until_ready(node, room), name=f"start of {node.name}")
            if number % step == 0:
                self._say(f"{number} of {len(self.nodes)} nodes started")
        for _ in range(AT_ONCE):
            await room.acquire()
        ready = sum(node.ready.is_set() for node in self.nodes)
        self._say(f"{ready} of {len(self.nodes)} nodes ready after {self._clock.monotonic() - began:.1f} s")

    async def _until_ready(self, node: HollowNode, room: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(READY_WITHIN):
                await node.ready.wait()
        except TimeoutError:
            logger.warning("a hollow node is not ready yet", extra={"node": node.name, "seconds": READY_WITHIN})
        finally:
            room.release()


@asynccontextmanager
async def hollow_nodes(plan: FleetPlan, *, clock: Clock) -> AsyncIterator[Sequence[HollowNode]]:
    """The nodes of a plan, on shared connections; none of them runs yet. Raises SettingsError, KubeconfigError."""
    if plan.first + plan.nodes > MOST_NODES:
        raise PykubeletError(f"there are addresses for {MOST_NODES} nodes only")
    settings, metrics = fleet_settings(plan), UnscrapedRegistry()
    async with connected(settings, clock=clock, metrics=metrics, impersonate=plan.impersonate) as clients:
        shared = Shared(
            settings=settings,
            workload=plan.workload,
            history=plan.history,
            clock=clock,
            metrics=metrics,
            clients=clients,
            folder=plan.folder,
            seed=plan.seed,
        )
        yield [HollowNode(shared, name=name, number=number) for number, name in plan.names()]


@asynccontextmanager
async def running(plan: FleetPlan, *, clock: Clock, say: Callable[[str], None]) -> AsyncIterator[Fleet]:
    """The fleet, once it has started; leaving stops all agents and leaves the Nodes at the API server."""
    async with hollow_nodes(plan, clock=clock) as nodes:
        fleet = Fleet(nodes, clock, say)
        async with TaskSet("hollow nodes") as tasks:
            await fleet.start(tasks)
            freeze_start_up()
            yield fleet
