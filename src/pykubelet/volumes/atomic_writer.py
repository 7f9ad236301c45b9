"""Writes the files of a volume so that a reader sees either all of the old or all of the new content.

    <volume>/..2024_01_31_12_00_00.1234567890/   the files
    <volume>/..data -> ..2024_01_31_12_00_00.1234567890
    <volume>/name   -> ..data/name

The switch is one rename of `..data`. Files get owner and mode before they become visible and never have more rights
than requested. The layout is upstream's, so that either agent can take over from the other.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.ownership import with_group
from pykubelet.volumes.plugins.plugin import FileContent, Files

DATA = "..data"
NEW_DATA = "..data_tmp"
LONGEST_PATH, LONGEST_NAME = 4096, 255
FOLDER_MODE = 0o755


def check_paths(files: Files) -> None:
    for path in files:
        steps = path.split("/")
        if not path or path.startswith("/"):
            raise VolumeProblem(f"invalid path: must be relative: {path}")
        if len(path) > LONGEST_PATH:
            raise VolumeProblem(f"invalid path: must be less than or equal to {LONGEST_PATH} characters")
        if ".." in steps:
            raise VolumeProblem(f"invalid path: must not contain '..': {path}")
        if steps[0].startswith(".."):
            raise VolumeProblem(f"invalid path: must not start with '..': {path}")
        if any(len(os.fsencode(step)) > LONGEST_NAME for step in steps):
            raise VolumeProblem(f"invalid path: names must be at most {LONGEST_NAME} characters: {path}")


def write_volume(folder: Path, files: Files, *, gid: int | None, now: float, remove: Callable[[Path], None]) -> bool:
    """Make `folder` contain exactly `files`; False when it does already. `gid` is the pod's fsGroup.

    `remove` removes old content. Safe to repeat after an interruption at any point.
    """
    check_paths(files)
    clean = {os.path.normpath(path): content for path, content in files.items()}
    current = _current(folder)
    if current is not None and _shows(folder / current, clean, gid):
        _link(folder, clean)
        _sweep(folder, clean, current, remove)
        return False
    fresh = _write_fresh(folder, clean, gid, now)
    _switch(folder, fresh)
    _link(folder, clean)
    _sweep(folder, clean, fresh, remove)
    return True


def _current(folder: Path) -> str | None:
    try:
        target = os.readlink(folder / DATA)
    except OSError:
        return None
    # Only a plain name beside the link can be ours; anything else is replaced, never followed.
    return target if "/" not in target and target.startswith("..") and target != ".." else None


def _final_mode(content: FileContent, gid: int | None) -> int:
    return content.mode if gid is None else with_group(content.mode, folder=False, read_only=True)


def _shows(shown: Path, files: Files, gid: int | None) -> bool:
    try:
        present = {
            os.path.relpath(os.path.join(top, name), shown) for top, _, names in os.walk(shown) for name in names
        }
        if present != set(files):
            return False
        return all(_same(shown / path, content, gid) for path, content in files.items())
    except OSError:
        return False


def _same(path: Path, content: FileContent, gid: int | None) -> bool:
    found = os.lstat(path)
    right = stat.S_ISREG(found.st_mode) and found.st_size == len(content.data)
    right = right and stat.S_IMODE(found.st_mode) == _final_mode(content, gid) and found.st_uid == (content.uid or 0)
    right = right and (gid is None or found.st_gid == gid)
    return right and path.read_bytes() == content.data


def _write_fresh(folder: Path, files: Files, gid: int | None, now: float) -> str:
    stamp = datetime.fromtimestamp(now, UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
    name = f"{stamp}{secrets.randbelow(10**10)}"
    top = folder / name
    os.mkdir(top, 0o700)
    made = [top]
    for path, content in files.items():
        place = top / path
        made += _make_parents(top, place.parent)
        _write_file(place, content, gid)
    # Accessible to others only now that everything below has its final mode, the top last.
    for below in reversed(made):
        if gid is not None:
            os.chown(below, -1, gid)
        os.chmod(below, FOLDER_MODE if gid is None else with_group(FOLDER_MODE, folder=True, read_only=True))
    return name


def _make_parents(top: Path, folder: Path) -> list[Path]:
    missing = []
    while folder != top and not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        os.mkdir(each, 0o700)
    return list(reversed(missing))


def _write_file(place: Path, content: FileContent, gid: int | None) -> None:
    descriptor = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.data)
        file.flush()
        if content.uid is not None or gid is not None:
            os.fchown(descriptor, -1 if content.uid is None else content.uid, -1 if gid is None else gid)
        os.fchmod(descriptor, _final_mode(content, gid))


def _switch(folder: Path, fresh: str) -> None:
    temporary = folder / NEW_DATA
    try:
        os.symlink(fresh, temporary)
    except FileExistsError:  # left by a run that was killed here
        os.unlink(temporary)
        os.symlink(fresh, temporary)
    os.replace(temporary, folder / DATA)


def _link(folder: Path, files: Files) -> None:
    for name in {path.split("/", 1)[0] for path in files}:
        target = f"{DATA}/{name}"
        try:
            os.symlink(target, folder / name)
        except FileExistsError:
            if _link_target(folder / name) != target:
                raise VolumeProblem(
                    f"{name} cannot be shown: another volume is mounted inside this one at that name"
                ) from None


def _link_target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _sweep(folder: Path, files: Files, current: str, remove: Callable[[Path], None]) -> None:
    """Remove links to removed files, old content, and what an interrupted write left."""
    wanted = {path.split("/", 1)[0] for path in files}
    for name in os.listdir(folder):
        if name.startswith(".."):
            if name not in (DATA, current):
                remove(folder / name)
        elif name not in wanted and _link_target(folder / name) == f"{DATA}/{name}":
            os.unlink(folder / name)
