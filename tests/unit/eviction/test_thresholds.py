"""When thresholds are met, stay met, are due, and what condition the node has meanwhile."""

from __future__ import annotations

import pytest

from pykubelet.eviction.stats import MemorySignal, NodeSignals
from pykubelet.eviction.thresholds import (
    Layout,
    Observation,
    Reclaim,
    WatchState,
    by_urgency,
    counted,
    effective,
    judge,
    layout_of,
    met,
    observe,
    reclaims,
    shown,
)
from pykubelet.model.stats import FsUsage, TaskCounts
from tests.unit.eviction.making import GIB, MIB, a_threshold, seen


def fs(device: int = 1, available: int = 10, inodes: int = 100) -> FsUsage:
    return FsUsage(
        time_ns=7,
        device=device,
        device_name="",
        capacity=100,
        available=available,
        used=90,
        inodes=inodes,
        inodes_free=inodes // 2,
    )


def test_observations() -> None:
    memory = MemorySignal(time_ns=5, available=3, capacity=9, working_set=6)
    tasks = TaskCounts(time_ns=6, limit=1000, tasks=400, running=1, blocked=0)
    found = observe(NodeSignals(memory=memory, node_fs=fs(), image_fs=fs(2, 20), container_fs=fs(2, 20), tasks=tasks))
    assert found == {
        "memory.available": Observation(available=3, capacity=9, time_ns=5),
        "nodefs.available": Observation(available=10, capacity=100, time_ns=7),
        "nodefs.inodesFree": Observation(available=50, capacity=100, time_ns=7),
        "imagefs.available": Observation(available=20, capacity=100, time_ns=7),
        "imagefs.inodesFree": Observation(available=50, capacity=100, time_ns=7),
        "containerfs.available": Observation(available=20, capacity=100, time_ns=7),
        "containerfs.inodesFree": Observation(available=50, capacity=100, time_ns=7),
        "pid.available": Observation(available=600, capacity=1000, time_ns=6),
    }
    assert observe(NodeSignals()) == {}


def test_a_filesystem_without_fixed_inodes_is_never_short_of_them() -> None:
    assert set(observe(NodeSignals(node_fs=fs(inodes=0)))) == {"nodefs.available"}


@pytest.mark.parametrize(
    ("image", "container", "layout"),
    [(1, 1, Layout.ONE), (2, 2, Layout.OWN_IMAGES), (2, 1, Layout.SPLIT)],
)
def test_layouts(image: int, container: int, layout: Layout) -> None:
    assert layout_of(NodeSignals(node_fs=fs(1), image_fs=fs(image), container_fs=fs(container))) is layout


DEAD, IMAGES = Reclaim.DEAD_CONTAINERS, Reclaim.UNUSED_IMAGES


@pytest.mark.parametrize(
    ("layout", "nodefs", "imagefs", "containerfs"),
    [
        (Layout.ONE, (DEAD, IMAGES), (DEAD, IMAGES), (DEAD, IMAGES)),
        (Layout.OWN_IMAGES, (), (DEAD, IMAGES), (DEAD, IMAGES)),
        (Layout.SPLIT, (DEAD,), (IMAGES,), (DEAD,)),
    ],
)
def test_what_the_node_gives_first(
    layout: Layout, nodefs: tuple[Reclaim, ...], imagefs: tuple[Reclaim, ...], containerfs: tuple[Reclaim, ...]
) -> None:
    for measure in ("available", "inodesFree"):
        assert reclaims(f"nodefs.{measure}", layout) == nodefs
        assert reclaims(f"imagefs.{measure}", layout) == imagefs
        assert reclaims(f"containerfs.{measure}", layout) == containerfs
    assert reclaims("memory.available", layout) == reclaims("pid.available", layout) == ()


@pytest.mark.parametrize(
    ("layout", "signal", "layers", "logs", "volumes"),
    [
        (Layout.ONE, "nodefs.available", True, True, True),
        (Layout.ONE, "imagefs.available", True, True, True),
        (Layout.OWN_IMAGES, "nodefs.available", False, True, True),
        (Layout.OWN_IMAGES, "imagefs.available", True, False, False),
        (Layout.OWN_IMAGES, "containerfs.available", True, False, False),
        (Layout.SPLIT, "nodefs.available", True, True, True),
        (Layout.SPLIT, "imagefs.available", False, False, False),
        (Layout.SPLIT, "containerfs.inodesFree", True, True, True),
    ],
)
def test_what_counts_on_a_disk(layout: Layout, signal: str, layers: bool, logs: bool, volumes: bool) -> None:
    found = counted(signal, layout)
    assert (found.layers, found.logs, found.volumes) == (layers, logs, volumes)


