"""An in-memory cgroup tree: remembers which groups exist and what they were limited to."""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.model.cgroup_limits import CgroupLimits


class FakeCgroups:
    def __init__(self) -> None:
        self.groups: dict[str, CgroupLimits] = {}

    def create(self, path: str, limits: CgroupLimits) -> None:
        parts = path.strip("/").split("/")
        for end in range(1, len(parts)):
            self.groups.setdefault("/" + "/".join(parts[:end]), CgroupLimits())
        self.groups[path] = limits

    def apply(self, path: str, limits: CgroupLimits) -> None:
        if path not in self.groups:
            raise FileNotFoundError(path)
        self.groups[path] = limits

    def exists(self, path: str) -> bool:
        return path in self.groups

    def children(self, path: str) -> Sequence[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({p[len(prefix) :].split("/")[0] for p in self.groups if p.startswith(prefix)})

    async def destroy(self, path: str) -> None:
        for known in [p for p in self.groups if p == path or p.startswith(path + "/")]:
            del self.groups[known]
