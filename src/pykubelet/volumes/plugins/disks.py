"""Disks of volumes: SCSI devices as the kernel shows them in /sys, and filesystems mounted once per node for all pods.

Disks have the kernel's names, `sdb` or `dm-3`. A disk that anything else on this host uses is never removed: the
volume source may name the disk that the host itself runs from. Blank disks are formatted, others are checked.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from pykubelet.clients.host.port import MountError, Mounts, NodePaths, ToolMissing
from pykubelet.kit.files import write_atomic
from pykubelet.model.errors import PykubeletError
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.plugin import SetUp, make_folder, remove_empty
from pykubelet.volumes.selinux import mount_option

logger = logging.getLogger(__name__)

T = TypeVar("T")

APPEAR_SECONDS = 30.0
MAP_SECONDS = 10.0
FLUSH_SECONDS = 60.0
_STEP = 0.2


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


class ScsiDisks:
    """Blocking; there is no notification of new devices, so they are polled for."""

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
        """Poll `find` until it returns something, for at most that long."""
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
        """The multipath device that combines all paths to this disk; empty when there is none."""
        for path in self.sys.glob(f"block/dm-*/slaves/{disk}"):
            mapped = path.parent.parent
            if read_attribute(mapped / "dm/uuid").startswith("mpath-"):
                return mapped.name
        return ""

    def combined(self, disks: Collection[str], seconds: float = 0.0) -> str:
        """The device to mount: the multipath device, waited for that long, else the first disk."""
        return self.wait(lambda: next(filter(None, map(self.map_of, disks)), None), seconds) or next(iter(disks))

    def paths_of(self, disk: str) -> list[str]:
        """The disks that a multipath device combines, or the disk itself."""
        below = self.sys / "block" / disk / "slaves"
        return sorted(path.name for path in below.iterdir()) if disk.startswith("dm-") and below.is_dir() else [disk]

    # --- the bus --------------------------------------------------------------------------------

    def rescan(self) -> None:
        """Make every SCSI host scan for new disks. A host that cannot does not keep the others from it."""
        for scan in self.sys.glob("class/scsi_host/*/scan"):
            try:
                scan.write_text("- - -")
            except OSError as error:
                logger.debug("host not rescanned", extra={"host": scan.parent.name, "error": error.strerror})

    def scan_lun(self, host: str, target: int, lun: int) -> None:
        """Scan for one disk only: others of the target are not for this node."""
        try:
            write_attribute(self.sys / "class/scsi_host" / host / "scan", f"0 {target} {lun}")
        except OSError as error:
            raise VolumeProblem(f"cannot scan {host} for lun {lun}: {error.strerror}") from error

    def is_used(self, disk: str, besides: Collection[str] = ()) -> bool:
        """Whether it or a partition of it is mounted, used for swap, or a part of another device than those."""
        top = self.sys / "block" / disk
        parts = [top, *(part.parent for part in top.glob("*/partition"))]
        numbers = {read_attribute(part / "dev") for part in parts} - {""}
        holders = {holder.name for part in parts for holder in part.glob("holders/*")}
        if holders - set(besides) or any(entry.device in numbers for entry in self._mounts.table()):
            return True
        return not holders and _is_claimed(self.path(disk))

    def remove(self, disks: Collection[str]) -> bool:
        """Flush the disks and their multipath devices and delete them from the kernel, so that nothing stale is left
        when the lun is used again. False when something else uses them: then they stay."""
        maps = sorted({mapped for disk in disks if (mapped := disk if disk.startswith("dm-") else self.map_of(disk))})
        disks = sorted({path for disk in (*disks, *maps) for path in self.paths_of(disk)} - set(maps))
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
        except MountError as error:  # a disk that was removed already cannot be flushed
            logger.warning("disk not flushed", extra={"disk": disk, "error": str(error)})
        try:
            write_attribute(self.sys / "block" / disk / "device/delete", "1")
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("disk not deleted", extra={"disk": disk, "error": error.strerror})


def _is_claimed(device: str) -> bool:
    """Whether the kernel has the device or a partition of it open exclusively: a mount, swap, another device."""
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def read_attribute(file: Path) -> str:
    """Content of a file of /sys; empty when it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def write_attribute(file: Path, text: str) -> None:
    """Write to a file of /sys, which is neither made nor read: the kernel refuses to open many for both, to root, too.
    FileNotFoundError when there is no such file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


NOTE = "disk.json"
BLOCK = "volumeDevices"
"""Folder for disks that are used as block devices, beside those that are mounted."""
RELEASE_TRIES = 6
"""How often a pod waits for its disk to be released; with the reconciler's back-off about half a minute."""
LOCK_SECONDS = 5.0
"""How long tear-down waits for the lock of a disk. Only set-up holds it for longer, and has a note of its own."""
FSCK_UNCORRECTED = 4
FSCK_FINE = frozenset(range(256)) - {0, FSCK_UNCORRECTED}
"""Exit codes that are no reason to refuse a disk, as upstream: errors corrected, no checker for this filesystem, a
device that cannot be checked. The kernel decides whether it can be mounted."""


