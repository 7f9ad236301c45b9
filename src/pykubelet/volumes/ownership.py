"""Giving a volume to the pod's fsGroup: group and mode bits of everything in it, as upstream sets them.

Works through descriptors that follow no link: a container that swaps a file for a link while this walks (a
volume may have other users) must not make us change a file of the host. The top folder comes last, so that
an interrupted walk is seen by OnRootMismatch and done again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from pykubelet.volumes.problems import VolumeProblem

READ_WRITE, READ_ONLY, SEARCH = 0o660, 0o440, 0o110
MAX_DEPTH = 200
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def with_group(mode: int, *, folder: bool, read_only: bool) -> int:
    """Permission bits after the group got its rights."""
    mode = stat.S_IMODE(mode) | (READ_ONLY if read_only else READ_WRITE)
    return mode | SEARCH | stat.S_ISGID if folder else mode


def is_given(path: Path, gid: int, *, read_only: bool) -> bool:
    """Whether the top folder already looks as `give` would leave it."""
    found = os.lstat(path)
    wanted = with_group(found.st_mode, folder=True, read_only=read_only)
    return found.st_gid == gid and stat.S_IMODE(found.st_mode) == wanted


def give(
    path: Path,
    gid: int | None,
    *,
    read_only: bool = False,
    on_root_mismatch: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> None:
    """Give the whole volume to the group; `progress` hears the number of files done so far."""
    if gid is None or (on_root_mismatch and is_given(path, gid, read_only=read_only)):
        return
    top = os.open(path, _FOLDER)
    try:
        _give_below(top, path, gid, read_only, progress)
    finally:
        os.close(top)
    _give_one(str(path), None, gid, read_only)


def _give_below(top: int, shown: Path, gid: int, read_only: bool, progress: Callable[[int], None]) -> None:
    count = 0
    stack: list[tuple[int, list[str]]] = [(top, os.listdir(top))]
    try:
        while stack:
            here, names = stack[-1]
            if not names:
                stack.pop()
                if here != top:
                    os.close(here)
                continue
            name = names.pop()
            count += 1
            progress(count)
            try:
                is_folder = _give_one(name, here, gid, read_only)
                if not is_folder:
                    continue
                if len(stack) >= MAX_DEPTH:
                    raise VolumeProblem(f"{shown}: folders nest deeper than {MAX_DEPTH}, fsGroup cannot be applied")
                below = os.open(name, _FOLDER, dir_fd=here)
            except FileNotFoundError:
                continue  # another user of the volume removed it meanwhile
            stack.append((below, os.listdir(below)))
    finally:
        for descriptor, _ in stack[1:]:
            os.close(descriptor)


def _give_one(name: str, folder: int | None, gid: int, read_only: bool) -> bool:
    """Change one file; True when it is a folder."""
    descriptor = os.open(name, _PLACE, dir_fd=folder)
    # The kernel ends this path at what the descriptor stands for, be it a link: nothing is followed.
    itself = f"/proc/self/fd/{descriptor}"
    try:
        found = os.fstat(descriptor)
        if found.st_gid != gid:
            os.chown(itself, -1, gid)
        if stat.S_ISLNK(found.st_mode):
            return False
        is_folder = stat.S_ISDIR(found.st_mode)
        wanted = with_group(found.st_mode, folder=is_folder, read_only=read_only)
        # Changing the group clears set-id bits, so the mode is set again even if it was right before.
        if found.st_gid != gid or stat.S_IMODE(found.st_mode) != wanted:
            os.chmod(itself, wanted)
        return is_folder
    finally:
        os.close(descriptor)
