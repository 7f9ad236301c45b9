"""CPUs, memory and their places for containers: what the rest of the agent sees of this package.

`open` reads the checkpoints before anything starts; `admit` allocates for a pod or says why not; `release` gives
back. Both only change the books; `written` returns when they are on disk, and no container is made or moved before,
so a killed agent finds again whatever a container may have got. Entries of pods that are gone are dropped when they
finish; when a pod would be refused for want of CPUs or memory, those that are on their way out and have left their
source count as gone, as they do for every other resource.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.cm.cpu_manager import StaticCpus
from pykubelet.cm.cpu_state import CpuState
from pykubelet.cm.cpuset_reconciler import CpusetKeeper
from pykubelet.cm.errors import NotWritten, PinningProblem, Refused
from pykubelet.cm.memory_manager import StaticMemory
from pykubelet.cm.memory_state import Blocks, MemoryState
from pykubelet.cm.requests import container_cpus, containers_of
from pykubelet.cm.topology_manager import HintProvider, TopologyManager
from pykubelet.kit.mailbox import Signal
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.assigned import MemoryShare
from pykubelet.model.pod import AnyContainer, uid_of
from pykubelet.model.pod_resources import has_pod_level_resources
from pykubelet.model.topology import NO_CPUS, Cpus, format_cpu_list

logger = logging.getLogger(__name__)

WRITE_AGAIN = 30.0


class Refusal(Struct, frozen=True, kw_only=True):
    reason: str
    message: str


class Pinned(Struct, frozen=True, kw_only=True):
    """What a container is created with."""

    cpus: str = ""
    memory_nodes: str = ""
    exclusive: bool = False
    """The CPUs are its own; no quota may slow it down there."""


class Pods(Protocol):
    """What is known about pods at the moment."""

    def may_run(self, uid: str) -> bool:
        """Whether containers of the pod may still run; yes for every pod while not all is known."""
        ...

    def is_wanted(self, uid: str) -> bool:
        """Whether its source still has the pod."""
        ...

    def sources_ready(self) -> bool: ...


class PinningManager:
    name = "pinning"

    def __init__(
        self,
        *,
        cpu_state: CpuState,
        memory_state: MemoryState,
        cpus: StaticCpus | None,
        memory: StaticMemory | None,
        topology: TopologyManager,
        keeper: CpusetKeeper,
        pods: Pods,
        pod_level: bool = False,
    ) -> None:
        self._cpu_state = cpu_state
        self._memory_state = memory_state
        self._cpus = cpus
        self._memory = memory
        self._topology = topology
        self._keeper = keeper
        self._pods = pods
        self._pod_level = pod_level
        self._fresh = ""
        """The pod that was admitted last, if it held nothing before."""
        self._unwritten = Signal()
        keeper.written = self.written
        if cpus is not None:
            cpus.on_change = keeper.soon

    def open(self) -> None:
        """Read the checkpoints and check them; PinningProblem, with a sentence that says what to do."""
        try:
            self._cpu_state.load()
            if self._cpus is not None:
                self._cpus.start()
            self._memory_state.load()
            if self._memory is not None:
                self._memory.start()
        except OSError as error:
            raise PinningProblem(f"state of the CPU and memory managers cannot be kept: {error}") from error

    async def run(self) -> None:
        """Keeps running containers on their CPUs, and the books on disk, for as long as the agent runs."""
        async with TaskSet(self.name) as tasks:
            tasks.spawn(self._keep_written(), name="state of the CPU and memory managers")
            await self._keeper.run()

    async def written(self) -> None:
        """Until the books are on disk as they are now. Raises NotWritten."""
        try:
            await self._cpu_state.flush()
            await self._memory_state.flush()
        except OSError as error:
            raise NotWritten(f"state of the CPU and memory managers cannot be written: {error}") from error

    async def _keep_written(self) -> None:
        """Where nothing is promised a later write will do."""
        failed = False
        while True:
            await self._unwritten.wait(at_most=WRITE_AGAIN if failed else None)
            try:
                await self.written()
                failed = False
            except NotWritten as error:
                logger.error("the books of pinning are not on disk", extra={"error": str(error)})
                failed = True

    def add_provider(self, provider: HintProvider) -> None:
        """Something else that sits on NUMA nodes, such as devices; asked before CPUs and memory."""
        self._topology.add_provider(provider)

    # --- admission --------------------------------------------------------------------------------------

    def admit(self, pod: Pod) -> Refusal | None:
        """Allocate all that the pod needs, or nothing and say why not."""
        uid = uid_of(pod)
        self._drop(lambda each: each == uid or self._pods.may_run(each))
        self._fresh = "" if self._holds(uid) else uid
        try:
            try:
                self._topology.admit(pod)
            except Refused:
                if not self._drop(lambda each: each == uid or self._pods.is_wanted(each)):
                    raise
                self.undo(pod)
                self._topology.admit(pod)
            self._unwritten.set()
        except Refused as refused:
            self.undo(pod)
            return Refusal(reason=refused.reason, message=refused.told)
        return None

    def undo(self, pod: Pod) -> None:
        """The pod that was admitted last is not to run after all; what it had before it keeps."""
        if self._fresh and self._fresh == uid_of(pod):
            self.release(self._fresh)

    def release(self, uid: str) -> None:
        """The pod is gone."""
        self._keeper.forget(uid)
        if not self._holds(uid):
            return
        for provider in self._topology.providers:
            provider.release(uid)
        self._unwritten.set()

    def release_gone(self) -> None:
        """Drop what pods hold of which nothing can run any more."""
        if self._drop(self._pods.may_run):
            self._unwritten.set()

    def _drop(self, stays: Callable[[str], bool]) -> bool:
        if not self._pods.sources_ready():
            return False
        gone = [uid for uid in self._holders() if not stays(uid)]
        for uid in gone:
            logger.info("CPUs and memory of a pod that is gone are free again", extra={"uid": uid})
            for provider in self._topology.providers:
                provider.release(uid)
        return bool(gone)

    def _holders(self) -> frozenset[str]:
        return frozenset().union(*(each.holders() for each in self._topology.providers))

    def _holds(self, uid: str) -> bool:
        return any(uid in each.holders() for each in self._topology.providers)

    # --- what containers get ----------------------------------------------------------------------------

    def pinned(self, pod: Pod, container: AnyContainer) -> Pinned:
        """For a container that is about to be created; Refused when it cannot have what is its own. Whoever creates
        it waits for `written` before."""
        uid, name = uid_of(pod), container.name or ""
        self._make_up_for(pod, name)
        cpus = self._cpu_state.owned_or_shared(uid, name) if self._cpus is not None else NO_CPUS
        if cpus:
            self._keeper.created(uid, name, cpus)
        if self._memory is not None and self._memory.created(pod, name):
            self._unwritten.set()
        nodes = sorted({node for block in self._memory_blocks(uid, name) for node in block.nodes})
        return Pinned(
            cpus=format_cpu_list(cpus),
            memory_nodes=",".join(str(node) for node in nodes),
            exclusive=self.is_exclusive(pod, container),
        )

    def _make_up_for(self, pod: Pod, name: str) -> None:
        """A pod may get a second life without being admitted anew; then it has given everything back."""
        own = next((each for each in containers_of(pod) if each.name == name), None)
        pinning = [each for each in (self._cpus, self._memory) if each is not None]
        if own is None or not any(each.lacks(pod, own) for each in pinning):
            return
        refusal = self.admit(pod)
        if refusal is not None:
            raise Refused(refusal.message)

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

    # --- for those who tell others (model/assigned.py) ----------------------------------------------------

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
