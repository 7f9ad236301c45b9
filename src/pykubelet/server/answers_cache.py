"""Remembered answers: each for its own time, a bounded number, and one question at a time per key.

Callers that ask the same while an answer is being fetched wait for that one. Failures are never remembered.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from pykubelet.kit.clock import Clock

V = TypeVar("V")


class AnswersCache(Generic[V]):
    def __init__(self, *, clock: Clock, keep: Callable[[V], float], size: int = 4096) -> None:
        """`keep(answer)` is for how many seconds an answer holds; 0 is not at all."""
        self._clock = clock
        self._keep = keep
        self._size = size
        self._known: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()
        self._asking: dict[Hashable, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        while True:
            found = self._known.get(key)
            if found is not None and found[0] > self._clock.monotonic():
                return found[1]
            pending = self._asking.get(key)
            if pending is None:
                return await self._ask(key, ask)
            # A failure is shared with all who waited for it. Whoever asks may also leave; then the next one asks.
            await asyncio.shield(pending)

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        done = self._asking[key] = asyncio.get_running_loop().create_future()
        try:
            answer = await ask()
        except Exception as error:
            done.set_exception(error)
            done.exception()  # seen by us; waiters see it too, if there are any
            raise
        finally:
            del self._asking[key]
            if not done.done():
                done.set_result(None)
        seconds = self._keep(answer)
        if seconds > 0:
            self._known.pop(key, None)
            self._known[key] = (self._clock.monotonic() + seconds, answer)
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        return answer
