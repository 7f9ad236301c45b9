"""The cgroup tree in memory (`pykubelet.hollow`) as tests use it: it remembers what was changed and who was killed."""

from __future__ import annotations

from pykubelet.hollow.cgroups import MemoryCgroups
from pykubelet.model.cgroups import CgroupLimits


class FakeCgroups(MemoryCgroups):
    def __init__(self) -> None:
        super().__init__()
        self.killed: set[int] = set()
        """Processes that ended with their group."""
        self.changes: list[tuple[str, CgroupLimits]] = []
        """Every successful `apply`, oldest first."""

    def apply(self, path: str, limits: CgroupLimits) -> None:
        super().apply(path, limits)
        self.changes.append((path, limits))

    async def destroy(self, path: str) -> None:
        before = set().union(*self.members.values())
        await super().destroy(path)
        self.killed |= before.difference(*self.members.values())
