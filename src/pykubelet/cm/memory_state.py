"""Which memory of which NUMA nodes belongs to whom, and the file `memory_manager_state`, upstream's format both ways.

A block is an amount of memory or huge pages on a group of NUMA nodes. For each node the machine's table says what
it has, what is kept for the system, what is assigned and what is free; `cells` is the group the node is used with.
Rules of who gets what are in `memory_policy.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from pykubelet.cm.state_checkpoint import CheckpointedState, CheckpointFile
from pykubelet.kit.go_text import go_list, go_map

STATE_FILE: Final = "memory_manager_state"


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


class MemoryState(CheckpointedState):
    def __init__(self, path: Path, *, policy: str, pod_level: bool) -> None:
        super().__init__(CheckpointFile(path, manager="memory manager", policy=policy, texts=self._texts))
        self._pod_level = pod_level
        self.machine: MachineMemory = {}
        self.entries: dict[str, dict[str, Blocks]] = {}
        self.pods: dict[str, Blocks] = {}
        """What pods with amounts of their own have for all their containers."""

    def load(self) -> None:
        """Take over what the file holds, or write a first one. PinningProblem when that cannot be."""
        data = self._file.read()
        if data is None:
            self._changed = True
            self.save()
            return
        try:
            self.machine = {int(node): _node_of(each) for node, each in (data.get("machineState") or {}).items()}
            self.entries = {
                uid: {name: _blocks_of(blocks) for name, blocks in each.items()}
                for uid, each in (data.get("entries") or {}).items()
            }
            self.pods = {
                uid: _blocks_of(each.get("memoryBlocks")) for uid, each in (data.get("podEntries") or {}).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._file.problem(f"could not read an entry: {error!r}") from error

    def _content(self) -> tuple[dict[str, Any], str]:
        data: dict[str, Any] = {"machineState": {str(n): _node_json(each) for n, each in sorted(self.machine.items())}}
        if self.entries:
            data["entries"] = {
                uid: {name: _blocks_json(blocks) for name, blocks in sorted(each.items())}
                for uid, each in sorted(self.entries.items())
            }
        if self.pods and self._pod_level:
            data["podEntries"] = {uid: {"memoryBlocks": _blocks_json(each)} for uid, each in sorted(self.pods.items())}
        form = pod_level_text if self._pod_level else plain_text
        return data, form({"policyName": self._file.policy, **data})

    def problem(self, why: str) -> Exception:
        return self._file.problem(f"[memorymanager] {why}")

    def _texts(self, data: dict[str, Any]) -> Iterable[str]:
        yield plain_text(data)
        yield plain_text(data).replace("MemoryManagerCheckpoint", "MemoryManagerCheckpointV1", 1)
        if self._pod_level or not data.get("podEntries"):
            yield pod_level_text(data)

    # --- reading and changing ---------------------------------------------------------------------------

    def blocks(self, uid: str, container: str) -> Blocks | None:
        return self.entries.get(uid, {}).get(container)

    def snapshot(self) -> MachineMemory:
        """A copy to calculate on."""
        return copy.deepcopy(self.machine)

    def set_machine(self, machine: MachineMemory) -> None:
        self.machine = machine
        self._changed = True

    def own(self, uid: str, container: str, blocks: Blocks) -> None:
        self.entries.setdefault(uid, {})[container] = blocks
        self._changed = True

    def own_pod(self, uid: str, blocks: Blocks) -> None:
        self.pods[uid] = blocks
        self._changed = True

    def drop(self, uid: str, container: str) -> Blocks | None:
        """The container's blocks, which are nobody's now."""
        mine = self.entries.get(uid, {}).pop(container, None)
        if not self.entries.get(uid, True):
            del self.entries[uid]
        self._changed = self._changed or mine is not None
        return mine

    def drop_pod(self, uid: str) -> Blocks | None:
        mine = self.pods.pop(uid, None)
        self._changed = self._changed or mine is not None
        return mine


# --- JSON -------------------------------------------------------------------------------------------------


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


def _blocks_of(data: list[dict[str, Any]] | None) -> Blocks:
    return tuple(
        MemoryBlock(nodes=tuple(each.get("numaAffinity") or ()), type=each["type"], size=each["size"])
        for each in data or ()
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


def _blocks_json(blocks: Blocks) -> list[dict[str, Any]]:
    return [{"numaAffinity": list(each.nodes), "type": each.type, "size": each.size} for each in blocks]


# --- what the checksum is taken over ------------------------------------------------------------------------


def plain_text(data: dict[str, Any]) -> str:
    return f"(*state.MemoryManagerCheckpoint){{{_head(data)} Checksum:(checksum.Checksum)0}}"


def pod_level_text(data: dict[str, Any]) -> str:
    pods = go_map({uid: _pod_entry_text(each) for uid, each in (data.get("podEntries") or {}).items()})
    own = f"PodEntries:(state.PodMemoryAssignments){pods}"
    return f"(*state.MemoryManagerCheckpoint){{{_head(data)} {own} Checksum:(checksum.Checksum)0}}"


def _head(data: dict[str, Any]) -> str:
    # Go counts node numbers, JSON writes them as text.
    machine = go_map({int(node): _node_text(each) for node, each in (data.get("machineState") or {}).items()})
    entries = go_map(
        {
            uid: go_map({name: _blocks_text(blocks) for name, blocks in each.items()})
            for uid, each in (data.get("entries") or {}).items()
        }
    )
    return (
        f"PolicyName:(string){data['policyName']} MachineState:(state.NUMANodeMap){machine} "
        f"Entries:(state.ContainerMemoryAssignments){entries}"
    )


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


def _pod_entry_text(entry: dict[str, Any]) -> str:
    return f"{{MemoryBlocks:([]state.Block){_blocks_text(entry.get('memoryBlocks'))}}}"


def _blocks_text(blocks: list[dict[str, Any]] | None) -> str:
    return go_list(None if blocks is None else [_block_text(each) for each in blocks])


def _block_text(block: dict[str, Any]) -> str:
    nodes = go_list(block.get("numaAffinity"))
    return f"{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){block['type']} Size:(uint64){block['size']}}}"
