"""Locks by key, and one call for all who want the same."""

from __future__ import annotations

import asyncio

from pykubelet.kit.sharing import Key, KeyedLock, SingleFlight
from pykubelet.kit.tasks import TaskSet, gather_all

A, B, C = ("n", "a"), ("n", "b"), ("n", "c")


async def test_one_at_a_time_with_a_key_and_nobody_waits_for_another_key() -> None:
    locks, heard = KeyedLock(), list[str]()

    async def work(name: str, *keys: Key) -> None:
        async with locks.acquire(*keys):
            heard.append(f"{name} in")
            await asyncio.sleep(1)
            heard.append(f"{name} out")

    async with TaskSet("test") as tasks:
        for name, keys in {"one": (B, A), "two": (A, B, A), "three": (C,)}.items():
            tasks.spawn(work(name, *keys), name=name)
        await asyncio.sleep(5)
    assert heard == ["one in", "three in", "one out", "three out", "two in", "two out"]


async def test_a_cancelled_taker_leaves_nothing_behind() -> None:
    locks = KeyedLock()

    async def hold(*keys: Key) -> None:
        async with locks.acquire(*keys):
            await asyncio.Event().wait()

    async with TaskSet("test") as tasks:
        holder = tasks.spawn(hold(A), name="holder")
        waiter = tasks.spawn(hold(A, B), name="waiter")
        await asyncio.sleep(1)
        assert locks.is_wanted(A) and locks.is_wanted(B)
        waiter.cancel()
        await asyncio.sleep(0.1)
        assert not locks.is_wanted(B)
        holder.cancel()
        await asyncio.sleep(0.1)
        assert not locks.is_wanted(A)
        async with locks.acquire(A, B):
            pass


async def test_one_call_serves_all_with_its_result_or_its_error() -> None:
    flights: SingleFlight[int] = SingleFlight()
    calls = 0

    async def call() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1)
        if calls == 2:
            raise ValueError("broken")
        return calls

    assert await gather_all(*(flights.run("a", call) for _ in range(3))) == [1, 1, 1]
    outcomes = await asyncio.gather(*(flights.run("a", call) for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in outcomes] == ["broken"] * 3 and calls == 2


async def test_when_the_leader_is_cancelled_the_next_caller_starts_anew() -> None:
    flights: SingleFlight[str] = SingleFlight()
    results: list[str] = []

    async def ask(name: str) -> None:
        async def call() -> str:
            await asyncio.sleep(1)
            return name

        results.append(await flights.run("a", call))

    async with TaskSet("test") as tasks:
        leader = tasks.spawn(ask("first"), name="first")
        for name in ("second", "third"):
            tasks.spawn(ask(name), name=name)
        await asyncio.sleep(0.5)
        leader.cancel()
        await asyncio.sleep(5)
    assert results == ["second", "second"]
