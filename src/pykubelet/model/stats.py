"""Measurements of cgroups, disks and interfaces as the host gives them.

Made by clients/host, read by stats and eviction. None always means "the host does not report it".
Structs rather than dataclasses: a scrape makes hundreds of them, and these cost a tenth.
Bytes are bytes, times are nanoseconds, wall times are unix nanoseconds.
"""

from __future__ import annotations

import msgspec


class Measurement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all: immutable, compared by value."""


class MemoryUsage(Measurement, frozen=True, kw_only=True):
    """Memory of a cgroup with everything below it; `own_` counters are of the group alone."""

    usage: int
    working_set: int
    """Usage without the file pages the kernel would drop first."""
    rss: int = 0
    cache: int = 0
    swap: int | None = None
    mapped_file: int = 0
    active_file: int = 0
    inactive_file: int = 0
    faults: int = 0
    major_faults: int = 0
    own_faults: int = 0
    own_major_faults: int = 0
    kernel: int | None = None
    """Reported here by v2; v1 has a file for it, see CgroupDetail."""


class CgroupUsage(Measurement, frozen=True, kw_only=True):
    """What changes all the time and every reader needs."""

    time_ns: int
    cpu_ns: int | None = None
    memory: MemoryUsage | None = None


class PressureLine(Measurement, frozen=True, kw_only=True):
    """One line of a pressure file; `total` in microseconds as the kernel gives it."""

    avg10: float
    avg60: float
    avg300: float
    total: int


class Pressure(Measurement, frozen=True, kw_only=True):
    some: PressureLine
    full: PressureLine


class DeviceIo(Measurement, frozen=True, kw_only=True):
    major: int
    minor: int
    read_bytes: int = 0
    write_bytes: int = 0
    reads: int = 0
    writes: int = 0


class HugepageUsage(Measurement, frozen=True, kw_only=True):
    page_size: str
    """As the kernel names it: 2MB, 1GB."""
    usage: int
    max_usage: int | None = None
    failures: int | None = None


class CgroupDetail(Measurement, frozen=True, kw_only=True):
    """What only dashboards and the full summary want."""

    user_ns: int | None = None
    system_ns: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_ns: int | None = None
    max_usage: int | None = None
    limit_hits: int | None = None
    kernel: int | None = None
    oom_kills: int | None = None
    processes: int | None = None
    threads: int | None = None
    io: tuple[DeviceIo, ...] = ()
    hugepages: tuple[HugepageUsage, ...] = ()
    cpu_pressure: Pressure | None = None
    memory_pressure: Pressure | None = None
    io_pressure: Pressure | None = None


class CgroupBounds(Measurement, frozen=True, kw_only=True):
    """Limits in force on a group itself, not on its parents."""

    shares: int | None = None
    quota_us: int | None = None
    """None: no quota."""
    period_us: int | None = None
    memory: int | None = None
    """None: unlimited."""
    memory_soft: int | None = None
    swap: int | None = None
    """Swap alone, on both cgroup versions."""
    pids: int | None = None


class ProcessCounts(Measurement, frozen=True, kw_only=True):
    """What a walk over the processes of a container found."""

    descriptors: int
    sockets: int
    open_files_limit: int | None = None
    """Soft limit of the first process; -1 is unlimited."""


class InterfaceCounters(Measurement, frozen=True, kw_only=True):
    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


class NetworkCounters(Measurement, frozen=True, kw_only=True):
    time_ns: int
    interfaces: tuple[InterfaceCounters, ...]


class FsUsage(Measurement, frozen=True, kw_only=True):
    """A whole filesystem."""

    time_ns: int
    device: int
    """st_dev: equal numbers are the same filesystem."""
    device_name: str
    """/dev/sda1 where there is such a thing, else ''."""
    capacity: int
    available: int
    """To ordinary users."""
    used: int
    inodes: int
    inodes_free: int


class FolderUsage(Measurement, frozen=True, kw_only=True):
    """Sum over the files of one folder."""

    time_ns: int
    bytes: int
    inodes: int


class TaskCounts(Measurement, frozen=True, kw_only=True):
    """Processes and threads of the machine."""

    time_ns: int
    limit: int
    tasks: int
    running: int
    blocked: int


class DiskCounters(Measurement, frozen=True, kw_only=True):
    """One line of /proc/diskstats."""

    name: str
    major: int
    minor: int
    reads: int
    reads_merged: int
    sectors_read: int
    read_ms: int
    writes: int
    writes_merged: int
    sectors_written: int
    write_ms: int
    in_progress: int
    io_ms: int
    weighted_io_ms: int
