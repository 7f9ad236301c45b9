"""Slices over a real bus: a private dbus-daemon and a stand-in for systemd that makes the folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.clients.dbus.bus import Bus
from pykubelet.clients.dbus.port import BusDown, BusRefused, UnitExists
from pykubelet.clients.dbus.systemd import DbusSystemd, SystemdSlices, quota_per_second, slice_properties
from pykubelet.model.cgroups import CgroupLimits
from tests.fakes.private_bus import PrivateBus, needs_bus
from tests.fakes.stand_in_systemd import StandInSystemd

pytestmark = [pytest.mark.real_loop, needs_bus]

POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"
UNIT = "kubepods-burstable-pod1_2.slice"


@asynccontextmanager
async def a_systemd(folder: Path) -> AsyncIterator[tuple[StandInSystemd, DbusSystemd, PrivateBus]]:
    root = folder / "cgroup"
    root.mkdir()
    with PrivateBus(folder) as bus:
        stand_in, client = StandInSystemd(folders=[root]), DbusSystemd(connect=bus.connect)
        await stand_in.start(bus.address)
        try:
            yield stand_in, client, bus
        finally:
            await client.close()
            stand_in.stop()


async def test_a_slice_is_made_changed_and_stopped(tmp_path: Path) -> None:
    async with a_systemd(tmp_path) as (systemd, client, _):
        await client.open()
        slices = SystemdSlices(systemd=client, unified=True)
        await slices.hold(POD, CgroupLimits(cpu_shares=1024, memory_bytes=1 << 20, pids=10))
        made = systemd.units[UNIT]
        assert (made["CPUWeight"], made["MemoryMax"], made["TasksMax"]) == (39, 1 << 20, 10)
        assert made["Wants"] == ["kubepods-burstable.slice"] and made["DefaultDependencies"] is False
        assert made["IOAccounting"], "else systemd takes the io controller from the groups below"
        assert (tmp_path / "cgroup" / POD.lstrip("/")).is_dir()
        await slices.hold(POD, CgroupLimits(memory_bytes=-1))
        assert systemd.units[UNIT]["MemoryMax"] == (1 << 64) - 1
        assert systemd.units[UNIT]["CPUWeight"] == 39
        await slices.drop(POD)
        await slices.drop(POD)
        assert UNIT not in systemd.units
        assert not (tmp_path / "cgroup" / POD.lstrip("/")).exists()


async def test_many_at_once_share_one_connection_and_stay_below_its_limits(tmp_path: Path) -> None:
    opened = 0
    async with a_systemd(tmp_path) as (systemd, _, bus):

        async def connect() -> Bus:
            nonlocal opened
            opened += 1
            return await bus.connect()

        client = DbusSystemd(connect=connect)
        await asyncio.gather(*(client.start_unit(f"a-{n}.slice", {"Description": "x"}) for n in range(300)))
        assert len(systemd.units) == 300 and opened == 1
        await client.close()


async def test_a_unit_that_exists_and_a_job_that_fails_are_told_apart(tmp_path: Path) -> None:
    async with a_systemd(tmp_path) as (systemd, client, _):
        await client.start_unit("a.slice", {})
        with pytest.raises(UnitExists):
            await client.start_unit("a.slice", {})
        systemd.job_result = "failed"
        with pytest.raises(BusRefused, match=r"StartTransientUnit b\.slice ended as failed"):
            await client.start_unit("b.slice", {})


async def test_a_bus_that_was_restarted_is_found_again(tmp_path: Path) -> None:
    async with a_systemd(tmp_path) as (systemd, client, bus):
        await client.start_unit("a.slice", {})
        bus.stop()
        with pytest.raises(BusDown):
            await client.start_unit("b.slice", {})
        bus.start()
        await systemd.start(bus.address)
        await client.start_unit("c.slice", {})
        assert "c.slice" in systemd.units


async def test_without_a_bus_or_without_systemd_on_it_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BusDown, match="the D-Bus system bus cannot be reached"):
        await DbusSystemd(connect=lambda: Bus.connect(f"unix:path={tmp_path}/none")).open()
    with PrivateBus(tmp_path) as bus:
        client = DbusSystemd(connect=bus.connect)
        with pytest.raises(BusDown, match="systemd1 is not there"):
            await client.open()
        await client.close()


async def test_what_systemd_refuses_is_an_os_error_and_limits_it_refuses_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_systemd(tmp_path) as (systemd, client, _):
        slices = SystemdSlices(systemd=client, unified=True)
        systemd.refuse["StartTransientUnit"] = "org.freedesktop.DBus.Error.AccessDenied"
        with pytest.raises(OSError, match=r"systemd cannot make the slice kubepods.slice: .*AccessDenied"):
            await slices.hold("/kubepods.slice", CgroupLimits())
        del systemd.refuse["StartTransientUnit"]
        await slices.hold("/kubepods.slice", CgroupLimits())
        systemd.refuse["SetUnitProperties"] = "org.freedesktop.DBus.Error.PropertyReadOnly"
        for _ in range(2):
            await slices.hold("/kubepods.slice", CgroupLimits(cpu_shares=2))
        assert caplog.text.count("systemd refuses the limits") == 1


@pytest.mark.parametrize(
    ("limits", "unified", "expected"),
    [
        (CgroupLimits(), True, {}),
        (CgroupLimits(cpu_shares=2), True, {"CPUWeight": 1}),
        (
            CgroupLimits(cpu_shares=512, memory_bytes=5, pids=-1),
            False,
            {"CPUShares": 512, "MemoryLimit": 5, "TasksMax": (1 << 64) - 1},
        ),
        (CgroupLimits(cpu_quota_us=50_000), True, {"CPUQuotaPerSecUSec": 500_000}),
        (CgroupLimits(cpu_quota_us=-1), True, {"CPUQuotaPerSecUSec": (1 << 64) - 1}),
        (
            CgroupLimits(cpu_quota_us=25_000, cpu_period_us=50_000),
            True,
            {"CPUQuotaPerSecUSec": 500_000, "CPUQuotaPeriodUSec": 50_000},
        ),
        (CgroupLimits(cpu_quota_us=25_000, cpu_period_us=50_000), False, {"CPUQuotaPerSecUSec": 500_000}),
        (
            CgroupLimits(unified={"memory.min": "4096", "memory.low": "0", "memory.high": "max"}),
            True,
            {"MemoryMin": 4096, "MemoryLow": 0, "MemoryHigh": (1 << 64) - 1},
        ),
        (CgroupLimits(unified={"memory.min": "4096"}), False, {}),
        (CgroupLimits(unified={"memory.oom.group": "1"}), True, {}),
    ],
)
def test_limits_in_the_words_of_systemd(limits: CgroupLimits, unified: bool, expected: dict[str, int]) -> None:
    assert slice_properties(limits, unified=unified) == expected


@pytest.mark.parametrize(
    ("quota", "period", "expected"), [(1000, 100_000, 10_000), (1001, 100_000, 20_000), (150_000, 50_000, 3_000_000)]
)
def test_quotas_are_rounded_up_to_what_systemd_keeps(quota: int, period: int, expected: int) -> None:
    assert quota_per_second(quota, period) == expected
