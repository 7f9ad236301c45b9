"""Remembered answers: each for its own time, a bounded number, and one question at a time per key.

Callers that ask the same while an answer is being fetched share it. Failures are never remembered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import Recent
from pykubelet.kit.sharing import SingleFlight

V = TypeVar("V")


class AnswersCache(Generic[V]):
    def __init__(self, *, clock: Clock, keep: Callable[[V], float], size: int = 4096) -> None:
        """`keep(answer)` is for how many seconds an answer holds; 0 is not at all."""
        self._clock = clock
        self._keep = keep
        self._known: Recent[Hashable, tuple[float, V]] = Recent(size)
        self._asking: SingleFlight[V] = SingleFlight()

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        found = self._known.get(key)
        if found is not None and found[0] > self._clock.monotonic():
            return found[1]
        return await self._asking.run(key, lambda: self._ask(key, ask))

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        answer = await ask()
        seconds = self._keep(answer)
        if seconds > 0:
            self._known.put(key, (self._clock.monotonic() + seconds, answer))
        return answer
