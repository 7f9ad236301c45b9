"""A task per key: wake, due time, back-off, last error, snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.kit.keyed import WHEN_WOKEN, KeyedTasks, KeyState
from pykubelet.kit.limits import Slots


class Work:
    """Notes when each key ran; what a run does is a function per key, by default nothing and done."""

    def __init__(self, at_once: int | None = None) -> None:
        self.clock = LoopClock()
        self.runs: list[tuple[float, str]] = []
        self.finished: list[str] = []
        self.does: dict[str, Callable[[], float | None]] = {}
        self.takes = 0.0
        self.tasks = KeyedTasks(
            "test",
            self._run,
            clock=self.clock,
            first_retry=1.0,
            last_retry=4.0,
            on_finished=self.finished.append,
            slots=Slots(at_once) if at_once is not None else None,
        )

    async def _run(self, key: str) -> float | None:
        self.runs.append((round(self.clock.monotonic(), 3), key))
        await self.clock.sleep(self.takes)
        return self.does.get(key, lambda: None)()

    def times(self, key: str = "a") -> list[float]:
        return [at for at, who in self.runs if who == key]


def fails() -> float | None:
    raise ValueError("broken")


async def test_a_wake_runs_the_key_and_a_finished_one_is_forgotten() -> None:
    work = Work()
    async with work.tasks:
        work.tasks.wake("a")
        assert "a" in work.tasks
        await work.clock.sleep(1)
        assert "a" not in work.tasks
        work.tasks.wake("a")
        await work.clock.sleep(1)
    assert work.times() == [0, 1]
    assert work.finished == ["a", "a"]


async def test_wakes_during_a_run_lead_to_one_more_run() -> None:
    work = Work()
    work.takes = 5.0
    async with work.tasks:
        work.tasks.wake("a")
        await work.clock.sleep(1)
        work.tasks.wake("a")
        work.tasks.wake("a")
        await work.clock.sleep(20)
    assert work.times() == [0, 5]
    assert work.finished == ["a"]


async def test_a_key_runs_again_when_it_is_due_or_woken() -> None:
    work = Work()
    work.does["a"] = lambda: 10.0
    work.does["b"] = lambda: WHEN_WOKEN
    async with work.tasks:
        work.tasks.wake("a")
        work.tasks.wake("b")
        await work.clock.sleep(12)
        work.tasks.wake("a")
        work.tasks.wake("b")
        await work.clock.sleep(11)
    assert work.times("a") == [0, 10, 12, 22]
    assert work.times("b") == [0, 12]
    assert work.finished == []


async def test_failures_are_retried_with_back_off_and_a_success_ends_it() -> None:
    work = Work()
    work.does["a"] = fails
    async with work.tasks:
        work.tasks.wake("a")
        await work.clock.sleep(8)
        seen = work.tasks.snapshot()["a"]
        assert (seen.failures, seen.last_error, seen.next_run_in) == (4, "broken", pytest.approx(3))
        work.does["a"] = lambda: 100.0
        await work.clock.sleep(4)
        seen = work.tasks.snapshot()["a"]
        assert (seen.failures, seen.last_error, seen.next_run_in) == (0, "", pytest.approx(99))
    assert work.times() == [0, 1, 3, 7, 11]


async def test_a_wake_may_skip_the_back_off_or_wait_for_its_end() -> None:
    work = Work()
    work.does["a"] = fails
    work.takes = 0.5
    async with work.tasks:
        work.tasks.wake("a")
        await work.clock.sleep(0.1)
        work.tasks.wake("a", skip_backoff=False)
        await work.clock.sleep(0.5)
        work.tasks.wake("a", skip_backoff=False)
        await work.clock.sleep(1.5)
        assert work.times() == [0, 1.5]
        work.tasks.wake("a")
        await work.clock.sleep(0)
        work.tasks.wake("a")
        await work.clock.sleep(0.9)
    assert work.times() == [0, 1.5, 2.1, 2.6]


async def test_a_reset_lets_the_back_off_begin_anew() -> None:
    work = Work()
    work.does["a"] = fails
    async with work.tasks:
        work.tasks.wake("a")
        await work.clock.sleep(3.5)
        work.tasks.reset("a")
        work.tasks.wake("a")
        await work.clock.sleep(1.1)
    assert work.times() == [0, 1, 3, 3.5, 4.5]


async def test_the_owner_decides_about_each_failure_and_knows_the_one_before() -> None:
    clock = LoopClock()
    before: list[str] = []

    async def work(key: str) -> float | None:
        raise ValueError(f"at {clock.monotonic():g}")

    def on_error(key: str, error: Exception, state: KeyState) -> float:
        before.append(state.last_error)
        return 7.0

    async with KeyedTasks("test", work, clock=clock, first_retry=1, last_retry=1, on_error=on_error) as tasks:
        tasks.wake("a")
        await clock.sleep(15)
    assert before == ["", "at 0", "at 7"]


async def test_an_interrupted_run_is_no_failure_and_runs_again_at_once() -> None:
    work = Work()
    work.takes = 10.0
    async with work.tasks:
        work.tasks.wake("a")
        await work.clock.sleep(2)
        assert work.tasks.snapshot()["a"].is_running
        work.tasks.interrupt("a")
        work.tasks.interrupt("unknown")
        await work.clock.sleep(1)
        assert work.tasks.snapshot()["a"].failures == 0
        await work.clock.sleep(20)
    assert work.times() == [0, 2]
    assert work.finished == ["a"]


async def test_a_deadline_of_the_work_itself_is_a_failure() -> None:
    clock = LoopClock()

    async def work(key: str) -> float | None:
        async with asyncio.timeout(1):
            await clock.sleep(5)
        return None

    async with KeyedTasks("test", work, clock=clock, first_retry=1, last_retry=1) as tasks:
        tasks.wake("a")
        await clock.sleep(1.5)
        assert tasks.snapshot()["a"].last_error == "TimeoutError"


async def test_a_key_that_hangs_delays_no_other_unless_all_slots_are_taken() -> None:
    work = Work(at_once=2)
    work.takes = 1.0
    async with work.tasks:
        for key in "abc":
            work.tasks.wake(key)
        await work.clock.sleep(0.5)
        work.tasks.wake("c")  # waits for a slot: its run will see this, no other is needed
        await work.clock.sleep(5)
    assert work.runs == [(0, "a"), (0, "b"), (1, "c")]


async def test_keys_woken_before_the_block_begin_with_it_and_leaving_cancels_all() -> None:
    work = Work()
    work.tasks.wake("a")
    work.takes = 100.0
    async with work.tasks:
        await work.clock.sleep(1)
        assert list(work.tasks) == ["a"]
    assert work.times() == [0]
    assert "a" not in work.tasks
    assert work.finished == []
