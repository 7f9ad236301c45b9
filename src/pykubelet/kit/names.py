"""Resolves names in threads of their own, so that a slow name server delays only its own callers.

The system's resolver cannot be stopped. So a name is looked up once at a time, concurrent callers share the answer,
a caller that cannot wait leaves, and only so many look-ups are under way in one set. Each set is apart from the
others, from the loop's own pool, and from files.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

Found = Sequence[tuple[int, int, int, str, tuple[Any, ...]]]
"""As socket.getaddrinfo gives them, for streams."""
Resolve = Callable[[str], Found]

MOST: Final = 128
WITHIN: Final = 10.0
"""Seconds; the C library gives up after some 30 with three silent servers."""


class LookupFailed(OSError):
    """No address for that name, or none in time."""


def system_lookup(name: str) -> Found:
    return socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)


class NameLookups:
    def __init__(self, *, most: int = MOST, within: float = WITHIN, resolve: Resolve = system_lookup) -> None:
        self._most = most
        self._within = within
        self._resolve = resolve
        self._under_way: dict[str, Future[Found]] = {}

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    async def addresses(self, name: str, port: int = 0) -> list[tuple[int, tuple[Any, ...]]]:
        """(family, address with the port) in the system's order; at least one. Raises LookupFailed."""
        running = self._under_way.get(name)
        if running is None or running.done():
            running = self._begin(name)
        try:
            async with asyncio.timeout(self._within):
                found = await asyncio.shield(asyncio.wrap_future(running))
        except TimeoutError:
            raise LookupFailed(f"lookup {name}: i/o timeout") from None
        except (OSError, UnicodeError) as error:
            raise LookupFailed(f"lookup {name}: no such host") from error
        if not found:
            raise LookupFailed(f"lookup {name}: no such host")
        return [(family, (address[0], port, *address[2:])) for family, _, _, _, address in found]

    def _begin(self, name: str) -> Future[Found]:
        if len(self._under_way) >= self._most:
            self._under_way = {each: future for each, future in self._under_way.items() if not future.done()}
        if len(self._under_way) >= self._most:
            raise LookupFailed(f"lookup {name}: {self._most} look-ups of other names are not yet answered")
        future = self._under_way[name] = Future[Found]()
        # A daemon: a name server that never answers cannot keep the agent from leaving.
        thread = threading.Thread(target=self._look_up, args=(name, future), name=f"look-up {name[:40]}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more processes on this host; the next call tries again
            del self._under_way[name]
            raise LookupFailed(f"lookup {name}: {error}") from error
        return future

    def _look_up(self, name: str, future: Future[Found]) -> None:
        try:
            future.set_result(self._resolve(name))
        except Exception as error:
            future.set_exception(error)
