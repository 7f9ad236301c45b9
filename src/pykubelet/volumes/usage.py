"""Disk usage of volumes: for the stats summary, and emptyDir limits for eviction.

A volume with a filesystem of its own (tmpfs, nfs, a device) takes one statvfs. One that shares its disk is walked for
a bounded time at each measurement: a walk of a big tree continues with the next one, and until it is complete the
usage is what was counted so far or the last complete count, whichever is more. Where a project quota counts a volume
(clients/host/quotas.py), nothing is walked. A volume whose file server hangs has no usage and delays no other.
The walk takes little memory and few descriptors for any depth and number of files. It works on open descriptors, so a
folder swapped for a link or moved away leads nowhere. Links are counted, not followed; other filesystems are left out.
A block volume has the size of its device.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
from collections.abc import Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod
from pykubelet.clients.host.port import Mounts, NodePaths, Quotas
from pykubelet.kit.clock import ThreadDeadline
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.limits import Once
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import uid_of
from pykubelet.volumes.actual_state import State, VolumeEntry, VolumeTable
from pykubelet.volumes.plugins.plugin import VolumePlugin
from pykubelet.volumes.spec import CONFIG_MAP, EMPTY_DIR, HOST_PATH, IMAGE, VolumeSpec, VolumeUsage

logger = logging.getLogger(__name__)

WALK_SECONDS = 1.0
"""How long a volume is walked at each measurement."""
MEASURE_SECONDS = 10.0
"""A volume that takes longer has no usage."""
POINTS_FRESH = 0.1
_ON_DISK = (EMPTY_DIR, CONFIG_MAP)


class Measured(Struct, frozen=True, kw_only=True):
    bytes: int
    inodes: int
    complete: bool = True


class EmptyDirUse(Struct, frozen=True, kw_only=True):
    name: str
    in_memory: bool
    used_bytes: int
    limit_bytes: int | None
    complete: bool = True

    @property
    def is_over(self) -> bool:
        return self.limit_bytes is not None and self.used_bytes > self.limit_bytes


class UsageMeter:
    def __init__(
        self,
        *,
        table: VolumeTable,
        plugins: Mapping[str, VolumePlugin],
        mounts: Mounts,
        paths: NodePaths,
        quotas: Quotas | None = None,
    ) -> None:
        self._table = table
        self._quotas = quotas
        self._plugins = plugins
        self._mounts = mounts
        self._paths = paths
        self._points: tuple[float, Set[str]] | None = None
        self._reading = asyncio.Lock()
        self._logged: Once[tuple[str, str]] = Once()
        self._walks: dict[tuple[str, str], UsageWalk] = {}
        """Walks under way, by pod and volume."""
        self._counted: dict[tuple[str, str], Measured] = {}
        """Results of the last complete walk."""

    async def measure(self, pod: Pod) -> Sequence[VolumeUsage]:
        """All mounted volumes of the pod except hostPath and image volumes."""
        wanted = [
            (entry.name, entry.spec)
            for entry in self._mounted(pod)
            if entry.spec is not None and entry.spec.plugin not in (HOST_PATH, IMAGE)
        ]
        if not wanted:
            return ()
        self.forget_gone()
        points = await self._mount_points()
        found = await gather_all(*(self._usage(uid_of(pod), name, spec, points) for name, spec in wanted))
        return [usage for usage in found if usage is not None]

    async def _mount_points(self) -> Set[str]:
        """One read of the mount table serves all pods that are measured at once."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if self._points is None or loop.time() - self._points[0] > POINTS_FRESH:
                table = await host_calls.run(
                    self._mounts.table, name="reading the mount table", key="all volumes", within=MEASURE_SECONDS
                )
                self._points = (loop.time(), {each.mount_point for each in table})
            return self._points[1]

    async def _usage(self, uid: str, name: str, spec: VolumeSpec, points: Set[str]) -> VolumeUsage | None:
        """None when it cannot be measured, which does not concern the other volumes of the pod."""
        plugin = self._plugins[spec.plugin]
        try:
            usage = await plugin.usage(uid, spec)
            if usage is None:
                path = plugin.mount_path(self._paths.volume(uid, spec.plugin, spec.folder), spec)
                measure = partial(self._one, uid, name, spec, path, str(path) in points)
                usage = await host_calls.run(
                    partial(self._device, uid, name, spec) if spec.block else measure,
                    name="measuring a volume",
                    key=f"{uid}/{name}",
                    pod=uid,
                    within=MEASURE_SECONDS,
                )
            self._logged.clear((uid, name))
            return usage
        except (PykubeletError, OSError) as error:
            # Logged once: it is measured again every few seconds.
            level = logging.WARNING if self._logged.is_new((uid, name)) else logging.DEBUG
            logger.log(level, "volume cannot be measured", extra={"volume": name, "uid": uid, "problem": str(error)})
            return None

    def forget_gone(self) -> None:
        """Drop what is known about pods that have no volumes any more, and end their walks."""
        for key in [key for key in (*self._walks, *self._counted) if key[0] not in self._table.pods]:
            self._counted.pop(key, None)
            walk = self._walks.pop(key, None)
            if walk is not None and walk.lock.acquire(blocking=False):  # else its thread closes it
                walk.close()

    async def empty_dirs(self, pod: Pod) -> Sequence[EmptyDirUse]:
        """Usage and limits of emptyDirs."""
        sizes = {usage.name: usage for usage in await self.measure(pod)}
        found = []
        for volume in pod.spec.volumes:
            usage = sizes.get(volume.name)
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

    # --- in the thread --------------------------------------------------------------------------

    def _device(self, uid: str, name: str, spec: VolumeSpec) -> VolumeUsage | None:
        link = self._paths.volume_devices(uid) / spec.plugin.replace("/", "~") / spec.folder
        size = device_bytes(link)
        return VolumeUsage(name=name, capacity_bytes=size, claim=spec.claim) if size is not None else None

    def _one(self, uid: str, name: str, spec: VolumeSpec, path: Path, own_filesystem: bool) -> VolumeUsage | None:
        try:
            whole = os.statvfs(path)
            measured = (
                Measured(bytes=(whole.f_blocks - whole.f_bfree) * whole.f_frsize, inodes=whole.f_files - whole.f_ffree)
                if own_filesystem
                else self._quoted(path) or self._walked((uid, name), path)
            )
        except OSError:
            return None  # torn down meanwhile
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

    def _quoted(self, path: Path) -> Measured | None:
        counted = self._quotas.counted(path) if self._quotas is not None else None
        return Measured(bytes=counted.bytes, inodes=counted.inodes) if counted is not None else None

    def _walked(self, key: tuple[str, str], path: Path) -> Measured:
        walk = self._walks.get(key)
        if walk is None:
            walk = self._walks[key] = UsageWalk(path)
        if walk.lock.acquire(blocking=False):  # else an earlier measurement that timed out still walks
            through = True
            try:
                through = walk.advance(ThreadDeadline(WALK_SECONDS))
            finally:
                if through or self._walks.get(key) is not walk:
                    walk.close()
                    self._walks.pop(key, None)
                walk.lock.release()
            if through:
                self._counted[key] = Measured(bytes=walk.bytes, inodes=walk.inodes)
                return self._counted[key]
        last = self._counted.get(key, Measured(bytes=0, inodes=0))
        return Measured(bytes=max(last.bytes, walk.bytes), inodes=max(last.inodes, walk.inodes), complete=False)


