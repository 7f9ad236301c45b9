"""Chores run beside housekeeping and beside each other."""

from __future__ import annotations

import asyncio

from pykubelet.kit.tasks import Chore, running


async def test_a_sweep_that_hangs_holds_up_neither_housekeeping_nor_another_sweep() -> None:
    done: list[str] = []

    async def hangs() -> None:
        done.append("began")
        await asyncio.Event().wait()

    async def quick() -> None:
        done.append("quick")
        raise OSError("the disk is full")

    chores = [Chore(work.__name__, work, may_raise=(OSError,)) for work in (hangs, quick)]
    async with running(*chores):
        for _ in range(2):
            async with asyncio.timeout(1):
                for chore in chores:
                    await chore.soon()
            await asyncio.sleep(0.1)
    assert done == ["began", "quick", "quick"]
