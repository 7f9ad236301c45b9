"""How soon the next look is, and where alarms are set."""

from __future__ import annotations

import pytest

from pykubelet.eviction.pressure import alarm_at, next_check
from pykubelet.eviction.stats import MemorySignal
from tests.unit.eviction.making import GIB, MIB, a_threshold, seen


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
