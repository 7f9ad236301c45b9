"""An in-memory cgroup tree: remembers which groups exist and what they are limited to."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pykubelet.model.cgroups import CgroupLimits


class FakeCgroups:
    def __init__(self) -> None:
        self.groups: dict[str, CgroupLimits] = {}
        self.usage: dict[str, int] = {}
        """Bytes of memory in use, by path; the kernel refuses limits below it."""
        self.members: dict[str, set[int]] = {}
        """Processes that were moved into a group."""
        self.changes: list[tuple[str, CgroupLimits]] = []
        """Every successful `apply`, oldest first."""

    def create(self, path: str, limits: CgroupLimits) -> None:
        parts = path.strip("/").split("/")
        for end in range(1, len(parts)):
            self.groups.setdefault("/" + "/".join(parts[:end]), CgroupLimits())
        self.groups[path] = limits.over(self.groups.get(path, CgroupLimits()))

    def apply(self, path: str, limits: CgroupLimits) -> None:
        if path not in self.groups:
            raise FileNotFoundError(path)
        if limits.memory_bytes is not None and 0 < limits.memory_bytes < self.usage.get(path, 0):
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        self.groups[path] = limits.over(self.groups[path])
        self.changes.append((path, limits))

    def read(self, path: str) -> CgroupLimits | None:
        return self.groups.get(path)

    def memory_usage(self, path: str) -> int | None:
        return self.usage.get(path, 0) if path in self.groups else None

    def exists(self, path: str) -> bool:
        return path in self.groups

    def children(self, path: str) -> Sequence[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({p[len(prefix) :].split("/")[0] for p in self.groups if p.startswith(prefix)})

    def join(self, path: str, pid: int) -> None:
        self.create(path, CgroupLimits())
        self.members.setdefault(path, set()).add(pid)

    async def destroy(self, path: str) -> None:
        for known in [p for p in self.groups if p == path or p.startswith(path + "/")]:
            del self.groups[known]
