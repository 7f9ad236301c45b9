"""What eviction measures: memory, disks and process ids of the node, and what each pod uses.

Node signals are cheap: a handful of files, and the runtime's image filesystem every ten seconds. Pods are measured
only when one has to be evicted. Formulas are upstream's: available memory is the machine's less the working set of the
root cgroup.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import msgspec

from pykubelet.clients.cri.port import CriClient
from pykubelet.edges import GuardEdges
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import HostCallStuck, host_calls
from pykubelet.kit.tasks import both
from pykubelet.model.errors import CriError
from pykubelet.model.stats import FolderUsage, FsUsage, Measurement, TaskCounts
from pykubelet.stats.build import Stats
from pykubelet.stats.disk import DiskSample
from pykubelet.stats.provider import ROOT
from pykubelet.stats.snapshot import Group, Look, PodItem, PodSample, WritableLayer

logger = logging.getLogger(__name__)

IMAGE_FS_EVERY = 10.0
SIGNALS_WITHIN = 10.0
VOLUMES_WITHIN = 2.0
"""Seconds for measuring all volumes before a pod is chosen; of slower ones the last stats count."""


class MemorySignal(Measurement, frozen=True, kw_only=True):
    time_ns: int
    available: int
    capacity: int
    working_set: int
    usage: int = 0
    """With the file pages the kernel would drop first; its notifications compare with this."""


class NodeSignals(Measurement, frozen=True, kw_only=True):
    """None: this host does not have the signal, so it never causes pressure."""

    memory: MemorySignal | None = None
    allocatable_memory: MemorySignal | None = None
    """Limit and working set of the group above all pods; None when it has no limit."""
    node_fs: FsUsage | None = None
    image_fs: FsUsage | None = None
    container_fs: FsUsage | None = None
    tasks: TaskCounts | None = None

    @property
    def has_own_image_fs(self) -> bool:
        return self._apart(self.image_fs)

    @property
    def has_own_container_fs(self) -> bool:
        """Writable layers are not on the node's filesystem."""
        return self._apart(self.container_fs)

    def _apart(self, fs: FsUsage | None) -> bool:
        return fs is not None and self.node_fs is not None and fs.device != self.node_fs.device


class ContainerUse(Measurement, frozen=True, kw_only=True):
    memory: int | None = None
    """Working set."""
    layer: int = 0
    layer_inodes: int = 0
    logs: int = 0
    logs_inodes: int = 0


class PodUse(Measurement, frozen=True, kw_only=True):
    memory: int | None = None
    processes: int = 0
    containers: dict[str, ContainerUse]
    volumes: int = 0
    """Bytes of the local volumes that lie on the node's disk."""
    volumes_inodes: int = 0
    other: int = 0
    """Pod-level logs and the hosts file."""
    other_inodes: int = 0


