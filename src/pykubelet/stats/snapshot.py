"""One look at the node: everything the summary, the metrics and eviction are made from.

A snapshot never changes; parts that were not asked for, or that the host does not tell, are None.
"""

from __future__ import annotations

import msgspec

from pykubelet.model.figures import (
    CgroupBounds,
    CgroupDetail,
    CgroupUsage,
    DiskCounters,
    Figures,
    FolderFigures,
    FsFigures,
    NetworkFigures,
    ProcessFigures,
    TaskFigures,
)
from pykubelet.stats.inventory import ContainerItem, PodItem


class Group(Figures, frozen=True, kw_only=True):
    """A cgroup with what is known about it."""

    path: str
    usage: CgroupUsage | None = None
    rate: int | None = None
    """CPU nanoseconds per second."""
    detail: CgroupDetail | None = None
    bounds: CgroupBounds | None = None
    created_ns: int = 0


class WritableLayer(Figures, frozen=True, kw_only=True):
    time_ns: int
    used: int
    inodes: int | None
    mountpoint: str


class ContainerFigures(Figures, frozen=True, kw_only=True):
    item: ContainerItem
    group: Group
    layer: WritableLayer | None = None
    logs: FolderFigures | None = None
    processes: ProcessFigures | None = None


class PodFigures(Figures, frozen=True, kw_only=True):
    item: PodItem
    group: Group
    sandbox: Group | None = None
    network: NetworkFigures | None = None
    containers: tuple[ContainerFigures, ...] = ()
    own_logs: FolderFigures | None = None
    """Files beside the containers' log folders."""
    etc_hosts: FolderFigures | None = None


class RuntimeFs(Figures, frozen=True, kw_only=True):
    """A filesystem of the runtime: what the runtime says it uses, and the whole of it."""

    time_ns: int
    mountpoint: str
    used: int
    inodes_used: int
    whole: FsFigures | None = None


class NodeFigures(Figures, frozen=True, kw_only=True):
    boot_seconds: int
    root: Group
    system: dict[str, Group]
    """kubelet, runtime, misc where configured; pods always."""
    classes: tuple[Group, ...] = ()
    network: NetworkFigures | None = None
    tasks: TaskFigures | None = None
    load: float = 0.0
    """Running tasks, smoothed over ten seconds."""
    disks: tuple[DiskCounters, ...] = ()
    fs: FsFigures | None = None
    image_fs: RuntimeFs | None = None
    container_fs: RuntimeFs | None = None
    filesystems: dict[str, FsFigures] = msgspec.field(default_factory=dict)
    """Of every mountpoint that writable layers are on."""


class Snapshot(Figures, frozen=True, kw_only=True):
    time_ns: int
    full: bool
    """False: CPU and memory only."""
    node: NodeFigures
    pods: tuple[PodFigures, ...]
