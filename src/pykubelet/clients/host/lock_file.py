"""A file that only one agent at a time may hold (`--lock-file`), and noticing that another one wants it."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from pykubelet.model.errors import PykubeletError

logger = logging.getLogger(__name__)


class LockFailed(PykubeletError):
    """The lock file cannot be opened, locked or watched."""


class LockFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> None:
        """Hold the lock until the process ends; waits for whoever holds it. Raises LockFailed."""
        try:
            self._fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.warning("waiting for the lock file, another agent holds it", extra={"path": str(self.path)})
                fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            raise LockFailed(f"--lock-file: {self.path}: {error.strerror}") from error

    async def contended(self) -> None:
        """Returns when somebody else opens or removes the file. Raises LockFailed."""
        from asyncinotify import Inotify, Mask

        try:
            with Inotify() as inotify:
                inotify.add_watch(self.path, Mask.OPEN | Mask.DELETE_SELF)
                await inotify.get()
        except OSError as error:
            raise LockFailed(f"--exit-on-lock-contention: cannot watch {self.path}: {error.strerror}") from error
