"""Slots for pulls."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from pykubelet.images.pull import PullSettings
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import TaskSet

Slots = AbstractAsyncContextManager[None]


async def hold(slots: Slots, seconds: float, log: list[tuple[str, float]], name: str) -> None:
    async with slots:
        log.append((name, asyncio.get_running_loop().time()))
        await LoopClock().sleep(seconds)


async def run(slots: Slots, *seconds: float, wait: float = 100.0) -> list[tuple[str, float]]:
    log: list[tuple[str, float]] = []
    async with TaskSet("holders") as tasks:
        for number, length in enumerate(seconds):
            tasks.spawn(hold(slots, length, log, str(number)), name=str(number))
        await LoopClock().sleep(wait)
    return log


async def test_no_limit() -> None:
    assert [at for _, at in await run(PullSettings(max_parallel=None).slots(), *[10.0] * 20)] == [0.0] * 20


async def test_limit_in_order() -> None:
    slots = PullSettings(max_parallel=2).slots()
    assert await run(slots, 10.0, 20.0, 10.0, 10.0) == [
        ("0", 0.0),
        ("1", 0.0),
        ("2", 10.0),
        ("3", 20.0),
    ]


async def test_a_pull_keeps_its_slot_however_long_it_takes() -> None:
    assert await run(PullSettings(max_parallel=1).slots(), 1000.0, 5.0, wait=2000.0) == [("0", 0.0), ("1", 1000.0)]


async def test_a_cancelled_wait_loses_no_slot() -> None:
    slots = PullSettings(max_parallel=1).slots()
    log: list[tuple[str, float]] = []
    async with TaskSet("holders") as tasks:
        tasks.spawn(hold(slots, 10.0, log, "a"), name="a")
        waiting = tasks.spawn(hold(slots, 10.0, log, "b"), name="b")
        tasks.spawn(hold(slots, 10.0, log, "c"), name="c")
        await LoopClock().sleep(1)
        waiting.cancel()
        await LoopClock().sleep(50)
    assert log == [("a", 0.0), ("c", 10.0)]
