"""How many pulls may run at the same time.

Does not cover: what is pulled and how often one may begin (pull.py), and pulls that hang: the CRI reports no progress,
so only the runtime can tell them from slow ones and end them (image_pull_progress_timeout of containerd). Until then
they hold their slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class PullSlots:
    """`limit` pulls at once, first come first served; None = no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        if self._limit is None:
            yield
            return
        await self._take()
        try:
            yield
        finally:
            self._give()

    async def _take(self) -> None:
        assert self._limit is not None
        if self._taken < self._limit:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give()  # the slot came in the same moment as the cancel
            elif turn in self._queue:
                self._queue.remove(turn)
            raise

    def _give(self) -> None:
        """Hand the slot to the next in line, or put it back."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1
