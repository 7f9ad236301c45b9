"""The CPU, memory, topology and device managers as the rest of the agent sees them.

`open` reads the checkpoints before anything starts; `admit` allocates for a pod or raises; `release` frees. Both
change memory only; no container is made or moved before the state is on disk, so a killed agent finds again what a
container may have got. Allocations of pods that are gone are freed when they finish; when a pod would be refused for
lack of CPUs or memory, those that terminate and have left their source count as gone, as for every other resource.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.cm.cpu_manager import StaticCpuPolicy
from pykubelet.cm.errors import NotWritten, Refused, ResourceManagerError
from pykubelet.cm.memory_manager import StaticMemoryPolicy
from pykubelet.cm.requests import container_cpus, containers_of
from pykubelet.cm.state import Blocks, ManagerStates
from pykubelet.cm.topology_manager import TopologyManager
from pykubelet.kit.limits import Once
from pykubelet.kit.tasks import TaskSet, Wakeup
from pykubelet.model.errors import CriError, CriNotFound, RuntimeDown
from pykubelet.model.pod import AnyContainer, uid_of
from pykubelet.model.pod_resources import has_pod_level_resources
from pykubelet.model.topology import NO_CPUS, Cpus, MemoryShare, format_cpu_list
from pykubelet.pods.table import PodTable
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)


# --- cpusets of running containers ----------------------------------------------------------------------------
# Containers are created with the right set; when the shared pool changes afterwards, every container in it must move.
# That happens as soon as the pool changes; a tick (`cpuManagerReconcilePeriod`) only repeats what the runtime refused.
# After a restart of the agent every container is updated once: its set is not known.


class RunningContainer(Struct, frozen=True, kw_only=True):
    pod_uid: str
    name: str
    id: str


class CpusetReconciler:
    def __init__(
        self,
        *,
        cri: CriClient,
        running: Callable[[], Iterable[RunningContainer]],
        states: ManagerStates,
        period: float,
    ) -> None:
        """`period`: seconds between ticks; 0 = none."""
        self._cri = cri
        self._running = running
        self._states = states
        self._cpus_of = states.cpus.owned_or_shared
        self._period = period
        self._signal = Wakeup()
        self._created: dict[tuple[str, str], Cpus] = {}
        """Sets that containers were created with whose ids are not known yet."""
        self._applied: dict[str, Cpus] = {}
        self._logged: Once[str] = Once()

    def soon(self) -> None:
        """The shared pool changed, or a container started that may have been created before it did."""
        self._signal.set()

    def created(self, uid: str, container: str, cpus: Cpus) -> None:
        """The next container of this name starts with this set."""
        self._created[uid, container] = cpus

    def forget(self, uid: str) -> None:
        """The pod is gone, with containers that perhaps never ran."""
        self._created = {key: cpus for key, cpus in self._created.items() if key[0] != uid}

    async def run(self) -> None:
        while True:
            await self._signal.wait(self._period if self._period > 0 else None)
            await self.bring_up_to_date()

    async def bring_up_to_date(self) -> None:
        """Update every running container in the runtime whose set is another than the one applied last."""
        running = list(self._running())
        ids = {each.id for each in running}
        self._applied = {id_: cpus for id_, cpus in self._applied.items() if id_ in ids}
        for each in running:
            if each.id not in self._applied:
                created = self._created.pop((each.pod_uid, each.name), None)
                if created is not None:
                    self._applied[each.id] = created
            try:
                await self._apply(each)
            except CriNotFound:
                continue  # it ended meanwhile
            except RuntimeDown:
                return
            except (CriError, NotWritten) as error:
                self._complain(each, str(error))

    async def _apply(self, container: RunningContainer) -> None:
        # Read at the last moment: the pool may change while others are being updated.
        if self._applied.get(container.id) == self._cpus_of(container.pod_uid, container.name):
            return
        await self._states.written()  # no container moves before a restarted agent would know why
        cpus = self._cpus_of(container.pod_uid, container.name)
        if not cpus:
            self._complain(container, "every CPU that is not reserved belongs to some container")
            return
        text = format_cpu_list(cpus)
        await self._cri.update_container_resources(container.id, cri_pb2.LinuxContainerResources(cpuset_cpus=text))
        self._applied[container.id] = cpus
        self._logged.clear(container.id)
        logger.debug("container moved to CPUs", extra={"container": container.name, "cpus": text})

    def _complain(self, container: RunningContainer, why: str) -> None:
        if self._logged.is_new(container.id, why):
            logger.warning(
                "CPUs of a container cannot be set, will retry",
                extra={"uid": container.pod_uid, "container": container.name, "error": why},
            )


def running_containers(table: PodTable) -> Iterator[RunningContainer]:
    """Running containers of pods that have a worker."""
    for record in table:
        if record.worker is not None and record.runtime is not None:
            for each in record.runtime.status.running():
                yield RunningContainer(pod_uid=record.uid, name=each.name, id=each.id)


# --- the managers ---------------------------------------------------------------------------------------------


class Pinned(Struct, frozen=True, kw_only=True):
    """What a container is created with."""

    cpus: str = ""
    memory_nodes: str = ""
    exclusive: bool = False
    """The CPUs are its own; no quota may slow it down there."""


class ResourceManagers:
    name = "pinning"

    def __init__(
        self,
        *,
        states: ManagerStates,
        cpus: StaticCpuPolicy | None,
        memory: StaticMemoryPolicy | None,
        topology: TopologyManager,
        reconciler: CpusetReconciler,
        table: PodTable,
        sources_ready: Callable[[], bool],
        pod_level: bool = False,
    ) -> None:
        self.states = states
        self._cpu_state = states.cpus
        self._memory_state = states.memory
        self._cpus = cpus
        self._memory = memory
        self._topology = topology
        self.reconciler = reconciler
        self._table = table
        self._sources_ready = sources_ready
        self._pod_level = pod_level
        if cpus is not None:
            cpus.on_change = reconciler.soon

    def open(self) -> None:
        """Read the checkpoints and check them; ResourceManagerError, with a sentence that says what to do."""
        try:
            self._cpu_state.load()
            if self._cpus is not None:
                self._cpus.start()
            self._memory_state.load()
            if self._memory is not None:
                self._memory.start()
        except OSError as error:
            raise ResourceManagerError(f"state of the CPU and memory managers cannot be kept: {error}") from error

    async def run(self) -> None:
        """Keep running containers on their CPUs, and the state on disk, for as long as the agent runs."""
        async with TaskSet(self.name) as tasks:
            tasks.spawn(self.states.keep_written(), name="state of the CPU and memory managers")
            await self.reconciler.run()

    # --- admission --------------------------------------------------------------------------------------

    def admit(self, pod: Pod) -> bool:
        """Allocate all that the pod needs; True when it had nothing before. Refused, and then it has what it had."""
        uid = uid_of(pod)
        self._drop(lambda each: each == uid or self._table.could_have_running_containers(each))
        is_new = not self._has_allocation(uid)
        try:
            self._topology.admit(pod)
        except Refused:
            has_room = self._drop(lambda each: each == uid or self._table.is_desired(each))
            self._undo(uid, is_new)
            if not has_room:
                raise
            try:
                self._topology.admit(pod)
            except Refused:
                self._undo(uid, is_new)
                raise
        self.states.write_soon()
        return is_new

    def _undo(self, uid: str, is_new: bool) -> None:
        if is_new:
            self.release(uid)

    def release(self, uid: str) -> None:
        """The pod is gone."""
        self.reconciler.forget(uid)
        if not self._has_allocation(uid):
            return
        for provider in self._topology.providers:
            provider.release(uid)
        self.states.write_soon()

    async def sweep(self) -> None:
        """Free what is allocated to pods of which nothing can run any more."""
        if self._drop(self._table.could_have_running_containers):
            self.states.write_soon()

    def _drop(self, stays: Callable[[str], bool]) -> bool:
        if not self._sources_ready():
            return False
        gone = [uid for uid in self._holders() if not stays(uid)]
        for uid in gone:
            logger.info("CPUs and memory of a pod that is gone are free again", extra={"uid": uid})
            for provider in self._topology.providers:
                provider.release(uid)
        return bool(gone)

    def _holders(self) -> frozenset[str]:
        return frozenset().union(*(each.holders() for each in self._topology.providers))

    def _has_allocation(self, uid: str) -> bool:
        return any(uid in each.holders() for each in self._topology.providers)

    # --- what containers get ----------------------------------------------------------------------------

    def pinned(self, pod: Pod, container: AnyContainer) -> Pinned:
        """For a container that is about to be created, once the state is written; Refused when it cannot have it."""
        uid, name = uid_of(pod), container.name or ""
        self._allocate_again(pod, name)
        cpus = self._cpu_state.owned_or_shared(uid, name) if self._cpus is not None else NO_CPUS
        if cpus:
            self.reconciler.created(uid, name, cpus)
        if self._memory is not None and self._memory.created(pod, name):
            self.states.write_soon()
        nodes = sorted({node for block in self._memory_blocks(uid, name) for node in block.nodes})
        return Pinned(
            cpus=format_cpu_list(cpus),
            memory_nodes=",".join(str(node) for node in nodes),
            exclusive=self.is_exclusive(pod, container),
        )

    def _allocate_again(self, pod: Pod, name: str) -> None:
        """Allocate for a second life of a pod that was not admitted anew: what the first one had is released."""
        own = next((each for each in containers_of(pod) if each.name == name), None)
        pinning = [each for each in (self._cpus, self._memory) if each is not None]
        if own is None or not any(each.lacks(pod, own) for each in pinning):
            return
        try:
            self.admit(pod)
        except Refused as refused:
            raise Refused(refused.message) from refused

    def has_exclusive_cpus(self, pod: Pod) -> bool:
        if self._cpus is None:
            return False
        owners = [self.is_exclusive(pod, each) for each in containers_of(pod)]
        # The pod's own quota also holds for those that share, unless there are none.
        return all(owners) if self._pod_level and has_pod_level_resources(pod) else any(owners)

    def is_exclusive(self, pod: Pod, container: AnyContainer) -> bool:
        """Whether the container owns its CPUs."""
        if not self._cpu_state.owned(uid_of(pod), container.name or ""):
            return False
        own = next((each for each in containers_of(pod) if each.name == container.name), None)
        return own is not None and (
            not has_pod_level_resources(pod) or container_cpus(pod, own, pod_level=self._pod_level) > 0
        )

    def _memory_blocks(self, uid: str, container: str) -> Blocks:
        return self._memory_state.blocks(uid, container) or ()

    # --- for the podresources service ----------------------------------------------------

    def cpus_of(self, uid: str, container: str) -> Cpus:
        return self._cpu_state.owned(uid, container) or NO_CPUS

    def allocatable_cpus(self) -> Cpus:
        return self._cpus.allocatable if self._cpus is not None else NO_CPUS

    def memory_of(self, uid: str, container: str) -> Sequence[MemoryShare]:
        return _shares(self._memory_blocks(uid, container))

    def allocatable_memory(self) -> Sequence[MemoryShare]:
        return _shares(self._memory.allocatable) if self._memory is not None else ()


def _shares(blocks: Blocks) -> list[MemoryShare]:
    return [MemoryShare(kind=block.type, size=block.size, numa=block.nodes) for block in blocks]
