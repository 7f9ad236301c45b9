"""One hollow node: the whole agent on a runtime and a machine in memory, and what happens to it.

Only the folders of pods and volumes are real, below a temporary folder. Nothing is served: the Node says port 0.
An agent that ends by an error of its own is started again, as a supervisor would do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.quantity import Quantity
from pykubelet.clients.cri.port import EventSource
from pykubelet.clients.host.folders import DiskFolders
from pykubelet.clients.host.port import Machine, NodePaths
from pykubelet.edges import ClusterEdges, Edges
from pykubelet.hollow.cgroups import MemoryCgroups
from pykubelet.hollow.history import Histories
from pykubelet.hollow.mounts import MemoryMounts
from pykubelet.hollow.network import HollowNetwork, OneAddress, no_fetch, node_address, pod_network
from pykubelet.hollow.runtime import HollowCri
from pykubelet.hollow.server import ClientsOf
from pykubelet.hollow.workload import Workload, drawn
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kubelet import Kubelet, assemble
from pykubelet.model.runtime_status import FilesystemUsage
from pykubelet.node.conditions import is_ready
from pykubelet.settings.settings import Settings

logger = logging.getLogger(__name__)

ZONE_LABEL = "topology.kubernetes.io/zone"


class Shared(Struct, frozen=True, kw_only=True):
    """What all nodes of a process have in common."""

    settings: Settings
    workload: Workload
    history: Histories | None = None
    clock: Clock
    metrics: Registry
    clients: ClientsOf
    folder: Path
    seed: str


class HollowNode:
    def __init__(self, shared: Shared, *, name: str, number: int) -> None:
        self.name = name
        self._shared = shared
        self._rng = random.Random(f"{shared.seed}/{name}")
        self._address = node_address(number)
        self._machine = machine(shared.workload, name, number)
        self._settings = with_zone(shared.settings, shared.workload, number)
        self._paths = NodePaths(
            root=shared.folder / name / "kubelet",
            pod_logs=shared.folder / name / "pods",
            container_logs=shared.folder / name / "containers",
        )
        self._folders = DiskFolders(self._paths)
        self._cgroups, self._mounts = MemoryCgroups(), MemoryMounts()
        self.cri = HollowCri(
            shared.clock,
            workload=shared.workload,
            rng=self._rng,
            pod_cidr=pod_network(number),
            number=number,
            history=shared.history,
        )
        self.cri.image_filesystem = FilesystemUsage(mountpoint=str(self._paths.root))
        self.agent: Kubelet | None = None
        """While it runs."""
        self.ready = asyncio.Event()
        """Set once the API server has had a ready Node."""

    @property
    def pods(self) -> int:
        return len(self.cri.sandboxes)

    async def run(self) -> None:
        """The agent, and its failures, until cancelled."""
        backoff = Backoff(initial=1.0, maximum=30.0)
        while True:
            try:
                await self._run_agent()
                backoff.reset()
            except Exception as error:  # the process of a real agent would end here
                logger.exception("the agent of a hollow node ended", extra={"node": self.name, "error": str(error)})
                await self._shared.clock.sleep(backoff.next())

    async def _run_agent(self) -> None:
        """Run the agent until its next failure, and leave it away as long as that lasts."""
        async with self.agent_running():
            away = await self._until_failure()
        await self._shared.clock.sleep(away)
        self.cri.restore()

    @asynccontextmanager
    async def agent_running(self) -> AsyncIterator[Kubelet]:
        """An agent of this node, new at every time; the runtime and its containers stay between two of them."""
        self._folders.make_roots()
        self.agent = assemble(self._settings, self._edges())
        try:
            async with self.agent.running():
                self.agent.api.node.listen(lambda node: self.ready.set() if is_ready(node.status) else None)
                yield self.agent
        finally:
            self.agent = None

    async def _until_failure(self) -> float:
        """Live through failures of the runtime until the agent itself is to end; the seconds it will be away."""
        clock, rng = self._shared.clock, self._rng
        failures = self._shared.workload.failures.kinds()
        if not failures:
            await asyncio.get_running_loop().create_future()  # nothing ever happens
        while True:
            due = {kind: rng.expovariate(1 / failure.every) for kind, failure in failures.items()}
            kind = min(due, key=due.__getitem__)
            await clock.sleep(due[kind])
            lasts = drawn(failures[kind].lasts, rng)
            logger.info("a failure of a hollow node", extra={"node": self.name, "kind": kind, "seconds": lasts})
            if kind == "agent":
                return lasts
            if kind == "power":
                self.cri.power_off()
                self._machine = replace(self._machine, boot_id=f"{self._machine.boot_id}+", booted=clock.now() + lasts)
                return lasts
            self.cri.crash()
            await clock.sleep(lasts)
            self.cri.restore()

    def _edges(self) -> Edges:
        shared, clients = self._shared, self._shared.clients(self.name)
        disk = Quantity.parse(shared.workload.machine.disk).value()
        return Edges(
            clock=shared.clock,
            metrics=shared.metrics,
            cri=self.cri,
            runtime_name=self.cri.runtime_version.name,
            folders=self._folders,
            paths=self._paths,
            cgroups=self._cgroups,
            mounts=self._mounts,
            machine=self._machine,
            network=HollowNetwork(self.cri, self._address),
            fetch=no_fetch,
            cgroup_driver="cgroupfs",
            event_source=EventSource(name="hollow", open=self.cri.container_events),
            cluster=ClusterEdges(
                client=clients.pods,
                heartbeat=clients.heartbeat,
                events=clients.events,
                network=OneAddress(self._address),
                storage_size=lambda: disk,
                runtime_version=f"{self.cri.runtime_version.name}://{self.cri.runtime_version.version}",
            ),
        )


def machine(workload: Workload, name: str, number: int) -> Machine:
    plan = workload.machine
    return Machine(
        hostname=name,
        cpus=plan.cpus,
        memory_bytes=Quantity.parse(plan.memory).value(),
        swap_bytes=0,
        kernel="6.12.0-hollow",
        os_image="hollow node",
        machine_id=f"{number:032x}",
        system_uuid=f"00000000-0000-4000-8000-{number:012x}",
        boot_id=f"00000000-0000-4000-9000-{number:012x}",
        architecture="amd64",
        pids=32768,
        cgroup_v2=True,
    )


def with_zone(settings: Settings, workload: Workload, number: int) -> Settings:
    if not workload.machine.zones:
        return settings
    labels = {**settings.flags.node_labels, ZONE_LABEL: f"zone-{number % workload.machine.zones}"}
    return replace(settings, flags=replace(settings.flags, node_labels=labels))
