"""Transient units through org.freedesktop.systemd1.

A call returns a job; it is done when the manager says so in a signal, for which one listens beforehand. A connection
that broke is made anew by the next call. Does not cover which units there are and why (systemd_slices.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pykubelet.clients.dbus.bus import Bus
from pykubelet.clients.dbus.port import BusDown, BusRefused, Property, UnitExists

if TYPE_CHECKING:
    from dbus_fast import Variant

SERVICE = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
EXISTS = "org.freedesktop.systemd1.UnitExists"
NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
NOT_LOADED = "org.freedesktop.systemd1.UnitNotLoaded"
JOB_SECONDS = 30.0
AT_ONCE = 32
"""The bus cuts off who has too many questions open (128 by default)."""

Connect = Callable[[], Awaitable[Bus]]


class DbusSystemd:
    def __init__(self, *, connect: Connect = Bus.connect) -> None:
        self._connect = connect
        self._bus: Bus | None = None
        self._opening = asyncio.Lock()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._early: dict[str, str] = {}
        """Results of jobs whose callers have not heard of them yet: a signal may outrun its reply."""
        self._awaited: dict[str, asyncio.Future[str]] = {}
        self._calls = 0

    async def open(self) -> None:
        """Connect and see that systemd is there, so that trouble shows at start. Raises BusDown, BusRefused."""
        bus = await self._connection()
        await bus.read_property(SERVICE, PATH, MANAGER, "Version")

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()

    async def start_unit(self, name: str, properties: Mapping[str, Property]) -> None:
        try:
            await self._job("StartTransientUnit", "ssa(sv)a(sa(sv))", [name, "replace", _pairs(properties), []])
        except BusRefused as error:
            if error.name == EXISTS:
                raise UnitExists(error.name, str(error)) from error
            raise

    async def stop_unit(self, name: str) -> None:
        try:
            await self._job("StopUnit", "ss", [name, "replace"])
        except BusRefused as error:
            if error.name not in (NO_SUCH_UNIT, NOT_LOADED):
                raise

    async def set_properties(self, name: str, properties: Mapping[str, Property]) -> None:
        bus = await self._connection()
        async with self._turns:
            await bus.call(SERVICE, PATH, MANAGER, "SetUnitProperties", "sba(sv)", [name, True, _pairs(properties)])

    # --- inside ---------------------------------------------------------------------------------

    async def _connection(self) -> Bus:
        # The lock keeps a burst of pods from opening a connection each.
        async with self._opening:
            if self._bus is None or not self._bus.is_open:
                await self.close()
                self._bus = await self._connect()
                await self._bus.call(SERVICE, PATH, MANAGER, "Subscribe")
                rule = f"sender='{SERVICE}',interface='{MANAGER}',member='JobRemoved'"
                await self._bus.listen(rule, self._signal)
            return self._bus

    async def _job(self, member: str, signature: str, body: Sequence[Any]) -> None:
        bus = await self._connection()
        self._calls += 1
        try:
            async with self._turns:
                reply = await bus.call(SERVICE, PATH, MANAGER, member, signature, body)
            result = await self._result(str(reply.body[0]), f"{member} {body[0]}")
        finally:
            self._calls -= 1
            if not self._calls:
                self._early.clear()
        if result not in ("done", "skipped"):
            raise BusRefused(f"{SERVICE}.JobFailed", f"{member} {body[0]} ended as {result}")

    async def _result(self, job: str, what: str) -> str:
        if job in self._early:
            return self._early.pop(job)
        self._awaited[job] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(JOB_SECONDS):
                return await self._awaited[job]
        except TimeoutError as error:
            raise BusDown(f"systemd did not finish {what} within {JOB_SECONDS:g}s") from error
        finally:
            del self._awaited[job]

    def _signal(self, interface: str, member: str, body: Sequence[Any]) -> None:
        if interface != MANAGER or member != "JobRemoved":
            return
        job, result = str(body[1]), str(body[3])
        waiter = self._awaited.get(job)
        if waiter is None:
            if self._calls:  # else it is nobody's business here
                self._early[job] = result
        elif not waiter.done():
            waiter.set_result(result)


def _pairs(properties: Mapping[str, Property]) -> list[list[Any]]:
    return [[name, _variant(value)] for name, value in properties.items()]


def _variant(value: Property) -> Variant:
    from dbus_fast import Variant

    match value:
        case bool():
            return Variant("b", value)
        case int():
            return Variant("t", value)
        case str():
            return Variant("s", value)
        case list():
            return Variant("as", value)
