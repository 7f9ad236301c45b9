"""Watches the files of a folder through inotify.

Translates kernel events into a few of our own. Follows a folder, or one file through its folder; while the
path does not exist, follows the nearest folder above it. Does not read files (manifests.py) and promises
nothing about completeness: its users scan again now and then.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from pykubelet.kit.tasks import Wakeup

if TYPE_CHECKING:
    from asyncinotify import Event, Inotify


class Happened(enum.Enum):
    WRITTEN = "written"
    """Complete: closed after writing, or moved here."""
    TOUCHED = "touched"
    """Its owner, mode or times changed."""
    CREATED = "created"
    """Exists, but its writer may not be finished."""
    MODIFIED = "modified"
    """Is being written."""
    MOVED_AWAY = "moved away"
    DELETED = "deleted"
    RESCAN = "rescan"
    """Something was missed or is not about a single file: scan everything."""
    REOPEN = "reopen"
    """The watch does not cover the path any more: open a new one."""


class FileEvent(Struct, frozen=True):
    kind: Happened
    name: str = ""


class FolderWatch(Protocol):
    async def wait(self, at_most: float | None) -> list[FileEvent]:
        """Everything that happened since the last call; waits for something, at most that long."""
        ...

    def close(self) -> None: ...


OpenWatch = Callable[[Path], FolderWatch]


def open_inotify(path: Path) -> FolderWatch:
    """Watch a manifest path from now on. Raises OSError when the kernel refuses."""
    return InotifyWatch(path)


class InotifyWatch:
    """Reads the kernel's queue as soon as it fills, so that neither a timeout nor a cancel loses events."""

    def __init__(self, path: Path) -> None:
        from asyncinotify import Inotify

        path = Path(os.path.abspath(path))
        if path == path.parent:
            raise OSError(errno.EINVAL, "the root folder cannot be watched")
        self._path = path
        self._signal = Wakeup()
        self._events: list[FileEvent] = []
        self._loop = asyncio.get_running_loop()
        self._inotify: Inotify = Inotify(sync_timeout=0, cache_size=64)
        try:
            self._add_watches()
            self._loop.add_reader(self._inotify.fd, self._drain)
        except BaseException:
            self._inotify.close()
            raise

    def close(self) -> None:
        self._loop.remove_reader(self._inotify.fd)
        self._inotify.close()

    async def wait(self, at_most: float | None) -> list[FileEvent]:
        if not self._events:
            await self._signal.wait(at_most)
        events, self._events = self._events, []
        return events

    def _add_watches(self) -> None:
        from asyncinotify import Mask

        around = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF
        inside = around | Mask.CLOSE_WRITE | Mask.MODIFY | Mask.ATTRIB
        # The folder above first: if the path appears in between, there is an event for it.
        above = self._path.parent
        while True:
            below = self._next_below(above)
            mask = inside if below == self._path and not self._path.is_dir() else around
            try:
                self._above = self._inotify.add_watch(above, mask | Mask.ONLYDIR)
            except (FileNotFoundError, NotADirectoryError):
                if above == above.parent:
                    raise
                above = above.parent
                continue
            self._expected = below.name
            self._direct = below == self._path
            if self._direct or not below.is_dir():
                break
            self._inotify.rm_watch(self._above)
            above = below
        self._folder = None
        if self._path.is_dir():
            self._folder = self._inotify.add_watch(self._path, inside | Mask.ONLYDIR)

    def _next_below(self, above: Path) -> Path:
        return above / self._path.relative_to(above).parts[0]

    def _drain(self) -> None:
        while (event := self._inotify.sync_get()) is not None:
            translated = self._translate(event)
            if translated is not None and (not self._events or self._events[-1] != translated):
                self._events.append(translated)
        if self._events:
            self._signal.set()

    def _translate(self, event: Event) -> FileEvent | None:
        from asyncinotify import Mask

        mask = event.mask
        if mask & Mask.Q_OVERFLOW:
            return FileEvent(Happened.RESCAN)
        watch = event.watch
        if watch is None or watch not in (self._above, self._folder):
            return None  # the end of a watch that was replaced
        if mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.IGNORED):
            return FileEvent(Happened.REOPEN)
        if event.name is None:
            return None
        name = str(event.name)
        if watch is self._above:
            if name != self._expected:
                return None
            structural = mask & (Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO)
            if not self._direct or self._folder is not None or mask & Mask.ISDIR:
                return FileEvent(Happened.REOPEN) if structural else None
        if mask & Mask.ISDIR:
            return None
        for bits, kind in (
            (Mask.CLOSE_WRITE | Mask.MOVED_TO, Happened.WRITTEN),
            (Mask.ATTRIB, Happened.TOUCHED),
            (Mask.MODIFY, Happened.MODIFIED),
            (Mask.CREATE, Happened.CREATED),
            (Mask.MOVED_FROM, Happened.MOVED_AWAY),
            (Mask.DELETE, Happened.DELETED),
        ):
            if mask & bits:
                return FileEvent(kind, name)
        return None
