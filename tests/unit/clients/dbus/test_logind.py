"""The shutdown delay over a real bus: locks, announcements, the drop-in file, and logind or the bus going away."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dbus_fast import Message
from dbus_fast.aio import MessageBus

from pykubelet.clients.dbus.logind import MANAGER, PATH, DbusLogind
from pykubelet.clients.dbus.port import BusDown, BusRefused, Notice
from tests.fakes.private_bus import PrivateBus, needs_bus
from tests.fakes.stand_in_logind import StandInLogind
from tests.fakes.stand_in_systemd import StandInSystemd

pytestmark = [pytest.mark.real_loop, needs_bus]


@asynccontextmanager
async def a_logind(folder: Path) -> AsyncIterator[tuple[StandInLogind, DbusLogind, PrivateBus]]:
    with PrivateBus(folder) as bus:
        stand_in = StandInLogind()
        await stand_in.start(bus.address)
        try:
            yield stand_in, DbusLogind(connect=bus.connect, settings=folder / "logind.conf.d"), bus
        finally:
            stand_in.stop()


async def test_a_lock_is_held_until_it_is_let_go(tmp_path: Path) -> None:
    async with a_logind(tmp_path) as (logind, client, _), client.session() as session:
        assert await session.max_delay() == 5.0
        assert not await session.is_shutting_down()
        lock = await session.delay_shutdown()
        assert logind.locks() == 1
        assert logind.requested == [("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")]
        lock.release()
        lock.release()
        for _ in range(500):  # the bus has a copy of its own until it has handed the other one over
            if logind.locks() == 0:
                break
            await asyncio.sleep(0.01)
        assert logind.locks() == 0


async def test_announcements_are_heard_in_order(tmp_path: Path) -> None:
    async with a_logind(tmp_path) as (logind, client, _), client.session() as session:
        logind.announce(True)
        logind.announce(False)
        assert [await session.next_notice() for _ in range(2)] == [Notice.SHUTDOWN, Notice.CANCELLED]
        logind.announce(True)
        assert await session.is_shutting_down()


async def test_a_restarted_logind_and_a_lost_bus_are_news(tmp_path: Path) -> None:
    async with a_logind(tmp_path) as (logind, client, bus), client.session() as session:
        logind.stop()
        await logind.start(bus.address)
        assert await session.next_notice() is Notice.REPLACED
        bus.stop()
        with pytest.raises(BusDown):
            await session.next_notice()


async def test_the_delay_is_raised_by_a_file_and_a_hang_up(tmp_path: Path) -> None:
    async with a_logind(tmp_path) as (logind, client, bus):
        systemd = StandInSystemd()
        systemd.on_kill = lambda unit, number: logind.set_max_delay(31)
        await systemd.start(bus.address)
        async with client.session() as session:
            await session.raise_max_delay(30.2)
            assert await session.max_delay() == 31
        assert systemd.killed == [("systemd-logind.service", signal.SIGHUP)]
        assert "[Login]\nInhibitDelayMaxSec=31\n" in (tmp_path / "logind.conf.d" / "99-kubelet.conf").read_text()
        systemd.stop()


async def test_a_refused_lock_is_told_with_its_reason(tmp_path: Path) -> None:
    async with a_logind(tmp_path) as (logind, client, _), client.session() as session:
        logind.refuse = "org.freedesktop.DBus.Error.AccessDenied"
        with pytest.raises(BusRefused, match="no lock for you"):
            await session.delay_shutdown()


async def test_no_logind_is_no_session(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as bus:
        async with DbusLogind(connect=bus.connect).session() as session:
            with pytest.raises(BusDown, match="login1 is not there"):
                await session.max_delay()


async def test_a_shutdown_that_somebody_else_announces_is_not_believed(tmp_path: Path) -> None:
    """Any user of a machine may send this signal."""
    async with a_logind(tmp_path) as (stand_in, logind, bus), logind.session() as session:
        stranger = await MessageBus(bus_address=bus.address).connect()
        await stranger.send(Message.new_signal(PATH, MANAGER, "PrepareForShutdown", "b", [True]))
        stranger.disconnect()
        stand_in.announce(False)
        assert await session.next_notice() is Notice.CANCELLED
