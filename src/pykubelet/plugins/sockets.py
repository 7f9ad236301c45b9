"""Finding the sockets of plugins below a folder, and waking at once when one comes, goes or is replaced.

A socket is known by path and identity: a program that restarts makes a new one at the same path, and that is a
new plugin. Names that begin with a dot, and all that is not a socket, are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from pykubelet.kit.mailbox import Signal

if TYPE_CHECKING:
    from asyncinotify import Inotify

logger = logging.getLogger(__name__)


class Identity(Struct, frozen=True):
    """Tells a socket from another one that later has the same path.

    Inodes are used again at once; the time is the one that new rights or owners leave alone."""

    inode: int
    made_ns: int


Sockets = Mapping[Path, Identity]


class SocketWatch(Protocol):
    def sockets(self) -> Sockets:
        """All sockets that are there now; folders that appeared are followed from now on, too."""
        ...

    async def wait(self, at_most: float) -> None:
        """Until something may have changed since the last look; at most that long."""
        ...

    def close(self) -> None: ...


OpenSocketWatch = Callable[[Path], SocketWatch]


def open_tree_watch(root: Path) -> SocketWatch:
    """Make the folder if it is missing and follow all that is below it."""
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    return TreeWatch(root)


class TreeWatch:
    """Follows each folder of the tree by inotify. Where the kernel gives no more, looking now and then remains."""

    def __init__(self, root: Path) -> None:
        from asyncinotify import Inotify

        self._root = root
        self._signal = Signal()
        self._loop = asyncio.get_running_loop()
        self._refused = False
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify(sync_timeout=0)
        except OSError as error:
            self._without(error)
        else:
            os.set_blocking(self._inotify.fd, False)
            self._loop.add_reader(self._inotify.fd, self._drain, self._inotify.fd)

    def close(self) -> None:
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    async def wait(self, at_most: float) -> None:
        await self._signal.wait(at_most)

    def sockets(self) -> Sockets:
        found: dict[Path, Identity] = {}
        folders = [self._root]
        while folders:
            folder = folders.pop()
            self._follow(folder)  # before it is read: what appears in between is told
            try:
                entries = list(os.scandir(folder))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                logger.warning("folder of plugins not read", extra={"folder": str(folder), "problem": str(error)})
                continue
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                try:
                    facts = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(facts.st_mode):
                    folders.append(Path(entry.path))
                elif stat.S_ISSOCK(facts.st_mode):
                    found[Path(entry.path)] = Identity(facts.st_ino, facts.st_mtime_ns)
        return found

    def _follow(self, folder: Path) -> None:
        from asyncinotify import Mask

        if self._inotify is None:
            return
        wanted = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.ONLYDIR
        try:
            self._inotify.add_watch(folder, wanted)  # adding a folder again changes nothing
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._without(error)

    def _without(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            logger.warning("plugins are noticed late, inotify refused", extra={"problem": str(error)})

    def _drain(self, descriptor: int) -> None:
        try:
            while os.read(descriptor, 65536):
                pass
        except BlockingIOError:
            pass
        self._signal.set()
