"""A thousand random machines with pods coming and going: nothing is owned twice, nothing is lost, and every choice
is the one that a slow reference makes, written straight from the facts."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod
from pykubelet.cm.cpu_assignment import take_distributed, take_packed
from pykubelet.cm.cpu_manager import CpuOptions, StaticCpuPolicy, choose_cpus, reserved_cpus
from pykubelet.cm.errors import NotAligned, NotEnoughCpus, Refused
from pykubelet.cm.metrics import ResourceManagerMetrics
from pykubelet.cm.requests import containers_of
from pykubelet.cm.state import CpuState
from pykubelet.cm.topology_manager import Hint, Merger, TopologyManager, masks, nodes_of
from pykubelet.kit.metrics import Registry
from pykubelet.model.topology import Cpus, Topology
from tests.builders import a_pod, a_sidecar
from tests.unit.cm.machines import StillClock, a_machine, owner, whole

machines = st.builds(
    a_machine,
    sockets=st.integers(1, 3),
    nodes_per_socket=st.sampled_from([1, 1, 2]),
    sockets_per_node=st.just(1),
    cores=st.integers(1, 6),
    threads=st.integers(1, 2),
    caches_per_node=st.sampled_from([1, 2]),
)


@st.composite
def machines_with_free_cpus(draw: st.DrawFn) -> tuple[Topology, Cpus, int]:
    machine = draw(machines)
    free = frozenset(draw(st.sets(st.sampled_from(sorted(machine.all_cpus)), min_size=1)))
    return machine, free, draw(st.integers(0, len(free) + 1))


# --- the accumulator against a slow one -----------------------------------------------------------------------


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(machines_with_free_cpus(), st.booleans())
def test_packed_is_what_the_facts_say(case: tuple[Topology, Cpus, int], spread: bool) -> None:
    machine, free, count = case
    try:
        found: Cpus | None = take_packed(machine, free, count, spread=spread)
    except NotEnoughCpus:
        found = None
    assert found == slow_packed(machine, free, count, spread=spread)


def slow_packed(machine: Topology, free: Cpus, count: int, *, spread: bool) -> Cpus | None:
    """Whole NUMA nodes or sockets, the coarser first, then the finer, then cores, then CPUs; of each kind always the
    one with the fewest free CPUs first, then the lower number, looking inside coarser ones in their order."""
    if count > len(free):
        return None
    taken: set[int] = set()
    sockets, nodes = {c.socket for c in machine.cpus}, {c.numa for c in machine.cpus}
    kinds = ["numa", "socket"] if len(sockets) >= len(nodes) else ["socket", "numa"]

    def left() -> set[int]:
        return set(free) - taken

    def of(kind: str, key: int, among: set[int]) -> set[int]:
        return {c.id for c in machine.cpus if getattr(c, kind) == key and c.id in among}

    def in_order(path: list[str], among: set[int], everything: set[int]) -> list[int]:
        kind, *finer = path
        keys = {getattr(c, kind) for c in machine.cpus if c.id in among}
        ordered = sorted(keys, key=lambda key: (len(of(kind, key, everything)), key))
        if not finer:
            return ordered
        return [each for key in ordered for each in in_order(finer, of(kind, key, among), everything)]

    steps = [kinds[:1], kinds] + ([] if spread else [[*kinds, "core"]])
    for path in steps:
        for key in in_order(path, left(), left()):
            members = of(path[-1], key, set(machine.all_cpus))
            if len(members) <= count - len(taken) and members <= left():
                taken |= members
    last = kinds if kinds[-1] == "socket" else kinds[:1]
    path = last if spread else [*kinds, "core"]
    remaining = [cpu for key in in_order(path, left(), left()) for cpu in sorted(of(path[-1], key, left()))]
    taken |= set(remaining[: count - len(taken)])
    return frozenset(taken)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(machines_with_free_cpus(), st.booleans())
def test_distributed_is_even_and_on_as_few_nodes_as_can_be(case: tuple[Topology, Cpus, int], whole_cores: bool) -> None:
    machine, free, count = case
    group = machine.threads_per_core if whole_cores else 1
    try:
        found = take_distributed(machine, free, count, group=group)
    except NotEnoughCpus:
        assert count > len(free)
        return
    assert len(found) == count and found <= free
    room = {node: len(members & free) for node, members in machine.groups("numa").items()}
    shares = sorted(len(found & members) for members in machine.groups("numa").values() if found & members)
    if not count or count % group:
        return
    if any(size >= count for size in room.values()):
        assert len(shares) == 1, "one node could hold it"
    for size in range(2, len(shares)):
        big = sorted(room.values())[-size:]
        assert min(big) < count // size // group * group or sum(each // group for each in big) * group < count, (
            "fewer nodes could hold even shares"
        )


@settings(max_examples=500, deadline=None, derandomize=True)
@given(machines_with_free_cpus())
def test_by_cache_never_spans_more_caches_than_without(case: tuple[Topology, Cpus, int]) -> None:
    machine, free, count = case
    if count > len(free):
        return
    found = take_packed(machine, free, count, by_cache=True)
    assert len(found) == count and found <= free
    one = [members for members in machine.groups("cache").values() if len(members) == count and members <= free]
    if one and len(machine.groups("numa")) == 1:
        assert len(machine.spanned("cache", found)) == 1


# --- whole nodes: pods come and go ----------------------------------------------------------------------------

some_options = st.sampled_from(
    [
        CpuOptions(),
        CpuOptions(full_cores=True),
        CpuOptions(across_numa=True),
        CpuOptions(across_numa=True, full_cores=True),
        CpuOptions(across_cores=True),
        CpuOptions(strict_reservation=True),
        CpuOptions(by_cache=True),
        CpuOptions(by_socket=True),
    ]
)
amounts = st.integers(1, 6)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    init = [owner(f"init{n}", draw(amounts)) for n in range(draw(st.integers(0, 2)))]
    if draw(st.booleans()):
        init.insert(draw(st.integers(0, len(init))), a_sidecar("side", resources=whole(draw(amounts))))
    containers = [owner(f"app{n}", draw(amounts)) for n in range(draw(st.integers(1, 2)))]
    return a_pod("x", init=init, containers=containers)


@st.composite
def stories(draw: st.DrawFn) -> list[Pod | int]:
    """Pods that come, and numbers: the pod of that rank among those that are there goes."""
    return draw(st.lists(st.one_of(pods(), st.integers(0, 5)), min_size=1, max_size=8))


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(
    machine=machines,
    options=some_options,
    policy=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    scope=st.sampled_from(["container", "pod"]),
    story=stories(),
)
def test_pods_come_and_go(
    machine: Topology, options: CpuOptions, policy: str, scope: str, story: list[Pod | int]
) -> None:
    node = Node(machine, options, policy, scope)
    for number, event in enumerate(story):
        if isinstance(event, int):
            node.leave(event)
        else:
            event.metadata.uid = f"uid-{number}"
            node.come(event)
        node.check()
    while node.there:
        node.leave(0)
    assert node.state.shared == node.pool, "everything that was taken came back"
    assert node.state.entries == {}


class Unsaved(CpuState):
    def save(self) -> None:
        """A thousand machines need no disk."""


class Node:
    def __init__(self, machine: Topology, options: CpuOptions, policy: str, scope: str) -> None:
        self.machine, self.options = machine, options
        self.reserved = reserved_cpus(machine, frozenset(), Quantity.parse("1"), options)
        self.pool = machine.all_cpus - (self.reserved if options.strict_reservation else frozenset())
        self.state = Unsaved(Path("unused"), policy="static", pod_level=False)
        metrics = ResourceManagerMetrics(Registry())
        self.cpus = StaticCpuPolicy(
            topology=machine, reserved=self.reserved, options=options, state=self.state, metrics=metrics
        )
        self.cpus.start()
        nodes = tuple(node.id for node in machine.nodes)
        self.topology = TopologyManager(
            merger=Merger(policy=policy, nodes=nodes),
            scope=scope,
            providers=[self.cpus],
            metrics=metrics,
            clock=StillClock(),
        )
        self.policy, self.scope = policy, scope
        self.there: list[Pod] = []

    def come(self, pod: Pod) -> None:
        before = dict(self.state.entries)
        expected = self.slow(pod)
        try:
            self.topology.admit(pod)
        except Refused as refused:
            assert expected is None or (isinstance(refused, NotAligned) and self.policy == "restricted"), refused
            self.cpus.release(pod.metadata.uid or "")
            assert self.state.entries == before
            return
        assert self.state.entries[pod.metadata.uid or ""] == expected
        self.there.append(pod)

    def leave(self, rank: int) -> None:
        if rank < len(self.there):
            self.cpus.release(self.there.pop(rank).metadata.uid or "")

    def check(self) -> None:
        owned: dict[int, str] = {}
        for uid, containers in self.state.entries.items():
            mine = frozenset().union(*containers.values())
            for cpu in mine:
                assert owned.setdefault(cpu, uid) == uid, "two pods own one CPU"
            pod = next(each for each in self.there if each.metadata.uid == uid)
            lasting = [containers[c.name or ""] for c in containers_of(pod) if not is_init(pod, c.name or "")]
            assert len(frozenset().union(*lasting)) == sum(map(len, lasting)), "two containers that run own one CPU"
            if self.options.full_cores:
                for each in containers.values():
                    assert self.machine.within("core", self.machine.spanned("core", each)) == each
        assert not self.state.shared & set(owned)
        assert self.state.shared | set(owned) == self.pool
        if not self.options.strict_reservation:
            assert self.reserved <= self.state.shared, "the shared pool is below its reserve"

    def slow(self, pod: Pod) -> dict[str, Cpus] | None:
        """What the pod must get, or None: container by container, without any bookkeeping of the policy."""
        shared, reuse = set(self.state.shared), frozenset[int]()
        given: dict[str, Cpus] = {}
        together = None
        if self.scope == "pod" and self.policy != "none":
            together = self.place(frozenset(shared) - self.reserved, frozenset(), hungriest(pod))
            if together is None:
                return None
        for container in containers_of(pod):
            wanted, name = count_of(container), container.name or ""
            free = frozenset(shared) - self.reserved
            place = together if self.policy != "none" else Hint(None, False)
            if place is None:
                place = self.place(free, reuse, wanted)
            if place is None or not self.fits_cores(frozenset(shared), wanted) or len(free | reuse) < wanted:
                return None
            mine = self.choose(free | reuse, place, wanted)
            given[name] = mine
            shared -= mine
            reuse = reuse | mine if is_init(pod, name) else reuse - mine
        return given

    def fits_cores(self, shared: Cpus, wanted: int) -> bool:
        if not self.options.full_cores:
            return True
        busy = self.machine.within("core", self.machine.spanned("core", self.reserved))
        return wanted % self.machine.threads_per_core == 0 and wanted <= len(shared - busy)

    def choose(self, free: Cpus, place: Hint, wanted: int) -> Cpus:
        near = frozenset[int]()
        if place.nodes is not None:
            near = self.machine.within("numa", nodes_of(place.nodes))
            if self.options.by_socket:
                near = self.machine.within("socket", self.machine.spanned("socket", near))
            near = choose_cpus(self.machine, free & near, min(wanted, len(free & near)), self.options)
        return near | choose_cpus(self.machine, free - near, wanted - len(near), self.options)

    def place(self, free: Cpus, reuse: Cpus, wanted: int) -> Hint | None:
        """The narrowest set of nodes with enough free CPUs, of those that could hold the request when empty."""
        sizes = self.machine.groups("numa")
        every = list(masks(sizes))
        fewest = min(
            (m.bit_count() for m in every if sum(len(sizes[n]) for n in nodes_of(m)) >= wanted), default=len(sizes)
        )
        fewest = min(fewest, len(sizes))
        able = []
        for mask in every:
            members = self.machine.within("numa", nodes_of(mask))
            if reuse <= members and len(reuse) + len(free & members) >= wanted:
                able.append(Hint(mask, mask.bit_count() == fewest or self.one_socket(mask, fewest)))
        if self.policy == "single-numa-node":
            able = [hint for hint in able if hint.preferred and (hint.nodes or 0).bit_count() == 1]
        whole_machine = sum(1 << node for node in sizes)
        least = min(((hint.nodes or 0).bit_count() for hint in able), default=0)
        able.sort(key=lambda h: (not h.preferred, abs((h.nodes or 0).bit_count() - least), h.nodes or 0))
        if not able:
            return Hint(whole_machine, False) if self.policy == "best-effort" else None
        if self.policy == "restricted" and not able[0].preferred:
            return None
        best = able[0]
        if self.policy == "single-numa-node" and best.nodes == whole_machine:
            return Hint(None, True)
        return best

    def one_socket(self, mask: int, fewest: int) -> bool:
        if not self.options.by_socket:
            return False
        per_socket = len(self.machine.cpu_nodes) // len(self.machine.groups("socket"))
        spanned = self.machine.spanned("socket", self.machine.within("numa", nodes_of(mask)))
        return per_socket > 0 and len(spanned) == -(-fewest // per_socket)


def is_init(pod: Pod, name: str) -> bool:
    return any(each.name == name and each.restart_policy != "Always" for each in pod.spec.init_containers)


def count_of(container: object) -> int:
    return int(container.resources.requests["cpu"])  # type: ignore[attr-defined]


def hungriest(pod: Pod) -> int:
    """The most CPUs at any moment of the pod's life."""
    moments, sidecars = [0], 0
    for each in pod.spec.init_containers:
        if is_init(pod, each.name or ""):
            moments.append(sidecars + count_of(each))
        else:
            sidecars += count_of(each)
    return max(*moments, sidecars + sum(count_of(each) for each in pod.spec.containers))
