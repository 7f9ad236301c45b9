"""logind in memory: gives out locks, counts them, says what the test has it say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykubelet.clients.dbus.port import BusDown, BusRefused, Notice


class FakeLock:
    def __init__(self, owner: FakeLogind) -> None:
        self._owner = owner

    def release(self) -> None:
        self._owner.locks.discard(self)


class FakeLogind:
    def __init__(self, *, max_delay: float = 1000.0) -> None:
        self.delay = max_delay
        self.takes_delay = True
        self.preparing = False
        self.present = True
        self.locks: set[FakeLock] = set()
        self.sessions = 0
        self._notices: asyncio.Queue[Notice | None] = asyncio.Queue()

    # --- what the test does ---------------------------------------------------------------------

    def announce(self, coming: bool) -> None:
        self.preparing = coming
        self._notices.put_nowait(Notice.SHUTDOWN if coming else Notice.CANCELLED)

    def restart(self) -> None:
        """logind forgets all locks; the bus stays."""
        self.locks.clear()
        self._notices.put_nowait(Notice.REPLACED)

    def cut(self) -> None:
        """The bus goes away, and with it this connection."""
        self._notices.put_nowait(None)

    # --- the port -------------------------------------------------------------------------------

    @asynccontextmanager
    async def session(self) -> AsyncIterator[FakeLogind]:
        if not self.present:
            raise BusDown("the D-Bus system bus cannot be reached: no such file")
        self.sessions += 1
        yield self

    async def max_delay(self) -> float:
        return self.delay

    async def raise_max_delay(self, seconds: float) -> None:
        if self.takes_delay:
            self.delay = seconds

    async def is_shutting_down(self) -> bool:
        return self.preparing

    async def delay_shutdown(self) -> FakeLock:
        if self.preparing:
            raise BusRefused("org.freedesktop.login1.OperationInProgress", "a shutdown is already running")
        lock = FakeLock(self)
        self.locks.add(lock)
        return lock

    async def next_notice(self) -> Notice:
        notice = await self._notices.get()
        if notice is None:
            raise BusDown("the connection to the D-Bus system bus ended")
        return notice