Detach = Callable[[Path, str], bool]
"""Detach the disk of this path and record from the node; False when something else on this host uses it."""


class Note(Struct, frozen=True, kw_only=True):
    """Records that a pod uses a disk of the node. Is in the pod's folder from before the disk is attached until it is
    released, so that after a restart the agent knows which pod uses what."""

    place: str
    """The disk's folder on the node."""
    record: str = ""
    """What the plugin needs to detach it."""


class DeviceMounts:
    """Disks of one plugin, each attached and mounted once on the node for all pods that use it."""

    def __init__(
        self,
        *,
        mounts: Mounts,
        paths: NodePaths,
        plugin: str,
        top: Path,
        depth: int = 1,
        record_file: str = "",
        unmount: Callable[[Path], object] | None = None,
    ) -> None:
        """`unmount`: how a disk is unmounted from its place, when not by the kernel alone."""
        self._mounts = mounts
        self._unmount = unmount or mounts.unmount
        self._paths = paths
        self._plugin = plugin
        self._top = top
        self._depth = depth
        """Folders between `top` and what is mounted."""
        self._record_file = record_file
        """Name of the record in the disk's folder: below the mount point, so it can be read only when unmounted."""
        self._locks = KeyedLocks()
        self._failures: Counter[Path] = Counter()
        self._unclaimed: set[Path] = set()
        """Paths whose disk could not be released, or was found mounted without a note of a pod."""

    def reconstruct(self) -> None:
        """Find what an earlier run of the agent, or another agent, left on the node."""
        noted = {note.place for note in self.notes()}
        mounted = {entry.mount_point for entry in self._mounts.table()}
        self._unclaimed = {place for place in self.places() if str(place) in mounted - noted}

    def unclaimed(self) -> tuple[Path, ...]:
        """Paths that are still on the node although no pod uses them."""
        return tuple(self._unclaimed)

    # --- set-up ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def used(self, task: SetUp, note: Note) -> Iterator[None]:
        """Around set-up: locks the disk and notes that the pod uses it."""
        with self._locks.acquire(note.place):
            file = self._note_file(task.uid, task.spec.folder)
            make_folder(file.parent)
            write_atomic(file, msgspec.json.encode(note), durable=False)  # of no use after a reboot
            place = Path(note.place)
            if self._record_file and not self._is_mounted(place):
                make_folder(place)
                write_atomic(place / self._record_file, note.record.encode(), durable=False)
            yield

    def show(self, device: str, place: Path, task: SetUp, fs_type: str) -> None:
        """Mount the device at `place` unless it is mounted already, and bind that to the pod's folder."""
        spec = task.spec
        if not self._is_mounted(place):
            make_folder(place)
            options = (*spec.mount_options, *mount_option(task.label), *(("ro",) if spec.read_only else ()))
            mount_filesystem(self._mounts, device, place, fs_type, options, read_only=spec.read_only)
        self._mounts.bind(place, task.path, read_only=spec.read_only)

    # --- tear-down ------------------------------------------------------------------------------

    def release(self, uid: str, folder: str, detach: Detach) -> None:
        """Call after the pod's own mount is gone: if no other pod uses the disk, unmount it and `detach` it.

        Raises the error of this disk, to be retried; but after some tries a disk that cannot be released does not
        delay the pod any more. Such disks, and those that killed agents left, are retried with every other release.
        """
        file = self._note_file(uid, folder)
        own = self._read(file)
        if own is not None:
            try:
                self._free(Path(own.place), own.record, detach, own=file)
            except (PykubeletError, OSError) as error:
                self._failures[file] += 1
                if self._failures[file] < RELEASE_TRIES:
                    raise
                logger.error("a disk cannot be released", extra={"place": own.place, "error": str(error)})
                self._unclaimed.add(Path(own.place))
                file.unlink(missing_ok=True)
            del self._failures[file]
        noted = {note.place for note in self.notes()}
        for place in self.places():
            if str(place) in noted or (own is not None and str(place) == own.place):
                continue
            try:
                self._free(place, "", detach)
            except (PykubeletError, OSError) as error:
                if self._is_mounted(place):
                    self._unclaimed.add(place)
                logger.warning("an unused disk stays", extra={"place": str(place), "error": str(error)})

    def notes(self, besides: Path | None = None) -> list[Note]:
        files = self._paths.pods.glob(f"*/plugins/{self._plugin.replace('/', '~')}/*/{NOTE}")
        return [note for file in files if file != besides and (note := self._read(file)) is not None]

    def places(self) -> list[Path]:
        """Folders of disks, mounted or not. Reads names only: a mounted filesystem may hang or contain anything."""
        found = _folders(self._top)
        block = [folder for folder in found if folder.name == BLOCK]
        plain = [folder for folder in found if folder.name != BLOCK]
        blocks = [inner for folder in block for inner in _folders(folder)]
        for _ in range(self._depth - 1):
            plain = [inner for folder in plain for inner in _folders(folder)]
            blocks = [inner for folder in blocks for inner in _folders(folder)]
        return plain + blocks

    def _free(self, place: Path, record: str, detach: Detach, own: Path | None = None) -> None:
        """Release the disk unless another pod than that of the note `own` uses it; then remove the note."""
        with self._locks.acquire(str(place), seconds=LOCK_SECONDS if own is not None else 0.0) as locked:
            if locked and not self._is_used(place, own):  # else its other user will release it
                self._unmount(place)
                if detach(place, record or self._recorded(place)):
                    self._forget(place)
                else:
                    self._unclaimed.add(place)
            if own is not None:
                # With the lock held: of two pods torn down at once one must see that the other's note is gone.
                own.unlink(missing_ok=True)

    def _forget(self, place: Path) -> None:
        for left in place.glob(f"*{self._record_file}*") if self._record_file else ():
            left.unlink()  # also a temporary file of a killed agent
        remove_empty(place)
        self._unclaimed.discard(place)

    def _recorded(self, place: Path) -> str:
        try:
            return (place / self._record_file).read_text() if self._record_file else ""
        except FileNotFoundError:
            return ""

    def _is_used(self, place: Path, besides: Path | None) -> bool:
        if any(note.place == str(place) for note in self.notes(besides)):
            return True
        # Pods of an agent that wrote no notes are known by their mounts and links to devices.
        if BLOCK in place.relative_to(self._top).parts:
            links = self._paths.pods.glob(f"*/{BLOCK}/{self._plugin.replace('/', '~')}/*")
            return any(not self._note_file(link.parts[-4], link.name).exists() for link in links)
        table = self._mounts.table()
        devices = {entry.device for entry in table if entry.mount_point == str(place)}
        return any(entry.device in devices and entry.mount_point.startswith(f"{self._paths.pods}/") for entry in table)

    def _is_mounted(self, place: Path) -> bool:
        return any(entry.mount_point == str(place) for entry in self._mounts.table())

    def _note_file(self, uid: str, folder: str) -> Path:
        return self._paths.plugin_data(uid, self._plugin, folder) / NOTE

    def _read(self, file: Path) -> Note | None:
        try:
            return msgspec.json.decode(file.read_bytes(), type=Note)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            logger.warning("a note about a disk cannot be read", extra={"file": str(file), "error": str(error)})
            return None


