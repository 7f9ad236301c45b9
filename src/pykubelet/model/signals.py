"""What eviction is told: the node's signals and what each pod uses. Made by stats, read by eviction and its views."""

from __future__ import annotations

from pykubelet.model.figures import Figures, FsFigures, TaskFigures


class MemorySignal(Figures, frozen=True, kw_only=True):
    time_ns: int
    available: int
    capacity: int
    working_set: int
    usage: int = 0
    """With the file pages the kernel would drop first: what it compares its own alarms with."""


class NodeSignals(Figures, frozen=True, kw_only=True):
    """None: not to be had on this host, which means no pressure is ever seen there."""

    memory: MemorySignal | None = None
    allocatable_memory: MemorySignal | None = None
    """Limit and working set of the group above all pods; None when it has no limit."""
    node_fs: FsFigures | None = None
    image_fs: FsFigures | None = None
    container_fs: FsFigures | None = None
    tasks: TaskFigures | None = None

    @property
    def pids_available(self) -> int | None:
        return self.tasks.limit - self.tasks.tasks if self.tasks is not None else None

    @property
    def has_own_image_fs(self) -> bool:
        return self._apart(self.image_fs)

    @property
    def has_own_container_fs(self) -> bool:
        """Writable layers are not on the node's filesystem."""
        return self._apart(self.container_fs)

    def _apart(self, fs: FsFigures | None) -> bool:
        return fs is not None and self.node_fs is not None and fs.device != self.node_fs.device


class ContainerUse(Figures, frozen=True, kw_only=True):
    memory: int | None = None
    """Working set."""
    layer: int = 0
    layer_inodes: int = 0
    logs: int = 0
    logs_inodes: int = 0


class PodUse(Figures, frozen=True, kw_only=True):
    memory: int | None = None
    processes: int = 0
    containers: dict[str, ContainerUse]
    volumes: int = 0
    """Bytes of the local volumes that lie on the node's disk."""
    volumes_inodes: int = 0
    other: int = 0
    """Pod-level logs and the hosts file."""
    other_inodes: int = 0
