"""One contract for logind: the fake in memory, the stand-in on a bus of its own, and the real one in a guest."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from pykubelet.clients.dbus.logind import DROP_IN, WHO, DbusLogind
from pykubelet.clients.dbus.port import BusRefused, Logind, Notice
from tests.contracts.guests import guest, run
from tests.fakes.fake_logind import FakeLogind
from tests.fakes.private_bus import PrivateBus, needs_bus
from tests.fakes.stand_in_logind import StandInLogind
from tests.fakes.stand_in_systemd import StandInSystemd

pytestmark = pytest.mark.real_loop

WITHIN = 120.0
DROP_INS = Path("/etc/systemd/logind.conf.d")
MANAGER = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
TARGET = "poweroff.target"


class Subject(Protocol):
    logind: Logind

    async def announce(self) -> None:
        """A shutdown is coming."""
        ...

    async def cancel(self) -> None:
        """It does not come after all."""
        ...

    async def restart(self) -> None:
        """logind itself goes and comes."""
        ...

    async def locks(self) -> int:
        """How many locks the agent holds."""
        ...


class FakeSubject:
    def __init__(self) -> None:
        self.fake = FakeLogind(max_delay=5)
        self.logind: Logind = self.fake

    async def announce(self) -> None:
        self.fake.announce(True)

    async def cancel(self) -> None:
        self.fake.announce(False)

    async def restart(self) -> None:
        self.fake.restart()

    async def locks(self) -> int:
        return len(self.fake.locks)


class StandInSubject:
    def __init__(self, bus: PrivateBus, stand_in: StandInLogind, folder: Path) -> None:
        self._bus, self._stand_in = bus, stand_in
        self.logind: Logind = DbusLogind(connect=bus.connect, settings=folder / "logind.conf.d")

    async def announce(self) -> None:
        self._stand_in.announce(True)

    async def cancel(self) -> None:
        self._stand_in.announce(False)

    async def restart(self) -> None:
        self._stand_in.leave_bus()
        await self._stand_in.start(self._bus.address)

    async def locks(self) -> int:
        return self._stand_in.locks()


class GuestSubject:
    """A power-off is asked for and held up by a lock besides the agent's. Before that lock is let go the target of the
    power-off is masked: logind cannot start it and says that the shutdown does not come."""

    def __init__(self) -> None:
        self.logind: Logind = DbusLogind()
        self._holder: subprocess.Popen[bytes] | None = None

    async def announce(self) -> None:
        self._hold()
        await until(lambda: self._held("contract"), 1)
        run("busctl", "call", *MANAGER, "PowerOff", "b", "false")
        # Not before: logind does not even announce what it sees that it could not do.
        run("systemctl", "mask", "--runtime", "--quiet", TARGET)

    def _hold(self) -> None:
        words = ["systemd-inhibit", "--what=shutdown", "--mode=delay", "--who=contract", "cat"]
        self._holder = subprocess.Popen(words, stdin=subprocess.PIPE)

    async def cancel(self) -> None:
        assert self._holder is not None
        self._holder.communicate()
        self._holder = None

    async def restart(self) -> None:
        await asyncio.to_thread(run, "systemctl", "restart", "systemd-logind")

    async def locks(self) -> int:
        return await self._held(WHO)

    async def _held(self, who: str) -> int:
        listed = json.loads(run("busctl", "--json=short", "call", *MANAGER, "ListInhibitors"))
        return sum(each[:2] == ["shutdown", who] for each in listed["data"][0])

    def end(self) -> None:
        if self._holder is not None:
            self._holder.communicate()
        run("systemctl", "unmask", "--runtime", "--quiet", TARGET)
        (DROP_INS / DROP_IN).unlink(missing_ok=True)
        run("systemctl", "kill", "--signal=HUP", "systemd-logind")


@asynccontextmanager
async def a_fake(folder: Path) -> AsyncIterator[Subject]:
    yield FakeSubject()


@asynccontextmanager
async def a_stand_in(folder: Path) -> AsyncIterator[Subject]:
    with PrivateBus(folder) as bus:
        logind, systemd = StandInLogind(), StandInSystemd()

        def reload(unit: str, number: int) -> None:
            text = (folder / "logind.conf.d" / DROP_IN).read_text()
            logind.set_max_delay(float(text.rpartition("InhibitDelayMaxSec=")[2]))

        systemd.on_kill = reload
        await logind.start(bus.address)
        await systemd.start(bus.address)
        try:
            yield StandInSubject(bus, logind, folder)
        finally:
            systemd.stop()
            logind.stop()


@asynccontextmanager
async def a_guest(folder: Path) -> AsyncIterator[Subject]:
    subject = GuestSubject()
    try:
        async with subject.logind.session() as session:
            # In the five seconds that are usual a slow guest gets nowhere.
            await session.raise_max_delay(600)
            await until(session.max_delay, 600.0)
        yield subject
    finally:
        subject.end()


Open = Callable[[Path], AbstractAsyncContextManager[Subject]]
SUBJECTS = pytest.mark.parametrize(
    "a_subject",
    [
        pytest.param(a_fake, id="fake"),
        pytest.param(a_stand_in, id="stand-in", marks=needs_bus),
        pytest.param(a_guest, id="guest", marks=guest),
    ],
)


async def until(ask: Callable[[], Awaitable[float]], wanted: float) -> None:
    end = time.monotonic() + WITHIN
    while (found := await ask()) != wanted:
        assert time.monotonic() < end, f"{found:g}, not {wanted:g}, after {WITHIN:g} s"
        await asyncio.sleep(0.02)


@SUBJECTS
async def test_a_lock_is_held_until_it_is_let_go(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject:
        async with subject.logind.session() as session:
            assert not await session.is_shutting_down()
            first, second = await session.delay_shutdown(), await session.delay_shutdown()
            await until(subject.locks, 2)
            first.release()
            first.release()
            await until(subject.locks, 1)
        # The connection is over, the lock is not.
        assert await subject.locks() == 1
        second.release()
        await until(subject.locks, 0)


@SUBJECTS
async def test_a_shutdown_is_announced_and_cancelled(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject, subject.logind.session() as session:
        lock = await session.delay_shutdown()
        await subject.announce()
        async with asyncio.timeout(WITHIN):
            assert await session.next_notice() is Notice.SHUTDOWN
        assert await session.is_shutting_down()
        with pytest.raises(BusRefused) as caught:
            await session.delay_shutdown()
        assert caught.value.name == "org.freedesktop.login1.OperationInProgress"
        lock.release()
        await subject.cancel()
        async with asyncio.timeout(WITHIN):
            assert await session.next_notice() is Notice.CANCELLED
        assert not await session.is_shutting_down()
        (await session.delay_shutdown()).release()


@SUBJECTS
async def test_a_session_hears_what_is_said_while_it_is_open(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject:
        async with subject.logind.session() as first:
            await subject.announce()
            async with asyncio.timeout(WITHIN):
                assert await first.next_notice() is Notice.SHUTDOWN
        async with subject.logind.session() as second, subject.logind.session() as third:
            assert await second.is_shutting_down(), "announced before, and still to be seen"
            await subject.cancel()
            async with asyncio.timeout(WITHIN):
                assert await second.next_notice() is Notice.CANCELLED
                assert await third.next_notice() is Notice.CANCELLED


@SUBJECTS
async def test_another_logind_is_news_and_gives_locks_again(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject, subject.logind.session() as session:
        before = await session.delay_shutdown()
        await subject.restart()
        async with asyncio.timeout(WITHIN):
            assert await session.next_notice() is Notice.REPLACED
        # A lock is a file that the new logind finds.
        await until(subject.locks, 1)
        after = await session.delay_shutdown()
        before.release()
        await until(subject.locks, 1)
        after.release()
        await until(subject.locks, 0)


@SUBJECTS
async def test_the_longest_delay_is_raised_in_whole_seconds(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject, subject.logind.session() as session:
        assert await session.max_delay() >= 5
        await session.raise_max_delay(1230.2)
        await until(session.max_delay, 1231.0)
