"""The static CPU policy: who gets CPUs, where, reuse within a pod, options, refusals, the state at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.cm.cpu_manager import CpuOptions, cpu_options, reserved_cpus
from pykubelet.cm.errors import NotEnoughCpus, NothingShared, NotWholeCores, ResourceManagerError
from pykubelet.cm.requests import containers_of
from pykubelet.cm.topology_manager import NO_HINT, Hint, mask_of, topology_options
from pykubelet.settings.gates import Gates
from tests.builders import a_container, a_pod, a_sidecar
from tests.unit.cm.machines import BIG, a_machine, cpus, guaranteed, owner, static_cpus, whole

GATES = ("CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions")
FOUR = a_machine(cores=4, threads=1)
SMT = a_machine(cores=4, threads=2)
"""Siblings are 4 apart."""


def give(policy: object, pod: Pod, place: Hint = NO_HINT) -> None:
    for container in containers_of(pod):
        policy.allocate(pod, container, place)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("resources", "owned"),
    [
        (whole(1), "1"),
        (whole(2), "1-2"),
        (whole("2000m"), "1-2"),
        (whole("1500m"), None),  # not whole
        (ResourceRequirements(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "2", "memory": "1Gi"}), None),
        (ResourceRequirements(limits={"cpu": "1"}), None),
        (ResourceRequirements(), None),
    ],
)
def test_whole_cpus_of_guaranteed_pods(tmp_path: Path, resources: ResourceRequirements, owned: str | None) -> None:
    policy, state = static_cpus(tmp_path, FOUR)
    pod = a_pod(containers=[a_container("app", resources=resources)])
    give(policy, pod)
    assert state.owned("uid-web", "app") == (None if owned is None else cpus(owned))
    assert state.shared == cpus("0-3") - cpus(owned or "")


def test_a_pod_with_amounts_of_its_own_gets_none(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, FOUR)
    pod = a_pod(containers=[owner("app", 1)], resources=whole(2))
    give(policy, pod)
    assert state.entries == {}
    assert policy.hints(pod, pod.spec.containers[0]) == {} and policy.pod_hints(pod) == {}


def test_asking_again_changes_nothing(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, SMT, options=CpuOptions(full_cores=True))
    give(policy, guaranteed("a", 6))
    before = dict(state.entries)
    give(policy, guaranteed("a", 6))  # although no whole core is free any more
    assert state.entries == before


def test_the_machine_of_128_cpus_is_filled_and_emptied(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, BIG, reserved="0,64")
    for number in range(63):
        give(policy, guaranteed(f"p{number}", 2))
    assert state.shared == cpus("0,64")
    taken = [cpus for each in state.entries.values() for cpus in each.values()]
    assert len(frozenset().union(*taken)) == 126 == sum(len(each) for each in taken)
    assert all(max(each) - min(each) == 64 for each in taken), "every pod has a whole core"
    with pytest.raises(NotEnoughCpus, match="requested=1, available=0"):
        give(policy, guaranteed("late", 1))
    for number in range(63):
        policy.release(f"uid-p{number}")
    assert state.shared == BIG.all_cpus and state.entries == {}


def test_a_place_is_kept_to_as_far_as_it_goes(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, BIG, reserved="0,64")
    give(policy, guaranteed("near", 2), Hint(mask_of([1]), True))
    assert state.owned("uid-near", "app") == cpus("32,96")
    give(policy, guaranteed("more", 64), Hint(mask_of([0]), True))
    assert (state.owned("uid-more", "app") or cpus("")) > cpus("1-31,65-95")


def test_init_containers_are_used_again_and_sidecars_are_not(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, a_machine(cores=8, threads=1))
    pod = a_pod(
        init=[owner("first", 2), a_sidecar("side", resources=whole(1)), owner("second", 3)],
        containers=[owner("app", 2), owner("other", 1)],
    )
    give(policy, pod)
    owned = state.entries["uid-web"]
    assert owned["first"] == cpus("1-2")
    assert owned["side"] == cpus("1"), "the init container before it has ended by then"
    assert not owned["side"] & (owned["second"] | owned["app"] | owned["other"])
    assert not owned["app"] & owned["other"]
    assert owned["app"] | owned["other"] <= owned["first"] | owned["second"]
    assert len(cpus("0-7") - state.shared) == 4
    policy.release("uid-web")
    assert state.shared == cpus("0-7")


# --- options ----------------------------------------------------------------------------------------------


def test_whole_cores_only(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, SMT, reserved="0", options=CpuOptions(full_cores=True))
    with pytest.raises(NotWholeCores) as odd:
        give(policy, guaranteed("odd", 3))
    assert str(odd.value) == "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    with pytest.raises(NotWholeCores) as many:
        give(policy, guaranteed("many", 8))
    # The sibling of the reserved CPU does not count.
    assert str(many.value) == (
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, "
        "CPUs per core = 2"
    )
    assert odd.value.reason == many.value.reason == "SMTAlignmentError"
    give(policy, guaranteed("fits", 6))
    assert state.shared == cpus("0,4")


def test_strict_reservation_keeps_the_reserved_out_of_the_pool(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, FOUR, reserved="0,3", options=CpuOptions(strict_reservation=True))
    assert state.shared == cpus("1-2")
    give(policy, guaranteed("a", 2))
    assert (state.shared, state.owned("uid-a", "app")) == (cpus(""), cpus("1-2"))
    policy.release("uid-a")
    assert state.shared == cpus("1-2")


def test_sockets_are_one_place_with_the_option(tmp_path: Path) -> None:
    machine = a_machine(sockets=2, nodes_per_socket=2, cores=4, threads=1)
    policy, state = static_cpus(tmp_path, machine, options=CpuOptions(by_socket=True))
    pod = guaranteed("a", 3)
    hints = policy.hints(pod, pod.spec.containers[0])["cpu"] or ()
    preferred = {hint.nodes for hint in hints if hint.preferred}
    assert preferred == {mask_of(each) for each in ([0], [1], [2], [3], [0, 1], [2, 3])}
    give(policy, guaranteed("b", 6), Hint(mask_of([2]), True))
    assert (state.owned("uid-b", "app") or cpus("")) <= cpus("8-15")


@pytest.mark.parametrize(
    ("given", "gates", "told"),
    [
        ({"align-by-socket": "true"}, (), "needs the feature gate CPUManagerPolicyAlphaOptions"),
        ({"distribute-cpus-across-cores": "1"}, (), "needs the feature gate CPUManagerPolicyAlphaOptions"),
        ({"distribute-cpus-across-numa": "true"}, (), "needs the feature gate CPUManagerPolicyBetaOptions"),
        ({"full-pcpus-only": "yes"}, (), "'yes' must be true or false"),
        (
            {"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"},
            ("CPUManagerPolicyAlphaOptions",),
            "can not be used at the same time",
        ),
        (
            {"prefer-align-cpus-by-uncorecache": "t", "distribute-cpus-across-numa": "t"},
            ("CPUManagerPolicyBetaOptions",),
            "can not be used at the same time",
        ),
        ({"align-by-socket": "true"}, ("CPUManagerPolicyAlphaOptions",), "excludes topologyManagerPolicy"),
    ],
)
def test_options_that_cannot_be(given: dict[str, str], gates: tuple[str, ...], told: str) -> None:
    with pytest.raises(ResourceManagerError, match="cpuManagerPolicyOptions: .*" + told):
        cpu_options(
            given,
            gates=Gates(dict.fromkeys(GATES, False) | dict.fromkeys(gates, True)),
            topology=BIG,
            topology_policy="single-numa-node",
        )


def test_options_are_read() -> None:
    given = {"full-pcpus-only": "true", "strict-cpu-reservation": "True", "distribute-cpus-across-numa": "0"}
    found = cpu_options(given, gates=Gates(dict.fromkeys(GATES, True)), topology=BIG, topology_policy="none")
    assert found == CpuOptions(full_cores=True, strict_reservation=True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max-allowable-numa-nodes": "x"}, "'x' is not a number"),
        ({"max-allowable-numa-nodes": "7"}, "must be at least 8"),
        ({}, "this machine has 10 NUMA nodes, more than the 8"),
    ],
)
def test_topology_options_that_cannot_be(given: dict[str, str], told: str) -> None:
    machine = a_machine(sockets=5, nodes_per_socket=2)
    with pytest.raises(ResourceManagerError, match=told):
        topology_options(given, topology=machine)
    found = topology_options({"max-allowable-numa-nodes": "10", "prefer-closest-numa-nodes": "true"}, topology=machine)
    assert (found.max_nodes, found.closest) == (10, True)


# --- pods with amounts of their own, gate on ------------------------------------------------------------------


def test_pod_level_amounts_are_shared_out(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, a_machine(cores=8, threads=1), pod_level=True)
    pod = a_pod(
        init=[a_container("setup"), a_sidecar("side", resources=whole(1))],
        containers=[owner("app", 2), a_container("helper"), a_container("other")],
        resources=whole(5, "4Gi"),
    )
    policy.allocate_pod(pod, Hint(None, True))
    owned = state.entries["uid-web"]
    assert state.pods == {"uid-web": cpus("1-5")}
    assert owned["setup"] == cpus("1-5")
    assert (len(owned["side"]), len(owned["app"])) == (1, 2)
    assert owned["helper"] == owned["other"] == cpus("1-5") - owned["side"] - owned["app"]
    assert state.shared == cpus("0,6-7")
    policy.release("uid-web")
    assert (state.shared, state.entries, state.pods) == (cpus("0-7"), {}, {})


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        (
            a_pod(containers=[owner("app", 2), a_container("rest")], resources=whole(2)),
            "sum of exclusive container cpu requests equals pod budget",
        ),
        (
            a_pod(
                init=[a_sidecar("side", resources=whole(2)), a_container("setup")],
                containers=[owner("app", 1)],
                resources=whole(2),
            ),
            "pod has shared init containers but no cpus available for them",
        ),
    ],
)
def test_nothing_left_to_share(tmp_path: Path, pod: Pod, told: str) -> None:
    policy, state = static_cpus(tmp_path, FOUR, pod_level=True)
    assert policy.pod_hints(pod) == {"cpu": ()}
    with pytest.raises(NothingShared, match=told):
        policy.allocate_pod(pod, NO_HINT)
    assert (state.shared, state.entries, state.pods) == (cpus("0-3"), {}, {})


# --- start ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "kept", "found"),
    [("", "1", "0"), ("", "1500m", "0,64"), ("5-6", "2", "5-6"), ("", "3", "0-1,64")],
)
def test_reserved_cpus(named: str, kept: str, found: str) -> None:
    assert reserved_cpus(BIG, cpus(named), Quantity.parse(kept), CpuOptions()) == cpus(found)


@pytest.mark.parametrize(
    ("named", "kept", "told"),
    [
        ("", "0", "requires systemReserved.cpu \\+ kubeReserved.cpu to be greater than zero"),
        ("200", "1", "reservedSystemCPUs: this machine has no CPU 200"),
        ("1-3", "2", "did not equal 2"),
        ("", "500", "did not equal 500"),
    ],
)
def test_reservations_that_cannot_be(named: str, kept: str, told: str) -> None:
    with pytest.raises(ResourceManagerError, match=told):
        reserved_cpus(BIG, cpus(named), Quantity.parse(kept), CpuOptions())


def test_the_state_is_taken_over_and_continued(tmp_path: Path) -> None:
    policy, state = static_cpus(tmp_path, FOUR)
    give(policy, guaranteed("a", 2))
    state.save()
    again, state_again = static_cpus(tmp_path, FOUR)
    assert state_again.entries == {"uid-a": {"app": cpus("1-2")}}
    give(again, guaranteed("b", 1))
    assert state_again.owned("uid-b", "app") == cpus("3")


@pytest.mark.parametrize(
    ("reserved", "options", "cores", "told"),
    [
        ("2", CpuOptions(), 4, 'not all reserved cpus: "2" are present in defaultCpuSet: "0,3"'),
        ("0", CpuOptions(strict_reservation=True), 4, 'some of strictly reserved cpus: "0" are present'),
        ("0", CpuOptions(), 6, 'current set of available CPUs "0-5" doesn\'t match with CPUs in state "0-3"'),
    ],
)
def test_a_state_that_does_not_fit_stops_the_agent(
    tmp_path: Path, reserved: str, options: CpuOptions, cores: int, told: str
) -> None:
    policy, state = static_cpus(tmp_path, FOUR)
    give(policy, guaranteed("a", 2))
    state.save()
    with pytest.raises(ResourceManagerError) as caught:
        static_cpus(tmp_path, a_machine(cores=cores, threads=1), reserved, options)
    assert told in str(caught.value) and "delete the CPU manager checkpoint file" in str(caught.value)
