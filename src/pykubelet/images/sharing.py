"""One call under way serves everybody who wants the same.

The first caller leads, the others wait for its answer or its error. When the leader is cancelled the next in
line starts anew: no task of its own is needed, and nothing runs on for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from pykubelet.model.errors import PykubeletError

T = TypeVar("T")


class SharedCalls(Generic[T]):
    def __init__(self) -> None:
        self._flights: dict[Hashable, asyncio.Future[tuple[T] | PykubeletError | None]] = {}

    async def run(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` gives, called by whoever asked first for this key; its PykubeletError is everybody's."""
        while (flight := self._flights.get(key)) is not None:
            answer = await asyncio.shield(flight)
            if isinstance(answer, PykubeletError):
                raise answer
            if answer is not None:
                return answer[0]
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        outcome: tuple[T] | PykubeletError | None = None  # None: the leader gave up
        try:
            outcome = (await call(),)
            return outcome[0]
        except PykubeletError as error:
            outcome = error
            raise
        finally:
            del self._flights[key]
            flight.set_result(outcome)
