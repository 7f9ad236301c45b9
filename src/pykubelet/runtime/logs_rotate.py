"""Rotation of container logs by size and count, with compression, as upstream names and keeps the files.

A check costs one listing of running containers and one stat for each. The file being written is renamed and the
runtime asked to open a new one; it is compressed at the rotation after, so that readers lose nothing.
Does not cover: removing logs with their container (gc.py), reading (logs_read.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from pykubelet.clients.cri.port import CriClient
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.limits import Once
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import CriError, NotFound, PykubeletError, RuntimeDown

logger = logging.getLogger(__name__)

COMPRESSED: Final = ".gz"
TEMPORARY: Final = ".tmp"
STAMP: Final = "%Y%m%d-%H%M%S"
LEVEL: Final = 6
"""Python's own default of 9 takes three times as long for a few percent."""
TIDY_WITHIN: Final = 120.0


class RotationPolicy(Struct, frozen=True, kw_only=True):
    max_bytes: int = 10 * 1024 * 1024
    """Size at which a log is rotated; negative turns rotation off."""
    max_files: int = 5
    """Files of one container, the one being written included."""
    workers: int = 1
    """Rotations at the same time."""
    period: float = 10.0
    """Seconds between checks of the sizes."""


class RotationProblem(PykubeletError):
    """One log could not be rotated; nothing of it is lost, and the next check tries again."""


class LogRotation:
    name = "log-rotation"

    def __init__(self, *, cri: CriClient, clock: Clock, policy: RotationPolicy | None = None) -> None:
        self._cri = cri
        self._clock = clock
        self._policy = policy or RotationPolicy()
        self._paths: dict[str, Path] = {}
        self._logged: Once[str] = Once()

    async def run(self) -> None:
        if self._policy.max_bytes < 0:
            await asyncio.get_running_loop().create_future()
        while True:
            try:
                await self.check()
            except RuntimeDown:
                pass  # reported by the runtime state; logs cannot grow by much meanwhile
            except CriError as error:
                logger.warning("cannot list containers to rotate their logs", extra={"problem": str(error)})
            await self._clock.sleep(self._policy.period)

    async def check(self) -> None:
        """Check every running container's log once and rotate those that are too big."""
        records = await self._cri.list_containers(running_only=True)
        ids = {record.id for record in records}
        for gone in [id for id in self._paths if id not in ids]:
            del self._paths[gone]
        slots = asyncio.Semaphore(max(1, self._policy.workers))

        async def check(container_id: str) -> None:
            async with slots:
                await self._rotate_if_due(container_id)

        await gather_all(*(check(record.id) for record in records if self._needs_check(record.id)))

    def _needs_check(self, container_id: str) -> bool:
        """Whether anything is to be done; for most containers this one stat is all that happens."""
        path = self._paths.get(container_id)
        if path is None:
            return True
        try:
            return os.stat(path).st_size >= self._policy.max_bytes
        except OSError:
            return True

    async def _rotate_if_due(self, container_id: str) -> None:
        try:
            path = await self._path_of(container_id)
            if path is None:
                return
            if await self._size(container_id, path) >= self._policy.max_bytes:
                await self._rotate(container_id, path)
            self._logged.clear(container_id)
        except NotFound:
            return  # ended and removed meanwhile
        except (PykubeletError, OSError) as error:
            # Once per container: it is tried again every few seconds.
            level = logging.WARNING if self._logged.is_new(container_id) else logging.DEBUG
            logger.log(level, "cannot rotate a log", extra={"container_id": container_id, "problem": str(error)})

    async def _path_of(self, container_id: str) -> Path | None:
        known = self._paths.get(container_id)
        if known is None:
            log_path = (await self._cri.container_status(container_id)).log_path
            if not log_path:
                return None
            known = self._paths[container_id] = Path(log_path)
        return known

    async def _size(self, container_id: str, path: Path) -> int:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            # It was removed; the runtime writes into a file without a name until it opens a new one.
            await self._cri.reopen_container_log(container_id)
            return os.stat(path).st_size

    async def _rotate(self, container_id: str, path: Path) -> None:
        work = partial(tidy_rotated, path, self._policy.max_files)
        await host_calls.run(work, name="tidying rotated logs", key=str(path), within=TIDY_WITHIN)
        rotated = path.with_name(f"{path.name}.{datetime.fromtimestamp(self._clock.now()).strftime(STAMP)}")
        if rotated.exists() or rotated.with_name(rotated.name + COMPRESSED).exists():
            raise RotationProblem(f"{rotated} exists already")
        os.rename(path, rotated)
        try:
            await self._cri.reopen_container_log(container_id)
        except BaseException:
            put_back(rotated, path)
            raise
        logger.debug("log rotated", extra={"container_id": container_id, "path": str(rotated)})


def put_back(rotated: Path, path: Path) -> None:
    """Undo the renaming, unless the runtime made a new file after all: then both are good as they are."""
    with contextlib.suppress(FileExistsError):
        os.link(rotated, path)
        os.unlink(rotated)


# --- the files beside a log ------------------------------------------------------------------------


def rotated_names(path: Path) -> list[str]:
    """Names of the files rotated from a log, oldest first, leftovers included."""
    prefix = path.name + "."
    return sorted(name for name in os.listdir(path.parent) if name.startswith(prefix))


def split_leftovers(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files to keep, and what an interrupted rotation left: temporary ones and those compressed already."""
    known = set(names)
    leftovers = [name for name in names if name.endswith(TEMPORARY) or name + COMPRESSED in known]
    return [name for name in names if name not in leftovers], leftovers


def split_excess(names: Sequence[str], max_files: int) -> tuple[list[str], list[str]]:
    """Files to keep, and the oldest ones beyond the limit; room is left for the next rotated and the current."""
    kept = max(0, max_files - 2)
    return list(names[len(names) - kept :] if kept else ()), list(names[: max(0, len(names) - kept)])


def tidy_rotated(path: Path, max_files: int) -> None:
    """Make room for one more rotated file and compress those that are not yet. Blocking."""
    names, leftovers = split_leftovers(rotated_names(path))
    names, excess = split_excess(names, max_files)
    _remove(path.parent, [*leftovers, *excess])
    for name in names:
        if not name.endswith(COMPRESSED):
            compress(path.with_name(name))


def compress(path: Path) -> None:
    """Replace a file by its compressed form; interrupted at any moment, one of the two is whole."""
    temporary = path.with_name(path.name + TEMPORARY)
    source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(source, "rb") as plain:
        mode = stat.S_IMODE(os.fstat(source).st_mode)
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(target, "wb") as raw:
                os.fchmod(target, mode)
                with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=raw) as packed:
                    shutil.copyfileobj(plain, packed, 256 * 1024)
            os.rename(temporary, path.with_name(path.name + COMPRESSED))
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    os.unlink(path)


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)
