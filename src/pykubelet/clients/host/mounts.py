"""The host's mounts: the kernel's table, mount and umount by system call, and the host's tools where needed.

tmpfs, hugetlbfs and bind mounts go straight to the kernel (some tens of microseconds, no program started).
nfs and filesystems on devices go through the host's `mount`, which knows their helpers. Errors say what was
to be mounted where. Which volume needs which mount is decided in `volumes/`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import BinaryIO

from pykubelet.clients.host.folders import mount_id, remove_tree
from pykubelet.clients.host.port import MountEntry, MountError, ToolFailed, ToolMissing

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC = 32, 1024, 2048, 4096, 16384
MS_SHARED, MS_RELATIME = 1 << 20, 1 << 21
MNT_FORCE, UMOUNT_NOFOLLOW = 1, 8
MS_NOSYMFOLLOW, MS_STRICTATIME = 256, 1 << 24
_TIMES = MS_NOATIME | MS_RELATIME | MS_STRICTATIME
BIND_OPTIONS = {
    "ro": MS_RDONLY,
    "nosuid": MS_NOSUID,
    "nodev": MS_NODEV,
    "noexec": MS_NOEXEC,
    "nosymfollow": MS_NOSYMFOLLOW,
    "noatime": MS_NOATIME,
    "nodiratime": MS_NODIRATIME,
    "relatime": MS_RELATIME,
    "strictatime": MS_STRICTATIME,
}
"""Options that a bind mount can have of its own. All others belong to the filesystem, which is mounted already."""
_KEPT_FLAGS = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME | MS_RELATIME
"""Flags of the source that a remount of a bind must not lose."""
_STACK_LIMIT = 64
MOST_OUTPUT, MOST_SAID = 1 << 20, 2000
"""Bytes read of what a program writes; characters of it that go into an error."""
_OCTAL = re.compile(r"\\([0-7]{3})")
PACKAGES = {"mount.nfs": "nfs-common", "iscsiadm": "open-iscsi", "multipath": "multipath-tools"}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


class HostMounts:
    """Implements the `Mounts` port on this machine."""

    def __init__(self) -> None:
        self._noswap = True

    def table(self) -> Sequence[MountEntry]:
        return parse_mountinfo(Path("/proc/self/mountinfo").read_bytes())

    def is_mounted(self, path: Path) -> bool:
        try:
            here, above = os.lstat(path), os.lstat(path.parent)
            if here.st_dev != above.st_dev:
                return True
            return _mount_id(path) != _mount_id(path.parent)  # a bind mount of the same filesystem
        except FileNotFoundError:
            return False

    def tmpfs(self, target: Path, *, size_bytes: int | None) -> None:
        data = "mode=1777" + (f",size={size_bytes}" if size_bytes else "")
        if self._noswap:
            try:
                _mount_at("tmpfs", target, "tmpfs", 0, f"{data},noswap")
                return
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EPERM):
                    raise _refused("tmpfs", target, error) from error
                self._noswap = False  # kernels before 6.4 do not know the option
        with _explained("tmpfs", target):
            _mount_at("tmpfs", target, "tmpfs", 0, data)

    def hugetlbfs(self, target: Path, *, page_size: str, size_bytes: int | None) -> None:
        data = f"mode=0777,pagesize={page_size}" + (f",size={size_bytes}" if size_bytes else "")
        with _explained("hugetlbfs", target):
            _mount_at("nodev", target, "hugetlbfs", 0, data)

    def bind(self, source: Path, target: Path, *, read_only: bool, options: Sequence[str] = ()) -> None:
        flags = {BIND_OPTIONS[option] for option in options if option in BIND_OPTIONS}
        with _explained(str(source), target):
            _bind(str(source), target, sum(flags) | (MS_RDONLY if read_only else 0))

    def bind_descriptor(self, descriptor: int, target: Path, *, read_only: bool) -> None:
        with _explained(f"descriptor {descriptor}", target):
            _bind(f"/proc/self/fd/{descriptor}", target, MS_RDONLY if read_only else 0)

    def by_tool(
        self, source: str, target: Path, *, fs_type: str, options: Sequence[str], seconds: float | None
    ) -> None:
        if source.startswith("-"):
            # `--` keeps `mount` from taking it for an option, but not the helper that `mount` passes it to.
            raise MountError(f"cannot mount {source} at {target}: the source must not begin with '-'")
        if fs_type.startswith("nfs"):
            # `mount` itself would only say "bad option; for several filesystems you might need a helper".
            _need(f"mount.{fs_type}" if shutil.which(f"mount.{fs_type}") else "mount.nfs", f"an {fs_type} volume")
        command = ["mount", "-t", fs_type] if fs_type else ["mount"]
        if options:
            command += ["-o", ",".join(options)]
        self.run(*command, "--", source, str(target), seconds=seconds)

    def unmount(self, target: Path) -> bool:
        found = False
        for _ in range(_STACK_LIMIT):
            if not _unmount_once(target, UMOUNT_NOFOLLOW):
                return found
            found = True
        raise MountError(f"unmount {target}: still mounted after {_STACK_LIMIT} unmounts")

    def unmount_forced(self, target: Path, *, seconds: float) -> bool:
        if not any(entry.mount_point == str(target) for entry in self.table()):
            return False
        try:
            self.run("umount", "--", str(target), seconds=seconds)
        except MountError:
            _unmount_once(target, UMOUNT_NOFOLLOW | MNT_FORCE)
        return True

    def run(self, *command: str, seconds: float | None, allow: Container[int] = (), shown: str = "") -> str:
        program = _need(command[0], "this volume")
        shown = shown or " ".join(command)
        # Into memory of its own, not a pipe: a program that outlives the agent would die of the broken pipe.
        with open(os.memfd_create("output"), "rb") as output, open(os.memfd_create("errors"), "rb") as errors:
            code = _carry_out([program, *command[1:]], shown, output.fileno(), errors.fileno(), seconds)
            printed = _head(output)
            if code and code not in allow:
                text = " ".join((_head(errors) or printed).split()) or "no output"
                raise ToolFailed(f"`{shown}` failed with {code}: {text[:MOST_SAID]}", printed)
            return printed

    def remove_tree(self, folder: Path) -> None:
        try:
            remove_tree(folder)
        except OSError as error:
            raise MountError(f"cannot remove {folder}: {error.strerror or error}") from error

    def make_shared(self, folder: Path) -> None:
        """On hosts whose mounts are shared anyway, as with systemd, nothing is done."""
        if is_shared(str(folder), Path("/proc/self/mountinfo").read_bytes()):
            return
        with _explained(str(folder), folder):
            if not self.is_mounted(folder):
                _mount_at(str(folder), folder, None, MS_BIND | MS_REC, None)
            _mount_at("none", folder, None, MS_SHARED | MS_REC, None)


def parse_mountinfo(raw: bytes) -> list[MountEntry]:
    """/proc/<pid>/mountinfo; lines that are no entry are skipped."""
    found = []
    for line in raw.decode("utf-8", "surrogateescape").splitlines():
        fixed, separator, rest = line.partition(" - ")
        fields, tail = fixed.split(" "), rest.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 2:
            continue
        found.append(
            MountEntry(
                mount_point=_plain(fields[4]),
                root=_plain(fields[3]),
                device=fields[2],
                fs_type=tail[0],
                source=_plain(tail[1]),
                options=tuple(fields[5].split(",")),
            )
        )
    return found


def is_shared(folder: str, raw: bytes) -> bool:
    """Whether the mount that holds `folder` passes on what is mounted in it."""
    longest, shared = "", False
    for line in raw.decode("utf-8", "surrogateescape").splitlines():
        fields = line.partition(" - ")[0].split(" ")
        point = _plain(fields[4]) if len(fields) > 5 else ""
        holds = point == "/" or folder == point or folder.startswith(f"{point}/")
        if point and holds and len(point) >= len(longest):  # of mounts on one place the last one shows
            longest, shared = point, any(field.startswith("shared:") for field in fields[6:])
    return shared


def _plain(field: str) -> str:
    """Undo the kernel's \\ooo escapes, byte by byte, so that UTF-8 names survive."""
    if "\\" not in field:
        return field
    raw = field.encode("utf-8", "surrogateescape").decode("latin-1")
    plain = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), raw)
    return plain.encode("latin-1").decode("utf-8", "surrogateescape")


