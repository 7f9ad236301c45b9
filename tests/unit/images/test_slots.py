"""Slots for pulls."""

from __future__ import annotations

import asyncio

from pykubelet.images.pull import PullSettings
from pykubelet.images.slots import PullSlots
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import TaskSet


async def hold(slots: PullSlots, seconds: float, log: list[tuple[str, float]], name: str) -> None:
    async with slots.taken():
        log.append((name, asyncio.get_running_loop().time()))
        await LoopClock().sleep(seconds)


async def run(slots: PullSlots, *seconds: float, wait: float = 100.0) -> list[tuple[str, float]]:
    log: list[tuple[str, float]] = []
    async with TaskSet("holders") as tasks:
        for number, length in enumerate(seconds):
            tasks.spawn(hold(slots, length, log, str(number)), name=str(number))
        await LoopClock().sleep(wait)
    return log


async def test_no_limit() -> None:
    assert [at for _, at in await run(PullSlots(None), *[10.0] * 20)] == [0.0] * 20


async def test_limit_in_order() -> None:
    assert await run(PullSlots(2), 10.0, 20.0, 10.0, 10.0) == [("0", 0.0), ("1", 0.0), ("2", 10.0), ("3", 20.0)]


async def test_a_pull_keeps_its_slot_however_long_it_takes() -> None:
    assert await run(PullSettings(max_parallel=1).slots, 1000.0, 5.0, wait=2000.0) == [("0", 0.0), ("1", 1000.0)]


async def test_a_cancelled_wait_loses_no_slot() -> None:
    slots = PullSlots(1)
    log: list[tuple[str, float]] = []
    async with TaskSet("holders") as tasks:
        tasks.spawn(hold(slots, 10.0, log, "a"), name="a")
        waiting = tasks.spawn(hold(slots, 10.0, log, "b"), name="b")
        tasks.spawn(hold(slots, 10.0, log, "c"), name="c")
        await LoopClock().sleep(1)
        waiting.cancel()
        await LoopClock().sleep(50)
    assert log == [("a", 0.0), ("c", 10.0)]
    assert (slots._taken, slots.waiting) == (0, 0)


async def test_a_slot_that_comes_with_the_cancel_is_passed_on() -> None:
    slots = PullSlots(1)
    log: list[tuple[str, float]] = []
    async with TaskSet("holders") as tasks:
        tasks.spawn(hold(slots, 10.0, log, "a"), name="a")
        waiting = tasks.spawn(hold(slots, 10.0, log, "b"), name="b")
        await LoopClock().sleep(1)
        slots._queue[0].set_result(None)  # the turn has come, the task has not run yet
        slots._queue.popleft()
        slots._taken += 1
        waiting.cancel()
        await LoopClock().sleep(50)
    assert slots._taken == 0
