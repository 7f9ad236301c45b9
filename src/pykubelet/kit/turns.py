"""Taking turns: whoever works on a key works alone, whoever works on another key does not wait.

Several keys can be taken together, always in the same order, so that two takers never wait for each other. A key
nobody wants is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec import Struct, field

Key = tuple[str, str]


class _Turn(Struct):
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    takers: int = 0


class Turns:
    def __init__(self) -> None:
        self._turns: dict[Key, _Turn] = {}

    def is_wanted(self, key: Key) -> bool:
        """Whether somebody works on it, or waits to."""
        return key in self._turns

    @asynccontextmanager
    async def alone(self, *keys: Key) -> AsyncIterator[None]:
        turns = {key: self._turns.setdefault(key, _Turn()) for key in sorted(set(keys))}
        for turn in turns.values():
            turn.takers += 1
        try:
            async with AsyncExitStack() as stack:
                for turn in turns.values():
                    await stack.enter_async_context(turn.lock)
                yield
        finally:
            for key, turn in turns.items():
                turn.takers -= 1
                if not turn.takers:
                    del self._turns[key]
