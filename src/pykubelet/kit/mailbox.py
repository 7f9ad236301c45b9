"""Ways to hand something to a single waiting task without queues that grow.

`Mailbox` holds one pending item and merges newer ones into it; `Signal` is an edge-triggered wake-up
that is never lost between two waits. Both are for one reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Keeps a single pending item; newer ones are merged in, so a slow reader never falls behind."""

    def __init__(self, merge: Callable[[T, T], T] = lambda _old, new: new) -> None:
        self._merge = merge
        self._item: T | None = None
        self._filled = asyncio.Event()

    def put(self, new: T) -> None:
        self._item = new if self._item is None else self._merge(self._item, new)
        self._filled.set()

    def peek(self) -> T | None:
        return self._item

    async def take(self) -> T:
        await self._filled.wait()
        item, self._item = self._item, None
        self._filled.clear()
        assert item is not None
        return item

    async def take_within(self, seconds: float | None) -> T | None:
        """The next item, or None when none arrives in time."""
        try:
            async with asyncio.timeout(seconds):
                return await self.take()
        except TimeoutError:
            return None


class Signal:
    """Something changed; look again. Any number of sets before a wait wake it once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, at_most: float | None = None) -> bool:
        """Wait for a set, at most that long; True when it was set. The signal is consumed."""
        try:
            async with asyncio.timeout(at_most):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
