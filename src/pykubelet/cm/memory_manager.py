"""The static memory policy: memory and huge pages of Guaranteed pods on as few NUMA nodes as can hold them.

Memory of init containers that have ended is counted for later containers of the pod. A container that has its
blocks keeps them when admitted again, and an init container whose successors have theirs is not served once more, so a
restarted agent changes nothing. Containers are bound to their nodes by `cpuset.mems`, set when they are created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, Pod
from pykubelet.cm.errors import NoMemory, NothingShared, Refused, ResourceManagerError
from pykubelet.cm.metrics import ResourceManagerMetrics
from pykubelet.cm.requests import Bytes, container_memory, containers_of, is_run_to_end, pod_memory
from pykubelet.cm.state import Blocks, MachineMemory, MemoryBlock, MemoryState, MemoryTable, NodeMemory
from pykubelet.cm.topology_manager import Hint, Hints, mask_of, masks, nodes_of
from pykubelet.model.pod import is_sidecar, uid_of
from pykubelet.model.pod_resources import MEMORY, has_pod_level_resources
from pykubelet.model.topology import Topology
from pykubelet.settings.flag_forms import MemoryReservation

# --- arithmetic: the table of an empty machine, taking a block, releasing it --------------------------------
# A node is used either alone or always together with the same others (its cells), so that the memory of a container
# that spans nodes cannot be taken by one that was assigned a single node.


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
            raise ResourceManagerError(
                f"reservedMemory: references a NUMA node {each.numa_node} that does not exist on this machine"
            )
        for name, text in each.limits.items():
            size = Quantity.parse(text).value()
            found[each.numa_node][name] = size
            sums[name] = sums.get(name, 0) + size
    for name in sorted({*sums, *(name for name in expected if name == MEMORY or name.startswith("hugepages-"))}):
        wanted = expected[name].value() if name in expected else 0
        if sums.get(name, 0) != wanted:
            raise ResourceManagerError(
                f"reservedMemory: the total amount {_text(sums.get(name, 0))!r} of type {name!r} is not equal to the "
                f"value {_text(wanted)!r} determined by Node Allocatable feature (kubeReserved + systemReserved + "
                "evictionHard memory.available)"
            )
    if not sums.get(MEMORY):
        raise ResourceManagerError("memoryManagerPolicy: [memorymanager] you should specify the system reserved memory")
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
    """In what the state differs from what the machine and the assignments say; empty when in nothing."""
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


STATIC: Final = "Static"
NO_CHOICE: Final[Hints] = {}

_Reusable = dict[tuple[tuple[int, ...], str], int]
"""Bytes of ended init containers, by NUMA nodes and resource."""


class StaticMemoryPolicy:
    """Implements HintProvider."""

    def __init__(
        self,
        *,
        topology: Topology,
        kept: Kept,
        state: MemoryState,
        metrics: ResourceManagerMetrics,
        pod_level: bool = False,
    ) -> None:
        self._topology = topology
        self._kept = kept
        self._state = state
        self._metrics = metrics
        self._pod_level = pod_level
        self._reusable: tuple[str, _Reusable] = ("", {})

    def start(self) -> None:
        """Check the state against the machine, or begin it. ResourceManagerError when they do not fit."""
        expected = empty_machine(self._topology, self._kept)
        if not self._state.machine:
            if self._state.entries:
                raise self._state.problem("machine state can not be empty when it has memory assignments")
            self._state.set_machine(expected)
            self._state.save()
            return
        for uid, containers in self._state.entries.items():
            whole = self._state.pods.get(uid) if self._pod_level else None
            for name, blocks in {"": whole}.items() if whole else containers.items():
                for block in blocks:
                    if any(node not in expected or block.type not in expected[node].tables for node in block.nodes):
                        what = f"(pod: {uid}, container: {name}) the memory assignment uses NUMA node or memory "
                        raise self._state.problem(f"{what}resource that does not exist")
                    assign(expected, block)
        why = difference(self._state.machine, expected)
        if why:
            raise self._state.problem(f"the expected machine state is different from the real one: {why}")

    @property
    def allocatable(self) -> Blocks:
        return tuple(
            MemoryBlock(nodes=(node,), type=name, size=table.allocatable)
            for node, memory in sorted(self._state.machine.items())
            for name, table in sorted(memory.tables.items())
            if table.allocatable
        )

    # --- hints ------------------------------------------------------------------------------------------

    def hints(self, pod: Pod, container: Container) -> Hints:
        wanted = self._wanted(pod, container)
        if not wanted or self._has_ended(pod, container):
            return NO_CHOICE
        blocks = self._state.blocks(uid_of(pod), container.name)
        if blocks is not None:
            return _regenerated(blocks, wanted)
        return self._places(self._state.machine, pod, wanted)

    def pod_hints(self, pod: Pod) -> Hints:
        wanted = pod_memory(pod, pod_level=self._pod_level)
        if not wanted:
            return NO_CHOICE
        whole = self._state.pods.get(uid_of(pod))
        if whole is not None:
            return _regenerated(whole, wanted)
        if has_pod_level_resources(pod) and self._shared_problem(pod, wanted):
            return {name: () for name in wanted}
        for each in containers_of(pod):
            blocks = self._state.blocks(uid_of(pod), each.name)
            if blocks is not None:
                # Where one container is, the others are as well.
                nodes = {block.type: mask_of(block.nodes) for block in blocks}
                return {name: (Hint(nodes[name], True),) if name in nodes else None for name in wanted}
        return self._places(self._state.machine, pod, wanted)

    def _places(self, machine: MachineMemory, pod: Pod, wanted: Bytes) -> Hints:
        """For each resource every set of NUMA nodes that has enough of all of them.

        As upstream: when there is none the topology policy is not applied, and the allocation says why it fails.
        """
        fewest = len(machine)
        found: list[int] = []
        for mask in masks(machine):
            nodes = nodes_of(mask)
            if any(sum(machine[node].allocatable(name) for node in nodes) < size for name, size in wanted.items()):
                continue
            fewest = min(fewest, len(nodes))
            if len(nodes) == 1 and len(machine[nodes[0]].cells) > 1:
                continue
            if breaks_groups(machine, nodes):
                continue
            missing = {name: size - self._reusable_of(pod, nodes, name) for name, size in wanted.items()}
            if satisfies(machine, nodes, missing):
                found.append(mask)
        hints = tuple(Hint(mask, mask.bit_count() == fewest) for mask in found)
        return {name: hints for name in wanted} if hints else NO_CHOICE

    # --- allocating -----------------------------------------------------------------------------------------

    def allocate(self, pod: Pod, container: Container, place: Hint) -> None:
        wanted = self._wanted(pod, container)
        if not wanted or self._has_ended(pod, container):
            return
        uid, name = uid_of(pod), container.name
        self._metrics.memory_requests.inc()
        blocks = self._state.blocks(uid, name)
        if blocks is not None:
            self._note_reusable(pod, container, blocks)
            return
        machine = self._state.snapshot()
        try:
            nodes = self._settle(machine, pod, wanted, place)
        except Refused:
            self._failed("node")
            raise
        blocks = tuple(MemoryBlock(nodes=nodes, type=type_, size=size) for type_, size in wanted.items())
        for block in blocks:
            assign(machine, block, max(0, block.size - self._reusable_of(pod, nodes, block.type)))
            self._metrics.allocations.inc(MEMORY, "node")
        self._note_reusable(pod, container, blocks)
        self._state.set_machine(machine)
        self._state.own(uid, name, blocks)
        self._charge_init_containers(pod, container, blocks)
        self._metrics.containers.inc(MEMORY, "node_exclusive")

    def allocate_pod(self, pod: Pod, place: Hint) -> None:
        wanted = pod_memory(pod, pod_level=self._pod_level)
        uid = uid_of(pod)
        if not wanted or uid in self._state.pods:
            return
        self._metrics.memory_requests.inc()
        machine = self._state.snapshot()
        try:
            problem = self._shared_problem(pod, wanted)
            if problem:
                raise NothingShared(problem)
            nodes = self._settle(machine, pod, wanted, place)
        except Refused:
            self._failed("pod")
            raise
        whole = _blocks(nodes, wanted)
        for block in whole:
            assign(machine, block)
        self._state.own_pod(uid, whole)
        self._share_out(pod, nodes, wanted)
        self._state.set_machine(machine)

    def _share_out(self, pod: Pod, nodes: tuple[int, ...], whole: Bytes) -> None:
        uid, pool = uid_of(pod), dict(whole)
        chosen: dict[str, Blocks] = {}
        for each in containers_of(pod):
            own, name = self._wanted(pod, each), each.name
            if own:
                chosen[name] = _blocks(nodes, own)
                self._metrics.containers.inc(MEMORY, "pod_exclusive")
                if not is_run_to_end(pod, each):
                    pool = {type_: size - own.get(type_, 0) for type_, size in pool.items()}
            elif is_run_to_end(pod, each):
                chosen[name] = _blocks(nodes, pool)
                self._metrics.containers.inc(MEMORY, "pod_shared")
        for each in containers_of(pod):
            name = each.name
            if name not in chosen:
                self._metrics.containers.inc(MEMORY, "pod_shared")
            self._state.own(uid, name, chosen[name] if name in chosen else _blocks(nodes, pool))
            self._metrics.allocations.inc(MEMORY, "pod")

    def _shared_problem(self, pod: Pod, whole: Mapping[str, int]) -> str:
        exclusive = dict.fromkeys(whole, 0)
        shares = False
        for each in containers_of(pod):
            own = self._wanted(pod, each)
            if is_run_to_end(pod, each):
                for name, size in whole.items() if not own else ():
                    if exclusive[name] >= size:
                        return f"pod rejected, pod has shared init containers but no {name} available for them"
                continue
            shares = shares or not own
            for name, size in own.items():
                exclusive[name] = exclusive.get(name, 0) + size
        for name, size in whole.items() if shares else ():
            if exclusive[name] >= size:
                return (
                    f"pod rejected, sum of exclusive container {name} requests equals pod budget, "
                    "leaving no memory for shared containers"
                )
        return ""

    def _wanted(self, pod: Pod, container: Container) -> Bytes:
        return container_memory(pod, container, pod_level=self._pod_level)

    def _settle(self, machine: MachineMemory, pod: Pod, wanted: Bytes, place: Hint) -> tuple[int, ...]:
        """The NUMA nodes to use: the place if it has enough, else the smallest extension of it that has."""
        best = place
        if best.nodes is None:
            found = list(self._places(machine, pod, wanted).get(MEMORY) or ())
            if not found:
                raise NoMemory("failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
            best = self._no_worse(_narrowest(found), place, "default")
        assert best.nodes is not None
        if not satisfies(machine, nodes_of(best.nodes), wanted):
            within = best.nodes
            wider = [
                h for h in self._places(machine, pod, wanted).get(MEMORY) or () if within & (h.nodes or 0) == within
            ]
            if not wider:
                raise NoMemory("failed to find NUMA nodes to extend the current topology hint")
            best = self._no_worse(_narrowest(wider), best, "extended")
        assert best.nodes is not None
        nodes = nodes_of(best.nodes)
        if breaks_groups(machine, nodes):
            raise NoMemory("preferred hint violates NUMA node allocation")
        return nodes

    def _no_worse(self, found: Hint, wanted: Hint, what: str) -> Hint:
        if wanted.preferred and not found.preferred:
            raise NoMemory(f"failed to find the {what} preferred hint")
        return found

    # --- reusing ------------------------------------------------------------------------------------

    def _has_ended(self, pod: Pod, container: Container) -> bool:
        """An init container without blocks whose successors have some was served before and released them."""
        assigned = self._state.entries.get(uid_of(pod), {})
        return (
            is_run_to_end(pod, container)
            and container.name not in assigned
            and self._later_has(pod, container, assigned)
        )

    def _later_has(self, pod: Pod, container: Container, assigned: Mapping[str, Blocks]) -> bool:
        names = [each.name for each in containers_of(pod)]
        return any(name in assigned for name in names[names.index(container.name) + 1 :])

    def _reusable_of(self, pod: Pod, nodes: tuple[int, ...], type_: str) -> int:
        uid, sizes = self._reusable
        return sizes.get((nodes, type_), 0) if uid == uid_of(pod) else 0

    def _note_reusable(self, pod: Pod, container: Container, blocks: Blocks) -> None:
        uid, sizes = self._reusable
        if uid != uid_of(pod):
            sizes = {}
        for block in blocks:
            key = (block.nodes, block.type)
            before = sizes.get(key, 0)
            sizes[key] = max(before, block.size) if is_run_to_end(pod, container) else max(0, before - block.size)
        self._reusable = (uid_of(pod), sizes)

    def _charge_init_containers(self, pod: Pod, container: Container, blocks: Blocks) -> None:
        """What a container takes over from earlier init containers is its own from now on, not theirs."""
        uid = uid_of(pod)
        for block in blocks:
            left = block.size
            for earlier in pod.spec.init_containers:
                if earlier.name == container.name or left == 0:
                    break
                assigned = self._state.blocks(uid, earlier.name)
                if is_sidecar(earlier) or not assigned:
                    continue
                kept: list[MemoryBlock] = []
                for each in assigned:
                    part = min(left, each.size) if (each.type, each.nodes) == (block.type, block.nodes) else 0
                    left -= part
                    kept.append(MemoryBlock(nodes=each.nodes, type=each.type, size=each.size - part))
                self._state.own(uid, earlier.name, tuple(kept))

    # --- releasing ------------------------------------------------------------------------------------

    def created(self, pod: Pod, container: str) -> bool:
        """A container is being created: init containers before it have ended. True when that freed memory."""
        freed = False
        uid = uid_of(pod)
        if uid in self._state.pods:
            return False
        for earlier in pod.spec.init_containers:
            if earlier.name == container:
                break
            if not is_sidecar(earlier):
                freed = self._release_container(uid, earlier.name) or freed
        return freed

    def lacks(self, pod: Pod, container: Container) -> bool:
        """Whether the container should have memory of its own and has not."""
        served = self._state.blocks(uid_of(pod), container.name) is not None or self._has_ended(pod, container)
        return not served and bool(self._wanted(pod, container))

    def holders(self) -> frozenset[str]:
        return frozenset(self._state.entries) | frozenset(self._state.pods)

    def release(self, uid: str) -> None:
        whole = self._state.drop_pod(uid)
        for name in list(self._state.entries.get(uid, ())):
            if whole is None:
                self._release_container(uid, name)
            else:
                self._state.drop(uid, name)
        self._free(whole or ())
        if self._reusable[0] == uid:
            self._reusable = ("", {})

    def _release_container(self, uid: str, name: str) -> bool:
        blocks = self._state.drop(uid, name)
        self._free(blocks or ())
        return blocks is not None

    def _free(self, blocks: Blocks) -> None:
        if not blocks:
            return
        machine = self._state.snapshot()
        for block in blocks:
            give_back(machine, block)
        self._state.set_machine(machine)

    def _failed(self, source: str) -> None:
        self._metrics.memory_errors.inc()
        self._metrics.allocation_errors.inc(MEMORY, source)


def _blocks(nodes: tuple[int, ...], sizes: Mapping[str, int]) -> Blocks:
    return tuple(MemoryBlock(nodes=nodes, type=name, size=size) for name, size in sorted(sizes.items()) if size > 0)


def _regenerated(blocks: Blocks, wanted: Mapping[str, int]) -> Hints:
    """Hints for what is assigned already: just its place. None (anywhere) when it differs from what is requested."""
    assigned = {block.type: block for block in blocks}
    if len(blocks) != len(wanted) or any(
        name not in assigned or assigned[name].size != size for name, size in wanted.items()
    ):
        return NO_CHOICE
    return {name: (Hint(mask_of(assigned[name].nodes), True),) for name in wanted}


def _narrowest(hints: Sequence[Hint]) -> Hint:
    """Of the preferred ones, if there are any, that with the fewest nodes."""
    return min(hints, key=lambda hint: (not hint.preferred, (hint.nodes or 0).bit_count(), hint.nodes or 0))
