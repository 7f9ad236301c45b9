"""The cgroup file systems of the host: v1, hybrid (v1 controllers beside an empty v2 tree) and v2.

Paths are driver-neutral (`/kubepods/burstable/pod<uid>`) and mean the same place in every hierarchy. Only what
was made through this class below the kubepods root is ever removed. When a group is made, a host that refuses a
setting (no controller, no right) is logged once and the rest is still applied; a change of limits must succeed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from pykubelet.kit.clock import Clock
from pykubelet.model.cgroups import PERIOD_US, CgroupLimits, shares_to_weight, weight_to_shares

logger = logging.getLogger(__name__)

V1_HIERARCHIES = frozenset(
    (
        *("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb"),
        *("net_cls", "net_prio", "perf_event", "rdma", "misc", "systemd", "unified"),
    )
)
"""Where a runtime may put a container; `unified` is the v2 tree that hybrid hosts have beside the others."""
V1_LIMITED = ("cpu", "memory", "pids", "hugetlb")
"""Hierarchies in which we make pod cgroups ourselves; the runtime makes its own in all the others."""
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
GONE_TRIES = 20
UNLIMITED_V1_MEMORY = -1
V1_MEMORY_CEILING = 1 << 62
"""The kernel shows "no limit" as the largest multiple of its page size."""


def find_hierarchies(root: Path) -> dict[str, Path]:
    """Controller name to the folder of its v1 hierarchy."""
    try:
        entries = sorted(os.listdir(root))
    except OSError:
        return {}
    found: dict[str, Path] = {}
    for entry in entries:
        for name in entry.split(","):
            if name in V1_HIERARCHIES:
                found.setdefault(name, (root / entry).resolve())
    return found


class CgroupTree:
    def __init__(self, *, clock: Clock, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._clock = clock
        self._root = root
        self._proc = proc
        self.unified = (root / "cgroup.controllers").exists()
        self._hierarchies = {"": root} if self.unified else find_hierarchies(root)
        self._has_hugetlb = self.unified and "hugetlb" in _text(root / "cgroup.controllers").split()
        self._refused: set[str] = set()

    # --- questions ------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return all(folder.is_dir() for folder in self._limited_folders(path))

    def children(self, path: str) -> Sequence[str]:
        """Names of the groups directly below, in any hierarchy."""
        names: set[str] = set()
        for folder in self._folders(path):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                names.update(_folders_in(folder))
        return sorted(names)

    def programs(self, path: str) -> Sequence[int]:
        # Where each controller has its own tree, that of memory decides.
        tree = self._hierarchies.get("" if self.unified else "memory")
        if tree is None:
            return ()
        pids = map(int, _text(tree / path.lstrip("/") / "cgroup.procs").split())
        # Number 0 stands for a process of another pid namespace.
        return [pid for pid in pids if pid > 1 and not self._is_kernel_thread(pid)]

    def _is_kernel_thread(self, pid: int) -> bool:
        try:
            os.readlink(self._proc / str(pid) / "exe")
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def read(self, path: str) -> CgroupLimits | None:
        """CPU and memory limits in force; None when there is no such group."""
        if not self.exists(path):
            return None
        return (self._read_v2 if self.unified else self._read_v1)(path.lstrip("/"))

    def memory_usage(self, path: str) -> int | None:
        name = "memory.current" if self.unified else "memory.usage_in_bytes"
        base = self._hierarchies.get("" if self.unified else "memory")
        return _number(base / path.lstrip("/") / name) if base is not None else None

    # --- changes --------------------------------------------------------------------------------

    def create(self, path: str, limits: CgroupLimits) -> None:
        """Make the group, parents included, and limit it as far as the host lets us. Safe to repeat."""
        if self.unified:
            self._enable_down_to(path)
        for folder in self._limited_folders(path):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for file, value in self._writes(path, limits):
            self._try_write(file, value)

    def apply(self, path: str, limits: CgroupLimits) -> None:
        """Change limits of a group; OSError when the host refuses any of them."""
        for file, value in self._writes(path, limits):
            try:
                _write(file, value)
            except OSError as error:
                raise OSError(error.errno, f"cannot set {value}: {error.strerror}", str(file)) from error

    def join(self, path: str, pid: int) -> None:
        """Move a process into the group, which is made if missing. OSError when the host refuses."""
        self.create(path, CgroupLimits())
        folders = list(self._limited_folders(path))
        if "cpuacct" in self._hierarchies:  # of its own on some v1 hosts; without it no processor time is counted
            folders.append(self._hierarchies["cpuacct"] / path.lstrip("/"))
        for folder in dict.fromkeys(folders):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            file = folder / "cgroup.procs"
            if str(pid) not in _text(file).split():
                _write(file, str(pid))

    async def destroy(self, path: str) -> None:
        """Kill what is left inside and remove the group with everything below it; gone already is success."""
        folders = list(self._folders(path))
        for attempt in range(GONE_TRIES):
            busy = [folder for folder in folders if not self._remove(folder)]
            if not busy:
                return
            for pid in self._pids(busy):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self._clock.sleep(0.005 * (attempt + 1))
        raise OSError(errno.EBUSY, f"cgroup {path} still has processes in it")

    # --- inside ---------------------------------------------------------------------------------

    def _folders(self, path: str) -> Iterator[Path]:
        for base in dict.fromkeys(self._hierarchies.values()):
            yield base / path.lstrip("/")

    def _limited_folders(self, path: str) -> Iterator[Path]:
        wanted = ("",) if self.unified else V1_LIMITED
        for name in wanted:
            if name in self._hierarchies:
                yield self._hierarchies[name] / path.lstrip("/")

    def _writes(self, path: str, limits: CgroupLimits) -> Iterator[tuple[Path, str]]:
        yield from (self._writes_v2 if self.unified else self._writes_v1)(path.lstrip("/"), limits)

    def _writes_v2(self, path: str, limits: CgroupLimits) -> Iterator[tuple[Path, str]]:
        folder = self._root / path
        if limits.cpu_shares is not None:
            yield folder / "cpu.weight", str(shares_to_weight(limits.cpu_shares))
        if limits.cpu_quota_us is not None:
            quota = str(limits.cpu_quota_us) if limits.cpu_quota_us > 0 else "max"
            yield folder / "cpu.max", f"{quota} {limits.cpu_period_us}"
        if limits.memory_bytes is not None:
            yield folder / "memory.max", str(limits.memory_bytes) if limits.memory_bytes > 0 else "max"
        if limits.pids is not None:
            yield folder / "pids.max", str(limits.pids) if limits.pids > 0 else "max"
        for size, allowed in limits.hugepages.items() if self._has_hugetlb else ():
            yield from _huge_writes(folder, size, "max", allowed)
        for name, value in limits.unified.items():
            yield folder / name, value

    def _writes_v1(self, path: str, limits: CgroupLimits) -> Iterator[tuple[Path, str]]:
        places = self._hierarchies
        if "cpu" in places:
            folder = places["cpu"] / path
            if limits.cpu_shares is not None:
                yield folder / "cpu.shares", str(limits.cpu_shares)
            if limits.cpu_quota_us is not None:
                yield folder / "cpu.cfs_period_us", str(limits.cpu_period_us)
                yield folder / "cpu.cfs_quota_us", str(limits.cpu_quota_us if limits.cpu_quota_us > 0 else -1)
        if "memory" in places and limits.memory_bytes is not None:
            value = limits.memory_bytes if limits.memory_bytes > 0 else UNLIMITED_V1_MEMORY
            yield places["memory"] / path / "memory.limit_in_bytes", str(value)
        if "pids" in places and limits.pids is not None:
            yield places["pids"] / path / "pids.max", str(limits.pids) if limits.pids > 0 else "max"
        if "hugetlb" in places:
            for size, allowed in limits.hugepages.items():
                yield from _huge_writes(places["hugetlb"] / path, size, "limit_in_bytes", allowed)

    def _read_v2(self, path: str) -> CgroupLimits:
        folder = self._root / path
        weight = _number(folder / "cpu.weight")
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        return CgroupLimits(
            cpu_shares=weight_to_shares(weight) if weight is not None else None,
            cpu_quota_us=-1 if quota == "max" else int(quota) if quota else None,
            cpu_period_us=int(period) if period.strip() else PERIOD_US,
            memory_bytes=_number(folder / "memory.max"),
        )

    def _read_v1(self, path: str) -> CgroupLimits:
        cpu, memory = self._hierarchies.get("cpu"), self._hierarchies.get("memory")
        limit = _number(memory / path / "memory.limit_in_bytes") if memory is not None else None
        return CgroupLimits(
            cpu_shares=_number(cpu / path / "cpu.shares") if cpu is not None else None,
            cpu_quota_us=_number(cpu / path / "cpu.cfs_quota_us") if cpu is not None else None,
            cpu_period_us=(_number(cpu / path / "cpu.cfs_period_us") if cpu is not None else None) or PERIOD_US,
            memory_bytes=-1 if limit is not None and limit >= V1_MEMORY_CEILING else limit,
        )

    def _try_write(self, file: Path, value: str) -> None:
        try:
            _write(file, value)
        except OSError as error:
            if file.name not in self._refused:
                self._refused.add(file.name)
                logger.warning(
                    "the host refuses a cgroup setting; pods run without it",
                    extra={"file": str(file), "value": value, "error": str(error)},
                )

    def _enable_down_to(self, path: str) -> None:
        """On v2 a controller works in a group only if every ancestor enables it."""
        folder = self._root
        for part in (*path.strip("/").split("/")[:-1], None):
            self._hand_down(folder)
            if part is None:
                break
            folder = folder / part
            folder.mkdir(mode=0o755, exist_ok=True)

    def _hand_down(self, folder: Path) -> None:
        available = (folder / "cgroup.controllers").read_text().split()
        enabled = (folder / "cgroup.subtree_control").read_text().split()
        for name in V2_CONTROLLERS:
            if name in available and name not in enabled:
                self._try_write(folder / "cgroup.subtree_control", f"+{name}")

    def _remove(self, folder: Path) -> bool:
        """Remove the group and those below it; False when something still lives in there."""
        try:
            clean = all([self._remove(folder / child) for child in _folders_in(folder)])
            if clean:
                os.rmdir(folder)
            return clean
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise

    def _pids(self, folders: Sequence[Path]) -> set[int]:
        found: set[int] = set()
        for folder in folders:
            for base, _, files in os.walk(folder):
                if "cgroup.procs" in files:
                    with contextlib.suppress(OSError):
                        found.update(int(pid) for pid in Path(base, "cgroup.procs").read_text().split())
        return found - {0, os.getpid()}


def _huge_writes(folder: Path, size: int, ending: str, allowed: int) -> Iterator[tuple[Path, str]]:
    """Pages in use and, where the kernel counts them, pages that are reserved: mapped and not touched yet."""
    name = f"hugetlb.{page_name(size)}"
    yield folder / f"{name}.{ending}", str(allowed)
    reserved = folder / f"{name}.rsvd.{ending}"
    if reserved.exists():
        yield reserved, str(allowed)


def _folders_in(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _write(file: Path, value: str) -> None:
    with open(file, "w", encoding="ascii") as target:
        target.write(value)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:  # no such controller here
        return ""


def _number(file: Path) -> int | None:
    """A single figure; -1 for `max`, None when the host has no such file."""
    text = _text(file).strip()
    return -1 if text == "max" else int(text) if text else None


def page_name(size: int) -> str:
    """The kernel's name of a page size: 2MB, 1GB."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