MAX_OPEN: Final = 8
"""Levels kept open at once besides the top; those above are opened again on the way back, identified by inode."""
FOLDERS_AT_ONCE: Final = 50_000
"""Subfolders remembered per folder; after these the folder is read again for the next ones."""
MOST_LINKED: Final = 1_000_000
"""Hard-linked files that are remembered; beyond that every link counts."""
_CHECK_EVERY: Final = 256
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level(Struct, eq=False):
    name: str
    descriptor: int | None
    identity: tuple[int, int]
    entries: Any = None
    """The open scan of the folder; os.scandir has no public type."""
    folders: list[str] = field(default_factory=list)
    """Subfolders not yet entered."""
    done: int = 0
    """Subfolders handled after earlier scans."""
    met: int = 0
    """Subfolders met by this scan."""


class UsageWalk:
    """Disk blocks and inodes of a tree on one filesystem. Callers take `lock`: one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError when the folder does not exist."""
        descriptor = os.open(folder, _FOLDER)
        found = os.fstat(descriptor)
        self._device = found.st_dev
        self._linked: set[int] = set()
        self._levels = [_Level("", descriptor, (found.st_dev, found.st_ino))]
        self.bytes, self.inodes = found.st_blocks * 512, 1
        self.lock = threading.Lock()
        self._read(self._levels[0])

    def advance(self, deadline: ThreadDeadline) -> bool:
        """Continue until the deadline; True when all is counted, and then everything is closed."""
        steps = 0
        while self._levels:
            steps += 1
            if steps % _CHECK_EVERY == 0 and deadline.has_passed():
                return False
            level = self._levels[-1]
            if level.entries is not None:
                self._count_next(level)
            elif level.folders:
                self._enter(level, level.folders.pop())
            elif level.met > level.done + FOLDERS_AT_ONCE:
                level.done += FOLDERS_AT_ONCE
                self._read(level)
            else:
                self._leave()
        return True

    def close(self) -> None:
        for level in self._levels:
            _close(level)
        self._levels = []

    # --- inside ---------------------------------------------------------------------------------

    def _read(self, level: _Level) -> None:
        assert level.descriptor is not None
        level.met = 0
        level.entries = os.scandir(level.descriptor)

    def _count_next(self, level: _Level) -> None:
        assert level.entries is not None
        try:
            entry = next(level.entries, None)
        except OSError:
            entry = None  # the folder was removed meanwhile
        if entry is None:
            level.entries = None
            return
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            return  # removed meanwhile
        if found.st_dev != self._device:
            return
        if stat.S_ISDIR(found.st_mode):
            level.met += 1
            if level.done < level.met <= level.done + FOLDERS_AT_ONCE:
                level.folders.append(entry.name)
        elif found.st_nlink > 1:
            if found.st_ino in self._linked:
                return
            if len(self._linked) < MOST_LINKED:
                self._linked.add(found.st_ino)
        if level.done == 0:  # later scans are for folders only
            self.bytes += found.st_blocks * 512
            self.inodes += 1

    def _enter(self, level: _Level, name: str) -> None:
        assert level.descriptor is not None
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=level.descriptor)
        except OSError:
            return  # removed or replaced meanwhile
        found = os.fstat(descriptor)
        if found.st_dev != self._device:
            os.close(descriptor)
            return
        below = _Level(name, descriptor, (found.st_dev, found.st_ino))
        self._levels.append(below)
        self._read(below)
        far = len(self._levels) - 1 - MAX_OPEN
        if far > 0:
            _close(self._levels[far])

    def _leave(self) -> None:
        left = self._levels.pop()
        above = self._levels[-1] if self._levels else None
        lost = above is not None and above.descriptor is None
        if lost and not (left.descriptor is not None and self._is_level(self._levels[-1], "..", left.descriptor)):
            self._go_down_again()
        _close(left)

    def _go_down_again(self) -> None:
        """Folders were moved: continue at the deepest level that is still in its place and drop the others."""
        here = self._levels[0].descriptor
        for depth, level in enumerate(self._levels[1:], 1):
            if here is None or not self._is_level(level, level.name, here):
                for lost in self._levels[depth:]:
                    _close(lost)
                del self._levels[depth:]
                return
            here = level.descriptor
            if depth > MAX_OPEN:
                _close(self._levels[depth - MAX_OPEN])

    def _is_level(self, level: _Level, name: str, folder: int) -> bool:
        """Open the level as `name` in that folder if it is still the same inode."""
        if level.descriptor is not None:
            return True
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            return False
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != level.identity:
            os.close(descriptor)
            return False
        level.descriptor = descriptor
        return True


def _close(level: _Level) -> None:
    if level.descriptor is not None:
        os.close(level.descriptor)
        level.descriptor = None
    if level.entries is not None:
        level.entries.close()
        level.entries = None


def device_bytes(path: Path) -> int | None:
    """Size of a block device; None when there is no such device. Blocking."""
    try:
        device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.lseek(device, 0, os.SEEK_END) if stat.S_ISBLK(os.fstat(device).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(device)
