"""One contract for systemd as the owner of cgroups: the stand-in on a bus of its own, and the real one in a guest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from pykubelet.clients.dbus.bus import Bus
from pykubelet.clients.dbus.port import BusRefused, UnitExists
from pykubelet.clients.dbus.systemd import PATH, SERVICE, UNLIMITED, DbusSystemd, SystemdSlices
from pykubelet.model.cgroups import CgroupLimits
from tests.contracts.guests import guest, run
from tests.fakes.private_bus import PrivateBus, needs_bus
from tests.fakes.stand_in_systemd import StandInSystemd, slice_path

pytestmark = pytest.mark.real_loop

TOP = f"pkl{os.getpid()}"
MIB = 1 << 20
MANAGER = f"{SERVICE}.Manager"


class Subject(Protocol):
    systemd: DbusSystemd

    def folder(self, unit: str) -> Path:
        """Its group below one hierarchy."""
        ...

    async def setting(self, unit: str, name: str) -> int:
        """A limit as systemd has it."""
        ...


class StandInSubject:
    def __init__(self, bus: PrivateBus, stand_in: StandInSystemd, root: Path) -> None:
        self.systemd = DbusSystemd(connect=bus.connect)
        self._stand_in, self._root = stand_in, root

    def folder(self, unit: str) -> Path:
        return self._root / slice_path(unit)

    async def setting(self, unit: str, name: str) -> int:
        return int(self._stand_in.units[unit].get(name, UNLIMITED))


class GuestSubject:
    def __init__(self, bus: Bus) -> None:
        self.systemd = DbusSystemd()
        self._bus = bus

    def folder(self, unit: str) -> Path:
        return Path("/sys/fs/cgroup") / slice_path(unit)

    async def setting(self, unit: str, name: str) -> int:
        reply = await self._bus.call(SERVICE, PATH, MANAGER, "GetUnit", "s", [unit])
        return int(await self._bus.read_property(SERVICE, str(reply.body[0]), f"{SERVICE}.Slice", name))


@asynccontextmanager
async def a_stand_in(folder: Path) -> AsyncIterator[Subject]:
    root = folder / "cgroup"
    root.mkdir()
    with PrivateBus(folder) as bus:
        stand_in = StandInSystemd(folders=[root])
        await stand_in.start(bus.address)
        subject = StandInSubject(bus, stand_in, root)
        try:
            yield subject
        finally:
            await subject.systemd.close()
            stand_in.stop()


@asynccontextmanager
async def a_guest(folder: Path) -> AsyncIterator[Subject]:
    bus = await Bus.connect()
    subject = GuestSubject(bus)
    try:
        yield subject
    finally:
        await subject.systemd.close()
        await bus.close()
        await asyncio.to_thread(run, "systemctl", "stop", f"{TOP}.slice")


Open = Callable[[Path], AbstractAsyncContextManager[Subject]]
SUBJECTS = pytest.mark.parametrize(
    "a_subject",
    [pytest.param(a_stand_in, id="stand-in", marks=needs_bus), pytest.param(a_guest, id="guest", marks=guest)],
)


@SUBJECTS
async def test_a_slice_comes_with_its_parents_and_goes(a_subject: Open, tmp_path: Path) -> None:
    unit, parent = f"{TOP}-a-b.slice", f"{TOP}-a.slice"
    async with a_subject(tmp_path) as subject:
        await subject.systemd.open()
        assert not subject.folder(unit).exists()
        await subject.systemd.start_unit(unit, {"Description": "contract", "MemoryAccounting": True})
        assert subject.folder(unit).is_dir() and subject.folder(unit).parent == subject.folder(parent)
        await subject.systemd.stop_unit(unit)
        assert not subject.folder(unit).exists() and subject.folder(parent).exists()
        await subject.systemd.stop_unit(unit)


@SUBJECTS
async def test_a_slice_that_was_made_is_told_from_one_that_came_by_itself(a_subject: Open, tmp_path: Path) -> None:
    unit, parent = f"{TOP}-a-b.slice", f"{TOP}-a.slice"
    async with a_subject(tmp_path) as subject:
        await subject.systemd.start_unit(unit, {"MemoryAccounting": True})
        with pytest.raises(UnitExists):
            await subject.systemd.start_unit(unit, {"MemoryAccounting": True})
        await subject.systemd.start_unit(parent, {"MemoryMax": 64 * MIB})
        assert await subject.setting(parent, "MemoryMax") == 64 * MIB
        with pytest.raises(UnitExists):
            await subject.systemd.start_unit(parent, {})


@SUBJECTS
async def test_stopping_a_slice_stops_those_below(a_subject: Open, tmp_path: Path) -> None:
    unit, parent = f"{TOP}-a-b.slice", f"{TOP}-a.slice"
    async with a_subject(tmp_path) as subject:
        await subject.systemd.start_unit(parent, {"MemoryAccounting": True})
        await subject.systemd.start_unit(unit, {"MemoryAccounting": True})
        await subject.systemd.stop_unit(parent)
        assert not subject.folder(parent).exists()
        await subject.systemd.start_unit(unit, {"MemoryAccounting": True})
        assert subject.folder(unit).is_dir()


@SUBJECTS
async def test_a_slice_that_was_stopped_can_be_made_again_at_once(a_subject: Open, tmp_path: Path) -> None:
    unit = f"{TOP}-a.slice"
    async with a_subject(tmp_path) as subject:
        for size in (1, 2, 3):
            await subject.systemd.start_unit(unit, {"MemoryMax": size * MIB})
            assert await subject.setting(unit, "MemoryMax") == size * MIB
            await subject.systemd.stop_unit(unit)


@SUBJECTS
async def test_limits_change_and_what_is_not_named_stays(a_subject: Open, tmp_path: Path) -> None:
    unit = f"{TOP}-a.slice"
    async with a_subject(tmp_path) as subject:
        slices = SystemdSlices(systemd=subject.systemd, unified=True)
        path = f"/{slice_path(unit)}"
        await slices.hold(path, CgroupLimits(cpu_shares=1024, cpu_quota_us=50_000, memory_bytes=64 * MIB, pids=100))

        async def limits() -> tuple[int, ...]:
            names = ("CPUWeight", "CPUQuotaPerSecUSec", "MemoryMax", "TasksMax")
            return tuple([await subject.setting(unit, name) for name in names])

        assert await limits() == (39, 500_000, 64 * MIB, 100)
        await slices.hold(path, CgroupLimits(memory_bytes=128 * MIB))
        assert await limits() == (39, 500_000, 128 * MIB, 100)
        await slices.hold(path, CgroupLimits(cpu_quota_us=-1, memory_bytes=-1, pids=-1))
        assert await limits() == (39, UNLIMITED, UNLIMITED, UNLIMITED)
        await slices.hold(path, CgroupLimits())
        await slices.drop(path)
        await slices.drop(path)
        assert not subject.folder(unit).exists()


@SUBJECTS
async def test_what_systemd_does_not_know_is_refused(a_subject: Open, tmp_path: Path) -> None:
    unit = f"{TOP}-a.slice"
    async with a_subject(tmp_path) as subject:
        with pytest.raises(BusRefused):
            await subject.systemd.start_unit(unit, {"NoSuchSetting": 1})
        assert not subject.folder(unit).exists()
        await subject.systemd.start_unit(unit, {"MemoryMax": MIB})
        with pytest.raises(BusRefused):
            await subject.systemd.set_properties(unit, {"NoSuchSetting": 1})
        assert await subject.setting(unit, "MemoryMax") == MIB
        for name in ("no unit", f"{TOP}--a.slice", f"{TOP}/a.slice"):
            with pytest.raises(BusRefused):
                await subject.systemd.start_unit(name, {})


@SUBJECTS
async def test_many_at_once(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject:
        units = [f"{TOP}-{number}.slice" for number in range(40)]
        await asyncio.gather(*(subject.systemd.start_unit(unit, {"MemoryAccounting": True}) for unit in units))
        assert all(subject.folder(unit).is_dir() for unit in units)
        await asyncio.gather(*(subject.systemd.stop_unit(unit) for unit in units))
        assert not any(subject.folder(unit).exists() for unit in units)
