"""Who waits for whom."""

from __future__ import annotations

import asyncio

from pykubelet.kit.tasks import TaskSet
from pykubelet.kit.turns import Key, Turns

A, B, C = ("n", "a"), ("n", "b"), ("n", "c")


async def test_one_at_a_time_with_a_key_and_nobody_waits_for_another_key() -> None:
    turns, heard = Turns(), list[str]()

    async def work(name: str, *keys: Key) -> None:
        async with turns.alone(*keys):
            heard.append(f"{name} in")
            await asyncio.sleep(1)
            heard.append(f"{name} out")

    async with TaskSet("test") as tasks:
        for name, keys in {"one": (B, A), "two": (A, B, A), "three": (C,)}.items():
            tasks.spawn(work(name, *keys), name=name)
        await asyncio.sleep(5)
    assert heard == ["one in", "three in", "one out", "three out", "two in", "two out"]


async def test_a_cancelled_taker_leaves_nothing_behind() -> None:
    turns = Turns()

    async def hold(*keys: Key) -> None:
        async with turns.alone(*keys):
            await asyncio.Event().wait()

    async with TaskSet("test") as tasks:
        holder = tasks.spawn(hold(A), name="holder")
        waiter = tasks.spawn(hold(A, B), name="waiter")
        await asyncio.sleep(1)
        assert turns.is_wanted(A) and turns.is_wanted(B)
        waiter.cancel()
        await asyncio.sleep(0.1)
        assert not turns.is_wanted(B)
        holder.cancel()
        await asyncio.sleep(0.1)
        assert not turns.is_wanted(A)
        async with turns.alone(A, B):
            pass