def test_thresholds_that_follow_from_others() -> None:
    written = (
        a_threshold("memory.available", "100Mi", reclaim="5Mi"),
        a_threshold("memory.available", "200Mi", grace=30),
        a_threshold("nodefs.available", "10%"),
        a_threshold("imagefs.available", "15%"),
        a_threshold("containerfs.available", "99%"),
    )
    one = {(each.signal, each.amount) for each in effective(written, Layout.ONE, pods_enforced=True)}
    assert ("allocatableMemory.available", written[0].amount) in one
    assert ("allocatableMemory.available", written[1].amount) not in one
    assert ("containerfs.available", written[2].amount) in one and (
        "containerfs.available",
        written[4].amount,
    ) not in one
    own = {(each.signal, each.amount) for each in effective(written, Layout.OWN_IMAGES, pods_enforced=False)}
    assert ("containerfs.available", written[3].amount) in own
    assert not any(signal.startswith("allocatable") for signal, _ in own)


@pytest.mark.parametrize(
    ("amount", "reclaim", "available", "plain", "with_reclaim"),
    [
        ("1Gi", "", GIB - 1, True, True),
        ("1Gi", "", GIB, False, False),
        ("1Gi", "500Mi", GIB, False, True),
        ("1Gi", "500Mi", GIB + 500 * MIB, False, False),
        ("10%", "", 10 * GIB - 1, True, True),
        ("10%", "5%", 12 * GIB, False, True),
        ("10%", "5%", 15 * GIB, False, False),
    ],
)
def test_met(amount: str, reclaim: str, available: int, plain: bool, with_reclaim: bool) -> None:
    each = a_threshold("memory.available", amount, reclaim=reclaim)
    now = seen(memory_available=available)
    assert bool(met([each], now)) is plain
    assert bool(met([each], now, with_reclaim=True)) is with_reclaim
    assert met([each], {}) == []


def test_a_threshold_stays_met_until_the_minimum_is_reclaimed() -> None:
    hard = a_threshold("memory.available", "1Gi", reclaim="1Gi")
    first = judge(WatchState(), [hard], seen(1, memory_available=MIB), now=0, transition=300)
    assert first.due == (hard,) and first.conditions == ("MemoryPressure",)
    second = judge(first.state, [hard], seen(2, memory_available=GIB + MIB), now=1, transition=300)
    assert second.due == (hard,)
    third = judge(second.state, [hard], seen(3, memory_available=2 * GIB), now=2, transition=300)
    assert third.due == () and third.state.met == ()
    fourth = judge(third.state, [hard], seen(4, memory_available=GIB + MIB), now=3, transition=300)
    assert fourth.due == ()


def test_the_same_observation_is_acted_upon_once() -> None:
    hard = a_threshold("memory.available", "1Gi")
    first = judge(WatchState(), [hard], seen(1, memory_available=MIB), now=0, transition=300)
    again = judge(first.state, [hard], seen(1, memory_available=MIB), now=1, transition=300)
    assert first.due == (hard,) and again.due == () and again.conditions == ("MemoryPressure",)


def test_a_soft_threshold_is_due_after_its_grace_and_forgets_when_it_is_not_met() -> None:
    soft = a_threshold("nodefs.available", "10%", grace=30)
    state, due = WatchState(), []
    for second in range(0, 100, 10):
        short = second not in (20,)
        now = seen(second + 1, nodefs_available=GIB if short else 50 * GIB)
        judged = judge(state, [soft], now, now=second, transition=15)
        state = judged.state
        due.append(bool(judged.due))
        if second == 0:
            assert judged.next_due == 30 and judged.conditions == ("DiskPressure",)
    assert due == [False, False, False, False, False, False, True, True, True, True]


def test_a_condition_outlasts_its_cause() -> None:
    hard = a_threshold("pid.available", "10")
    state = judge(WatchState(), [hard], seen(1, pid_available=5), now=0, transition=300).state
    for now, held in ((100, True), (299, True), (300, False)):
        judged = judge(state, [hard], seen(now, pid_available=50), now=now, transition=300)
        assert bool(judged.conditions) is held, now


def test_memory_first() -> None:
    disk, memory = a_threshold("nodefs.available", "1Gi"), a_threshold("memory.available", "1Gi")
    every = a_threshold("allocatableMemory.available", "1Gi")
    assert by_urgency([disk, memory, every]) == (memory, every, disk)


@pytest.mark.parametrize(
    ("signal", "amount", "text"),
    [
        ("memory.available", 100 * MIB, "100Mi"),
        ("memory.available", 1000, "1k"),
        ("nodefs.available", 5 * GIB, "5Gi"),
        ("nodefs.inodesFree", 12000, "12k"),
        ("pid.available", 300, "300"),
    ],
)
def test_amounts_as_upstream_writes_them(signal: str, amount: int, text: str) -> None:
    assert shown(signal, amount) == text
