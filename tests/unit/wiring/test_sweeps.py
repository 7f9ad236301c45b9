"""Chores that ask plugins hold up nobody."""

from __future__ import annotations

import asyncio

from pykubelet.kit.tasks import running
from pykubelet.wiring.plugins import Sweeps


async def test_a_sweep_that_hangs_holds_up_neither_housekeeping_nor_another_sweep() -> None:
    done: list[str] = []

    async def hangs() -> None:
        done.append("began")
        await asyncio.Event().wait()

    async def quick() -> None:
        done.append("quick")
        raise OSError("the disk is full")

    sweeps = Sweeps([hangs, quick])
    async with running(sweeps):
        for _ in range(2):
            async with asyncio.timeout(1):
                await sweeps.soon()
            await asyncio.sleep(0.1)
    assert done == ["began", "quick", "quick"]
