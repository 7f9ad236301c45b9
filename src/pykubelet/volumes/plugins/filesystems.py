"""Filesystems on disks: made on blank ones, checked, mounted once on the node, bound into every pod that has them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pykubelet.clients.host.port import MountError, Mounts, ToolMissing
from pykubelet.volumes.plugins.leftover import remove_empty
from pykubelet.volumes.plugins.plugin import SetUp, make_folder
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.selinux import mount_option

logger = logging.getLogger(__name__)

FSCK_UNCORRECTED = 4
FSCK_FINE = frozenset(range(256)) - {0, FSCK_UNCORRECTED}
"""All other ends of fsck are no reason to refuse a disk, as upstream has it: errors corrected, no checker for this
filesystem, a device that cannot be checked. Whether it can be mounted the kernel says."""


class DeviceMounts:
    """Filesystems on block devices, each mounted once on the node and bound into every pod that has it."""

    def __init__(self, *, mounts: Mounts, top: Path, pods: Path) -> None:
        self._mounts = mounts
        self._top = top
        self._pods = pods
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """One operation at a time on one disk or target; others go on."""
        with self._lock(key):
            yield

    def show(self, device: str, place: Path, task: SetUp, fs_type: str) -> None:
        """Mount the device at `place` unless it is there already, and show that at the pod's folder."""
        spec = task.spec
        # Held until the pod's mount exists, so that nobody frees the place between the two.
        with self._lock(str(place)):
            if not any(entry.mount_point == str(place) for entry in self._mounts.table()):
                make_folder(place)
                options = (*spec.mount_options, *mount_option(task.label), *(("ro",) if spec.read_only else ()))
                mount_filesystem(self._mounts, device, place, fs_type, options, read_only=spec.read_only)
            self._mounts.bind(place, task.path, read_only=spec.read_only)

    def free_unused(self) -> list[Path]:
        """Unmount the node's own mounts of disks that no pod has any more, also what a killed agent left."""
        freed = []
        for point in self._unused():
            lock = self._lock(point)
            if not lock.acquire(blocking=False):
                continue  # a pod is just getting it
            try:
                if point in self._unused():
                    self._mounts.unmount(Path(point))
                    remove_empty(Path(point))
                    freed.append(Path(point))
            finally:
                lock.release()
        return freed

    def _unused(self) -> list[str]:
        table = self._mounts.table()
        used = {entry.device for entry in table if entry.mount_point.startswith(f"{self._pods}/")}
        return [e.mount_point for e in table if e.mount_point.startswith(f"{self._top}/") and e.device not in used]

    def _lock(self, key: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(key, threading.Lock())


def mount_filesystem(
    mounts: Mounts, device: str, place: Path, fs_type: str, options: Sequence[str], *, read_only: bool
) -> None:
    """Mount a disk as the type asked for, as upstream does even if it holds another: ext4 mounts ext3, too."""
    held = prepare_filesystem(mounts, device, fs_type, read_only=read_only)
    try:
        # Without deadline, too: the kernel may have a long journal to replay.
        mounts.by_tool(device, place, fs_type=fs_type, options=options or ("defaults",), seconds=None)
    except MountError as error:
        if held == fs_type:
            raise
        raise VolumeProblem(f"{device} holds {held}, but {fs_type} is asked for: {error}") from error
    if held != fs_type:
        logger.warning("a disk holds another filesystem", extra={"device": device, "holds": held, "asked": fs_type})


def prepare_filesystem(mounts: Mounts, device: str, fs_type: str, *, read_only: bool) -> str:
    """Check what is on a device, and make a filesystem only if it is certain that there is nothing; what it holds.

    `blkid` ends with 2 and says nothing for a blank device; anything it cannot decide is an error, not a reason
    to format. What formats and repairs has no deadline: ended half-way it would leave a damaged filesystem, and the
    next try would be ended as well.
    """
    told = mounts.run("blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device, seconds=60, allow=(2,))
    facts = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    if "PTTYPE" in facts and "TYPE" not in facts:
        raise VolumeProblem(f"{device} holds a partition table and is not formatted")
    if "TYPE" not in facts:
        if read_only:
            raise VolumeProblem(f"{device} has no filesystem and is read-only")
        quiet = ("-F", "-m0") if fs_type.startswith("ext") else ("-f",) if fs_type == "xfs" else ()
        mounts.run(f"mkfs.{fs_type}", *quiet, device, seconds=None)
        return fs_type
    if not read_only:
        with contextlib.suppress(ToolMissing):
            mounts.run("fsck", "-a", device, seconds=None, allow=FSCK_FINE)
    return facts["TYPE"]
