from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.stats.provider import CpuRates

SECOND = 1_000_000_000


def test_a_rate_needs_two_readings_a_second_apart() -> None:
    rates = CpuRates()
    assert rates.update("a", 0, 0) is None
    assert rates.update("a", SECOND // 2, SECOND) is None
    assert rates.update("a", 2 * SECOND, SECOND) == SECOND // 2
    rates.update("a", 12 * SECOND, 11 * SECOND)  # the new base
    assert rates.update("a", 12 * SECOND + 1, 11 * SECOND + 1) == 11 * SECOND // 12


def test_the_base_moves_on() -> None:
    rates = CpuRates()
    rates.update("a", 0, 0)
    rates.update("a", 20 * SECOND, 20 * SECOND)
    assert rates.update("a", 30 * SECOND, 20 * SECOND) == 0


def test_a_counter_that_falls_begins_anew() -> None:
    rates = CpuRates()
    rates.update("a", 0, 5 * SECOND)
    assert rates.update("a", 2 * SECOND, SECOND) is None
    assert rates.update("a", 4 * SECOND, 2 * SECOND) == SECOND // 2


def test_a_clock_that_falls_begins_anew() -> None:
    rates = CpuRates()
    rates.update("a", 10 * SECOND, 0)
    assert rates.update("a", 5 * SECOND, SECOND) is None


def test_what_is_gone_is_forgotten() -> None:
    rates = CpuRates()
    rates.update("a", 0, 0)
    rates.update("b", 0, 0)
    rates.keep({"b"})
    assert rates.update("a", 2 * SECOND, 2 * SECOND) is None
    assert rates.update("b", 2 * SECOND, 2 * SECOND) == SECOND


@given(st.lists(st.integers(min_value=1, max_value=30 * SECOND), min_size=2, max_size=40), st.floats(0, 64))
def test_a_steady_load_always_shows_its_rate(steps: list[int], cores: float) -> None:
    rates, now = CpuRates(), 0
    for step in steps:
        now += step
        found = rates.update("a", now, int(now * cores))
        assert found is None or abs(found - cores * SECOND) <= 2
