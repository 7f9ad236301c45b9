"""State of the CPU and memory managers and the files that keep it: `cpu_manager_state`, `memory_manager_state`.

Both files are upstream's, both ways: the checksum is FNV-1a over the text in which Go's debugging printer shows the
value, types and all. With the gate PodLevelResourceManagers a file also has what pods as a whole own, and another
checksum. Unlike other checkpoints a damaged one stops the agent, which names the file to delete, as upstream: what
containers own exclusively cannot be guessed. Files of kubelets before 1.18 are not understood.

Changes are made in memory; a caller that acts on them waits for `written` first.
"""

from __future__ import annotations

import abc
import copy
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from msgspec import Struct, field

from pykubelet.cm.errors import NotWritten, ResourceManagerError
from pykubelet.kit.files import Checkpoint, CheckpointDamaged
from pykubelet.kit.tasks import Wakeup
from pykubelet.kit.text import fnv1a_32, go_list, go_map
from pykubelet.model.topology import NO_CPUS, Cpus, format_cpu_list, parse_cpu_list

logger = logging.getLogger(__name__)

CPU_STATE_FILE: Final = "cpu_manager_state"
MEMORY_STATE_FILE: Final = "memory_manager_state"
WRITE_AGAIN = 30.0

E = TypeVar("E")


