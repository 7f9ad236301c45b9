"""Disk stats: writable layers and image filesystem from the runtime, logs and filesystems from the host.

Read every ten seconds at most: the runtime itself measures layers no more often, and each request makes it ask every
container's shim. If the runtime fails the caller gets its error, and may use older stats.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct, field

from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.port import HostReader
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.runtime_status import FilesystemUsage, ImageFilesystems
from pykubelet.model.stats import CgroupUsage, FolderUsage, FsUsage, MemoryUsage
from pykubelet.stats.snapshot import PodItem, RuntimeFs, WritableLayer
from pykubelet.wire import cri_pb2

T = TypeVar("T")

Run = Callable[[Callable[[], T]], Awaitable[T]]

READ_WITHIN = 60.0


async def read_host(work: Callable[[], T]) -> T:
    return await host_calls.run(work, name="reading figures of the host", within=READ_WITHIN)


FEW = 8
"""Pods that are requested one by one."""


class StatPaths(Protocol):
    @property
    def root(self) -> Path: ...

    def etc_hosts(self, uid: str) -> Path: ...

    def log_folder(self, namespace: str, name: str, uid: str) -> Path: ...


class DiskSample(Struct, frozen=True, kw_only=True):
    pods: Sequence[PodItem] = ()
    """The pods that were measured."""
    layers: dict[str, WritableLayer] = field(default_factory=dict)
    """By container id."""
    usages: dict[str, CgroupUsage] = field(default_factory=dict)
    """By container id, as the runtime measured it: for containers whose cgroup cannot be found."""
    logs: dict[tuple[str, str], FolderUsage] = field(default_factory=dict)
    """By pod uid and container name."""
    own_logs: dict[str, FolderUsage] = field(default_factory=dict)
    etc_hosts: dict[str, FolderUsage] = field(default_factory=dict)
    fs: FsUsage | None = None
    image_fs: RuntimeFs | None = None
    container_fs: RuntimeFs | None = None
    filesystems: dict[str, FsUsage] = field(default_factory=dict)


class DiskReader:
    def __init__(self, *, cri: CriClient, host: HostReader, paths: StatPaths, clock: Clock) -> None:
        self._cri = cri
        self._host = host
        self._paths = paths
        self._clock = clock

    async def runtime_stats(
        self, pods: Collection[str] | None = None
    ) -> tuple[dict[str, WritableLayer], dict[str, CgroupUsage]]:
        """Of all containers, or of those of a few pods: measuring each costs the runtime a call to its shim."""
        layers, usages = {}, {}
        requested: Sequence[str | None] = [*pods] if pods is not None and len(pods) <= FEW else [None]
        for stats in [each for uid in requested for each in await self._cri.list_container_stats(pod_uid=uid)]:
            container = stats.attributes.id
            if stats.HasField("writable_layer"):
                layers[container] = layer_of(stats.writable_layer)
            if (usage := usage_of(stats)) is not None:
                usages[container] = usage
        return layers, usages

    async def image_filesystems(self) -> ImageFilesystems:
        return await self._cri.image_fs_info()

    def read(
        self,
        inventory: Sequence[PodItem],
        layers: dict[str, WritableLayer],
        usages: dict[str, CgroupUsage],
        image_fs_info: ImageFilesystems,
    ) -> DiskSample:
        """The host's part. Blocks."""
        host, now = self._host, self._clock.now_ns
        filesystems: dict[str, FsUsage] = {}
        points = {layer.mountpoint for layer in layers.values()}
        points.update(each.mountpoint for each in (*image_fs_info.images[:1], *image_fs_info.containers[:1]))
        for point in points:
            if point and (whole := host.filesystem(point, now())) is not None:
                filesystems[point] = whole
        logs, own_logs, etc_hosts = {}, {}, {}
        for pod in inventory:
            folder = str(self._paths.log_folder(pod.namespace, pod.name, pod.uid))
            for container in pod.containers:
                if (found := host.folder(f"{folder}/{container.name}", now())) is not None:
                    logs[pod.uid, container.name] = found
            if (found := host.folder(folder, now(), deep=False)) is not None:
                own_logs[pod.uid] = found
            if (found := host.file(str(self._paths.etc_hosts(pod.uid)), now())) is not None:
                etc_hosts[pod.uid] = found
        image_fs = runtime_fs(image_fs_info.images, filesystems)
        return DiskSample(
            pods=inventory,
            layers=layers,
            usages=usages,
            logs=logs,
            own_logs=own_logs,
            etc_hosts=etc_hosts,
            fs=host.filesystem(str(self._paths.root), now()),
            image_fs=image_fs,
            container_fs=runtime_fs(image_fs_info.containers, filesystems) or image_fs,
            filesystems=filesystems,
        )


def runtime_fs(usages: Sequence[FilesystemUsage], filesystems: dict[str, FsUsage]) -> RuntimeFs | None:
    """The first entry counts, as upstream has it."""
    if not usages:
        return None
    first = usages[0]
    return RuntimeFs(
        time_ns=first.timestamp,
        mountpoint=first.mountpoint,
        used=first.used_bytes,
        inodes_used=first.inodes_used,
        whole=filesystems.get(first.mountpoint),
    )


def layer_of(usage: cri_pb2.FilesystemUsage) -> WritableLayer:
    return WritableLayer(
        time_ns=usage.timestamp,
        used=usage.used_bytes.value,
        inodes=usage.inodes_used.value if usage.HasField("inodes_used") else None,
        mountpoint=usage.fs_id.mountpoint,
    )


def usage_of(stats: cri_pb2.ContainerStats | cri_pb2.LinuxPodSandboxStats) -> CgroupUsage | None:
    if not stats.HasField("cpu"):
        return None
    memory = None
    if stats.HasField("memory"):
        working_set = stats.memory.working_set_bytes.value
        memory = MemoryUsage(
            usage=stats.memory.usage_bytes.value or working_set,
            working_set=working_set,
            rss=stats.memory.rss_bytes.value,
            swap=_swap_of(stats),
            faults=stats.memory.page_faults.value,
            major_faults=stats.memory.major_page_faults.value,
        )
    return CgroupUsage(time_ns=stats.cpu.timestamp, cpu_ns=stats.cpu.usage_core_nano_seconds.value, memory=memory)


def _swap_of(stats: cri_pb2.ContainerStats | cri_pb2.LinuxPodSandboxStats) -> int | None:
    """Of a container, or of all containers of a pod: the runtime has no such figure for a pod."""
    if isinstance(stats, cri_pb2.ContainerStats):
        return stats.swap.swap_usage_bytes.value if stats.HasField("swap") else None
    known = [used for each in stats.containers if (used := _swap_of(each)) is not None]
    return sum(known) if known else None
