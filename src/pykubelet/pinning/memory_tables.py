"""The arithmetic of memory on NUMA nodes: the table of an empty machine, taking a block, giving it back. Pure.

A node is used either alone or always together with the same others (its cells), so that the memory of a container
that spans nodes cannot be eaten by one that was promised a single node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.api.quantity import Quantity
from pykubelet.model.pod_resources import MEMORY
from pykubelet.model.topology import Topology
from pykubelet.pinning.memory_state import MachineMemory, MemoryBlock, MemoryTable, NodeMemory
from pykubelet.pinning.problems import PinningProblem
from pykubelet.settings.flag_forms import MemoryReservation

Kept = Mapping[int, Mapping[str, int]]
"""Bytes kept for the system, by NUMA node and resource."""


def kept_memory(
    topology: Topology, reservations: Sequence[MemoryReservation], expected: Mapping[str, Quantity]
) -> Kept:
    """The reservations of the configuration; their sums must be what is kept from pods anyway (`expected`)."""
    nodes = {node.id for node in topology.nodes}
    found: dict[int, dict[str, int]] = {node: {} for node in nodes}
    sums: dict[str, int] = {}
    for each in reservations:
        if each.numa_node not in nodes:
            raise PinningProblem(
                f"reservedMemory: references a NUMA node {each.numa_node} that does not exist on this machine"
            )
        for name, text in each.limits.items():
            size = Quantity.parse(text).value()
            found[each.numa_node][name] = size
            sums[name] = sums.get(name, 0) + size
    for name in sorted({*sums, *(name for name in expected if name == MEMORY or name.startswith("hugepages-"))}):
        wanted = expected[name].value() if name in expected else 0
        if sums.get(name, 0) != wanted:
            raise PinningProblem(
                f"reservedMemory: the total amount {_text(sums.get(name, 0))!r} of type {name!r} is not equal to the "
                f"value {_text(wanted)!r} determined by Node Allocatable feature (kubeReserved + systemReserved + "
                "evictionHard memory.available)"
            )
    if not sums.get(MEMORY):
        raise PinningProblem("memoryManagerPolicy: [memorymanager] you should specify the system reserved memory")
    return found


def _text(size: int) -> str:
    return str(Quantity.of_bytes(size))


def empty_machine(topology: Topology, kept: Kept) -> MachineMemory:
    machine: MachineMemory = {}
    for node in topology.nodes:
        reserved = kept.get(node.id, {})
        tables = {}
        huge = 0
        for page, count in node.hugepages:
            name = f"hugepages-{Quantity.of_bytes(page)}"
            tables[name] = _table(page * count, reserved.get(name, 0))
            huge += page * count
        tables[MEMORY] = _table(node.memory_bytes, reserved.get(MEMORY, 0), elsewhere=huge)
        machine[node.id] = NodeMemory(tables=tables, cells=(node.id,))
    return machine


def _table(total: int, reserved: int, *, elsewhere: int = 0) -> MemoryTable:
    free = max(0, total - reserved - elsewhere)
    return MemoryTable(total=total, system_reserved=reserved, allocatable=free, reserved=0, free=free)


def assign(machine: MachineMemory, block: MemoryBlock, size: int | None = None) -> None:
    """Put the block on its nodes, the first ones first. `size`: how much of it must come from what is free."""
    left = block.size if size is None else size
    for node in block.nodes:
        memory = machine[node]
        memory.assignments += 1
        memory.cells = block.nodes
        table = memory.tables.get(block.type)
        if table is not None:
            part = min(left, table.free)
            table.free -= part
            table.reserved += part
            left -= part


def give_back(machine: MachineMemory, block: MemoryBlock) -> None:
    left = block.size
    for node in block.nodes:
        memory = machine[node]
        memory.assignments -= 1
        if memory.assignments == 0:
            memory.cells = (node,)
        table = memory.tables.get(block.type)
        if table is not None:
            part = min(left, table.reserved)
            table.free += part
            table.reserved -= part
            left -= part


def satisfies(machine: MachineMemory, nodes: Sequence[int], wanted: Mapping[str, int]) -> bool:
    return all(sum(machine[node].free(name) for node in nodes) >= size for name, size in wanted.items())


def breaks_groups(machine: MachineMemory, nodes: Sequence[int]) -> bool:
    """Whether using these nodes together breaks up a group, or makes one of nodes that are used alone."""
    return len(nodes) > 1 and any(
        machine[node].assignments > 0 and (len(machine[node].cells) == 1 or not _same(machine[node].cells, nodes))
        for node in nodes
    )


def _same(one: Sequence[int], other: Sequence[int]) -> bool:
    return sorted(one) == sorted(other)


def difference(found: MachineMemory, expected: MachineMemory) -> str:
    """In what the books differ from what the machine and the assignments say; empty when in nothing."""
    if found.keys() != expected.keys():
        return f"NUMA nodes {sorted(found)} in the file, {sorted(expected)} on this machine"
    for node, one in sorted(found.items()):
        other = expected[node]
        if one.assignments != other.assignments:
            return f"node {node}: {one.assignments} assignments in the file, {other.assignments} expected"
        if not _same(one.cells, other.cells):
            return f"node {node}: used with {list(one.cells)} in the file, with {list(other.cells)} expected"
        if one.tables.keys() != other.tables.keys():
            return f"node {node}: {sorted(one.tables)} in the file, {sorted(other.tables)} on this machine"
        for name, table in one.tables.items():
            own = other.tables[name]
            for field in ("total", "system_reserved", "allocatable"):
                if getattr(table, field) != getattr(own, field):
                    said, is_ = getattr(table, field), getattr(own, field)
                    return f"node {node}, {name}: {field} is {said} in the file and {is_} on this machine"
            # Within a group it does not matter on which of its nodes the memory is counted.
            for field in ("free", "reserved"):
                said = sum(getattr(found[each].tables[name], field) for each in one.cells)
                is_ = sum(getattr(expected[each].tables[name], field) for each in one.cells)
                if said != is_:
                    return f"nodes {list(one.cells)}, {name}: {field} is {said} in the file, {is_} expected"
    return ""
