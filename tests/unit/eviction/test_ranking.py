"""Which pod is evicted first: a table, and a thousand random nodes against a slow reference; and the messages."""

from __future__ import annotations

from functools import cmp_to_key

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.eviction.ranking import measured, pod_message, rank, reason_for
from pykubelet.eviction.stats import ContainerUse, PodUse
from pykubelet.eviction.thresholds import Layout
from pykubelet.model.pod import name_of, uid_of
from tests.builders import a_container, a_pod, an_ephemeral_container
from tests.unit.eviction.making import GIB, MIB, a_threshold, a_use, pod_asking, seen


def order(signal: str, pods: dict[str, Pod], uses: dict[str, PodUse], layout: Layout = Layout.ONE) -> list[str]:
    found = {str(uid_of(pod)): uses[name] for name, pod in pods.items() if name in uses}
    return [name_of(each.pod) for each in rank(signal, pods.values(), found, layout)]


def test_memory() -> None:
    pods = {
        "within": pod_asking("within", memory="2Gi"),
        "over-high": pod_asking("over-high", memory="100Mi", priority=100),
        "over-little": pod_asking("over-little", memory="500Mi"),
        "over-much": pod_asking("over-much"),
        "unknown": pod_asking("unknown", priority=1000),
        "within-near": pod_asking("within-near", memory="1Gi"),
    }
    uses = {
        "within": a_use(GIB),
        "over-high": a_use(3 * GIB),
        "over-little": a_use(600 * MIB),
        "over-much": a_use(500 * MIB),
        "within-near": a_use(1000 * MIB),
    }
    expected = ["unknown", "over-much", "over-little", "over-high", "within-near", "within"]
    assert order("memory.available", pods, uses) == order("allocatableMemory.available", pods, uses) == expected


def test_disk_counts_what_lies_on_it() -> None:
    pods = {name: pod_asking(name) for name in ("logs", "layer", "volume")}
    uses = {"logs": a_use(logs=3 * GIB), "layer": a_use(layer=2 * GIB), "volume": a_use(volumes=GIB)}
    assert order("nodefs.available", pods, uses) == ["logs", "layer", "volume"]
    assert order("nodefs.available", pods, uses, Layout.OWN_IMAGES) == ["logs", "volume", "layer"]
    assert order("imagefs.available", pods, uses, Layout.OWN_IMAGES)[0] == "layer"


def test_a_disk_request_protects() -> None:
    pods = {"asks": pod_asking("asks", ephemeral_storage="5Gi"), "not": pod_asking("not")}
    uses = {"asks": a_use(logs=4 * GIB), "not": a_use(logs=MIB)}
    assert order("nodefs.available", pods, uses) == ["not", "asks"]
    inodes = {"asks": a_use(logs_inodes=10), "not": a_use(logs_inodes=5)}
    assert order("nodefs.inodesFree", pods, inodes) == ["asks", "not"]


def test_processes() -> None:
    pods = {"many": pod_asking("many", priority=5), "few": pod_asking("few"), "some": pod_asking("some")}
    uses = {"many": a_use(processes=900), "few": a_use(processes=2), "some": a_use(processes=20)}
    assert order("pid.available", pods, uses) == ["some", "few", "many"]


SIGNALS = (
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
)
amounts = st.integers(min_value=0, max_value=4)
container_uses = st.builds(
    ContainerUse, memory=amounts, layer=amounts, layer_inodes=amounts, logs=amounts, logs_inodes=amounts
)
pod_uses = st.builds(
    PodUse,
    memory=st.none() | amounts,
    processes=amounts,
    containers=st.dictionaries(st.sampled_from(["app", "side"]), container_uses, max_size=2),
    volumes=amounts,
    volumes_inodes=amounts,
)
populations = st.lists(
    st.tuples(st.none() | st.sampled_from([-5, 0, 5, 2_000_000_000]), amounts, amounts, st.none() | pod_uses),
    max_size=12,
)


