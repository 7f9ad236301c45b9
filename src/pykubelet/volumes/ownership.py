"""Applies fsGroup: sets group and mode bits of all files in a volume, as upstream does.

Works through descriptors that follow no link: a container that swaps a file for a link during the walk (a volume may
have other users) must not make us change a file of the host. Folders may nest to any depth; only the lowest levels
are kept open. A file that cannot be changed (a read-only snapshot, a server that squashes root) is left as it is and
logged once. The top folder comes last, so that OnRootMismatch detects an interrupted walk and repeats it. A slow walk
is reported by upstream's event.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path

from msgspec import Struct

from pykubelet.model.events import EventRecorder
from pykubelet.model.reasons import WARNING
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.plugin import SetUp

logger = logging.getLogger(__name__)

READ_WRITE, READ_ONLY, SEARCH = 0o660, 0o440, 0o110
MAX_OPEN = 64
"""Levels kept open at once; those above are opened again on the way back."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def with_group(mode: int, *, folder: bool, read_only: bool) -> int:
    """The mode with the permissions of the group added."""
    mode = stat.S_IMODE(mode) | (READ_ONLY if read_only else READ_WRITE)
    return mode | SEARCH | stat.S_ISGID if folder else mode


def is_given(path: Path, gid: int, *, read_only: bool) -> bool:
    """Whether the top folder already has the group and mode that `give` would set."""
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
    """Give the whole volume to the group; `progress` is called with the number of files done so far."""
    if gid is None or (on_root_mismatch and is_given(path, gid, read_only=read_only)):
        return
    change = _Change(gid, read_only)
    top = os.open(path, _FOLDER)
    try:
        _give_below(top, path, change, progress)
    finally:
        os.close(top)
    change.one(str(path), None)
    if change.refused:
        logger.warning(
            "files of a volume keep their group or mode",
            extra={"path": str(path), "fs_group": gid, "files": change.refused, "first": change.first},
        )


class _Change(Struct):
    """What is changed in each file, and how many could not be changed."""

    gid: int
    read_only: bool
    refused: int = 0
    first: str = ""

    def one(self, name: str, folder: int | None) -> bool:
        """Change one file; True when it is a folder."""
        descriptor = os.open(name, _PLACE, dir_fd=folder)
        try:
            found = os.fstat(descriptor)
            try:
                # This path leads to the open file itself, even if that is a link: nothing is followed.
                self._set(f"/proc/self/fd/{descriptor}", found)
            except OSError as error:
                self.refused += 1
                self.first = self.first or f"{name}: {error.strerror or error}"
            return stat.S_ISDIR(found.st_mode)
        finally:
            os.close(descriptor)

    def _set(self, itself: str, found: os.stat_result) -> None:
        is_link = stat.S_ISLNK(found.st_mode)
        wanted = with_group(found.st_mode, folder=stat.S_ISDIR(found.st_mode), read_only=self.read_only)
        try:
            if found.st_gid != self.gid:
                os.chown(itself, -1, self.gid)
        finally:
            # Even if chown failed. Changing the group clears set-id bits, so the mode is set even if it was right.
            if not is_link and (found.st_gid != self.gid or stat.S_IMODE(found.st_mode) != wanted):
                os.chmod(itself, wanted)


class _Level(Struct):
    """A folder on the way down; closed (-1) while far above, and identified by its inode when opened again."""

    descriptor: int
    names: list[str]
    identity: tuple[int, int]


def _open_level(descriptor: int) -> _Level:
    found = os.fstat(descriptor)
    return _Level(descriptor, os.listdir(descriptor), (found.st_dev, found.st_ino))


def _give_below(top: int, shown: Path, change: _Change, progress: Callable[[int], None]) -> None:
    count = 0
    stack = [_open_level(os.dup(top))]
    try:
        while stack:
            here = stack[-1]
            if not here.names:
                _leave(stack, shown)
                continue
            name = here.names.pop()
            count += 1
            progress(count)
            try:
                if not change.one(name, here.descriptor):
                    continue
                below = os.open(name, _FOLDER, dir_fd=here.descriptor)
            except FileNotFoundError:
                continue  # another user of the volume removed it meanwhile
            stack.append(_Level(below, [], (0, 0)))  # first, so that it is closed in any case
            stack[-1] = _open_level(below)
            if len(stack) > MAX_OPEN:
                far = stack[-MAX_OPEN - 1]
                os.close(far.descriptor)
                far.descriptor = -1
    finally:
        for level in stack:
            if level.descriptor >= 0:
                os.close(level.descriptor)


def _leave(stack: list[_Level], shown: Path) -> None:
    """Go up one level. If the folder above was closed, the one opened again must be the same inode."""
    left = stack.pop()
    try:
        if stack and stack[-1].descriptor < 0:
            above = os.open("..", _FOLDER, dir_fd=left.descriptor)
            stack[-1].descriptor = above
            found = os.fstat(above)
            if (found.st_dev, found.st_ino) != stack[-1].identity:
                raise VolumeProblem(f"{shown}: folders were moved while fsGroup was applied")
    finally:
        os.close(left.descriptor)


SLOW_OWNERSHIP = "VolumePermissionChangeInProgress"
REPORT_FIRST, REPORT_NEXT = 30.0, 60.0
"""Seconds until the first report, and between the next ones."""


def report_slow_ownership(events: EventRecorder, task: SetUp, *, first: bool) -> None:
    where = f"Setting volume ownership for {task.path}"
    if first:
        text = f"{where} is taking longer than expected, consider using OnRootMismatch"
    else:
        text = f"{where}, processed {task.feedback.files} files."
    events.pod_event(task.pod, WARNING, SLOW_OWNERSHIP, text)


async def wait_for_ownership(future: asyncio.Future[None], events: EventRecorder, task: SetUp) -> None:
    """Wait until the work is done, reporting if it is slow; a cancel leaves it running."""
    waits: Iterator[float] = chain((REPORT_FIRST,), repeat(REPORT_NEXT))
    first = True
    while True:
        await asyncio.wait({future}, timeout=next(waits))
        if future.done():
            return future.result()
        if task.feedback.files:
            report_slow_ownership(events, task, first=first)
            first = False
