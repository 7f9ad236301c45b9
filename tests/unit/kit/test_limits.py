"""Token buckets, bounded tables, and what is new."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.clients.kube.transport import rate_limit
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.limits import Once, Recent, Slots, TokenBucket
from pykubelet.kit.tasks import gather_all


@pytest.mark.parametrize(("rate", "burst", "expected"), [(5.0, 10, 10), (0.0, 0, 50), (1.0, 0, 1)])
def test_burst(rate: float, burst: int, expected: int) -> None:
    bucket = TokenBucket(rate=rate, burst=burst)
    assert sum(bucket.try_take(0.0) for _ in range(50)) == expected


def test_tokens_come_back_with_time_up_to_the_burst() -> None:
    bucket = TokenBucket(rate=2.0, burst=3)
    assert [bucket.try_take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.try_take(0.5) for _ in range(2)] == [True, False]
    assert [bucket.try_take(100.5) for _ in range(4)] == [True, True, True, False]


async def test_burst_is_free_and_then_everybody_waits_their_turn() -> None:
    clock, bucket = LoopClock(), TokenBucket(rate=10, burst=5)
    done: list[tuple[int, float]] = []

    async def call(index: int) -> None:
        await bucket.take(clock)
        done.append((index, round(clock.monotonic(), 3)))

    await gather_all(*(call(index) for index in range(8)))
    assert done == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0.1), (6, 0.2), (7, 0.3)]


async def test_given_up_turn_is_not_used() -> None:
    clock, bucket = LoopClock(), TokenBucket(rate=1, burst=1)
    await bucket.take(clock)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bucket.take(clock)
    assert await bucket.take(clock) == pytest.approx(0.9)


@pytest.mark.parametrize(("qps", "expected"), [(-1, 0.0), (0, 0.2), (50, 0.02)])
async def test_zero_is_the_usual_default_and_below_means_no_limit(qps: float, expected: float) -> None:
    clock, bucket = LoopClock(), rate_limit(qps, 1)
    await bucket.take(clock)
    assert await bucket.take(clock) == pytest.approx(expected)


def test_the_value_unused_for_longest_is_dropped() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (1, None, 3)
    recent.drop("a")
    assert recent.values() == [3]


def test_a_problem_is_new_once_until_it_is_over_or_changes() -> None:
    once: Once[str] = Once()
    assert [once.is_new("disk", text) for text in ("full", "full", "broken", "broken")] == [True, False, True, False]
    once.clear("disk")
    assert once.is_new("disk", "broken")


async def test_slots_go_to_the_lowest_rank_then_to_the_one_that_waits_longest() -> None:
    ranks, order = {"a": 5, "b": 5, "c": 5, "d": 0}, []
    slots = Slots[str](1, lambda key: ranks[key])

    async def work(key: str) -> None:
        async with slots.taken(key):
            order.append(key)
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        for key in ranks:
            group.create_task(work(key))
        await asyncio.sleep(0.5)
        ranks["c"] = 1  # meanwhile
    assert order == ["a", "d", "c", "b"]


async def test_a_slot_is_not_lost_with_the_one_that_waits_for_it() -> None:
    slots, order = Slots[str](1), []
    tasks: dict[str, asyncio.Task[None]] = {}

    async def work(key: str) -> None:
        async with slots.taken(key):
            order.append(key)
            await asyncio.sleep(1)
        if key == "a":
            tasks["c"].cancel()  # the slot was given to it just now, and it did not run since

    for key in "abcd":
        tasks[key] = asyncio.create_task(work(key))
    await asyncio.sleep(0.5)
    tasks["b"].cancel()
    await asyncio.wait(tasks.values())
    assert order == ["a", "d"]
    assert [key for key, task in tasks.items() if task.cancelled()] == ["b", "c"]
    async with asyncio.timeout(1), slots.taken("e"):
        pass
