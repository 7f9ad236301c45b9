"""A file that only one agent at a time may hold (`--lock-file`), and noticing that another one wants it."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from asyncinotify import Inotify, Mask

from pykubelet.model.errors import PykubeletError

logger = logging.getLogger(__name__)


class LockFailed(PykubeletError):
    """The lock file cannot be opened, watched or locked."""


class LockFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._watch: Inotify | None = None

    def acquire(self, *, watch: bool = False) -> None:
        """Hold the lock until the process ends; waits for whoever holds it. Raises LockFailed.

        With `watch` everybody who opens the file from here on is noticed (`contended`).
        """
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if watch:
                self._watch = Inotify()
                self._watch.add_watch(self.path, Mask.OPEN | Mask.DELETE_SELF)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.warning("waiting for the lock file, another agent holds it", extra={"path": str(self.path)})
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise LockFailed(f"--lock-file: {self.path}: {error.strerror}") from error

    async def contended(self) -> None:
        """Returns when somebody else opened or removed the file since it was acquired with `watch`."""
        if self._watch is None:
            raise RuntimeError("the lock file is not watched")
        await self._watch.get()
