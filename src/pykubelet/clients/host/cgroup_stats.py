"""Figures of cgroups, from v1 hierarchies (also hybrid hosts) and from v2.

Paths are the same in every hierarchy (`/kubepods/burstable/pod<uid>`). Every question is answered with what there
is: a missing controller or a group that ended gives None, never an error. All calls block, shortly.
Not covered: making and limiting groups (cgroups.py), machine-wide figures (node_stats.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pykubelet.clients.host.cgroup_stats_v1 import V1Reader, find_hierarchies
from pykubelet.clients.host.cgroup_stats_v2 import V2Reader
from pykubelet.clients.host.cgroups import page_name
from pykubelet.clients.host.stat_files import read_small
from pykubelet.model.stats import CgroupBounds, CgroupDetail, CgroupUsage

CONTAINER_NAMES = ("{}", "cri-containerd-{}.scope", "crio-{}.scope", "crio-{}", "docker-{}.scope")
"""How runtimes name the group of a container or sandbox, by driver."""


class Reader(Protocol):
    version: int

    def folder(self, path: str) -> str:
        """A folder in which the group exists if it exists at all."""
        ...

    def usage(self, path: str, now_ns: int) -> CgroupUsage | None: ...

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool) -> CgroupDetail: ...

    def bounds(self, path: str) -> CgroupBounds: ...

    def oom_kills(self, path: str) -> int | None: ...


class CgroupStats:
    def __init__(
        self, *, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc"), hugepage_sizes: Sequence[int] = ()
    ) -> None:
        """`hugepage_sizes` in bytes, as in Machine; v1 finds them by itself."""
        unified = (root / "cgroup.controllers").exists()
        sizes = [page_name(size) for size in hugepage_sizes]
        self._reader: Reader = (
            V2Reader(str(root), str(proc), sizes) if unified else V1Reader(find_hierarchies(root), str(proc))
        )
        self.version = self._reader.version

    def usage(self, path: str, now_ns: int) -> CgroupUsage | None:
        """CPU and memory; None when there is no such group."""
        return self._reader.usage(path, now_ns)

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool) -> CgroupDetail:
        """Counters of a limit are read only where `bounds` has it, those of processes only where processes are."""
        return self._reader.detail(path, bounds, leaf=leaf)

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
