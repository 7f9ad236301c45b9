"""Stats of cgroups, from v1 hierarchies (also hybrid hosts) and from v2.

Paths are the same in every hierarchy (`/kubepods/burstable/pod<uid>`). A missing controller or a group that ended gives
None, never an error. All calls block, shortly. On hybrid hosts the empty v2 tree beside v1 may carry pressure files;
they are used when the runtime made a group there too. The root group's swap and pressure are the machine's; in v2 it
has no memory.current, so its usage is what memory.stat calls anonymous and file memory, as upstream does.
Not covered: making and limiting groups (cgroups.py), machine-wide stats (node_stats.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pykubelet.clients.host.cgroups import find_hierarchies, page_name
from pykubelet.clients.host.stat_files import limit, number, pairs, pressure, read_small
from pykubelet.model.stats import (
    CgroupBounds,
    CgroupDetail,
    CgroupUsage,
    DeviceIo,
    HugepageUsage,
    MemoryUsage,
    Pressure,
)

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
Pressures = tuple[Pressure | None, Pressure | None, Pressure | None]
"""Of CPU, memory and disks."""
NOWHERE = "/nonexistent"
"""Stands for a hierarchy this host does not mount: every file in it is missing."""


class V1Reader:
    version = 1

    def __init__(self, hierarchies: Mapping[str, str], proc: str) -> None:
        self._proc = proc
        self._cpu = hierarchies.get("cpu", NOWHERE)
        self._cpuacct = hierarchies.get("cpuacct", NOWHERE)
        self._memory = hierarchies.get("memory", NOWHERE)
        self._pids = hierarchies.get("pids", NOWHERE)
        self._blkio = hierarchies.get("blkio", NOWHERE)
        self._any = next((base for base in (self._memory, self._cpuacct, self._cpu) if base != NOWHERE), NOWHERE)
        self._unified = hierarchies.get("unified", "")
        self._hugetlb = hierarchies.get("hugetlb", "")
        self._hugepage_names = _hugepage_names(self._hugetlb)
        self._blkio_files = _blkio_files(self._blkio)

    def folder(self, path: str) -> str:
        """A folder in which the group exists if it exists at all."""
        return self._any + path

    def usage(self, path: str, now_ns: int) -> CgroupUsage | None:
        cpu = number(f"{self._cpuacct}{path}/cpuacct.usage")
        memory = self._memory_usage(self._memory + path)
        if cpu is None and memory is None:
            return None
        return CgroupUsage(time_ns=now_ns, cpu_ns=cpu, memory=memory)

    def _memory_usage(self, folder: str) -> MemoryUsage | None:
        # First the statistics: reading them makes the kernel add up what its CPUs counted, which the root group's
        # usage is taken from and would otherwise be up to two seconds behind.
        found = pairs(f"{folder}/memory.stat")
        usage = number(f"{folder}/memory.usage_in_bytes")
        if usage is None:
            return None
        inactive = int(found.get(b"total_inactive_file", 0))
        swap = found.get(b"total_swap")
        return MemoryUsage(
            usage=usage,
            working_set=max(0, usage - inactive),
            rss=int(found.get(b"total_rss", 0)),
            cache=int(found.get(b"total_cache", 0)),
            swap=int(swap) if swap is not None else None,
            mapped_file=int(found.get(b"total_mapped_file", 0)),
            active_file=int(found.get(b"total_active_file", 0)),
            inactive_file=inactive,
            faults=int(found.get(b"total_pgfault", 0)),
            major_faults=int(found.get(b"total_pgmajfault", 0)),
            own_faults=int(found.get(b"pgfault", 0)),
            own_major_faults=int(found.get(b"pgmajfault", 0)),
        )

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool, counters: bool) -> CgroupDetail:
        processes = read_small(f"{self._any}{path}/cgroup.procs").count(b"\n") if leaf else None
        stalls = self._pressures(path)
        if not counters:
            return CgroupDetail(
                processes=processes, cpu_pressure=stalls[0], memory_pressure=stalls[1], io_pressure=stalls[2]
            )
        memory = self._memory + path
        ticks = pairs(f"{self._cpuacct}{path}/cpuacct.stat")
        cpu = pairs(f"{self._cpu}{path}/cpu.stat") if bounds.quota_us is not None else {}
        return CgroupDetail(
            user_ns=int(ticks[b"user"]) * TICK_NS if b"user" in ticks else None,
            system_ns=int(ticks[b"system"]) * TICK_NS if b"system" in ticks else None,
            periods=_maybe(cpu.get(b"nr_periods")),
            throttled_periods=_maybe(cpu.get(b"nr_throttled")),
            throttled_ns=_maybe(cpu.get(b"throttled_time")),
            max_usage=number(f"{memory}/memory.max_usage_in_bytes"),
            limit_hits=number(f"{memory}/memory.failcnt") if bounds.memory is not None else 0,
            kernel=number(f"{memory}/memory.kmem.usage_in_bytes"),
            oom_kills=_maybe(pairs(f"{memory}/memory.oom_control").get(b"oom_kill")) if leaf else None,
            processes=processes,
            threads=number(f"{self._pids}{path}/pids.current"),
            io=self._io(path),
            hugepages=self._hugepages(path),
            cpu_pressure=stalls[0],
            memory_pressure=stalls[1],
            io_pressure=stalls[2],
        )

    def oom_kills(self, path: str) -> int | None:
        return _maybe(pairs(f"{self._memory}{path}/memory.oom_control").get(b"oom_kill"))

    def bounds(self, path: str) -> CgroupBounds:
        memory = limit(f"{self._memory}{path}/memory.limit_in_bytes")
        both = limit(f"{self._memory}{path}/memory.memsw.limit_in_bytes")
        quota = number(f"{self._cpu}{path}/cpu.cfs_quota_us")
        return CgroupBounds(
            shares=number(f"{self._cpu}{path}/cpu.shares"),
            quota_us=quota if quota is not None and quota > 0 else None,
            period_us=number(f"{self._cpu}{path}/cpu.cfs_period_us"),
            memory=memory,
            memory_soft=limit(f"{self._memory}{path}/memory.soft_limit_in_bytes"),
            swap=max(0, both - memory) if both is not None and memory is not None else None,
            pids=limit(f"{self._pids}{path}/pids.max"),
        )

    def _pressures(self, path: str) -> Pressures:
        if path == "/":
            place = f"{self._proc}/pressure/{{}}"
            return pressure(place.format("cpu")), pressure(place.format("memory")), pressure(place.format("io"))
        if not self._unified:
            return None, None, None
        cpu = pressure(f"{self._unified}{path}/cpu.pressure")
        if cpu is None:  # most hybrid hosts: save two questions a group
            return None, None, None
        return cpu, pressure(f"{self._unified}{path}/memory.pressure"), pressure(f"{self._unified}{path}/io.pressure")

    def _io(self, path: str) -> tuple[DeviceIo, ...]:
        bytes_file, count_file = self._blkio_files
        sizes = _blkio(f"{self._blkio}{path}/{bytes_file}")
        if not sizes:
            return ()
        counts = _blkio(f"{self._blkio}{path}/{count_file}")
        found = []
        for device, (read, written) in sizes.items():
            major, _, minor = device.partition(b":")
            reads, writes = counts.get(device, (0, 0))
            found.append(
                DeviceIo(
                    major=int(major),
                    minor=int(minor),
                    read_bytes=read,
                    write_bytes=written,
                    reads=reads,
                    writes=writes,
                )
            )
        return tuple(found)

    def _hugepages(self, path: str) -> tuple[HugepageUsage, ...]:
        found = []
        for size in self._hugepage_names:
            base = f"{self._hugetlb}{path}/hugetlb.{size}"
            usage = number(f"{base}.usage_in_bytes")
            if usage is not None:
                peak, failures = number(f"{base}.max_usage_in_bytes"), number(f"{base}.failcnt")
                found.append(HugepageUsage(page_size=size, usage=usage, max_usage=peak, failures=failures))
        return tuple(found)


def _maybe(value: bytes | None) -> int | None:
    return int(value) if value is not None else None


def _hugepage_names(folder: str) -> tuple[str, ...]:
    """Page sizes, from the files of the root group."""
    if not folder:
        return ()
    try:
        names = os.listdir(folder)
    except OSError:
        return ()
    return tuple(sorted(name.split(".")[1] for name in names if name.endswith("B.usage_in_bytes")))


def _blkio_files(folder: str) -> tuple[str, str]:
    """Kernels with bfq or cfq count there; the throttle layer counts always."""
    for base in ("blkio.throttle.io_{}_recursive", "blkio.throttle.io_{}"):
        files = (base.format("service_bytes"), base.format("serviced"))
        if os.path.exists(f"{folder}/{files[0]}"):
            return files
    return "blkio.io_service_bytes_recursive", "blkio.io_serviced_recursive"


def _blkio(path: str) -> dict[bytes, tuple[int, int]]:
    """`8:0 Read 4096` lines as device to (read, written)."""
    found: dict[bytes, tuple[int, int]] = {}
    for line in read_small(path).splitlines():
        words = line.split()
        if len(words) == 3:
            read, written = found.get(words[0], (0, 0))
            if words[1] == b"Read":
                found[words[0]] = (int(words[2]), written)
            elif words[1] == b"Write":
                found[words[0]] = (read, int(words[2]))
    return found


class V2Reader:
    version = 2

    def __init__(self, root: str, proc: str, page_sizes: Sequence[str]) -> None:
        """`page_sizes`: of huge pages, as the kernel names them in file names."""
        self._root = root
        self._proc = proc
        self._pressure = os.path.exists(f"{proc}/pressure/cpu")
        has_hugetlb = b"hugetlb" in read_small(f"{root}/cgroup.controllers").split()
        self._page_sizes = tuple(page_sizes) if has_hugetlb else ()

    def folder(self, path: str) -> str:
        return self._root + path

    def usage(self, path: str, now_ns: int) -> CgroupUsage | None:
        cpu = pairs(f"{self._root}{path}/cpu.stat").get(b"usage_usec")
        memory = self._memory_usage(path)
        if cpu is None and memory is None:
            return None
        return CgroupUsage(time_ns=now_ns, cpu_ns=int(cpu) * 1000 if cpu is not None else None, memory=memory)

    def _memory_usage(self, path: str) -> MemoryUsage | None:
        folder = self._root + path
        found = pairs(f"{folder}/memory.stat")
        if not found:
            return None
        anonymous, cache = int(found.get(b"anon", 0)), int(found.get(b"file", 0))
        inactive = int(found.get(b"inactive_file", 0))
        is_root = path == "/"
        usage = anonymous + cache if is_root else number(f"{folder}/memory.current")
        if usage is None:
            return None
        swap = self._swap_used() if is_root else number(f"{folder}/memory.swap.current")
        faults, major = int(found.get(b"pgfault", 0)), int(found.get(b"pgmajfault", 0))
        return MemoryUsage(
            usage=usage,
            working_set=max(0, usage - inactive),
            rss=anonymous,
            cache=cache,
            swap=swap,
            mapped_file=int(found.get(b"file_mapped", 0)),
            active_file=int(found.get(b"active_file", 0)),
            inactive_file=inactive,
            faults=faults,
            major_faults=major,
            own_faults=faults,
            own_major_faults=major,
            kernel=_scaled(found.get(b"kernel")),
        )

    def _swap_used(self) -> int:
        total = free = 0
        for line in read_small(f"{self._proc}/meminfo").splitlines():
            if line.startswith(b"SwapTotal:"):
                total = int(line.split()[1])
            elif line.startswith(b"SwapFree:"):
                free = int(line.split()[1])
        return (total - free) * 1024

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool, counters: bool) -> CgroupDetail:
        folder = self._root + path
        processes = read_small(f"{folder}/cgroup.procs").count(b"\n") if leaf else None
        stalls = self._pressures(path)
        if not counters:
            return CgroupDetail(
                processes=processes, cpu_pressure=stalls[0], memory_pressure=stalls[1], io_pressure=stalls[2]
            )
        cpu = pairs(f"{folder}/cpu.stat")
        events = pairs(f"{folder}/memory.events")
        return CgroupDetail(
            user_ns=_scaled(cpu.get(b"user_usec"), 1000),
            system_ns=_scaled(cpu.get(b"system_usec"), 1000),
            periods=_scaled(cpu.get(b"nr_periods")),
            throttled_periods=_scaled(cpu.get(b"nr_throttled")),
            throttled_ns=_scaled(cpu.get(b"throttled_usec"), 1000),
            max_usage=number(f"{folder}/memory.peak"),
            limit_hits=_scaled(events.get(b"max")),
            oom_kills=_scaled(events.get(b"oom_kill")),
            processes=processes,
            threads=number(f"{folder}/pids.current"),
            io=_io(f"{folder}/io.stat"),
            hugepages=self._hugepages(folder),
            cpu_pressure=stalls[0],
            memory_pressure=stalls[1],
            io_pressure=stalls[2],
        )

    def _pressures(self, path: str) -> Pressures:
        if not self._pressure:
            return None, None, None
        place = f"{self._proc}/pressure/{{}}" if path == "/" else f"{self._root}{path}/{{}}.pressure"
        return pressure(place.format("cpu")), pressure(place.format("memory")), pressure(place.format("io"))

    def oom_kills(self, path: str) -> int | None:
        return _scaled(pairs(f"{self._root}{path}/memory.events").get(b"oom_kill"))

    def bounds(self, path: str) -> CgroupBounds:
        folder = self._root + path
        weight = number(f"{folder}/cpu.weight")
        words = read_small(f"{folder}/cpu.max").split()
        return CgroupBounds(
            shares=weight_to_shares(weight) if weight is not None else None,
            quota_us=int(words[0]) if len(words) == 2 and words[0] != b"max" else None,
            period_us=int(words[1]) if len(words) == 2 else None,
            memory=limit(f"{folder}/memory.max"),
            memory_soft=limit(f"{folder}/memory.low"),
            swap=limit(f"{folder}/memory.swap.max"),
            pids=limit(f"{folder}/pids.max"),
        )

    def _hugepages(self, folder: str) -> tuple[HugepageUsage, ...]:
        found = []
        for size in self._page_sizes:
            usage = number(f"{folder}/hugetlb.{size}.current")
            if usage is not None:
                failures = pairs(f"{folder}/hugetlb.{size}.events").get(b"max")
                found.append(HugepageUsage(page_size=size, usage=usage, failures=_scaled(failures)))
        return tuple(found)


def weight_to_shares(weight: int) -> int:
    """The inverse of how shares are written as a weight."""
    return (weight - 1) * 262142 // 9999 + 2


def _scaled(value: bytes | None, factor: int = 1) -> int | None:
    return int(value) * factor if value is not None else None


def _io(path: str) -> tuple[DeviceIo, ...]:
    """`8:0 rbytes=1 wbytes=2 rios=3 wios=4 ...`"""
    found = []
    for line in read_small(path).splitlines():
        device, _, rest = line.partition(b" ")
        major, colon, minor = device.partition(b":")
        if not colon:
            continue
        values = dict(word.partition(b"=")[::2] for word in rest.split())
        found.append(
            DeviceIo(
                major=int(major),
                minor=int(minor),
                read_bytes=int(values.get(b"rbytes", 0)),
                write_bytes=int(values.get(b"wbytes", 0)),
                reads=int(values.get(b"rios", 0)),
                writes=int(values.get(b"wios", 0)),
            )
        )
    return tuple(found)


CONTAINER_NAMES = ("{}", "cri-containerd-{}.scope", "crio-{}.scope", "crio-{}", "docker-{}.scope")
"""Names of a container's or sandbox's group, by runtime and driver."""


class CgroupStats:
    def __init__(
        self, *, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc"), hugepage_sizes: Sequence[int] = ()
    ) -> None:
        """`hugepage_sizes` in bytes, as in Machine; v1 finds them by itself."""
        unified = (root / "cgroup.controllers").exists()
        sizes = [page_name(size) for size in hugepage_sizes]
        self._reader: V1Reader | V2Reader
        if unified:
            self._reader = V2Reader(str(root), str(proc), sizes)
        else:
            self._reader = V1Reader({name: str(at) for name, at in find_hierarchies(root).items()}, str(proc))
        self.version = self._reader.version

    def usage(self, path: str, now_ns: int) -> CgroupUsage | None:
        """CPU and memory; None when there is no such group."""
        return self._reader.usage(path, now_ns)

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool, counters: bool) -> CgroupDetail:
        """Processes (of a `leaf`) and pressure, with `counters` everything.

        Counters of a limit are read only where `bounds` has it, those of processes only where processes are.
        """
        return self._reader.detail(path, bounds, leaf=leaf, counters=counters)

    def bounds(self, path: str) -> CgroupBounds:
        return self._reader.bounds(path)

    def oom_kills(self, path: str) -> int | None:
        """Processes of the group that the kernel killed for memory, ever."""
        return self._reader.oom_kills(path)

    def exists(self, path: str) -> bool:
        return os.path.isdir(self._reader.folder(path))

    def created_ns(self, path: str) -> int:
        """When the group was made; 0 when there is none."""
        try:
            return os.stat(self._reader.folder(path)).st_ctime_ns
        except OSError:
            return 0

    def locate(self, parent: str, container_id: str) -> str | None:
        """The group of a container or sandbox below its pod's group."""
        for form in CONTAINER_NAMES:
            path = f"{parent.rstrip('/')}/{form.format(container_id)}"
            if self.exists(path):
                return path
        return None

    def processes(self, path: str) -> tuple[int, ...]:
        """Process ids in the group itself."""
        return tuple(map(int, read_small(f"{self._reader.folder(path)}/cgroup.procs").split()))
