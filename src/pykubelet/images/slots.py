"""How many pulls may run, and how often one may begin.

Covers: slots for pulls at the same time, given back by a pull that takes very long so that one dead
registry cannot hold up all others; a token bucket for the registry rate.
Does not cover: what is pulled (pull.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykubelet.kit.clock import Clock


class PullSlots:
    """`limit` pulls at once, first come first served; None = no limit.

    `patience`: seconds after which a pull goes on without its slot; None = it keeps it to the end.
    """

    def __init__(self, limit: int | None, *, patience: float | None = None) -> None:
        self._limit = limit
        self._patience = patience
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
        held = _Held(self)
        timer = None
        if self._patience is not None:
            timer = asyncio.get_running_loop().call_later(self._patience, held.give_back)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            held.give_back()

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


class _Held:
    """One taken slot; giving it back twice is harmless."""

    def __init__(self, slots: PullSlots) -> None:
        self._slots: PullSlots | None = slots

    def give_back(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._give()


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up; a rate of 0 never refuses."""

    def __init__(self, *, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = max(1, burst)
        self._clock = clock
        self._tokens = float(self._burst)
        self._filled_at: float | None = None

    def take(self) -> bool:
        """Take a token if there is one; never waits."""
        if self._rate <= 0:
            return True
        now = self._clock.monotonic()
        if self._filled_at is not None:
            self._tokens = min(float(self._burst), self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
