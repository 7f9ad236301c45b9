"""Waiting for the first of several, and for the end of something without a callback."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.kit.tasks import Ending, beside, first_of


async def after(seconds: float, value: str, done: list[str]) -> str:
    try:
        await asyncio.sleep(seconds)
    finally:
        done.append(value)
    return value


async def test_the_first_to_end_counts_and_the_others_are_cancelled() -> None:
    done: list[str] = []
    assert await first_of(after(5, "late", done), after(1, "early", done)) == "early"
    assert done == ["early", "late"]
    assert asyncio.get_running_loop().time() < 5


async def test_an_error_of_the_first_is_raised_and_those_of_the_others_are_not() -> None:
    async def fail(seconds: float, text: str) -> str:
        await asyncio.sleep(seconds)
        raise ValueError(text)

    with pytest.raises(ValueError, match="one"):
        await first_of(fail(1, "one"), fail(1, "two"))


async def test_cancelling_cancels_all() -> None:
    done: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await first_of(after(5, "a", done), after(6, "b", done))
    assert sorted(done) == ["a", "b"]


async def test_an_end_is_seen_by_all_who_wait_and_by_those_who_come_late() -> None:
    closed = asyncio.Event()

    async def work() -> None:
        await closed.wait()
        raise OSError("the other side is gone")

    ending = Ending(work(), name="end")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await ending.wait()
    closed.set()
    await asyncio.gather(ending.wait(), ending.wait())
    await ending.wait()


async def test_work_beside_a_block_ends_with_it_and_the_blocks_error_passes_as_it_is() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(name)

    with pytest.raises(KeyError):
        async with beside() as begin:
            begin(work("a"))
            begin(work("b"))
            await asyncio.sleep(1)
            raise KeyError("x")
    assert sorted(ended) == ["a", "b"]


async def test_an_error_beside_a_block_is_not_lost() -> None:
    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        async with beside() as begin:
            await asyncio.wait([begin(fails())])