def slow_value(signal: str, layout: Layout, use: PodUse) -> int:
    """Upstream's order, written down once more."""
    if signal in ("memory.available", "allocatableMemory.available"):
        return use.memory if use.memory is not None else 0
    if signal == "pid.available":
        return use.processes
    disk, measure = signal.split(".")
    parts = {
        (Layout.ONE, "nodefs"): "layer logs volumes",
        (Layout.ONE, "imagefs"): "layer logs volumes",
        (Layout.ONE, "containerfs"): "layer logs volumes",
        (Layout.OWN_IMAGES, "nodefs"): "logs volumes",
        (Layout.OWN_IMAGES, "imagefs"): "layer",
        (Layout.OWN_IMAGES, "containerfs"): "layer",
        (Layout.SPLIT, "nodefs"): "layer logs volumes",
        (Layout.SPLIT, "imagefs"): "",
        (Layout.SPLIT, "containerfs"): "layer logs volumes",
    }[layout, disk].split()
    suffix = "_inodes" if measure == "inodesFree" else ""
    total = 0
    for part in parts:
        if part == "volumes":
            total += getattr(use, f"volumes{suffix}")
        else:
            total += sum(getattr(each, f"{part}{suffix}") for each in use.containers.values())
    return total


def slow_order(signal: str, layout: Layout, pods: list[tuple[int, int, int, PodUse | None]]) -> list[int]:
    """Indices of (priority, memory request, disk request, use), compared two at a time."""

    def plain(pod: tuple[int, int, int, PodUse | None]) -> tuple[int, int, int]:
        return pod[:3]

    def compare(a: int, b: int) -> int:
        first, second = pods[a], pods[b]
        by_priority = (first[0] > second[0]) - (first[0] < second[0])
        if signal == "pid.available" and by_priority:
            return by_priority
        if first[3] is None or second[3] is None:
            unknown = (second[3] is None) - (first[3] is None)
            return unknown or by_priority
        used = [slow_value(signal, layout, each[3]) for each in (first, second) if each[3] is not None]
        if signal == "pid.available":
            return used[1] - used[0]
        column = 1 if "emory" in signal else 2
        asked = [0 if "inodes" in signal else int(each[column]) for each in (plain(first), plain(second))]
        exceeds = [used[0] > asked[0], used[1] > asked[1]]
        if exceeds[0] != exceeds[1]:
            return -1 if exceeds[0] else 1
        return by_priority or (used[1] - asked[1]) - (used[0] - asked[0])

    return sorted(range(len(pods)), key=cmp_to_key(compare))


@settings(max_examples=1000, deadline=None)
@given(populations, st.sampled_from(SIGNALS), st.sampled_from(list(Layout)))
def test_random_nodes_are_ranked_as_the_facts_say(
    population: list[tuple[int | None, int, int, PodUse | None]], signal: str, layout: Layout
) -> None:
    pods = [
        pod_asking(f"p{index}", priority=priority, memory=str(memory), ephemeral_storage=str(disk))
        for index, (priority, memory, disk, _) in enumerate(population)
    ]
    uses = {f"uid-p{index}": use for index, (_, _, _, use) in enumerate(population) if use is not None}
    found = rank(signal, pods, uses, layout)
    plain = [(priority or 0, memory, disk, use) for priority, memory, disk, use in population]
    assert [name_of(each.pod) for each in found] == [f"p{index}" for index in slow_order(signal, layout, plain)]
    assert all(each.is_spared == ((each.pod.spec.priority or 0) >= 2_000_000_000) for each in found)


@pytest.mark.parametrize("layout", list(Layout))
def test_nobody_is_lost(layout: Layout) -> None:
    pods = {f"p{n}": pod_asking(f"p{n}") for n in range(5)}
    for signal in SIGNALS:
        assert sorted(order(signal, pods, {}, layout)) == sorted(pods)


HARD = a_threshold("memory.available", "1Gi")
SHORT = seen(memory_available=512 * MIB)


