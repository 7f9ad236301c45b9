"""Figures of the whole machine and of what belongs to no cgroup: tasks, interfaces, disks, folders.

Everything is read below `proc` and `sys`, so that tests describe other machines with a few files. All calls block,
shortly, except `filesystem` on a dead network disk. What cannot be read is None or empty.
Not covered: cgroups (cgroup_stats.py), volumes (volumes/usage.py).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pykubelet.clients.host.stat_files import number, read_small
from pykubelet.model.stats import (
    DiskCounters,
    FolderUsage,
    FsUsage,
    InterfaceCounters,
    NetworkCounters,
    ProcessCounts,
    TaskCounts,
)

UNINTERESTING_INTERFACES = (b"lo", b"veth", b"docker", b"nerdctl")
"""Left out as upstream does: host ends of pod links would count everything twice."""
NO_DISKS = ("loop", "ram", "zram", "sr", "fd")
FOLDER_DEPTH = 8


class NodeStats:
    def __init__(self, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc = str(proc)
        self._sys = sys
        self._device_names: dict[tuple[int, int], str] = {}

    def boot_seconds(self) -> int:
        """Unix seconds at which the machine started; 0 when the kernel does not say."""
        for line in read_small(f"{self._proc}/stat").splitlines():
            if line.startswith(b"btime "):
                return int(line.split()[1])
        return 0

    def tasks(self, now_ns: int) -> TaskCounts | None:
        words = read_small(f"{self._proc}/loadavg").split()
        if len(words) < 4:
            return None
        running, _, tasks = words[3].partition(b"/")
        limits = [number(f"{self._proc}/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
        known = [value for value in limits if value is not None]
        if not known or not tasks.isdigit():
            return None
        blocked = 0
        for line in read_small(f"{self._proc}/stat").splitlines():
            if line.startswith(b"procs_blocked "):
                blocked = int(line.split()[1])
        return TaskCounts(time_ns=now_ns, limit=min(known), tasks=int(tasks), running=int(running), blocked=blocked)

    def network(self, now_ns: int, pid: int | None = None) -> NetworkCounters | None:
        """Interfaces as the process sees them; without one, those of this process's own network."""
        data = read_small(f"{self._proc}/{pid if pid is not None else 'self'}/net/dev")
        if not data:
            return None
        found = []
        for line in data.splitlines()[2:]:
            name, _, rest = line.partition(b":")
            name = name.strip()
            if name.startswith(UNINTERESTING_INTERFACES):
                continue
            values = rest.split()
            if len(values) < 12:
                continue
            found.append(
                InterfaceCounters(
                    name=name.decode("utf-8", "replace"),
                    rx_bytes=int(values[0]),
                    rx_packets=int(values[1]),
                    rx_errors=int(values[2]),
                    rx_dropped=int(values[3]),
                    tx_bytes=int(values[8]),
                    tx_packets=int(values[9]),
                    tx_errors=int(values[10]),
                    tx_dropped=int(values[11]),
                )
            )
        return NetworkCounters(time_ns=now_ns, interfaces=tuple(found))

    def filesystem(self, path: str, now_ns: int) -> FsUsage | None:
        """The filesystem that holds the path."""
        try:
            whole = os.statvfs(path)
            device = os.stat(path).st_dev
        except OSError:
            return None
        return FsUsage(
            time_ns=now_ns,
            device=device,
            device_name=self.device_name(os.major(device), os.minor(device)),
            capacity=whole.f_blocks * whole.f_frsize,
            available=whole.f_bavail * whole.f_frsize,
            used=(whole.f_blocks - whole.f_bfree) * whole.f_frsize,
            inodes=whole.f_files,
            inodes_free=whole.f_ffree,
        )

    def folder(self, path: str, now_ns: int, *, deep: bool = True) -> FolderUsage | None:
        """Sizes of the files in a folder; `deep` with folders below. None when there is no such folder."""
        try:
            size, inodes = _folder(path, FOLDER_DEPTH if deep else 0)
        except OSError:
            return None
        return FolderUsage(time_ns=now_ns, bytes=size, inodes=inodes)

    def file(self, path: str, now_ns: int) -> FolderUsage | None:
        try:
            found = os.stat(path, follow_symlinks=False)
        except OSError:
            return None
        return FolderUsage(time_ns=now_ns, bytes=found.st_blocks * 512, inodes=1)

    def device_name(self, major: int, minor: int) -> str:
        """/dev/sda1, or '' for what is no block device."""
        known = self._device_names.get((major, minor))
        if known is None:
            known = ""
            for line in read_small(str(self._sys / f"dev/block/{major}:{minor}/uevent")).splitlines():
                if line.startswith(b"DEVNAME="):
                    known = f"/dev/{line.partition(b'=')[2].decode('utf-8', 'replace')}"
            self._device_names[major, minor] = known
        return known

    def disks(self) -> tuple[DiskCounters, ...]:
        """Counters of the machine's disks and their partitions; loop, ram and optical devices left out."""
        found = []
        for line in read_small(f"{self._proc}/diskstats").decode("ascii", "replace").splitlines():
            words = line.split()
            if len(words) < 14 or words[2].startswith(NO_DISKS):
                continue
            values = [int(word) for word in words[3:14]]
            found.append(
                DiskCounters(
                    name=f"/dev/{words[2]}",
                    major=int(words[0]),
                    minor=int(words[1]),
                    reads=values[0],
                    reads_merged=values[1],
                    sectors_read=values[2],
                    read_ms=values[3],
                    writes=values[4],
                    writes_merged=values[5],
                    sectors_written=values[6],
                    write_ms=values[7],
                    in_progress=values[8],
                    io_ms=values[9],
                    weighted_io_ms=values[10],
                )
            )
        return tuple(found)

    def processes(self, pids: tuple[int, ...]) -> ProcessCounts:
        """Open descriptors and sockets of some processes, and the file limit of the first."""
        descriptors = sockets = 0
        for pid in pids:
            folder = f"{self._proc}/{pid}/fd"
            try:
                names = os.listdir(folder)
            except OSError:
                continue  # it ended
            descriptors += len(names)
            for name in names:
                try:
                    sockets += os.readlink(f"{folder}/{name}").startswith("socket:")
                except OSError:
                    continue
        return ProcessCounts(
            descriptors=descriptors, sockets=sockets, open_files_limit=self._open_files_limit(pids[0]) if pids else None
        )

    def _open_files_limit(self, pid: int) -> int | None:
        for line in read_small(f"{self._proc}/{pid}/limits").splitlines():
            if line.startswith(b"Max open files"):
                soft = line.split()[3]
                return -1 if soft == b"unlimited" else int(soft)
        return None

    def cpu_layout(self) -> tuple[int, int]:
        """(physical cores, sockets); zeros when the machine does not show them."""
        cores: set[tuple[int, int]] = set()
        for folder in self._sys.glob("devices/system/cpu/cpu[0-9]*/topology"):
            package = number(str(folder / "physical_package_id"))
            core = number(str(folder / "core_id"))
            if package is not None and core is not None:
                cores.add((package, core))
        return len(cores), len({package for package, _ in cores})


def _folder(path: str, depth: int) -> tuple[int, int]:
    size, inodes = 0, 1
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    if depth > 0:
                        below = _folder(entry.path, depth - 1)
                        size, inodes = size + below[0], inodes + below[1]
                    continue
            except OSError:
                continue  # rotated away while we looked
            size += found.st_blocks * 512
            inodes += 1
    return size, inodes
