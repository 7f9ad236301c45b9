"""Counting what a tree holds that a stranger wrote: any depth, any number of files, little memory, few descriptors.

A walk goes on where it stopped, so that a big tree is counted in several passes of bounded time. It works on open
descriptors; a folder swapped for a link or moved away in the meantime leads nowhere. Links are counted, not followed;
other filesystems are left out.
"""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pykubelet.kit.clock import ThreadDeadline

MAX_OPEN: Final = 8
"""Levels kept open at once besides the top; a level above is found again by its number when the walk comes back."""
FOLDERS_AT_ONCE: Final = 50_000
"""Names of folders remembered of one folder; when these are done it is read again for the next."""
MOST_LINKED: Final = 1_000_000
"""Files with several names that are remembered; of more than that every name counts."""
_LOOK_EVERY: Final = 256
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True, eq=False)
class _Level:
    name: str
    descriptor: int | None
    identity: tuple[int, int]
    entries: Any = None
    """The reading of its files while that lasts; os.scandir has no public type."""
    folders: list[str] = field(default_factory=list)
    """Below it and not yet entered."""
    done: int = 0
    """Folders below it that earlier readings have given."""
    seen: int = 0
    """Folders below it that this reading has met."""


class UsageWalk:
    """Disk blocks and inodes of a tree on one filesystem. `lock` is for its owners: one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError when the folder is not there."""
        descriptor = os.open(folder, _FOLDER)
        found = os.fstat(descriptor)
        self._device = found.st_dev
        self._linked: set[int] = set()
        self._levels = [_Level("", descriptor, (found.st_dev, found.st_ino))]
        self.bytes, self.inodes = found.st_blocks * 512, 1
        self.lock = threading.Lock()
        self._read(self._levels[0])

    def advance(self, deadline: ThreadDeadline) -> bool:
        """Count on until the deadline; True when all is counted, and then everything is closed."""
        steps = 0
        while self._levels:
            steps += 1
            if steps % _LOOK_EVERY == 0 and deadline.has_passed():
                return False
            level = self._levels[-1]
            if level.entries is not None:
                self._count_next(level)
            elif level.folders:
                self._enter(level, level.folders.pop())
            elif level.seen > level.done + FOLDERS_AT_ONCE:
                level.done += FOLDERS_AT_ONCE
                self._read(level)
            else:
                self._leave()
        return True

    def close(self) -> None:
        for level in self._levels:
            _close(level)
        self._levels = []

    # --- inside ---------------------------------------------------------------------------------

    def _read(self, level: _Level) -> None:
        assert level.descriptor is not None
        level.seen = 0
        level.entries = os.scandir(level.descriptor)

    def _count_next(self, level: _Level) -> None:
        assert level.entries is not None
        try:
            entry = next(level.entries, None)
        except OSError:
            entry = None  # the folder went while we looked
        if entry is None:
            level.entries = None
            return
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            return  # it went while we looked
        if found.st_dev != self._device:
            return
        if stat.S_ISDIR(found.st_mode):
            level.seen += 1
            if level.done < level.seen <= level.done + FOLDERS_AT_ONCE:
                level.folders.append(entry.name)
        elif found.st_nlink > 1:
            if found.st_ino in self._linked:
                return
            if len(self._linked) < MOST_LINKED:
                self._linked.add(found.st_ino)
        if level.done == 0:  # a later reading is for folders alone
            self.bytes += found.st_blocks * 512
            self.inodes += 1

    def _enter(self, level: _Level, name: str) -> None:
        assert level.descriptor is not None
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=level.descriptor)
        except OSError:
            return  # it went, or changed into something else, while we looked
        found = os.fstat(descriptor)
        if found.st_dev != self._device:
            os.close(descriptor)
            return
        below = _Level(name, descriptor, (found.st_dev, found.st_ino))
        self._levels.append(below)
        self._read(below)
        far = len(self._levels) - 1 - MAX_OPEN
        if far > 0:
            _close(self._levels[far])

    def _leave(self) -> None:
        left = self._levels.pop()
        above = self._levels[-1] if self._levels else None
        lost = above is not None and above.descriptor is None
        if lost and not (left.descriptor is not None and self._is_level(self._levels[-1], "..", left.descriptor)):
            self._go_down_again()
        _close(left)

    def _go_down_again(self) -> None:
        """Somebody moved folders about: on from the deepest level that is still where it was, without the others."""
        here = self._levels[0].descriptor
        for depth, level in enumerate(self._levels[1:], 1):
            if here is None or not self._is_level(level, level.name, here):
                for lost in self._levels[depth:]:
                    _close(lost)
                del self._levels[depth:]
                return
            here = level.descriptor
            if depth > MAX_OPEN:
                _close(self._levels[depth - MAX_OPEN])

    def _is_level(self, level: _Level, name: str, folder: int) -> bool:
        """Open the level as `name` in that folder, if it is still the one it was."""
        if level.descriptor is not None:
            return True
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            return False
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != level.identity:
            os.close(descriptor)
            return False
        level.descriptor = descriptor
        return True


def _close(level: _Level) -> None:
    if level.descriptor is not None:
        os.close(level.descriptor)
        level.descriptor = None
    if level.entries is not None:
        level.entries.close()
        level.entries = None
