"""The client's own rate limit."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.clients.kube.limiter import RateLimiter
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import gather_all


async def test_burst_is_free_and_then_everybody_waits_their_turn() -> None:
    clock = LoopClock()
    limiter = RateLimiter(10, 5, clock)
    done: list[tuple[int, float]] = []

    async def call(index: int) -> None:
        await limiter.take()
        done.append((index, round(clock.monotonic(), 3)))

    await gather_all(*(call(index) for index in range(8)))
    assert done == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0.1), (6, 0.2), (7, 0.3)]


async def test_tokens_come_back_with_time_up_to_the_burst() -> None:
    clock = LoopClock()
    limiter = RateLimiter(10, 2, clock)
    assert [limiter.try_take() for _ in range(3)] == [True, True, False]
    await asyncio.sleep(100)
    assert [limiter.try_take() for _ in range(3)] == [True, True, False]


async def test_given_up_turn_is_not_used() -> None:
    clock = LoopClock()
    limiter = RateLimiter(1, 1, clock)
    await limiter.take()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await limiter.take()
    assert await limiter.take() == pytest.approx(0.9)


@pytest.mark.parametrize(("qps", "expected"), [(-1, 0.0), (0, 0.2), (50, 0.02)])
async def test_zero_is_the_usual_default_and_below_means_no_limit(qps: float, expected: float) -> None:
    limiter = RateLimiter(qps, 1, LoopClock())
    await limiter.take()
    assert await limiter.take() == pytest.approx(expected)