def test_containers_that_use_more_than_they_ask_for() -> None:
    pod = a_pod(
        containers=[
            a_container("a", resources=ResourceRequirements(requests={"memory": "64Mi"})),
            a_container("b"),
            a_container("c", resources=ResourceRequirements(requests={"memory": "1Gi"})),
        ],
        init=[a_container("i", restart_policy="Always")],
        ephemeral=[an_ephemeral_container("debug")],
    )
    names = {"a": 100, "b": 50, "c": 30, "i": 5, "debug": 900}
    use = PodUse(memory=GIB, containers={name: ContainerUse(memory=size * MIB) for name, size in names.items()})
    (chosen,) = rank("memory.available", [pod], {"uid-web": use}, Layout.ONE)
    text = pod_message("memory", chosen, [HARD], SHORT)
    assert text.message == (
        "The node was low on resource: memory. Threshold quantity: 1Gi, available: 512Mi. "
        "Container a was using 100Mi, request is 64Mi, has larger consumption of memory. "
        "Container b was using 50Mi, request is 0, has larger consumption of memory. "
        "Container i was using 5Mi, request is 0, has larger consumption of memory. "
    )
    assert text.annotations == {
        "offending_containers": "a,b,i",
        "offending_containers_usage": "100Mi,50Mi,5Mi",
        "starved_resource": "memory",
    }


def test_a_pod_with_resources_of_its_own() -> None:
    pod = a_pod("big", resources=ResourceRequirements(requests={"memory": "128Mi"}))
    (chosen,) = rank("memory.available", [pod], {"uid-big": a_use(GIB)}, Layout.ONE)
    text = pod_message("memory", chosen, [HARD], SHORT)
    assert (
        "available: 512Mi. Pod big was using 1Gi, request is 128Mi, has larger consumption of memory. " in text.message
    )
    assert (text.annotations["offending_pod"], text.annotations["offending_pod_usage"]) == ("big", "1Gi")


def test_disk_and_percentages() -> None:
    threshold = a_threshold("nodefs.available", "10%")
    now = seen(nodefs_available=5 * GIB)
    (chosen,) = rank("nodefs.available", [a_pod()], {"uid-web": a_use(logs=GIB, layer=GIB)}, Layout.ONE)
    text = pod_message("ephemeral-storage", chosen, [HARD, threshold], {**SHORT, **now})
    assert text.message == (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 5Gi. "
        "Container app was using 2Gi, request is 0, has larger consumption of ephemeral-storage. "
    )


def test_inodes_and_a_pod_without_figures() -> None:
    threshold = a_threshold("nodefs.inodesFree", "5%")
    now = {**seen(capacity=1000, nodefs_inodesFree=10)}
    (chosen,) = rank("nodefs.inodesFree", [a_pod()], {}, Layout.ONE)
    text = pod_message("inodes", chosen, [threshold], now)
    assert text.message == "The node was low on resource: inodes. Threshold quantity: 50, available: 10. "
    assert text.annotations == {}


def test_why_this_one() -> None:
    pods = [pod_asking("vital", critical=True), pod_asking("greedy", memory="100Mi"), pod_asking("kept", memory="1Gi")]
    uses = {"uid-vital": a_use(9 * GIB), "uid-greedy": a_use(GIB), "uid-kept": a_use(512 * MIB)}
    ranked = rank("memory.available", [pods[0], pods[1], pods[2]], uses, Layout.ONE)
    chosen = next(each for each in ranked if not each.is_spared)
    assert reason_for(HARD, SHORT, chosen, ranked, ()) == (
        "memory.available 512Mi is below the hard threshold 1Gi. Of 2 pods that may go this one is first: it uses 1Gi "
        "of memory, 924Mi more than it requests, priority 0. Next would be default/kept: it uses 512Mi of memory, "
        "within its request of 1Gi, priority 0."
    )


def test_why_after_the_node_gave_what_it_had() -> None:
    soft = a_threshold("pid.available", "100", grace=30)
    ranked = rank("pid.available", [pod_asking("bomb")], {"uid-bomb": a_use(processes=500)}, Layout.ONE)
    text = reason_for(soft, seen(pid_available=7), ranked[0], ranked, ["dead containers", "unused images"])
    assert text == (
        "pid.available 7 is below the soft threshold (met for 30 s) 100. Removing dead containers and unused images "
        "was not enough. Of 1 pods that may go this one is first: priority 0, 500 processes."
    )


def test_a_threshold_that_waits_for_its_minimum_reclaim() -> None:
    threshold = a_threshold("memory.available", "1Gi", reclaim="1Gi")
    text = measured(threshold, seen(memory_available=GIB + MIB))
    assert text == "memory.available 1025Mi has not got far enough above the hard threshold 1Gi"
