"""An in-memory cgroup tree: remembers which groups exist, what they are limited to and which processes are in them.

As strict as the kernel (tests/contracts/test_cgroups_contract.py): what is read back is in the kernel's units, quotas
too small for it are refused, and so are limits below the memory in use, as v1 does.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pykubelet.model.cgroups import MIN_QUOTA_US, CgroupLimits

DEFAULT_SHARES = 1024
PAGE = 4096


class MemoryCgroups:
    def __init__(self) -> None:
        self.groups: dict[str, CgroupLimits] = {}
        """What was asked for, by path."""
        self.usage: dict[str, int] = {}
        """Bytes of memory in use by the processes of a group itself, by path; the kernel refuses limits below it."""
        self.members: dict[str, set[int]] = {}
        """Processes that were moved into a group."""

    def create(self, path: str, limits: CgroupLimits) -> None:
        parts = path.strip("/").split("/")
        for end in range(1, len(parts)):
            self.groups.setdefault("/" + "/".join(parts[:end]), CgroupLimits())
        wanted = limits if _is_quota(limits.cpu_quota_us) else _without_quota(limits)
        self.groups[path] = wanted.over(self.groups.get(path, CgroupLimits()))

    def apply(self, path: str, limits: CgroupLimits) -> None:
        if path not in self.groups:
            raise FileNotFoundError(path)
        if not _is_quota(limits.cpu_quota_us):
            raise OSError(errno.EINVAL, "Invalid argument", path)
        if limits.memory_bytes is not None and 0 < limits.memory_bytes < (self.memory_usage(path) or 0):
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        self.groups[path] = limits.over(self.groups[path])

    def read(self, path: str) -> CgroupLimits | None:
        if path not in self.groups:
            return None
        asked = self.groups[path]
        memory = _in_force(asked.memory_bytes)
        return CgroupLimits(
            cpu_shares=DEFAULT_SHARES if asked.cpu_shares is None else asked.cpu_shares,
            cpu_quota_us=_in_force(asked.cpu_quota_us),
            cpu_period_us=asked.cpu_period_us,
            memory_bytes=memory if memory < 0 else memory // PAGE * PAGE,
        )

    def memory_usage(self, path: str) -> int | None:
        if not self.exists(path):
            return None
        return sum(used for group, used in self.usage.items() if _is_in(group, path))

    def exists(self, path: str) -> bool:
        return path == "/" or path in self.groups

    def children(self, path: str) -> Sequence[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({p[len(prefix) :].split("/")[0] for p in self.groups if p.startswith(prefix)})

    def join(self, path: str, pid: int) -> None:
        self.create(path, CgroupLimits())
        for members in self.members.values():
            members.discard(pid)
        self.members.setdefault(path, set()).add(pid)

    def programs(self, path: str) -> Sequence[int]:
        return sorted(self.members.get(path, set()) - {1})

    async def destroy(self, path: str) -> None:
        for known in [p for p in self.groups if _is_in(p, path)]:
            del self.groups[known]
            self.usage.pop(known, None)
            self.members.pop(known, None)


def _is_in(group: str, path: str) -> bool:
    return group == path or group.startswith(path.rstrip("/") + "/")


def _is_quota(quota_us: int | None) -> bool:
    """Whether the kernel takes it; below a millisecond it does not."""
    return quota_us is None or quota_us <= 0 or quota_us >= MIN_QUOTA_US


def _without_quota(limits: CgroupLimits) -> CgroupLimits:
    return CgroupLimits(
        cpu_shares=limits.cpu_shares,
        memory_bytes=limits.memory_bytes,
        pids=limits.pids,
        hugepages=limits.hugepages,
        unified=limits.unified,
    )


def _in_force(limit: int | None) -> int:
    """-1 where there is no limit."""
    return limit if limit is not None and limit > 0 else -1
