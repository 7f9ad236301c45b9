"""Work on the same key: done by one caller for all (`SingleFlight`), or by one caller after the other (`KeyedLock`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Generic, TypeVar

from msgspec import Struct, field

T = TypeVar("T")
Key = tuple[str, str]


class SingleFlight(Generic[T]):
    """One call under way serves all callers of its key.

    The first caller leads, the others wait for its result or its error. When the leader is cancelled the next in line
    starts anew: no task of its own is needed, and no call outlives its callers.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, asyncio.Future[tuple[T] | Exception | None]] = {}

    async def run(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        while (flight := self._flights.get(key)) is not None:
            outcome = await asyncio.shield(flight)
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is not None:
                return outcome[0]
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        outcome = None  # stays so when the leader is cancelled
        try:
            outcome = (await call(),)
            return outcome[0]
        except Exception as error:
            outcome = error
            raise
        finally:
            del self._flights[key]
            flight.set_result(outcome)


class _Entry(Struct):
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedLock:
    """A lock per key, kept only while it is held or waited for."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}

    def is_wanted(self, key: Key) -> bool:
        """Whether the lock is held or waited for."""
        return key in self._entries

    @asynccontextmanager
    async def acquire(self, *keys: Key) -> AsyncIterator[None]:
        """Hold the locks of all keys; taken in sorted order, so that two callers never wait for each other."""
        entries = {key: self._entries.setdefault(key, _Entry()) for key in sorted(set(keys))}
        for entry in entries.values():
            entry.users += 1
        try:
            async with AsyncExitStack() as stack:
                for entry in entries.values():
                    await stack.enter_async_context(entry.lock)
                yield
        finally:
            for key, entry in entries.items():
                entry.users -= 1
                if not entry.users:
                    del self._entries[key]
