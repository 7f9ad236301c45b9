"""How much volumes hold: for the stats summary, and emptyDir limits for eviction.

A volume that is a filesystem of its own (tmpfs, nfs, a device) is asked in one call. One that shares its disk is
walked, off the loop, within a budget; when the budget ends the figure so far is a lower bound and says so.
Where a project quota counts a volume (clients/host/quotas.py), nothing is walked.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod
from pykubelet.clients.host.port import Mounts, Quotas, VolumePaths
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import uid_of
from pykubelet.volumes.actual import State, VolumeEntry, VolumeTable
from pykubelet.volumes.block_size import device_bytes
from pykubelet.volumes.plugins.plugin import VolumePlugin
from pykubelet.volumes.spec import CONFIG_MAP, EMPTY_DIR, HOST_PATH, IMAGE, VolumeSpec
from pykubelet.volumes.threads import Offload

logger = logging.getLogger(__name__)

WALK_BUDGET = 200_000
"""Files one walk looks at."""
MAX_DEPTH = 200
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ON_DISK = (EMPTY_DIR, CONFIG_MAP)


class Measured(Struct, frozen=True, kw_only=True):
    bytes: int
    inodes: int
    complete: bool = True


class VolumeUsage(Struct, frozen=True, kw_only=True):
    """One volume in the shape of the summary's VolumeStats."""

    name: str
    capacity_bytes: int
    used_bytes: int = 0
    available_bytes: int = 0
    inodes: int = 0
    inodes_free: int = 0
    inodes_used: int = 0
    claim: tuple[str, str] | None = None
    """Namespace and name of the claim it came by."""
    on_node_disk: bool = False
    """Whether it counts as the pod's local ephemeral storage."""
    complete: bool = True
    """False: used figures are lower bounds, the walk was cut short."""


class EmptyDirUse(Struct, frozen=True, kw_only=True):
    name: str
    in_memory: bool
    used_bytes: int
    limit_bytes: int | None
    complete: bool = True

    @property
    def is_over(self) -> bool:
        return self.limit_bytes is not None and self.used_bytes > self.limit_bytes


def walk_usage(folder: Path, budget: int = WALK_BUDGET) -> Measured:
    """Disk blocks and inodes of a tree on one filesystem; links are counted, not followed."""
    used = inodes = 0
    linked: set[int] = set()
    complete = True
    top = os.open(folder, _FOLDER)
    found = os.fstat(top)
    device = found.st_dev
    used, inodes = found.st_blocks * 512, 1
    stack: list[tuple[int, list[str]]] = [(top, os.listdir(top))]
    try:
        while stack:
            here, names = stack[-1]
            if not names:
                stack.pop()
                os.close(here)
                continue
            if inodes >= budget:
                complete = False
                break
            name = names.pop()
            try:
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                if found.st_dev != device:
                    continue
                if stat.S_ISDIR(found.st_mode) and len(stack) < MAX_DEPTH:
                    below = os.open(name, _FOLDER, dir_fd=here)
                    stack.append((below, os.listdir(below)))
            except OSError:
                continue  # it went, or changed into something else, while we looked
            complete = complete and not (stat.S_ISDIR(found.st_mode) and len(stack) >= MAX_DEPTH)
            if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                if found.st_ino in linked:
                    continue
                linked.add(found.st_ino)
            used += found.st_blocks * 512
            inodes += 1
    finally:
        for descriptor, _ in stack:
            os.close(descriptor)
    return Measured(bytes=used, inodes=inodes, complete=complete)


@runtime_checkable
class Measures(Protocol):
    """A kind of volume that may know its own figures."""

    async def usage(self, uid: str, spec: VolumeSpec) -> VolumeUsage | None:
        """None: ask the filesystem."""
        ...


