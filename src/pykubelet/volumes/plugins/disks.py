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

from pykubelet.clients.host.port import MountError, Mounts, ToolMissing, VolumePaths
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


NOTE = "disk.json"
BLOCK = "volumeDevices"
"""Folder for disks that pods get as devices, beside those that are mounted."""
GIVE_BACK_TRIES = 6
"""How often a pod waits for its disk to be given back; with the reconciler's pauses about half a minute."""
LOOK_SECONDS = 5.0
"""How long a pod that goes waits for its turn at the disk: others that look or go need a moment. Only bringing a
disk takes longer, and who brings it has noted that."""
FSCK_UNCORRECTED = 4
FSCK_FINE = frozenset(range(256)) - {0, FSCK_UNCORRECTED}
"""All other ends of fsck are no reason to refuse a disk, as upstream has it: errors corrected, no checker for this
filesystem, a device that cannot be checked. Whether it can be mounted the kernel says."""


Detach = Callable[[Path, str], bool]
"""Take the disk of this place and record from the node; False when something else on this host uses it."""


class Note(Struct, frozen=True, kw_only=True):
    """That a pod uses a disk of the node. Lies in the pod's folder from before the disk is there until it is given
    back, so that every life of the agent knows who uses what."""

    place: str
    """The disk's folder on the node."""
    record: str = ""
    """What its kind needs to know to give it back."""


class DeviceMounts:
    """Disks of one kind, each brought and mounted once on the node for all pods that have it."""

    def __init__(
        self, *, mounts: Mounts, paths: VolumePaths, plugin: str, top: Path, depth: int = 1, record_file: str = ""
    ) -> None:
        self._mounts = mounts
        self._paths = paths
        self._plugin = plugin
        self._top = top
        self._depth = depth
        """Folders between `top` and what is mounted."""
        self._record_file = record_file
        """Where the record lies in the disk's folder: under the mount, so it can be read only when that is gone."""
        self._locks = KeyedLocks()
        self._failures: Counter[Path] = Counter()
        self._kept: set[Path] = set()
        """Places whose disk could not be given back, or was found mounted with no pod that notes it."""

    def reconstruct(self) -> None:
        """What an earlier life of the agent, or another agent, left on the node."""
        noted = {note.place for note in self.notes()}
        mounted = {entry.mount_point for entry in self._mounts.table()}
        self._kept = {place for place in self.places() if str(place) in mounted - noted}

    def kept(self) -> tuple[Path, ...]:
        """Places that the node still has although no pod answers for them."""
        return tuple(self._kept)

    # --- a pod gets a disk ----------------------------------------------------------------------

    @contextlib.contextmanager
    def used(self, task: SetUp, note: Note) -> Iterator[None]:
        """While a pod gets the disk: nobody else brings it or takes it away, and it is noted who uses it."""
        with self._locks.held(note.place):
            file = self._note_file(task.uid, task.spec.folder)
            make_folder(file.parent)
            write_atomic(file, msgspec.json.encode(note), durable=False)  # of no use after a reboot
            place = Path(note.place)
            if self._record_file and not self._is_mounted(place):
                make_folder(place)
                write_atomic(place / self._record_file, note.record.encode(), durable=False)
            yield

    def show(self, device: str, place: Path, task: SetUp, fs_type: str) -> None:
        """Mount the device at `place` unless it is there already, and show that at the pod's folder."""
        spec = task.spec
        if not self._is_mounted(place):
            make_folder(place)
            options = (*spec.mount_options, *mount_option(task.label), *(("ro",) if spec.read_only else ()))
            mount_filesystem(self._mounts, device, place, fs_type, options, read_only=spec.read_only)
        self._mounts.bind(place, task.path, read_only=spec.read_only)

    # --- and gives it back ----------------------------------------------------------------------

    def give_back(self, uid: str, folder: str, detach: Detach) -> None:
        """After the pod's own mount is gone: if no other pod has the disk, unmount it and `detach` it, which is told
        its place and record. Raises what went wrong with this disk, to be repeated; but a disk that cannot be given
        back does not hold up the pod for ever. Such disks, and what killed agents left, are tried whenever another
        one is given back."""
        file = self._note_file(uid, folder)
        own = self._read(file)
        if own is not None:
            try:
                self._free(Path(own.place), own.record, detach, own=file)
            except (PykubeletError, OSError) as error:
                self._failures[file] += 1
                if self._failures[file] < GIVE_BACK_TRIES:
                    raise
                logger.error("a disk cannot be given back", extra={"place": own.place, "error": str(error)})
                self._kept.add(Path(own.place))
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
                    self._kept.add(place)
                logger.warning("a disk that nobody uses stays", extra={"place": str(place), "error": str(error)})

    def notes(self, besides: Path | None = None) -> list[Note]:
        files = self._paths.pods.glob(f"*/plugins/{self._plugin.replace('/', '~')}/*/{NOTE}")
        return [note for file in files if file != besides and (note := self._read(file)) is not None]

    def places(self) -> list[Path]:
        """Folders of disks, mounted or not. Looks at names only: what is mounted may hang, or be a stranger's."""
        found = _folders(self._top)
        block = [folder for folder in found if folder.name == BLOCK]
        plain = [folder for folder in found if folder.name != BLOCK]
        blocks = [inner for folder in block for inner in _folders(folder)]
        for _ in range(self._depth - 1):
            plain = [inner for folder in plain for inner in _folders(folder)]
            blocks = [inner for folder in blocks for inner in _folders(folder)]
        return plain + blocks

    def _free(self, place: Path, record: str, detach: Detach, own: Path | None = None) -> None:
        """Give the disk back unless somebody uses it besides the one whose note is `own`, which goes with success."""
        with self._locks.held(str(place), seconds=LOOK_SECONDS if own is not None else 0.0) as held:
            if held and not self._is_used(place, own):  # else whoever has it will give it back
                self._mounts.unmount(place)
                if detach(place, record or self._recorded(place)):
                    self._forget(place)
                else:
                    self._kept.add(place)
            if own is not None:
                # While it is this one's turn: of two pods that go at once one must see that the other's note is gone.
                own.unlink(missing_ok=True)

    def _forget(self, place: Path) -> None:
        for left in place.glob(f"*{self._record_file}*") if self._record_file else ():
            left.unlink()  # also one that was being written when the agent was killed
        remove_empty(place)
        self._kept.discard(place)

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
    """A lock for each key, for threads; those that nobody holds or waits for are forgotten."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def held(self, key: str, *, seconds: float = -1.0) -> Iterator[bool]:
        """Gives whether it is held, which after so many seconds it may not be; less than none: wait for ever."""
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
        if told.strip():
            raise VolumeProblem(f"{device} is not formatted: cannot tell what it holds from {told.strip()[:200]!r}")
        if read_only:
            raise VolumeProblem(f"{device} has no filesystem and is read-only")
        quiet = ("-F", "-m0") if fs_type.startswith("ext") else ("-f",) if fs_type == "xfs" else ()
        mounts.run(f"mkfs.{fs_type}", *quiet, device, seconds=None)
        return fs_type
    if not read_only:
        with contextlib.suppress(ToolMissing):
            mounts.run("fsck", "-a", device, seconds=None, allow=FSCK_FINE)
    return facts["TYPE"]
