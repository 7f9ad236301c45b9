"""Limits on connections and requests when there are too many: bookkeeping only, no sockets.

`PendingConnections` are not authenticated yet: when there are too many, the address with the most of them loses its
oldest, so one address never keeps out another. `Shares` are the requests under way of known callers: a namespace may
have as many as are still free, so it leaves room for the next one however many it sends. `FairSlots` serves addresses
in rotation at work that only few can do at once. Does not cover: closing idle connections (http.py).
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct, field

MAPPED = "::ffff:"


def address_of(peer: Any) -> str:
    """What a connection is counted by: the IPv4 address, the IPv6 network of a customer (/64), or the local socket."""
    if not isinstance(peer, tuple):
        return "local"
    host = str(peer[0])
    if ":" not in host:
        return host
    if host.startswith(MAPPED) and "." in host:
        return host.removeprefix(MAPPED)
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex(":", 2) + "::/64"


def _nothing() -> None:
    return


class PendingConnection(Struct, eq=False):
    """A connection whose caller is not authenticated yet."""

    address: str
    drop: Callable[[], Any] = field(default=_nothing)
    """Ends the connection at once."""
    met: bool = False
    """Its socket belongs to a transport."""


class PendingConnections:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_address: dict[str, dict[PendingConnection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, pending: PendingConnection) -> bool:
        """Takes a place. False when none was free and another one lost its own."""
        self._by_address.setdefault(pending.address, {})[pending] = None
        self._count += 1
        return self._count <= self._limit or not self.drop_one()

    def leave(self, pending: PendingConnection) -> None:
        """It is authenticated now, or gone. Leaving twice does no harm."""
        of_address = self._by_address.get(pending.address)
        if of_address is None or pending not in of_address:
            return
        del of_address[pending]
        self._count -= 1
        if not of_address:
            del self._by_address[pending.address]

    def drop_one(self) -> bool:
        """The oldest of the address that has the most; False when there is none."""
        if not self._by_address:
            return False
        of_address = max(self._by_address.values(), key=len)
        chosen = next(iter(of_address))
        self.leave(chosen)
        chosen.drop()
        return True


class Shares:
    """Requests under way. Each key may have as many as are still free: a single one gets half, and half stays free."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: Counter[str] = Counter()
        self._count = 0

    def take(self, key: str) -> bool:
        if self._taken[key] >= self._limit - self._count:
            return False
        self._taken[key] += 1
        self._count += 1
        return True

    def give_back(self, key: str) -> None:
        self._count -= 1
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]


class FairSlots:
    """A few at a time; waiters are served by address in rotation: a crowd at one address delays others by one slot."""

    def __init__(self, places: int = 1) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._free = places

    @asynccontextmanager
    async def slot(self, address: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(address)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, address: str) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._pass_on()  # the slot had come just before
            elif (queue := self._waiting.get(address)) and waiter in queue:
                queue.remove(waiter)
                if not queue:
                    del self._waiting[address]
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            address = next(iter(self._waiting))
            queue = self._waiting.pop(address)
            waiter = queue.popleft()
            if queue:
                self._waiting[address] = queue  # behind the other addresses
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
