"""subPath mounts: a part of a volume, pinned by a bind mount at a path of its own before a container gets it.

The path is opened inside the volume so that no link and no `..` leads out of it, even if a container changes it
meanwhile. Links that stay inside are followed, as configMap volumes need. The kernel's openat2 (5.6 and later) does it
in one call; where it is missing or forbidden, every component is opened by itself without following, and links are
resolved here against the folders opened so far. That is also how absolute links are followed that name a path inside
the volume by one of its `names`: the rest is looked up inside, so even a wrong name leads nowhere else.
The bind mount below `volume-subpaths` is made from the open descriptor, so a link planted after the check changes
nothing. It is removed with the volume: unmounted first, then the empty folder or file, never what lies under it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.plugin import make_folder


def mount_point_of(paths: NodePaths, uid: str, folder: str, container: str, index: int) -> Path:
    return paths.subpaths(uid) / folder / container / str(index)


def mount_subpath(mounts: Mounts, volume: Path, subpath: str, place: Path) -> None:
    """Bind `subpath` of the folder `volume` to `place`; a missing subpath is made as a folder."""
    wanted = check_subpath(subpath)
    try:
        base = os.open(volume, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise VolumeProblem(f"{volume} is a file and has no subPath") from error
    except OSError as error:
        raise VolumeProblem(f"{volume}: {error.strerror}") from error
    try:
        source = _open(base, wanted, (str(volume), os.readlink(f"/proc/self/fd/{base}")))
        try:
            _bind(mounts, source, place)
        finally:
            os.close(source)
    except OSError as error:
        raise VolumeProblem(f"subPath {subpath}: {error.strerror or error}") from error
    finally:
        os.close(base)


def _open(base: int, wanted: str, names: tuple[str, ...]) -> int:
    with contextlib.suppress(FileNotFoundError):
        return open_beneath(base, wanted, names)
    return make_beneath(base, wanted, stat.S_IMODE(os.fstat(base).st_mode), names)


def _bind(mounts: Mounts, source: int, place: Path) -> None:
    wanted = os.fstat(source)
    if stat.S_ISLNK(wanted.st_mode):
        raise VolumeProblem("is a link that leads nowhere")
    with contextlib.suppress(FileNotFoundError):
        there = os.lstat(place)
        mounted = any(entry.mount_point == str(place) for entry in mounts.table())
        if mounted and (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino):
            return  # the container was restarted and the file is still the same
        _remove_place(mounts, place)
    make_folder(place.parent)
    if stat.S_ISDIR(wanted.st_mode):
        os.mkdir(place, 0o750)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o640))
    mounts.bind_descriptor(source, place, read_only=False)


def clean_subpaths(mounts: Mounts, paths: NodePaths, uid: str, folder: str) -> None:
    """Unmount and remove all subPath mounts of one volume; safe to repeat."""
    top = paths.subpaths(uid) / folder
    for container in _folders(top):
        for place in _names(container):
            _remove_place(mounts, place)
        os.rmdir(container)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(top)
    with contextlib.suppress(OSError):  # other volumes may have subPath mounts there
        os.rmdir(paths.subpaths(uid))


def _remove_place(mounts: Mounts, place: Path) -> None:
    mounts.unmount(place)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(place).st_mode):
            os.rmdir(place)
        else:
            os.unlink(place)


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _names(folder: Path) -> list[Path]:
    return [folder / name for name in os.listdir(folder)]


_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH = 0x02, 0x08
_RACES = 16
"""How often a lookup is repeated that the kernel gave up because of concurrent renames."""
_MOST_LINKS = 40
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Escapes(VolumeProblem):
    """The path leads out of the volume."""


def check_subpath(path: str) -> str:
    """Validate a subPath; returns it without double slashes and dots."""
    if path.startswith("/"):
        raise VolumeProblem(f"subPath {path} must not be an absolute path")
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if ".." in steps:
        raise VolumeProblem(f"subPath {path} must not contain '..'")
    if "\0" in path:
        raise VolumeProblem("subPath must not contain a zero byte")
    return "/".join(steps)


def open_beneath(base: int, path: str, names: Sequence[str] = ()) -> int:
    """Open `path` (O_PATH) inside the folder `base`. Raises OSError when it does not exist, Escapes when it leads
    out. Later changes of the path do not affect the descriptor."""
    if not path:
        return os.dup(base)
    try:
        return _open_by_kernel(base, path)
    except OSError as error:
        if error.errno == errno.EXDEV and not names:
            raise Escapes(f"subPath {path} leads out of the volume") from error
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.E2BIG):
            raise
    return open_stepwise(base, path, names)


def _open_by_kernel(base: int, path: str) -> int:
    how = _How(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_RACES):
        found = int(_libc.syscall(_OPENAT2, base, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)


def open_stepwise(base: int, path: str, names: Sequence[str] = ()) -> int:
    """The same without openat2. Folders on the way stay open: `..` returns to one of them, never by name."""
    opened = [os.dup(base)]
    left = _steps(path)
    links = 0
    try:
        while left:
            step = left.pop(0)
            if step == "..":
                if len(opened) == 1:
                    raise Escapes(f"subPath {path} leads out of the volume")
                os.close(opened.pop())
                continue
            found = os.open(step, _PLACE, dir_fd=opened[-1])
            if not stat.S_ISLNK(os.fstat(found).st_mode):
                opened.append(found)
                continue
            try:
                target = os.readlink("", dir_fd=found)
            finally:
                os.close(found)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                inside = _inside(target, names)
                if inside is None:
                    raise Escapes(f"subPath {path} leads out of the volume")
                target = inside
                while len(opened) > 1:
                    os.close(opened.pop())
            left[:0] = _steps(target)
        return opened.pop()
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _inside(target: str, names: Sequence[str]) -> str | None:
    """The rest of an absolute path after one of the folder's names; None when it begins with none of them."""
    steps = _steps(target)
    for name in names:
        head = _steps(name)
        if steps[: len(head)] == head:
            return "/".join(steps[len(head) :])
    return None


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step not in ("", ".")]


def make_beneath(base: int, path: str, mode: int, names: Sequence[str] = ()) -> int:
    """Like `open_beneath`, but makes missing folders, each with exactly `mode`."""
    here = os.dup(base)
    try:
        done: list[str] = []
        for step in _steps(path):
            done.append(step)
            try:
                # Looked up from the top each time: a link may lead to another folder of the volume.
                below = open_beneath(base, "/".join(done), names)
            except FileNotFoundError:
                below = _make_one(here, step, mode)
            os.close(here)
            here = below
        found, here = here, -1
        return found
    finally:
        if here >= 0:
            os.close(here)


def _make_one(parent: int, name: str, mode: int) -> int:
    try:
        os.mkdir(name, mode & 0o700, dir_fd=parent)
        made = True
    except FileExistsError:
        made = False
    descriptor = os.open(name, _PLACE, dir_fd=parent)
    found = os.fstat(descriptor)
    if not stat.S_ISDIR(found.st_mode):
        os.close(descriptor)
        raise VolumeProblem(f"{name} in the volume is no folder")
    if made:
        os.chmod(f"/proc/self/fd/{descriptor}", mode | (found.st_mode & stat.S_ISGID))
    return descriptor
