"""logind in memory: gives out locks, counts them, says what the test has it say.

Passes the contract of the real one (tests/contracts/test_logind_contract.py).
"""

from __future__ import annotations

import asyncio
import math
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
        self._listening: list[FakeSession] = []

    # --- what the test does ---------------------------------------------------------------------

    def announce(self, coming: bool) -> None:
        self.preparing = coming
        self._tell(Notice.SHUTDOWN if coming else Notice.CANCELLED)

    def restart(self) -> None:
        """logind goes and comes; the bus stays, and so do the locks, which are files."""
        self._tell(Notice.REPLACED)

    def cut(self) -> None:
        """The bus goes away, and with it all connections."""
        self._tell(None)

    def _tell(self, notice: Notice | None) -> None:
        for session in self._listening:
            session.notices.put_nowait(notice)

    # --- the port -------------------------------------------------------------------------------

    @asynccontextmanager
    async def session(self) -> AsyncIterator[FakeSession]:
        if not self.present:
            raise BusDown("the D-Bus system bus cannot be reached: no such file")
        self.sessions += 1
        session = FakeSession(self)
        self._listening.append(session)
        try:
            yield session
        finally:
            self._listening.remove(session)


class FakeSession:
    """One connection: hears what is said while it is open."""

    def __init__(self, logind: FakeLogind) -> None:
        self._logind = logind
        self.notices: asyncio.Queue[Notice | None] = asyncio.Queue()

    async def max_delay(self) -> float:
        return self._logind.delay

    async def raise_max_delay(self, seconds: float) -> None:
        if self._logind.takes_delay:
            self._logind.delay = math.ceil(seconds)

    async def is_shutting_down(self) -> bool:
        return self._logind.preparing

    async def delay_shutdown(self) -> FakeLock:
        if self._logind.preparing:
            raise BusRefused("org.freedesktop.login1.OperationInProgress", "a shutdown is already running")
        lock = FakeLock(self._logind)
        self._logind.locks.add(lock)
        return lock

    async def next_notice(self) -> Notice:
        notice = await self.notices.get()
        if notice is None:
            raise BusDown("the connection to the D-Bus system bus ended")
        return notice
