"""SCSI disks as the kernel shows them in /sys: found, combined by multipath, and taken away again.

Disks are named as the kernel does, `sdb` or `dm-3`. A disk that anything else on this host uses is never taken
away: what a pod's author named may be the disk the host itself runs from.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from pykubelet.clients.host.port import MountError, Mounts, ToolMissing
from pykubelet.volumes.problems import VolumeProblem

logger = logging.getLogger(__name__)

T = TypeVar("T")

APPEAR_SECONDS = 30.0
MAP_SECONDS = 10.0
FLUSH_SECONDS = 60.0
_STEP = 0.2


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


class ScsiDisks:
    """Blocking; devices announce themselves to nobody we hear, so they are looked for again and again."""

    def __init__(
        self,
        *,
        mounts: Mounts,
        sys: Path = Path("/sys"),
        dev: Path = Path("/dev"),
        pause: Callable[[float], None] = _pause,
    ) -> None:
        self._mounts = mounts
        self.sys = sys
        self.dev = dev
        self._pause = pause

    def wait(self, find: Callable[[], T | None], seconds: float) -> T | None:
        """Ask `find` until it has something to say."""
        for left in range(max(1, int(seconds / _STEP)), 0, -1):
            found = find()
            if found or left == 1:
                return found
            self._pause(_STEP)
        return None

    def path(self, disk: str) -> str:
        return str(self.dev / disk)

    # --- multipath ------------------------------------------------------------------------------

    def map_of(self, disk: str) -> str:
        """The multipath device that combines all ways to this disk; empty when there is none."""
        for way in self.sys.glob(f"block/dm-*/slaves/{disk}"):
            mapped = way.parent.parent
            if read_attribute(mapped / "dm/uuid").startswith("mpath-"):
                return mapped.name
        return ""

    def combined(self, disks: Collection[str], seconds: float = 0.0) -> str:
        """What is to be mounted: the multipath device, waited for that long, else the first disk."""
        return self.wait(lambda: next(filter(None, map(self.map_of, disks)), None), seconds) or next(iter(disks))

    def ways(self, disk: str) -> list[str]:
        """The disks that a multipath device combines; a disk itself."""
        below = self.sys / "block" / disk / "slaves"
        return sorted(way.name for way in below.iterdir()) if disk.startswith("dm-") and below.is_dir() else [disk]

    # --- the bus --------------------------------------------------------------------------------

    def rescan(self) -> None:
        """Make every SCSI host look for new disks. Some hosts cannot; that is no reason to skip the others."""
        for scan in self.sys.glob("class/scsi_host/*/scan"):
            try:
                scan.write_text("- - -")
            except OSError as error:
                logger.debug("host not rescanned", extra={"host": scan.parent.name, "error": error.strerror})

    def scan_lun(self, host: str, target: int, lun: int) -> None:
        """Look for one disk alone: others of the target are none of this node's business."""
        try:
            (self.sys / "class/scsi_host" / host / "scan").write_text(f"0 {target} {lun}")
        except OSError as error:
            raise VolumeProblem(f"cannot scan {host} for lun {lun}: {error.strerror}") from error

    def is_used(self, disk: str, besides: Collection[str] = ()) -> bool:
        """Whether it, or a part of it, is mounted, swapped to, or held by another device than those."""
        top = self.sys / "block" / disk
        parts = [top, *(part.parent for part in top.glob("*/partition"))]
        numbers = {read_attribute(part / "dev") for part in parts} - {""}
        held = {holder.name for part in parts for holder in part.glob("holders/*")}
        if held - set(besides) or any(entry.device in numbers for entry in self._mounts.table()):
            return True
        return not held and _is_claimed(self.path(disk))

    def take_away(self, disks: Collection[str]) -> bool:
        """Flush the disks and their multipath devices and make the kernel forget them, so that nothing stale is left
        when the number is used again. False when something else uses them: then they stay."""
        maps = sorted({mapped for disk in disks if (mapped := disk if disk.startswith("dm-") else self.map_of(disk))})
        disks = sorted({way for disk in (*disks, *maps) for way in self.ways(disk)} - set(maps))
        if busy := [name for name in (*maps, *disks) if self.is_used(name, maps)]:
            logger.warning("disks stay: others on this host use them", extra={"disks": busy})
            return False
        for mapped in maps:
            self._flush_map(mapped)
        for disk in disks:
            self._delete(disk)
        return True

    def _flush_map(self, mapped: str) -> None:
        try:
            self._mounts.run("multipath", "-f", self.path(mapped), seconds=FLUSH_SECONDS)
        except ToolMissing as error:
            logger.warning("multipath device not flushed", extra={"device": mapped, "error": str(error)})

    def _delete(self, disk: str) -> None:
        try:
            self._mounts.run("blockdev", "--flushbufs", self.path(disk), seconds=FLUSH_SECONDS)
        except MountError as error:  # a disk that is gone already cannot be flushed
            logger.warning("disk not flushed", extra={"disk": disk, "error": str(error)})
        try:
            with open(self.sys / "block" / disk / "device/delete", "r+b", buffering=0) as file:
                file.write(b"1")
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("disk not deleted", extra={"disk": disk, "error": error.strerror})


def _is_claimed(device: str) -> bool:
    """Whether the kernel gave the device, or a part of it, to one user alone: a mount, swap, another device."""
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def read_attribute(file: Path) -> str:
    """What the kernel says in a file of /sys; empty when it says nothing."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
