"""Random machines with pods that own memory, coming and going: the state always adds up and survives a restart."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.api.types import Pod
from pykubelet.cm.errors import Refused
from pykubelet.cm.memory_manager import StaticMemoryPolicy, empty_machine
from pykubelet.cm.metrics import ResourceManagerMetrics
from pykubelet.cm.state import MemoryState
from pykubelet.cm.topology_manager import Merger, TopologyManager, nodes_of
from pykubelet.kit.metrics import Registry
from pykubelet.model.topology import Topology
from tests.builders import a_container, a_pod, a_sidecar
from tests.unit.cm.machines import GIB, StillClock, a_machine, whole

sizes = st.integers(1, 14).map(lambda gib: f"{gib}Gi")
machines = st.builds(
    a_machine,
    sockets=st.integers(1, 4),
    cores=st.just(1),
    memory=st.sampled_from([6 * GIB, 10 * GIB]),
    hugepages=st.sampled_from([(), ((2 << 20, 1024),)]),
)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    init = [a_container(f"init{n}", resources=whole(1, draw(sizes))) for n in range(draw(st.integers(0, 2)))]
    if draw(st.booleans()):
        init.insert(draw(st.integers(0, len(init))), a_sidecar("side", resources=whole(1, draw(sizes))))
    huge = {"hugepages_2Mi": "1Gi"} if draw(st.booleans()) else {}
    containers = [
        a_container(f"app{n}", resources=whole(1, draw(sizes), **huge)) for n in range(draw(st.integers(1, 2)))
    ]
    return a_pod("x", init=init, containers=containers)


class Unsaved(MemoryState):
    def save(self) -> None:
        """A thousand machines need no disk."""


class Node:
    def __init__(self, machine: Topology, policy: str, scope: str) -> None:
        self.machine, self.metrics = machine, ResourceManagerMetrics(Registry())
        self.kept = {node.id: {"memory": GIB} for node in machine.nodes}
        self.state = Unsaved(Path("unused"), policy="Static", pod_level=False)
        self.memory = self.restarted()
        merger = Merger(policy=policy, nodes=tuple(node.id for node in machine.nodes))
        self.topology = TopologyManager(
            merger=merger, scope=scope, providers=[self.memory], metrics=self.metrics, clock=StillClock()
        )
        self.policy = policy
        self.there: list[Pod] = []

    def restarted(self) -> StaticMemoryPolicy:
        """Another agent on the same state: its start checks it."""
        memory = StaticMemoryPolicy(topology=self.machine, kept=self.kept, state=self.state, metrics=self.metrics)
        memory.start()
        return memory

    def come(self, pod: Pod) -> None:
        uid = pod.metadata.uid or ""
        try:
            self.topology.admit(pod)
        except Refused:
            self.memory.release(uid)
            assert uid not in self.state.entries
            return
        self.there.append(pod)
        if self.policy == "single-numa-node":
            assert all(len(b.nodes) == 1 for blocks in self.state.entries[uid].values() for b in blocks)

    def leave(self, rank: int) -> None:
        if rank < len(self.there):
            self.memory.release(self.there.pop(rank).metadata.uid or "")

    def init_ends(self, rank: int) -> None:
        if rank < len(self.there):
            self.memory.created(self.there[rank], self.there[rank].spec.containers[0].name or "")

    def check(self) -> None:
        groups: dict[int, tuple[int, ...]] = {}
        for node, memory in self.state.machine.items():
            for table in memory.tables.values():
                assert table.free >= 0 and table.free + table.reserved == table.allocatable
            for member in memory.cells:
                assert groups.setdefault(member, memory.cells) == memory.cells, "a node is in two groups"
            assert node in memory.cells
        assigned = [b for each in self.state.entries.values() for blocks in each.values() for b in blocks]
        for name in {block.type for block in assigned}:
            taken = sum(each.tables[name].reserved for each in self.state.machine.values() if name in each.tables)
            assert taken == sum(block.size for block in assigned if block.type == name)
        self.restarted()


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    machine=machines,
    policy=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    scope=st.sampled_from(["container", "pod"]),
    story=st.lists(st.one_of(pods(), pods(), st.integers(0, 9)), min_size=1, max_size=7),
)
def test_pods_come_and_go(machine: Topology, policy: str, scope: str, story: list[Pod | int]) -> None:
    node = Node(machine, policy, scope)
    for number, event in enumerate(story):
        if isinstance(event, Pod):
            event.metadata.uid = f"uid-{number}"
            node.come(event)
        elif event < 5:
            node.leave(event)
        else:
            node.init_ends(event - 5)
        node.check()
    while node.there:
        node.leave(0)
    assert node.state.machine == empty_machine(machine, node.kept), "everything that was taken came back"
    assert node.state.entries == {}


def test_masks_name_their_nodes() -> None:
    assert nodes_of(0b1011) == (0, 1, 3)