def _folders(top: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(top) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    return []


class KeyedLocks:
    """A lock per key, for threads; kept only while it is held or waited for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def acquire(self, key: str, *, seconds: float = -1.0) -> Iterator[bool]:
        """Yields whether the lock was acquired within that many seconds; negative: wait without limit."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        taken = lock.acquire(timeout=seconds)
        try:
            yield taken
        finally:
            if taken:
                lock.release()
            with self._guard:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)


def mount_filesystem(
    mounts: Mounts, device: str, place: Path, fs_type: str, options: Sequence[str], *, read_only: bool
) -> None:
    """Mount a disk as the requested type, as upstream does even if it has another: ext4 mounts ext3, too."""
    existing = prepare_filesystem(mounts, device, fs_type, read_only=read_only)
    try:
        # Without a deadline, too: the kernel may have a long journal to replay.
        mounts.by_tool(device, place, fs_type=fs_type, options=options or ("defaults",), seconds=None)
    except MountError as error:
        if existing == fs_type:
            raise
        raise VolumeProblem(f"{device} holds {existing}, but {fs_type} is asked for: {error}") from error
    if existing != fs_type:
        logger.warning(
            "a disk holds another filesystem", extra={"device": device, "holds": existing, "requested": fs_type}
        )


def prepare_filesystem(mounts: Mounts, device: str, fs_type: str, *, read_only: bool) -> str:
    """Format a device only if it is certainly blank, else check its filesystem; returns the filesystem's type.

    For a blank device `blkid` exits with 2 and prints nothing; anything it cannot decide is an error, not a reason
    to format. Formatting and repairing have no deadline: killed half-way they would leave a damaged filesystem, and
    the next try would be killed as well.
    """
    output = mounts.run("blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device, seconds=60, allow=(2,))
    facts = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    if "PTTYPE" in facts and "TYPE" not in facts:
        raise VolumeProblem(f"{device} holds a partition table and is not formatted")
    if "TYPE" not in facts:
        if output.strip():
            raise VolumeProblem(f"{device} is not formatted: cannot tell what it holds from {output.strip()[:200]!r}")
        if read_only:
            raise VolumeProblem(f"{device} has no filesystem and is read-only")
        quiet = ("-F", "-m0") if fs_type.startswith("ext") else ("-f",) if fs_type == "xfs" else ()
        mounts.run(f"mkfs.{fs_type}", *quiet, device, seconds=None)
        return fs_type
    if not read_only:
        with contextlib.suppress(ToolMissing):
            mounts.run("fsck", "-a", device, seconds=None, allow=FSCK_FINE)
    return facts["TYPE"]
