"""Figures from cgroup v1 hierarchies.

On hybrid hosts the empty v2 tree beside them may carry pressure files; they are used when the runtime made a group
there too. The root group's pressure is the machine's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

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

WANTED = frozenset({"cpu", "cpuacct", "memory", "pids", "blkio", "hugetlb", "unified"})
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
NOWHERE = "/nonexistent"
"""Stands for a hierarchy this host does not mount: every file in it is missing."""


def find_hierarchies(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        entries = sorted(os.listdir(root))
    except OSError:
        return {}
    for entry in entries:
        for name in entry.split(","):
            if name in WANTED:
                found.setdefault(name, str((root / entry).resolve()))
    return found


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

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool) -> CgroupDetail:
        memory = self._memory + path
        ticks = pairs(f"{self._cpuacct}{path}/cpuacct.stat")
        cpu = pairs(f"{self._cpu}{path}/cpu.stat") if bounds.quota_us is not None else {}
        stalls = self._pressures(path)
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
            processes=read_small(f"{self._any}{path}/cgroup.procs").count(b"\n") if leaf else None,
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

    def _pressures(self, path: str) -> tuple[Pressure | None, Pressure | None, Pressure | None]:
        if path == "/":
            return tuple(pressure(f"{self._proc}/pressure/{kind}") for kind in ("cpu", "memory", "io"))  # type: ignore[return-value]
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