class EvictionStats:
    """Measures the node and its pods for eviction."""

    def __init__(
        self, stats: Stats, guard: GuardEdges, *, cri: CriClient, clock: Clock, memory_bytes: int, root_dir: str
    ) -> None:
        self._provider = stats.provider
        self._volumes = stats.volumes
        self._cgroups = guard.cgroups
        self._host = guard.host
        self._cri = cri
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._pods_cgroup = stats.cgroups.pods()
        self._root_dir = root_dir
        self._points: tuple[str, str] = ("", "")
        self._points_at = float("-inf")
        self._disks_hang = False

    def memory(self) -> MemorySignal | None:
        """Measure the node's memory, in two file reads."""
        return self._signal(ROOT, self._memory_bytes)

    def allocatable_memory(self) -> MemorySignal | None:
        limit = self._cgroups.bounds(self._pods_cgroup).memory
        return self._signal(self._pods_cgroup, limit) if limit is not None else None

    def _signal(self, path: str, capacity: int) -> MemorySignal | None:
        usage = self._cgroups.usage(path, self._clock.now_ns())
        if usage is None or usage.memory is None:
            return None
        used = usage.memory.working_set
        return MemorySignal(
            time_ns=usage.time_ns,
            available=max(0, capacity - used),
            capacity=capacity,
            working_set=used,
            usage=usage.memory.usage,
        )

    async def node(self) -> NodeSignals:
        """Measure every signal. Raises CriError when the runtime never reported where its images are."""
        if self._clock.monotonic() - self._points_at >= IMAGE_FS_EVERY:
            try:
                found = await self._cri.image_fs_info()
            except CriError:
                if self._points_at == float("-inf"):
                    raise
                # Where images are does not change; memory must be watched even while the runtime is away.
            else:
                images = found.images[0].mountpoint if found.images else ""
                self._points = (images, found.containers[0].mountpoint if found.containers else images)
            self._points_at = self._clock.monotonic()
        reading = host_calls.run(self._read_memory, name="reading memory signals", key="node", within=SIGNALS_WITHIN)
        memory, disks = await both(reading, self._disks_now())
        return msgspec.structs.replace(
            memory, node_fs=disks.node_fs, image_fs=disks.image_fs, container_fs=disks.container_fs
        )

    def _read_memory(self) -> NodeSignals:
        return NodeSignals(
            memory=self.memory(),
            allocatable_memory=self.allocatable_memory(),
            tasks=self._host.tasks(self._clock.now_ns()),
        )

    async def _disks_now(self) -> NodeSignals:
        """Measure the node's filesystems; none when one does not answer, so that memory is watched all the same."""
        try:
            found = await host_calls.run(
                self._read_disks, name="reading disk signals", key="node", within=SIGNALS_WITHIN
            )
        except HostCallStuck as error:
            if not self._disks_hang:
                logger.warning("the node's filesystems do not answer", extra={"problem": str(error)})
            self._disks_hang = True
            return NodeSignals()
        self._disks_hang = False
        return found

    def _read_disks(self) -> NodeSignals:
        now = self._clock.now_ns()
        images, containers = self._points
        image_fs = self._host.filesystem(images, now) if images else None
        return NodeSignals(
            node_fs=self._host.filesystem(self._root_dir, now),
            image_fs=image_fs,
            container_fs=image_fs if containers == images else self._host.filesystem(containers, now),
        )

    async def pods(self, *, disks: bool) -> Mapping[str, PodUse]:
        """What each pod uses, by uid. Without `disks` only memory, which is quicker.

        A pod of which nothing runs yet is known to use nothing but its volumes; pods whose stats cannot
        be read are left out.
        """
        snapshot = await self._provider.snapshot(Look.SUMMARY if disks else Look.USAGE, at_most=0.0)
        found = {}
        for uid in self._provider.idle():
            size, inodes = self._on_node_disk(uid)
            found[uid] = PodUse(memory=0, containers={}, volumes=size, volumes_inodes=inodes)
        for pod in snapshot.pods:
            found[pod.item.uid] = pod_use(pod, *self._on_node_disk(pod.item.uid))
        return found

    def _on_node_disk(self, uid: str) -> tuple[int, int]:
        """Bytes and inodes of the pod's local volumes."""
        volumes = self._volumes.of_pod(uid)
        local = [each for each in volumes.volumes if each.on_node_disk] if volumes is not None else []
        return sum(each.used_bytes for each in local), sum(each.inodes_used for each in local)

    async def disks(self) -> Mapping[str, PodUse]:
        """Measure what each pod has on disk, volumes included."""
        await self._volumes.renew(within=VOLUMES_WITHIN)
        found = {uid: PodUse(containers={}) for uid in self._provider.idle()}
        found.update(_all_files(await self._provider.disks(None)))
        return {uid: self._with_volumes(uid, use) for uid, use in found.items()}

    def _with_volumes(self, uid: str, use: PodUse) -> PodUse:
        size, inodes = self._on_node_disk(uid)
        return msgspec.structs.replace(use, volumes=size, volumes_inodes=inodes)

    async def files(self, uids: Collection[str]) -> Mapping[str, PodUse]:
        """What the containers of some pods have on disk, volumes left out; by uid, measured now."""
        return _all_files(await self._provider.disks(uids))


def _all_files(disk: DiskSample) -> dict[str, PodUse]:
    return {pod.uid: _files(pod, disk) for pod in disk.pods}


def _files(pod: PodItem, disk: DiskSample) -> PodUse:
    containers = {
        each.name: _container_use(disk.layers.get(each.id), disk.logs.get((pod.uid, each.name)))
        for each in pod.containers
    }
    others = [found for found in (disk.own_logs.get(pod.uid), disk.etc_hosts.get(pod.uid)) if found is not None]
    return PodUse(containers=containers, other=sum(each.bytes for each in others))


def pod_use(pod: PodSample, volume_bytes: int, volume_inodes: int) -> PodUse:
    others = [folder for folder in (pod.own_logs, pod.etc_hosts) if folder is not None]
    return PodUse(
        memory=_working_set(pod.group),
        processes=pod.processes or 0,
        containers={
            each.item.name: _container_use(each.layer, each.logs, _working_set(each.group)) for each in pod.containers
        },
        volumes=volume_bytes,
        volumes_inodes=volume_inodes,
        other=sum(folder.bytes for folder in others),
        other_inodes=sum(folder.inodes for folder in others),
    )


def _container_use(layer: WritableLayer | None, logs: FolderUsage | None, memory: int | None = None) -> ContainerUse:
    return ContainerUse(
        memory=memory,
        layer=layer.used if layer is not None else 0,
        layer_inodes=(layer.inodes or 0) if layer is not None else 0,
        logs=logs.bytes if logs is not None else 0,
        logs_inodes=logs.inodes if logs is not None else 0,
    )


def _working_set(group: Group) -> int | None:
    usage = group.usage
    return usage.memory.working_set if usage is not None and usage.memory is not None else None
