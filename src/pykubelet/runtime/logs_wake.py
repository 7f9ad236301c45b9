"""Waking a log follower when the container writes or its log is rotated, through inotify on the log's folder.

The kernel gives one user few inotify instances; who gets none follows by looking every second instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)


class FolderWaker:
    """Raises OSError when the kernel refuses."""

    def __init__(self, folder: Path) -> None:
        from asyncinotify import Inotify, Mask

        self._inotify = Inotify(sync_timeout=0)
        os.set_blocking(self._inotify.fd, False)
        try:
            self._inotify.add_watch(folder, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO | Mask.DELETE_SELF)
        except BaseException:
            self._inotify.close()
            raise

    async def wait(self, at_most: float) -> None:
        """Until something happened since the last wait; at most that long."""
        loop = asyncio.get_running_loop()
        happened: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not happened.done():
                happened.set_result(None)

        # Listened to only while waiting: a container that writes all the time must not wake us for each line.
        loop.add_reader(self._inotify.fd, wake)
        try:
            async with asyncio.timeout(at_most):
                await happened
        except TimeoutError:
            return
        finally:
            loop.remove_reader(self._inotify.fd)
        # What is thrown away here happened before the file is read next, so nothing is missed.
        with contextlib.suppress(BlockingIOError):
            while os.read(self._inotify.fd, 65536):
                pass

    def close(self) -> None:
        self._inotify.close()


@contextlib.contextmanager
def waking(folder: Path) -> Iterator[FolderWaker | None]:
    """A waker for as long as the block lasts; None where the kernel has none left."""
    try:
        waker = FolderWaker(folder)
    except OSError as error:
        logger.info("following a log without inotify", extra={"folder": str(folder), "problem": str(error)})
        yield None
        return
    try:
        yield waker
    finally:
        waker.close()
