"""Who goes first: a table, and a thousand random nodes against a slow reference written from the facts."""

from __future__ import annotations

from functools import cmp_to_key

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.api.types import Pod
from pykubelet.eviction.ranking import rank
from pykubelet.eviction.stats import ContainerUse, PodUse
from pykubelet.eviction.thresholds import Layout
from pykubelet.model.pod import name_of, uid_of
from tests.unit.eviction.making import GIB, MIB, a_use, pod_asking


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
    """facts/node.md 4.3 word by word."""
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