class ManagerState(abc.ABC, Generic[E]):
    """What one manager has assigned: `E` to each container and, at pod level, to each pod."""

    manager: ClassVar[str]
    """Its name in messages."""
    go_type: ClassVar[str]
    older_go_type: ClassVar[str]
    go_pods_type: ClassVar[str]
    pod_key: ClassVar[str]
    empty: ClassVar[object]
    unreadable: ClassVar[str]
    """What a file with values of another shape is refused with; formatted with the error."""

    def __init__(self, path: Path, *, policy: str, pod_level: bool) -> None:
        self._checkpoint = Checkpoint(path, encode=self._encode, decode=self._decode)
        self._policy = policy
        self._pod_level = pod_level
        self._changed = False
        self.entries: dict[str, dict[str, E]] = {}
        """By pod and container."""
        self.pods: dict[str, E] = {}
        """What pods with pod-level resources have for all their containers."""

    def own(self, uid: str, container: str, value: E) -> None:
        self.entries.setdefault(uid, {})[container] = value
        self._changed = True

    def own_pod(self, uid: str, value: E) -> None:
        self.pods[uid] = value
        self._changed = True

    # --- on disk ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Take over what the file holds, or write a first one. ResourceManagerError when that fails."""
        try:
            data = self._checkpoint.read()
        except CheckpointDamaged as damage:
            raise self._refusal(str(damage)) from damage
        if data is None:
            self._changed = True
            self.save()
            return
        try:
            self._take_machine(data)
            self.entries = {
                uid: {name: self._value_of(each) for name, each in containers.items()}
                for uid, containers in (data.get("entries") or {}).items()
            }
            self.pods = {
                uid: self._value_of(each.get(self.pod_key, self.empty))
                for uid, each in (data.get("podEntries") or {}).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._refusal(self.unreadable.format(error)) from error

    def save(self) -> None:
        """Write what changed, at the start. OSError when the disk refuses; it is still to be written then."""
        if self._changed:
            self._checkpoint.save_now(self._content())
            self._changed = False

    async def flush(self) -> None:
        """Wait until every change is on disk. OSError when the disk refuses; it is still to be written then."""
        if self._changed:
            self._checkpoint.put(self._content())
            self._changed = False
        await self._checkpoint.flush()

    def _refusal(self, why: str) -> ResourceManagerError:
        return ResourceManagerError(
            f"could not restore state from checkpoint: {why}, please drain this node and delete the {self.manager} "
            f'checkpoint file "{self._checkpoint.path}" before restarting'
        )

    def _content(self) -> dict[str, Any]:
        data: dict[str, Any] = {"policyName": self._policy, **self._machine_json()}
        if self.entries:
            data["entries"] = {
                uid: {name: self._json(value) for name, value in sorted(containers.items())}
                for uid, containers in sorted(self.entries.items())
            }
        if self.pods and self._pod_level:
            data["podEntries"] = {uid: {self.pod_key: self._json(value)} for uid, value in sorted(self.pods.items())}
        return data

    def _encode(self, data: dict[str, Any]) -> bytes:
        checksum = fnv1a_32(self.text(data, pod_level=self._pod_level))
        return json.dumps({**data, "checksum": checksum}, separators=(",", ":")).encode()

    def _decode(self, raw: bytes) -> dict[str, Any]:
        try:
            data: dict[str, Any] = dict(json.loads(raw))
            policy, checksum = data["policyName"], data["checksum"]
            known = {fnv1a_32(text) for text in self._texts(data)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"the file is not a checkpoint ({error})") from error
        # Upstream takes 0 for "not checked".
        if checksum and checksum not in known:
            raise CheckpointDamaged("checkpoint is corrupted: its checksum does not match")
        if policy != self._policy:
            why = f'configured policy "{self._policy}" differs from state checkpoint policy "{policy}"'
            raise CheckpointDamaged(why)
        return data

    def _texts(self, data: dict[str, Any]) -> Iterable[str]:
        """Forms of which a kubelet may have taken the checksum. With the gate on, a file without it is read as well;
        the other way round only if no pod uses it."""
        yield self.text(data)
        yield self.text(data).replace(self.go_type, self.older_go_type, 1)
        if self._pod_level or not data.get("podEntries"):
            yield self.text(data, pod_level=True)

    @classmethod
    def text(cls, data: dict[str, Any], *, pod_level: bool = False) -> str:
        """The value as Go prints it, over which the checksum is taken."""
        head = f"PolicyName:(string){data['policyName']} {cls._go_text(data)}"
        if pod_level:
            pods = go_map({uid: cls._go_pod_text(each) for uid, each in (data.get("podEntries") or {}).items()})
            head = f"{head} PodEntries:({cls.go_pods_type}){pods}"
        return f"(*{cls.go_type}){{{head} Checksum:(checksum.Checksum)0}}"

    @abc.abstractmethod
    def _take_machine(self, data: dict[str, Any]) -> None:
        """Read what is not about single pods."""

    @abc.abstractmethod
    def _machine_json(self) -> dict[str, Any]: ...

    @abc.abstractmethod
    def _value_of(self, data: Any) -> E: ...

    @abc.abstractmethod
    def _json(self, value: E) -> object: ...

    @staticmethod
    @abc.abstractmethod
    def _go_text(data: dict[str, Any]) -> str:
        """Machine and entries, as Go prints them."""

    @staticmethod
    @abc.abstractmethod
    def _go_pod_text(entry: dict[str, Any]) -> str: ...


# --- CPUs -----------------------------------------------------------------------------------------------------


class CpuState(ManagerState[Cpus]):
    manager = "CPU manager"
    go_type = "state.CPUManagerCheckpoint"
    older_go_type = "state.CPUManagerCheckpointV2"
    go_pods_type = "state.PodCPUAssignments"
    pod_key = "cpuSet"
    empty = ""
    unreadable = "could not parse a cpu set: {}"

    def __init__(self, path: Path, *, policy: str, pod_level: bool) -> None:
        super().__init__(path, policy=policy, pod_level=pod_level)
        self.shared: Cpus = NO_CPUS
        """The pool of all containers without exclusive CPUs; upstream's default set."""

    def owned(self, uid: str, container: str) -> Cpus | None:
        return self.entries.get(uid, {}).get(container)

    def owned_or_shared(self, uid: str, container: str) -> Cpus:
        own = self.owned(uid, container)
        return self.shared if own is None else own

    def all_owned(self) -> Cpus:
        return frozenset().union(*(cpus for each in self.entries.values() for cpus in each.values()))

    def set_shared(self, cpus: Cpus) -> None:
        self._changed = self._changed or cpus != self.shared
        self.shared = cpus

    def drop(self, uid: str) -> Cpus:
        """Release and return all CPUs of the pod."""
        mine = frozenset().union(*self.entries.pop(uid, {}).values(), self.pods.pop(uid, NO_CPUS))
        self._changed = True
        return mine

    def problem(self, why: str) -> Exception:
        return self._refusal(why)

    def _take_machine(self, data: dict[str, Any]) -> None:
        self.shared = parse_cpu_list(data.get("defaultCpuSet", ""))

    def _machine_json(self) -> dict[str, Any]:
        return {"defaultCpuSet": format_cpu_list(self.shared)}

    def _value_of(self, data: Any) -> Cpus:
        return parse_cpu_list(data)

    def _json(self, value: Cpus) -> object:
        return format_cpu_list(value)

    @staticmethod
    def _go_text(data: dict[str, Any]) -> str:
        entries = go_map({uid: go_map(each) for uid, each in (data.get("entries") or {}).items()})
        return f"DefaultCPUSet:(string){data['defaultCpuSet']} Entries:(map[string]map[string]string){entries}"

    @staticmethod
    def _go_pod_text(entry: dict[str, Any]) -> str:
        members = go_map({cpu: "{}" for cpu in parse_cpu_list(entry.get("cpuSet", ""))})
        return f"{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}}){members}}}}}"


# --- memory ---------------------------------------------------------------------------------------------------
# A block is an amount of memory or huge pages on a group of NUMA nodes. For each node the machine's table says what
# it has, what is kept for the system, what is assigned and what is free; `cells` is the group the node is used with.


class MemoryBlock(Struct, frozen=True, kw_only=True):
    nodes: tuple[int, ...]
    type: str
    """memory or hugepages-<size>."""
    size: int


class MemoryTable(Struct, kw_only=True):
    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    """Assigned to containers."""
    free: int


class NodeMemory(Struct, kw_only=True):
    assignments: int = 0
    """Blocks on this node."""
    tables: dict[str, MemoryTable] = field(default_factory=dict)
    cells: tuple[int, ...] = ()

    def free(self, name: str) -> int:
        return self.tables[name].free if name in self.tables else 0

    def allocatable(self, name: str) -> int:
        return self.tables[name].allocatable if name in self.tables else 0


MachineMemory = dict[int, NodeMemory]
Blocks = tuple[MemoryBlock, ...]


class MemoryState(ManagerState[Blocks]):
    manager = "memory manager"
    go_type = "state.MemoryManagerCheckpoint"
    older_go_type = "state.MemoryManagerCheckpointV1"
    go_pods_type = "state.PodMemoryAssignments"
    pod_key = "memoryBlocks"
    empty = None
    unreadable = "could not read an entry: {!r}"

    def __init__(self, path: Path, *, policy: str, pod_level: bool) -> None:
        super().__init__(path, policy=policy, pod_level=pod_level)
        self.machine: MachineMemory = {}

    def blocks(self, uid: str, container: str) -> Blocks | None:
        return self.entries.get(uid, {}).get(container)

    def snapshot(self) -> MachineMemory:
        """A copy to calculate on."""
        return copy.deepcopy(self.machine)

    def set_machine(self, machine: MachineMemory) -> None:
        self.machine = machine
        self._changed = True

    def drop(self, uid: str, container: str) -> Blocks | None:
        """Release and return the container's blocks."""
        mine = self.entries.get(uid, {}).pop(container, None)
        if not self.entries.get(uid, True):
            del self.entries[uid]
        self._changed = self._changed or mine is not None
        return mine

    def drop_pod(self, uid: str) -> Blocks | None:
        mine = self.pods.pop(uid, None)
        self._changed = self._changed or mine is not None
        return mine

    def problem(self, why: str) -> Exception:
        return self._refusal(f"[memorymanager] {why}")

    def _take_machine(self, data: dict[str, Any]) -> None:
        self.machine = {int(node): _node_of(each) for node, each in (data.get("machineState") or {}).items()}

    def _machine_json(self) -> dict[str, Any]:
        return {"machineState": {str(n): _node_json(each) for n, each in sorted(self.machine.items())}}

    def _value_of(self, data: Any) -> Blocks:
        return tuple(
            MemoryBlock(nodes=tuple(each.get("numaAffinity") or ()), type=each["type"], size=each["size"])
            for each in data or ()
        )

    def _json(self, value: Blocks) -> object:
        return [{"numaAffinity": list(each.nodes), "type": each.type, "size": each.size} for each in value]

    @staticmethod
    def _go_text(data: dict[str, Any]) -> str:
        # Go counts node numbers, JSON writes them as text.
        machine = go_map({int(node): _node_text(each) for node, each in (data.get("machineState") or {}).items()})
        entries = go_map(
            {
                uid: go_map({name: _blocks_text(blocks) for name, blocks in each.items()})
                for uid, each in (data.get("entries") or {}).items()
            }
        )
        return f"MachineState:(state.NUMANodeMap){machine} Entries:(state.ContainerMemoryAssignments){entries}"

    @staticmethod
    def _go_pod_text(entry: dict[str, Any]) -> str:
        return f"{{MemoryBlocks:([]state.Block){_blocks_text(entry.get('memoryBlocks'))}}}"


def _node_of(data: dict[str, Any]) -> NodeMemory:
    return NodeMemory(
        assignments=data["numberOfAssignments"],
        tables={name: _table_of(each) for name, each in (data.get("memoryMap") or {}).items()},
        cells=tuple(data.get("cells") or ()),
    )


def _table_of(data: dict[str, int]) -> MemoryTable:
    return MemoryTable(
        total=data["total"],
        system_reserved=data["systemReserved"],
        allocatable=data["allocatable"],
        reserved=data["reserved"],
        free=data["free"],
    )


def _node_json(node: NodeMemory) -> dict[str, Any]:
    return {
        "numberOfAssignments": node.assignments,
        "memoryMap": {
            name: {
                "total": table.total,
                "systemReserved": table.system_reserved,
                "allocatable": table.allocatable,
                "reserved": table.reserved,
                "free": table.free,
            }
            for name, table in sorted(node.tables.items())
        },
        "cells": list(node.cells),
    }


def _node_text(node: dict[str, Any]) -> str:
    tables = go_map({name: _table_text(each) for name, each in (node.get("memoryMap") or {}).items()})
    return (
        f"<*>{{NumberOfAssignments:(int){node['numberOfAssignments']} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){go_list(node.get('cells'))}}}"
    )


def _table_text(table: dict[str, int]) -> str:
    return (
        f"<*>{{TotalMemSize:(uint64){table['total']} SystemReserved:(uint64){table['systemReserved']} "
        f"Allocatable:(uint64){table['allocatable']} Reserved:(uint64){table['reserved']} "
        f"Free:(uint64){table['free']}}}"
    )


def _blocks_text(blocks: list[dict[str, Any]] | None) -> str:
    return go_list(None if blocks is None else [_block_text(each) for each in blocks])


def _block_text(block: dict[str, Any]) -> str:
    nodes = go_list(block.get("numaAffinity"))
    return f"{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){block['type']} Size:(uint64){block['size']}}}"


# --- both -----------------------------------------------------------------------------------------------------


class ManagerStates:
    """The state of both managers, kept on disk together."""

    def __init__(self, cpus: CpuState, memory: MemoryState) -> None:
        self.cpus = cpus
        self.memory = memory
        self._due = Wakeup()

    def write_soon(self) -> None:
        """For changes that are not acted on: a later write will do."""
        self._due.set()

    async def written(self) -> None:
        """Wait until the state is on disk as it is now. Raises NotWritten."""
        try:
            await self.cpus.flush()
            await self.memory.flush()
        except OSError as error:
            raise NotWritten(f"state of the CPU and memory managers cannot be written: {error}") from error

    async def keep_written(self) -> None:
        failed = False
        while True:
            await self._due.wait(at_most=WRITE_AGAIN if failed else None)
            try:
                await self.written()
                failed = False
            except NotWritten as error:
                logger.error("the state of the CPU and memory managers is not on disk", extra={"error": str(error)})
                failed = True
