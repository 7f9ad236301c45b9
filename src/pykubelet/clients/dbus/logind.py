"""The delay of a shutdown through org.freedesktop.login1.

A session is one connection: it ends with BusDown when the bus goes away. A logind that was restarted shows as
Notice.REPLACED: the lock is taken anew from it. Does not cover what is done with the time (node/shutdown.py).
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pykubelet.clients.dbus.bus import BUS_NAME, Bus
from pykubelet.clients.dbus.port import BusDown, BusRefused, Notice
from pykubelet.clients.dbus.systemd import Connect
from pykubelet.kit.files import write_atomic
from pykubelet.kit.tasks import first_of

SERVICE = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
)
LOGIND_UNIT = "systemd-logind.service"
DROP_IN = "99-kubelet.conf"
DROP_IN_TEXT = """\
# Written by the node agent, which needs this long to stop its pods.
[Login]
InhibitDelayMaxSec={}
"""
WHO, WHY = "kubelet", "Kubelet needs time to handle node shutdown"


class InhibitorLock:
    """Held for as long as its descriptor is open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class DbusLogind:
    def __init__(self, *, connect: Connect = Bus.connect, settings: Path = Path("/etc/systemd/logind.conf.d")) -> None:
        """`settings` is the folder of logind's drop-in files."""
        self._connect = connect
        self._settings = settings

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        bus = await self._connect()
        try:
            session = Session(bus, self._settings)
            await session.open()
            yield session
        finally:
            await bus.close()


class Session:
    def __init__(self, bus: Bus, settings: Path) -> None:
        self._bus = bus
        self._settings = settings
        self._notices: asyncio.Queue[Notice] = asyncio.Queue()

    async def open(self) -> None:
        await self._bus.listen(f"sender='{SERVICE}',interface='{MANAGER}',member='PrepareForShutdown'", self._signal)
        await self._bus.listen(
            f"sender='{BUS_NAME}',interface='{BUS_NAME}',member='NameOwnerChanged',arg0='{SERVICE}'", self._owner
        )

    async def max_delay(self) -> float:
        return float(await self._bus.read_property(SERVICE, PATH, MANAGER, "InhibitDelayMaxUSec")) / 1e6

    async def raise_max_delay(self, seconds: float) -> None:
        self._settings.mkdir(mode=0o755, parents=True, exist_ok=True)
        text = DROP_IN_TEXT.format(math.ceil(seconds))
        write_atomic(self._settings / DROP_IN, text.encode(), mode=0o644)
        body = [LOGIND_UNIT, "all", int(signal.SIGHUP)]
        await self._bus.call(SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "KillUnit", "ssi", body)

    async def is_shutting_down(self) -> bool:
        return bool(await self._bus.read_property(SERVICE, PATH, MANAGER, "PreparingForShutdown"))

    async def delay_shutdown(self) -> InhibitorLock:
        reply = await self._bus.call(SERVICE, PATH, MANAGER, "Inhibit", "ssss", ["shutdown", WHO, WHY, "delay"])
        if not reply.unix_fds:
            raise BusRefused(f"{SERVICE}.NoLock", "logind gave no lock")
        return InhibitorLock(reply.unix_fds[0])

    async def next_notice(self) -> Notice:
        if not self._notices.empty():
            return self._notices.get_nowait()
        notice = await first_of(self._notices.get(), self._end())
        if notice is None:
            raise BusDown("the connection to the D-Bus system bus ended")
        return notice

    async def _end(self) -> None:
        await self._bus.ended()

    def _signal(self, interface: str, member: str, body: Sequence[Any]) -> None:
        if interface == MANAGER and member == "PrepareForShutdown":
            self._notices.put_nowait(Notice.SHUTDOWN if body[0] else Notice.CANCELLED)

    def _owner(self, interface: str, member: str, body: Sequence[Any]) -> None:
        if interface == BUS_NAME and member == "NameOwnerChanged" and body[0] == SERVICE and body[2]:
            self._notices.put_nowait(Notice.REPLACED)
