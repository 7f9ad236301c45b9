"""The static memory policy: blocks on NUMA nodes, groups of nodes, init containers, reservations, the state."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod
from pykubelet.cm.errors import NoMemory, NothingShared, ResourceManagerError
from pykubelet.cm.memory_manager import Kept, StaticMemoryPolicy, kept_memory
from pykubelet.cm.metrics import ResourceManagerMetrics
from pykubelet.cm.requests import containers_of
from pykubelet.cm.state import MemoryBlock, MemoryState
from pykubelet.cm.topology_manager import NO_HINT, Hint, mask_of
from pykubelet.kit.metrics import Registry
from pykubelet.model.topology import Topology
from pykubelet.settings.flag_forms import MemoryReservation
from tests.builders import a_container, a_pod, a_sidecar
from tests.unit.cm.machines import GIB, a_machine, guaranteed, owner, whole

TWO = a_machine(sockets=2, memory=10 * GIB)
KEPT: Kept = {0: {"memory": GIB}, 1: {"memory": GIB}}
HUGE = "hugepages-2Mi"


def static_memory(
    folder: Path, topology: Topology = TWO, kept: Kept = KEPT, *, pod_level: bool = False
) -> tuple[StaticMemoryPolicy, MemoryState]:
    state = MemoryState(folder / "memory_manager_state", policy="Static", pod_level=pod_level)
    policy = StaticMemoryPolicy(
        topology=topology, kept=kept, state=state, metrics=ResourceManagerMetrics(Registry()), pod_level=pod_level
    )
    state.load()
    policy.start()
    return policy, state


def give(policy: StaticMemoryPolicy, pod: Pod, place: Hint = NO_HINT) -> None:
    for container in containers_of(pod):
        policy.allocate(pod, container, place)


def free(state: MemoryState) -> list[int]:
    return [node.free("memory") // GIB for _, node in sorted(state.machine.items())]


def test_memory_goes_to_one_node_while_it_fits(tmp_path: Path) -> None:
    policy, state = static_memory(tmp_path)
    give(policy, guaranteed("a", 1, "6Gi"))
    give(policy, guaranteed("b", 1, "6Gi"))
    assert state.blocks("uid-a", "app") == (MemoryBlock(nodes=(0,), type="memory", size=6 * GIB),)
    assert state.blocks("uid-b", "app") == (MemoryBlock(nodes=(1,), type="memory", size=6 * GIB),)
    assert free(state) == [3, 3]
    # Both nodes are used alone: they cannot be made a group now.
    with pytest.raises(NoMemory, match=r"^\[memorymanager\] failed to get the default NUMA affinity"):
        give(policy, guaranteed("c", 1, "4Gi"))
    policy.release("uid-a")
    policy.release("uid-b")
    assert free(state) == [9, 9] and state.entries == {}


def test_nodes_used_together_stay_together(tmp_path: Path) -> None:
    policy, state = static_memory(tmp_path)
    give(policy, guaranteed("big", 1, "12Gi"))
    assert [block.nodes for block in state.blocks("uid-big", "app") or ()] == [(0, 1)]
    assert [node.cells for node in state.machine.values()] == [(0, 1), (0, 1)]
    assert free(state) == [0, 6]
    pod = guaranteed("small", 1, "2Gi")
    hints = policy.hints(pod, pod.spec.containers[0])["memory"] or ()
    assert [(hint.nodes, hint.preferred) for hint in hints] == [(0b11, False)], "no node alone any more"
    give(policy, pod)
    assert [node.assignments for node in state.machine.values()] == [2, 2]
    policy.release("uid-big")
    policy.release("uid-small")
    assert [node.cells for node in state.machine.values()] == [(0,), (1,)] and free(state) == [9, 9]


def test_a_place_that_is_too_small_is_extended(tmp_path: Path) -> None:
    policy, state = static_memory(tmp_path)
    give(policy, guaranteed("a", 1, "10Gi"), Hint(mask_of([1]), False))
    assert [block.nodes for block in state.blocks("uid-a", "app") or ()] == [(0, 1)]
    with pytest.raises(NoMemory, match="failed to find NUMA nodes to extend the current topology hint"):
        give(policy, guaranteed("b", 1, "10Gi"), Hint(mask_of([1]), False))


def test_huge_pages_are_counted_apart_from_memory(tmp_path: Path) -> None:
    machine = a_machine(sockets=2, memory=10 * GIB, hugepages=((2 << 20, 512),))
    policy, state = static_memory(tmp_path, machine)
    assert free(state) == [8, 8], "what is set aside for huge pages is no memory"
    pod = a_pod(containers=[a_container("app", resources=whole(1, "1Gi", hugepages_2Mi="1Gi"))])
    give(policy, pod)
    assert [block.type for block in state.blocks("uid-web", "app") or ()] == [HUGE, "memory"]
    assert [node.free(HUGE) for node in state.machine.values()] == [0, GIB]
    assert {(block.type, block.nodes) for block in policy.allocatable} == {
        (HUGE, (0,)),
        (HUGE, (1,)),
        ("memory", (0,)),
        ("memory", (1,)),
    }


def test_init_containers_hand_their_memory_on(tmp_path: Path) -> None:
    policy, state = static_memory(tmp_path)
    pod = a_pod(
        init=[owner("first", 1, "4Gi"), a_sidecar("side", resources=whole(1, "1Gi"))],
        containers=[owner("app", 1, "5Gi")],
    )
    give(policy, pod)
    owned = {name: sum(block.size for block in blocks) // GIB for name, blocks in state.entries["uid-web"].items()}
    assert owned == {"first": 0, "side": 1, "app": 5}
    assert free(state)[0] == 9 - 6
    assert policy.created(pod, "app") and "first" not in state.entries["uid-web"]
    assert not policy.created(pod, "app")
    assert free(state)[0] == 9 - 6
    # The agent restarts: the init container is not served a second time.
    state.save()
    again, state_again = static_memory(tmp_path)
    give(again, pod)
    assert "first" not in state_again.entries["uid-web"] and free(state_again)[0] == 9 - 6
    again.release("uid-web")
    assert free(state_again) == [9, 9]


def test_pods_of_other_classes_ask_for_nothing(tmp_path: Path) -> None:
    policy, state = static_memory(tmp_path)
    for pod in (a_pod(), a_pod(containers=[owner()], resources=whole(1, "2Gi"))):
        give(policy, pod)
        assert policy.hints(pod, pod.spec.containers[0]) == {} and policy.pod_hints(pod) == {}
    assert state.entries == {}


def test_pod_level_amounts_are_shared_out(tmp_path: Path) -> None:
    policy, state = static_memory(tmp_path, pod_level=True)
    pod = a_pod(
        init=[a_container("setup")],
        containers=[owner("app", 1, "2Gi"), a_container("rest")],
        resources=whole(2, "5Gi"),
    )
    policy.allocate_pod(pod, Hint(mask_of([1]), True))
    sizes = {name: [block.size // GIB for block in blocks] for name, blocks in state.entries["uid-web"].items()}
    assert sizes == {"setup": [5], "app": [2], "rest": [3]}
    assert free(state) == [9, 4]
    state.save()
    again, state_again = static_memory(tmp_path, pod_level=True)
    policy.allocate_pod(pod, NO_HINT)
    again.release("uid-web")
    assert free(state_again) == [9, 9] and (state_again.entries, state_again.pods) == ({}, {})
    with pytest.raises(NothingShared, match="leaving no memory for shared containers"):
        again.allocate_pod(
            a_pod(containers=[owner("app", 1, "2Gi"), a_container("rest")], resources=whole(2, "2Gi")), NO_HINT
        )


# --- start ------------------------------------------------------------------------------------------------


def reservation(node: int, **limits: str) -> MemoryReservation:
    return MemoryReservation(numa_node=node, limits=limits)


def test_reservations_are_read() -> None:
    found = kept_memory(
        TWO, [reservation(0, memory="1Gi"), reservation(1, memory="100Mi")], {"memory": Quantity.parse("1124Mi")}
    )
    assert found == {0: {"memory": GIB}, 1: {"memory": 100 << 20}}


@pytest.mark.parametrize(
    ("given", "expected", "told"),
    [
        ([reservation(7, memory="1Gi")], "1Gi", "references a NUMA node 7 that does not exist on this machine"),
        (
            [reservation(0, memory="1Gi")],
            "2Gi",
            "'1Gi' of type 'memory' is not equal to the value '2Gi'",
        ),
        ([], "1Gi", "the total amount '0' of type 'memory' is not equal to the value '1Gi'"),
        ([], "0", "you should specify the system reserved memory"),
    ],
)
def test_reservations_that_cannot_be(given: list[MemoryReservation], expected: str, told: str) -> None:
    with pytest.raises(ResourceManagerError, match=told):
        kept_memory(TWO, given, {"memory": Quantity.parse(expected), "cpu": Quantity.parse("1")})


def test_the_state_is_taken_over_and_continued(tmp_path: Path) -> None:
    policy, state = static_memory(tmp_path)
    give(policy, guaranteed("a", 1, "12Gi"))
    state.save()
    again, state_again = static_memory(tmp_path)
    give(again, guaranteed("a", 1, "12Gi"))
    assert free(state_again) == [0, 6]
    give(again, guaranteed("b", 1, "6Gi"))
    assert free(state_again) == [0, 0]


@pytest.mark.parametrize(
    ("machine", "kept", "told"),
    [
        (a_machine(sockets=2, memory=11 * GIB), KEPT, "node 0, memory: total is"),
        (TWO, {0: {"memory": 2 * GIB}, 1: {}}, "node 0, memory: system_reserved is"),
        (a_machine(sockets=1, memory=10 * GIB), KEPT, "does not exist"),
    ],
)
def test_a_state_that_does_not_fit_stops_the_agent(tmp_path: Path, machine: Topology, kept: Kept, told: str) -> None:
    policy, state = static_memory(tmp_path)
    give(policy, guaranteed("a", 1, "12Gi"))
    state.save()
    with pytest.raises(ResourceManagerError) as caught:
        static_memory(tmp_path, machine, kept)
    assert told in str(caught.value) and "delete the memory manager checkpoint file" in str(caught.value)
