"""The cgroup tree on folders that look like a v1, a hybrid and a v2 host."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pykubelet.clients.host.cgroups import CgroupTree, page_name
from pykubelet.kit.clock import LoopClock
from pykubelet.model.cgroups import CgroupLimits

POD = "/kubepods/burstable/podx"
LIMITS = CgroupLimits(cpu_shares=512, cpu_quota_us=50_000, memory_bytes=1 << 28, pids=100, hugepages={2 << 20: 4 << 20})
V1 = ("blkio", "cpu,cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "pids", "systemd")


def v1_host(root: Path, *, hybrid: bool = False) -> CgroupTree:
    for name in (*V1, *(("unified",) if hybrid else ())):
        (root / name).mkdir(parents=True)
    (root / "cpu").symlink_to("cpu,cpuacct")
    (root / "cpuacct").symlink_to("cpu,cpuacct")
    (root / "unrelated").mkdir()
    return CgroupTree(clock=LoopClock(), root=root)


def v2_host(root: Path, *groups: str, controllers: str = "cpuset cpu io memory hugetlb pids rdma") -> CgroupTree:
    """On a real host the kernel makes the two files in every group; here they must be there beforehand."""
    for group in ("", *groups):
        folder = root / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text("cpu memory\n")
    return CgroupTree(clock=LoopClock(), root=root)


async def test_v1_writes_each_limit_into_its_hierarchy(tmp_path: Path) -> None:
    tree = v1_host(tmp_path)
    tree.create(POD, LIMITS)
    below = POD.lstrip("/")
    files = {
        "cpu/cpu.shares": "512",
        "cpu/cpu.cfs_quota_us": "50000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "268435456",
        "pids/pids.max": "100",
        "hugetlb/hugetlb.2MB.limit_in_bytes": "4194304",
    }
    for name, value in files.items():
        hierarchy, file = name.split("/")
        assert (tmp_path / hierarchy / below / file).read_text() == value
    assert not (tmp_path / "devices" / below).exists()
    assert tree.exists(POD) and not tree.exists("/kubepods/pody")


async def test_v2_writes_everything_into_one_group_and_hands_controllers_down(tmp_path: Path) -> None:
    tree = v2_host(tmp_path, "kubepods", "kubepods/burstable")
    tree.create(POD, LIMITS)
    folder = tmp_path / POD.lstrip("/")
    assert (folder / "cpu.weight").read_text() == "20"
    assert (folder / "cpu.max").read_text() == "50000 100000"
    assert (folder / "memory.max").read_text() == "268435456"
    assert (folder / "pids.max").read_text() == "100"
    assert (folder / "hugetlb.2MB.max").read_text() == "4194304"
    for group in ("", "kubepods", "kubepods/burstable"):
        # Each is asked for alone, so that one that is refused keeps none of the others; the last one shows.
        assert (tmp_path / group / "cgroup.subtree_control").read_text() == "+pids"
    assert not (folder / "cgroup.subtree_control").exists()


async def test_huge_pages_that_are_only_reserved_are_limited_where_the_kernel_counts_them(tmp_path: Path) -> None:
    """Since 5.7: a mapping is refused as a whole, rather than its process killed at the page that is too many."""
    below = POD.lstrip("/")
    new, old = tmp_path / "v2" / below / "hugetlb.2MB.rsvd.max", tmp_path / "v1/hugetlb" / below
    unified, first = v2_host(tmp_path / "v2", "kubepods", "kubepods/burstable"), v1_host(tmp_path / "v1")
    for tree, file in ((unified, new), (first, old / "hugetlb.2MB.rsvd.limit_in_bytes")):
        tree.create(POD, LIMITS)
        assert not file.exists(), "an older kernel has no such file"
        file.write_text("max")
        tree.create(POD, LIMITS)
        assert file.read_text() == "4194304"


async def test_v2_files_of_their_own_are_written_by_name(tmp_path: Path) -> None:
    tree = v2_host(tmp_path, "kubepods")
    tree.create("/kubepods", CgroupLimits(unified={"memory.min": "4096"}))
    assert (tmp_path / "kubepods/memory.min").read_text() == "4096"
    v1 = v1_host(tmp_path / "v1")
    v1.create("/kubepods", CgroupLimits(unified={"memory.min": "4096"}))
    assert list((tmp_path / "v1/memory/kubepods").iterdir()) == []


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_no_limit_is_written_as_the_kernel_spells_it(tmp_path: Path, version: str) -> None:
    tree = v1_host(tmp_path) if version == "v1" else v2_host(tmp_path, "kubepods", "kubepods/burstable")
    tree.create(POD, CgroupLimits(cpu_quota_us=-1, memory_bytes=-1, pids=-1))
    below = POD.lstrip("/")
    if version == "v1":
        assert (tmp_path / "cpu" / below / "cpu.cfs_quota_us").read_text() == "-1"
        assert (tmp_path / "memory" / below / "memory.limit_in_bytes").read_text() == "-1"
        assert (tmp_path / "pids" / below / "pids.max").read_text() == "max"
        # As the kernel shows it afterwards.
        (tmp_path / "memory" / below / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    else:
        assert (tmp_path / below / "cpu.max").read_text() == "max 100000"
        assert (tmp_path / below / "memory.max").read_text() == "max"
    seen = tree.read(POD)
    assert seen is not None and (seen.cpu_quota_us, seen.memory_bytes) == (-1, -1)


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_limits_read_back_as_they_were_written(tmp_path: Path, version: str) -> None:
    tree = v1_host(tmp_path) if version == "v1" else v2_host(tmp_path, "kubepods", "kubepods/burstable")
    assert tree.read(POD) is None and tree.memory_usage(POD) is None
    tree.create(POD, LIMITS)
    seen = tree.read(POD)
    assert seen is not None
    assert (seen.cpu_quota_us, seen.cpu_period_us, seen.memory_bytes) == (50_000, 100_000, 1 << 28)
    # A weight is coarser than shares; the way back is close, not exact.
    assert seen.cpu_shares == 512 if version == "v1" else abs((seen.cpu_shares or 0) - 512) < 27
    name = "memory/kubepods/burstable/podx/memory.usage_in_bytes"
    (tmp_path / (name if version == "v1" else "kubepods/burstable/podx/memory.current")).write_text("4096\n")
    assert tree.memory_usage(POD) == 4096


async def test_making_a_group_goes_on_after_a_refusal_and_tells_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = v1_host(tmp_path)
    for uid in ("a", "b"):
        # A folder in the file's place refuses like a kernel without the controller.
        (tmp_path / f"cpu/kubepods/pod{uid}/cpu.cfs_quota_us").mkdir(parents=True)
        with caplog.at_level(logging.WARNING):
            tree.create(f"/kubepods/pod{uid}", LIMITS)
        assert (tmp_path / f"memory/kubepods/pod{uid}/memory.limit_in_bytes").read_text() == "268435456"
    assert len([r for r in caplog.records if "refuses a cgroup setting" in r.message]) == 1


async def test_changing_a_limit_says_what_was_refused(tmp_path: Path) -> None:
    tree = v1_host(tmp_path)
    tree.create(POD, CgroupLimits())
    (tmp_path / "memory" / POD.lstrip("/") / "memory.limit_in_bytes").mkdir()
    with pytest.raises(OSError, match=r"cannot set 4096: .*memory.limit_in_bytes"):
        tree.apply(POD, CgroupLimits(memory_bytes=4096))


async def test_what_is_not_said_is_left_alone(tmp_path: Path) -> None:
    tree = v1_host(tmp_path)
    tree.create(POD, LIMITS)
    tree.apply(POD, CgroupLimits(cpu_shares=2))
    seen = tree.read(POD)
    assert seen is not None and (seen.cpu_shares, seen.memory_bytes) == (2, 1 << 28)


async def test_a_hybrid_host_is_cleaned_in_every_hierarchy(tmp_path: Path) -> None:
    tree = v1_host(tmp_path, hybrid=True)
    assert not tree.unified
    tree.create(POD, CgroupLimits())
    for hierarchy in ("devices", "unified", "systemd", "memory"):
        (tmp_path / hierarchy / POD.lstrip("/") / "container" / "nested").mkdir(parents=True)
    assert tree.children("/kubepods/burstable") == ["podx"]
    await tree.destroy(POD)
    assert [path for path in tmp_path.rglob("podx")] == []
    assert (tmp_path / "memory/kubepods/burstable").is_dir()
    await tree.destroy(POD)  # gone already is success


async def test_a_process_joins_where_its_processor_time_is_counted_too(tmp_path: Path) -> None:
    for name in ("cpu", "cpuacct", "cpuset", "memory", "pids"):
        (tmp_path / name).mkdir()
    for name in ("cpu", "cpuacct", "memory", "pids"):
        (tmp_path / name / "kubelet.slice").mkdir()
        (tmp_path / name / "kubelet.slice" / "cgroup.procs").write_text("")
    CgroupTree(clock=LoopClock(), root=tmp_path).join("/kubelet.slice", 17)
    joined = [
        path.parent.parent.name for path in tmp_path.glob("*/kubelet.slice/cgroup.procs") if path.read_text() == "17"
    ]
    assert sorted(joined) == ["cpu", "cpuacct", "memory", "pids"], "cpuset lets nobody in without processors of its own"


async def test_a_group_that_stays_busy_is_an_error(tmp_path: Path) -> None:
    tree = v1_host(tmp_path)
    tree.create(POD, CgroupLimits())
    (tmp_path / "memory" / POD.lstrip("/") / "held").write_text("")  # rmdir fails as for a group with processes
    with pytest.raises(OSError, match="still has processes"):
        await tree.destroy(POD)


async def test_children_are_found_in_any_hierarchy(tmp_path: Path) -> None:
    tree = v1_host(tmp_path)
    (tmp_path / "freezer/kubepods/podold").mkdir(parents=True)
    (tmp_path / "cpu/kubepods/podnew").mkdir(parents=True)
    assert tree.children("/kubepods") == ["podnew", "podold"]
    assert tree.children("/nothing") == []


async def test_a_host_without_cgroups_has_nothing_to_offer(tmp_path: Path) -> None:
    tree = CgroupTree(clock=LoopClock(), root=tmp_path / "none")
    assert tree.children("/kubepods") == []
    tree.create(POD, LIMITS)
    await tree.destroy(POD)


@pytest.mark.parametrize(("size", "name"), [(2 << 20, "2MB"), (1 << 30, "1GB"), (64 << 10, "64KB"), (3 << 30, "3GB")])
def test_page_sizes_have_the_kernels_names(size: int, name: str) -> None:
    assert page_name(size) == name


@pytest.mark.parametrize("unified", [True, False])
def test_the_kernels_threads_are_no_programs(tmp_path: Path, unified: bool) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    tree = root if unified else root / "memory"
    (tree / "system").mkdir(parents=True)
    if unified:
        (root / "cgroup.controllers").write_text("memory\n")
    (tree / "cgroup.procs").write_text("0\n1\n2\n30\n31\n")
    for pid in (1, 2, 30, 31):
        (proc / str(pid)).mkdir(parents=True)
    for pid in (1, 30, 31):
        (proc / str(pid) / "exe").symlink_to("/bin/true")
    found = CgroupTree(clock=LoopClock(), root=root, proc=proc)
    assert list(found.programs("/")) == [30, 31]
    assert list(found.programs("/system")) == []