def _need(program: str, what: str) -> str:
    found = shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
    if found is None:
        package = PACKAGES.get(program, "")
        hint = f" (package {package})" if package else ""
        raise ToolMissing(f"{what} needs the program {program}{hint}, which this host does not have")
    return found


def _carry_out(command: list[str], shown: str, output: int, errors: int, seconds: float | None) -> int:
    """Run a program in a session of its own: signals for the agent are not for it, and at its deadline all that it
    started goes with it."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise MountError(f"`{shown}` did not finish within {seconds:g} s") from error


def _head(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(MOST_OUTPUT).decode(errors="replace")


class _explained:
    """Turn the kernel's error number into a sentence."""

    def __init__(self, source: str, target: Path) -> None:
        self._source, self._target = source, target

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise _refused(self._source, self._target, error) from error


def _refused(source: str, target: Path, error: OSError) -> MountError:
    return MountError(f"cannot mount {source} at {target}: {error.strerror or error}")


def _call(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _mount(source: str | None, target: str, fs_type: str | None, flags: int, data: str | None) -> None:
    def raw(text: str | None) -> bytes | None:
        return None if text is None else os.fsencode(text)

    _call(_libc.mount, raw(source), raw(target), raw(fs_type), flags, raw(data))


def _mount_at(source: str, target: Path, fs_type: str | None, flags: int, data: str | None) -> None:
    """Mount on what `target` is itself: through a descriptor, so a link there is refused, not followed."""
    descriptor = os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _mount(source, f"/proc/self/fd/{descriptor}", fs_type, flags, data)
    finally:
        os.close(descriptor)


def _bind(source: str, target: Path, flags: int) -> None:
    """Bind, with these flags of mount points on top of those the source has."""
    _mount_at(source, target, None, MS_BIND, None)
    if not flags:
        return
    try:
        kept = os.statvfs(target).f_flag & _KEPT_FLAGS
        if flags & _TIMES:
            kept &= ~_TIMES
        _mount_at("none", target, None, MS_BIND | MS_REMOUNT | flags | kept, None)
    except OSError:
        _unmount_once(target, UMOUNT_NOFOLLOW)  # better no mount than one that allows more than it should
        raise


def _mount_id(path: Path) -> int:
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return mount_id(descriptor)
    finally:
        os.close(descriptor)


def _unmount_once(target: Path, flags: int) -> bool:
    try:
        _call(_libc.umount2, os.fsencode(target), flags)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
            return False  # nothing is mounted here, or there is no such place
        raise MountError(f"cannot unmount {target}: {error.strerror}") from error
    return True
