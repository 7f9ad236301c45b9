"""Stats read from folders that look like cgroup trees and /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.clients.host.cgroup_stats import CgroupStats, weight_to_shares
from pykubelet.clients.host.node_stats import NodeStats
from pykubelet.clients.host.stat_files import pressure, read_small
from pykubelet.model.cgroups import shares_to_weight
from pykubelet.model.stats import CgroupBounds, CgroupDetail, DeviceIo, HugepageUsage, PressureLine
from tests.unit.stats.trees import LIMITS, NET_DEV, group, machine, write

BOTH = pytest.mark.parametrize("version", [1, 2])
POD = "/kubepods/podx"


def stats_of(version: int, tmp_path: Path) -> CgroupStats:
    cgroups, proc = machine(version, tmp_path)
    write(cgroups, group(version, POD))
    return CgroupStats(root=cgroups, proc=proc, hugepage_sizes=(2 << 20,))


@BOTH
def test_usage_of_a_group(version: int, tmp_path: Path) -> None:
    found = stats_of(version, tmp_path)
    assert found.version == version
    usage = found.usage(POD, 77)
    assert usage is not None and usage.memory is not None
    assert (usage.time_ns, usage.cpu_ns) == (77, 5_000_000_000)
    memory = usage.memory
    assert (memory.usage, memory.working_set) == (20_000, 17_000)
    assert (memory.rss, memory.cache, memory.swap, memory.mapped_file) == (8192, 4096, 1024, 512)
    assert (memory.active_file, memory.inactive_file, memory.faults, memory.major_faults) == (1096, 3000, 70, 10)


@BOTH
def test_details_of_a_group(version: int, tmp_path: Path) -> None:
    found = stats_of(version, tmp_path)
    bounds = found.bounds(POD)
    detail = found.detail(POD, bounds, leaf=True, counters=True)
    assert (detail.user_ns, detail.system_ns) == (3_000_000_000, 2_000_000_000)
    assert (detail.periods, detail.throttled_periods, detail.throttled_ns) == (50, 5, 7_000_000_000)
    assert (detail.max_usage, detail.limit_hits, detail.oom_kills) == (30_000, 4, 2)
    assert (detail.processes, detail.threads) == (2, 6)
    assert detail.io == (DeviceIo(major=8, minor=0, read_bytes=4096, write_bytes=8192, reads=1, writes=2),)
    peak = 4194304 if version == 1 else None
    assert detail.hugepages == (HugepageUsage(page_size="2MB", usage=2097152, max_usage=peak, failures=1),)
    if version == 2:
        assert detail.cpu_pressure is not None
        assert detail.cpu_pressure.full == PressureLine(avg10=0.5, avg60=0.0, avg300=0.0, total=1_000_000)


@BOTH
def test_bounds_of_a_group(version: int, tmp_path: Path) -> None:
    shares = 512 if version == 1 else weight_to_shares(20)
    assert stats_of(version, tmp_path).bounds(POD) == CgroupBounds(
        shares=shares,
        quota_us=50_000,
        period_us=100_000,
        memory=65_536,
        memory_soft=None if version == 1 else 0,
        swap=32_768,
        pids=100,
    )


@BOTH
def test_no_limit_is_none(version: int, tmp_path: Path) -> None:
    found = stats_of(version, tmp_path)
    if version == 1:
        files = {
            "cpu/a/cpu.cfs_quota_us": "-1",
            "memory/a/memory.limit_in_bytes": "9223372036854771712",
            "pids/a/pids.max": "max",
        }
    else:
        files = {"a/cpu.max": "max 100000", "a/memory.max": "max", "a/memory.swap.max": "max", "a/pids.max": "max"}
    write(tmp_path / "cgroup", files)
    bounds = found.bounds("/a")
    assert (bounds.quota_us, bounds.memory, bounds.swap, bounds.pids) == (None, None, None, None)


@BOTH
def test_the_root_is_the_machine(version: int, tmp_path: Path) -> None:
    found = stats_of(version, tmp_path)
    usage = found.usage("/", 1)
    assert usage is not None and usage.memory is not None
    assert usage.cpu_ns == 90_000_000_000
    assert (usage.memory.usage, usage.memory.working_set) == (500_000, 497_000)
    assert usage.memory.swap == 1024
    detail = found.detail("/", CgroupBounds(), leaf=False, counters=True)
    assert detail.io_pressure is not None and detail.io_pressure.some.total == 2_500_000


@BOTH
def test_a_group_that_is_gone(version: int, tmp_path: Path) -> None:
    found = stats_of(version, tmp_path)
    assert found.usage("/kubepods/gone", 1) is None
    assert found.bounds("/kubepods/gone") == CgroupBounds()
    assert found.processes("/kubepods/gone") == ()
    assert found.locate("/kubepods/gone", "abc") is None
    assert found.created_ns("/kubepods/gone") == 0
    gone = found.detail("/kubepods/gone", CgroupBounds(), leaf=False, counters=True)
    assert gone == CgroupDetail(limit_hits=gone.limit_hits)


@BOTH
@pytest.mark.parametrize("name", ["c1", "cri-containerd-c1.scope", "crio-c1.scope"])
def test_containers_are_found_by_any_name(version: int, name: str, tmp_path: Path) -> None:
    found = stats_of(version, tmp_path)
    write(tmp_path / "cgroup", group(version, f"{POD}/{name}"))
    assert found.locate(POD, "c1") == f"{POD}/{name}"
    assert found.processes(f"{POD}/{name}") == (41, 42)


def test_joined_v1_hierarchies(tmp_path: Path) -> None:
    write(tmp_path / "cg", {"cpu,cpuacct/a/cpuacct.usage": "7", "cpu,cpuacct/a/cpu.shares": "2"})
    os.symlink("cpu,cpuacct", tmp_path / "cg" / "cpu")
    found = CgroupStats(root=tmp_path / "cg", proc=tmp_path)
    usage = found.usage("/a", 1)
    assert usage is not None and usage.cpu_ns == 7 and usage.memory is None
    assert found.bounds("/a").shares == 2


def test_hybrid_pressure_comes_from_the_unified_tree(tmp_path: Path) -> None:
    cgroups, proc = machine(1, tmp_path)
    write(cgroups, group(1, POD))
    line = "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
    write(cgroups, {f"unified{POD}/{kind}.pressure": line for kind in ("cpu", "memory", "io")})
    detail = CgroupStats(root=cgroups, proc=proc).detail(POD, CgroupBounds(), leaf=False, counters=True)
    assert detail.cpu_pressure is not None and detail.cpu_pressure.some.total == 5
    assert detail.cpu_pressure.full.total == 0


def test_nonsense_is_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"a": "some garbage here in it", "b": "", "c": "some avg10=x avg60=0 avg300=0 total=0"})
    assert [pressure(str(tmp_path / name)) for name in "abcd"] == [None] * 4


def test_long_files_are_read_to_the_end(tmp_path: Path) -> None:
    write(tmp_path, {"long": "x" * 100_000})
    assert len(read_small(str(tmp_path / "long"))) == 100_000


@pytest.mark.parametrize("shares", [2, 512, 1024, 4096, 262144])
def test_weight_and_shares_agree(shares: int) -> None:
    assert abs(weight_to_shares(shares_to_weight(shares)) - shares) <= 27


# --- the machine --------------------------------------------------------------------------------------------------


def node(tmp_path: Path) -> NodeStats:
    _, proc = machine(1, tmp_path)
    return NodeStats(proc=proc, sys=tmp_path / "sys")


def test_tasks(tmp_path: Path) -> None:
    found = node(tmp_path).tasks(5)
    assert found is not None
    assert (found.limit, found.tasks, found.running, found.blocked) == (10_000, 250, 3, 1)
    assert NodeStats(proc=tmp_path / "nothing").tasks(5) is None


def test_interfaces_without_the_uninteresting(tmp_path: Path) -> None:
    host = node(tmp_path)
    write(tmp_path / "proc", {"41/net/dev": NET_DEV.replace("eth0", "net1")})
    mine, pods = host.network(5), host.network(5, 41)
    assert mine is not None and pods is not None
    assert [each.name for each in mine.interfaces] == ["eth0"]
    eth0 = mine.interfaces[0]
    assert (eth0.rx_bytes, eth0.rx_packets, eth0.rx_errors, eth0.rx_dropped) == (1000, 10, 1, 2)
    assert (eth0.tx_bytes, eth0.tx_packets, eth0.tx_errors, eth0.tx_dropped) == (2000, 20, 3, 4)
    assert [each.name for each in pods.interfaces] == ["net1"]
    assert host.network(5, 4242) is None


def test_boot_time_and_disks(tmp_path: Path) -> None:
    host = node(tmp_path)
    assert host.boot_seconds() == 1_700_000_000
    (disk,) = host.disks()
    assert (disk.name, disk.reads, disk.sectors_written, disk.weighted_io_ms) == ("/dev/sda", 10, 160, 12)


def test_device_names(tmp_path: Path) -> None:
    write(tmp_path, {"sys/dev/block/8:1/uevent": "MAJOR=8\nMINOR=1\nDEVNAME=sda1\n"})
    host = NodeStats(proc=tmp_path, sys=tmp_path / "sys")
    assert host.device_name(8, 1) == "/dev/sda1"
    assert host.device_name(0, 44) == ""


def test_folders_and_filesystems(tmp_path: Path) -> None:
    host = NodeStats(proc=tmp_path, sys=tmp_path)
    write(tmp_path, {"logs/app/0.log": "x" * 10_000, "logs/app/0.log.1": "y" * 10_000, "logs/x": "z"})
    deep, flat = host.folder(str(tmp_path / "logs"), 1), host.folder(str(tmp_path / "logs"), 1, deep=False)
    assert deep is not None and flat is not None
    assert deep.bytes >= 20_000 > flat.bytes
    assert (deep.inodes, flat.inodes) == (5, 2)
    assert host.folder(str(tmp_path / "none"), 1) is None
    assert host.file(str(tmp_path / "none"), 1) is None
    whole = host.filesystem(str(tmp_path), 9)
    assert whole is not None and whole.capacity >= whole.used and whole.device == os.stat(tmp_path).st_dev
    assert host.filesystem(str(tmp_path / "none"), 9) is None


def test_descriptors_and_sockets(tmp_path: Path) -> None:
    write(tmp_path, {"41/limits": LIMITS, "41/fd/.keep": ""})
    (tmp_path / "41/fd/.keep").unlink()
    os.symlink("socket:[123]", tmp_path / "41/fd/0")
    os.symlink("/dev/null", tmp_path / "41/fd/1")
    found = NodeStats(proc=tmp_path).processes((41, 42))
    assert (found.descriptors, found.sockets, found.open_files_limit) == (2, 1, 1024)
    assert NodeStats(proc=tmp_path).processes(()).open_files_limit is None


def test_cores_and_sockets(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for cpu in range(8):
        base = f"devices/system/cpu/cpu{cpu}/topology"
        files |= {f"{base}/physical_package_id": str(cpu // 4), f"{base}/core_id": str(cpu // 2 % 2)}
    write(tmp_path, files)
    assert NodeStats(sys=tmp_path).cpu_layout() == (4, 2)
    assert NodeStats(sys=tmp_path / "none").cpu_layout() == (0, 0)
