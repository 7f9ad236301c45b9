"""When the next check is due, and memory notifications: set ahead of the use, moved with it, given up when refused."""

from __future__ import annotations

import logging

import pytest

from pykubelet.eviction.pressure import AlarmKeeper, alarm_at, next_check
from pykubelet.eviction.stats import MemorySignal, NodeSignals
from pykubelet.eviction.thresholds import ALLOCATABLE, MEMORY
from tests.fakes.fake_guard import FakeAlarms
from tests.unit.eviction.making import GIB, MIB, a_threshold, seen

HARD = a_threshold("memory.available", "1Gi")
GROUPS = {MEMORY: "/", ALLOCATABLE: "/kubepods"}


def using(amount: int, pods: int | None = None) -> NodeSignals:
    def signal(used: int) -> MemorySignal:
        return MemorySignal(
            time_ns=1, available=8 * GIB - used, capacity=8 * GIB, working_set=used, usage=used + 512 * MIB
        )

    return NodeSignals(memory=signal(amount), allocatable_memory=signal(pods) if pods is not None else None)


def keeper(alarms: FakeAlarms | None) -> AlarmKeeper:
    return AlarmKeeper(alarms=alarms, groups=GROUPS, wake=lambda: None)


def test_an_alarm_follows_the_page_cache() -> None:
    alarms = FakeAlarms()
    kept = keeper(alarms)
    kept.update([HARD], using(2 * GIB))
    assert [(each.group, each.usage) for each in alarms.set] == [("/", 7 * GIB + 512 * MIB)]
    kept.update([HARD], using(2 * GIB + MIB))
    assert alarms.requested == 1
    kept.update([HARD], using(8 * GIB))
    assert alarms.set == [] and kept.active == frozenset()
    kept.update([HARD], using(2 * GIB))
    assert kept.active == {MEMORY}
    kept.close()
    assert alarms.set == []


def test_the_group_of_all_pods_has_its_own() -> None:
    alarms = FakeAlarms()
    both = [HARD, a_threshold("allocatableMemory.available", "1Gi")]
    keeper(alarms).update(both, using(GIB, pods=3 * GIB))
    assert sorted(each.group for each in alarms.set) == ["/", "/kubepods"]


def test_pressure_alarms_are_set_once() -> None:
    alarms = FakeAlarms()
    alarms.by_usage = False
    kept = keeper(alarms)
    for used in (GIB, 2 * GIB, 3 * GIB):
        kept.update([HARD], using(used))
    assert alarms.requested == 1


def test_an_alarm_that_rings_wakes_and_says_which(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    alarms, woken = FakeAlarms(), []
    kept = AlarmKeeper(alarms=alarms, groups=GROUPS, wake=lambda: woken.append(True))
    kept.update([HARD], using(GIB))
    alarms.ring("/", 8 * GIB)
    assert woken and [vars(each)["signal"] for each in caplog.records] == [MEMORY]


def test_a_refusal_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    alarms = FakeAlarms()
    alarms.refuses = "cgroup.event_control: Permission denied"
    kept = keeper(alarms)
    for used in (GIB, 2 * GIB, 3 * GIB):
        kept.update([HARD], using(used))
    assert alarms.requested == 1 and len(caplog.records) == 1
    keeper(None).update([HARD], using(GIB))


def test_an_alarm_whose_group_went_is_set_anew_when_it_comes_again() -> None:
    alarms = FakeAlarms()
    alarms.by_usage = False
    kept = keeper(alarms)
    kept.update([HARD], using(GIB))
    alarms.set[0].is_over = True
    alarms.refuses = "memory.events: No such file or directory"
    kept.update([HARD], using(GIB))
    assert alarms.set == [] and kept.active == frozenset()
    alarms.refuses = ""
    kept.update([HARD], using(GIB))
    assert kept.active == {MEMORY}


@pytest.mark.parametrize(
    ("available", "pause"),
    [(90 * GIB, 10), (21 * GIB, 10), (9 * GIB, 4), (3 * GIB, 1), (GIB, 1), (GIB - 1, 10)],
)
def test_the_nearer_the_sooner(available: int, pause: float) -> None:
    assert next_check([a_threshold("memory.available", "1Gi")], seen(memory_available=available)) == pause


def test_the_nearest_signal_decides() -> None:
    thresholds = [a_threshold("memory.available", "1Gi"), a_threshold("nodefs.available", "10%")]
    assert next_check(thresholds, seen(memory_available=50 * GIB, nodefs_available=11 * GIB)) == 2
    assert next_check(thresholds, {}) == next_check([], seen(memory_available=1)) == 10


def test_an_alarm_is_set_at_the_use_that_crosses_the_next_threshold() -> None:
    memory = MemorySignal(time_ns=1, available=5 * GIB, capacity=8 * GIB, working_set=3 * GIB, usage=4 * GIB)
    hard, soft = a_threshold("memory.available", "1Gi"), a_threshold("memory.available", "2Gi", grace=30)
    now = seen(memory_available=5 * GIB)
    assert alarm_at("memory.available", [hard], now, memory) == 8 * GIB
    assert alarm_at("memory.available", [hard, soft], now, memory) == 7 * GIB
    short = seen(memory_available=GIB + 512 * MIB)
    assert alarm_at("memory.available", [hard, soft], short, memory) == 4 * GIB + 512 * MIB
    assert alarm_at("memory.available", [soft], short, memory) is None
    assert alarm_at("memory.available", [hard], {}, memory) is None
