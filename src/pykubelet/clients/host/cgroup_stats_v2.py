"""Figures from the unified cgroup tree (v2).

The root group has no memory.current: as upstream does, its usage is what its memory.stat calls anonymous and file
memory. Its swap and pressure are the machine's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pykubelet.clients.host.stat_files import limit, number, pairs, pressure, read_small
from pykubelet.model.stats import CgroupBounds, CgroupDetail, CgroupUsage, DeviceIo, HugepageUsage, MemoryUsage


class V2Reader:
    version = 2

    def __init__(self, root: str, proc: str, page_sizes: Sequence[str]) -> None:
        """`page_sizes`: of huge pages, as the kernel names them in file names."""
        self._root = root
        self._proc = proc
        self._pressure = os.path.exists(f"{proc}/pressure/cpu")
        handed = b"hugetlb" in read_small(f"{root}/cgroup.controllers").split()
        self._page_sizes = tuple(page_sizes) if handed else ()

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

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool) -> CgroupDetail:
        folder = self._root + path
        cpu = pairs(f"{folder}/cpu.stat")
        events = pairs(f"{folder}/memory.events")
        stalls = f"{self._proc}/pressure/{{}}" if path == "/" else f"{folder}/{{}}.pressure"
        return CgroupDetail(
            user_ns=_scaled(cpu.get(b"user_usec"), 1000),
            system_ns=_scaled(cpu.get(b"system_usec"), 1000),
            periods=_scaled(cpu.get(b"nr_periods")),
            throttled_periods=_scaled(cpu.get(b"nr_throttled")),
            throttled_ns=_scaled(cpu.get(b"throttled_usec"), 1000),
            max_usage=number(f"{folder}/memory.peak"),
            limit_hits=_scaled(events.get(b"max")),
            oom_kills=_scaled(events.get(b"oom_kill")),
            processes=read_small(f"{folder}/cgroup.procs").count(b"\n") if leaf else None,
            threads=number(f"{folder}/pids.current"),
            io=_io(f"{folder}/io.stat"),
            hugepages=self._hugepages(folder),
            cpu_pressure=pressure(stalls.format("cpu")) if self._pressure else None,
            memory_pressure=pressure(stalls.format("memory")) if self._pressure else None,
            io_pressure=pressure(stalls.format("io")) if self._pressure else None,
        )

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
