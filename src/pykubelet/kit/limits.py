"""Bounds on rate, work and memory: `TokenBucket`, `Slots`, a table of the most recently used (`Recent`), `Once`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from pykubelet.kit.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

REMEMBERED = 1000


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up; a rate of 0 or less never refuses."""

    __slots__ = ("_burst", "_filled_at", "_rate", "_tokens")

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = max(1, burst)
        self._tokens = float(self._burst)
        self._filled_at: float | None = None

    def try_take(self, now: float) -> bool:
        """Take a token if there is one at `now` (seconds); never waits."""
        if self._rate <= 0:
            return True
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    async def take(self, clock: Clock) -> float:
        """Wait for a token, first come first served; returns the seconds waited.

        Tokens may go negative: a caller takes its token at once and sleeps until the bucket would have had it.
        """
        if self._rate <= 0:
            return 0.0
        self._fill(clock.monotonic())
        self._tokens -= 1.0
        if self._tokens >= 0:
            return 0.0
        wait = -self._tokens / self._rate
        try:
            await clock.sleep(wait)
        except asyncio.CancelledError:
            self._tokens += 1.0  # not used
            raise
        return wait

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            self._tokens = min(float(self._burst), self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now


class Slots(Generic[K]):
    """At most `count` keys at once; of those that wait the one of the lowest rank is next, the oldest of equals.

    The rank counts when a slot is free, not when the wait begins.
    """

    def __init__(self, count: int, rank: Callable[[K], int] = lambda key: 0) -> None:
        self._free = count
        self._rank = rank
        self._waiting: dict[asyncio.Future[None], K] = {}

    @asynccontextmanager
    async def taken(self, key: K) -> AsyncIterator[None]:
        """Hold a slot for the length of the block."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._give()

    async def _wait(self, key: K) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = key
        try:
            await turn
        except asyncio.CancelledError:
            if turn not in self._waiting:
                self._give()  # it was given to us already
            self._waiting.pop(turn, None)
            raise

    def _give(self) -> None:
        left = [turn for turn in self._waiting if not turn.done()]
        if not left:
            self._free += 1
            return
        turn = min(left, key=lambda each: self._rank(self._waiting[each]))
        del self._waiting[turn]
        turn.set_result(None)


class Recent(Generic[K, V]):
    """At most `size` values by key; the one unused for longest is dropped first."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        self._values.pop(key, None)

    def values(self) -> list[V]:
        return list(self._values.values())


class Once(Generic[K]):
    """Tells new problems from repeated ones, so that each is logged or sent once. Bounded."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._known: Recent[K, str] = Recent(size)

    def is_new(self, key: K, text: str = "") -> bool:
        """True for a key not met before, or met with another text; remembers it."""
        if self._known.get(key) == text:
            return False
        self._known.put(key, text)
        return True

    def clear(self, key: K) -> None:
        """The problem is over: the next one of this key is new."""
        self._known.drop(key)