class UsageMeter:
    def __init__(
        self,
        *,
        table: VolumeTable,
        plugins: Mapping[str, VolumePlugin],
        mounts: Mounts,
        paths: VolumePaths,
        quotas: Quotas | None = None,
    ) -> None:
        self._table = table
        self._quotas = quotas
        self._plugins = plugins
        self._mounts = mounts
        self._paths = paths
        self._offload = Offload()

    async def measure(self, pod: Pod) -> Sequence[VolumeUsage]:
        """All mounted volumes of the pod but those whose figures belong to the host or to an image."""
        wanted = [
            (entry.name, entry.spec)
            for entry in self._mounted(pod)
            if entry.spec is not None and entry.spec.plugin not in (HOST_PATH, IMAGE)
        ]
        if not wanted:
            return ()
        points = {each.mount_point for each in await self._offload.run(self._mounts.table)}
        found = []
        for name, spec in wanted:
            plugin = self._plugins[spec.plugin]
            try:
                told = await plugin.usage(uid_of(pod), spec) if isinstance(plugin, Measures) else None
            except PykubeletError as error:
                # Its driver's trouble; the other volumes of the pod have figures all the same.
                logger.warning("volume cannot be measured", extra={"volume": name, "problem": str(error)})
                continue
            if told is not None:
                found.append(told)
                continue
            if spec.block:
                link = self._paths.volume_devices(uid_of(pod)) / spec.plugin.replace("/", "~") / spec.folder
                size = await self._offload.run(partial(device_bytes, link))
                if size is not None:
                    found.append(VolumeUsage(name=name, capacity_bytes=size, claim=spec.claim))
                continue
            path = plugin.where(self._paths.volume(uid_of(pod), spec.plugin, spec.folder), spec)
            usage = await self._offload.run(partial(self._one, name, spec, path, str(path) in points))
            if usage is not None:
                found.append(usage)
        return found

    async def empty_dirs(self, pod: Pod) -> Sequence[EmptyDirUse]:
        """emptyDirs with what they hold against their limits."""
        sizes = {usage.name: usage for usage in await self.measure(pod)}
        found = []
        for volume in pod.spec.volumes:
            usage = sizes.get(volume.name or "")
            if volume.empty_dir is None or usage is None:
                continue
            limit = volume.empty_dir.size_limit
            amount = Quantity.parse(limit).value() if limit is not None else 0
            found.append(
                EmptyDirUse(
                    name=usage.name,
                    in_memory=volume.empty_dir.medium == "Memory",
                    used_bytes=usage.used_bytes,
                    limit_bytes=amount or None,
                    complete=usage.complete,
                )
            )
        return found

    def _mounted(self, pod: Pod) -> list[VolumeEntry]:
        record = self._table.pods.get(uid_of(pod))
        return [entry for entry in record.entries.values() if entry.state is State.MOUNTED] if record else []

    def _one(self, name: str, spec: VolumeSpec, path: Path, own_filesystem: bool) -> VolumeUsage | None:
        try:
            whole = os.statvfs(path)
            measured = (
                Measured(bytes=(whole.f_blocks - whole.f_bfree) * whole.f_frsize, inodes=whole.f_files - whole.f_ffree)
                if own_filesystem
                else self._walked(path)
            )
        except OSError:
            return None  # torn down while we measured
        return VolumeUsage(
            name=name,
            used_bytes=measured.bytes,
            capacity_bytes=whole.f_blocks * whole.f_frsize,
            available_bytes=whole.f_bavail * whole.f_frsize,
            inodes=whole.f_files,
            inodes_free=whole.f_ffree,
            inodes_used=measured.inodes,
            claim=spec.claim,
            on_node_disk=not own_filesystem and spec.plugin in _ON_DISK,
            complete=measured.complete,
        )

    def _walked(self, path: Path) -> Measured:
        if self._quotas is not None and (counted := self._quotas.counted(path)) is not None:
            return Measured(bytes=counted.bytes, inodes=counted.inodes)
        return walk_usage(path)
