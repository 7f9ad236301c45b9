"""subPath mounts: a part of a volume, pinned and shown at a place of its own before a container gets it.

What the container gets is a bind mount of an open descriptor below `volume-subpaths`, so a link planted after
the check changes nothing. Places are removed with the volume: unmounted first, then the empty folder or file
alone, never what lies under it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from pykubelet.clients.host.port import Mounts, VolumePaths
from pykubelet.volumes.beneath import check_subpath, make_beneath, open_beneath
from pykubelet.volumes.plugins.plugin import make_folder
from pykubelet.volumes.problems import VolumeProblem


def place_of(paths: VolumePaths, uid: str, folder: str, container: str, index: int) -> Path:
    return paths.subpaths(uid) / folder / container / str(index)


def show_subpath(mounts: Mounts, volume: Path, subpath: str, place: Path) -> None:
    """Make `place` show `subpath` of the folder `volume`; made as a folder if it is missing there."""
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
            return  # the container was restarted and the volume shows the same file still
        _remove_place(mounts, place)
    make_folder(place.parent)
    if stat.S_ISDIR(wanted.st_mode):
        os.mkdir(place, 0o750)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o640))
    mounts.bind_descriptor(source, place, read_only=False)


def clean_subpaths(mounts: Mounts, paths: VolumePaths, uid: str, folder: str) -> None:
    """Take away every place of one volume; safe to repeat."""
    top = paths.subpaths(uid) / folder
    for container in _folders(top):
        for place in _names(container):
            _remove_place(mounts, place)
        os.rmdir(container)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(top)
    with contextlib.suppress(OSError):  # others may still have places there
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
