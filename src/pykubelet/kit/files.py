"""Files that are either old or new, never half: atomic writes, and the checkpoints of every manager.

A checkpoint's owner brings the format, most of them upstream's. One rule for damage: a file that is torn, altered or
of another shape is logged, set aside under another name and treated as absent; it is never overwritten. Owners that
must not start without theirs (CPU and memory manager) call `read` and refuse.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.tasks import finish

logger = logging.getLogger(__name__)

WRITE_WITHIN = 60.0
ASIDE = ".damaged"

T = TypeVar("T")


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` with `data` so that a reader or a power cut sees the old or the new content only.

    Without `durable` a power cut may leave a torn file, while a killed process still cannot: enough, and much
    cheaper, for what is checksummed and of no use after a reboot.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # the umask must not decide
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of writers that were killed; for the start of a process, which writes none yet."""
    for path in folder.glob(".*.tmp"):
        writer = path.name.removesuffix(".tmp").rpartition(".")[2]
        if writer.isdigit() and (int(writer) == os.getpid() or not Path("/proc", writer).exists()):
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames and removals inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_checked(path: Path | str, *, dir_fd: int | None = None, follow: bool = True, folders: bool = False) -> int:
    """A descriptor for reading of a regular file, with `folders` also of a folder. Raises OSError.

    For places that containers can write to. What the name stands for is looked at before it is opened: opening a
    device as root may do something (a watchdog begins to count), and a pipe may wait.
    """
    found = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), dir_fd=dir_fd)
    try:
        return reopen_checked(found, path, folders=folders)
    finally:
        os.close(found)


def reopen_checked(found: int, shown: Path | str, *, folders: bool = False) -> int:
    """The same for what an O_PATH descriptor stands for; `shown` names it in errors."""
    mode = os.fstat(found).st_mode
    if not (stat.S_ISREG(mode) or (folders and stat.S_ISDIR(mode))):
        raise OSError(errno.EINVAL, "not a regular file", str(shown))
    return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class CheckpointDamaged(Exception):
    """Why a checkpoint could not be used."""


class Checkpoint(Generic[T]):
    """One value kept on disk across restarts.

    `save_now` blocks until the value is written. `put` takes a value and returns at once; `flush` writes it off the
    loop and returns when it is on disk. Of values put while one is being written only the newest is written.
    """

    def __init__(
        self,
        path: Path,
        *,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        mode: int = 0o600,
        durable: bool = True,
    ) -> None:
        """`decode` may raise anything for bytes it cannot use; `durable` is that of `write_atomic`."""
        self.path = path
        self._encode = encode
        self._decode = decode
        self._mode = mode
        self._durable = durable
        self._data = b""
        self._put = self._written = 0
        self._lock = asyncio.Lock()

    def read(self) -> T | None:
        """The saved value; None when there is no file. CheckpointDamaged when it cannot be used."""
        try:
            return self._decode(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except CheckpointDamaged:
            raise
        except Exception as error:  # a format may fail in any way on foreign bytes
            raise CheckpointDamaged(str(error) or repr(error)) from error

    def load(self) -> T | None:
        """The saved value; None when there is none or when it was damaged (then it is set aside)."""
        try:
            return self.read()
        except CheckpointDamaged as problem:
            extra = {"path": str(self.path), "problem": str(problem)}
            try:
                extra["aside"] = str(set_aside(self.path))
            except OSError as error:  # nor can it be overwritten then: that takes a rename as well
                logger.error("checkpoint is damaged and cannot be set aside", extra={**extra, "error": str(error)})
            else:
                logger.error("checkpoint is damaged and was set aside; it will be rebuilt", extra=extra)
            return None

    def save_now(self, value: T) -> None:
        self._write_file(self._encode(value))

    def put(self, value: T) -> None:
        self._data = self._encode(value)
        self._put += 1

    async def flush(self) -> None:
        """Wait until what was put is on disk. OSError when that fails, and the next call tries again."""
        wanted = self._put
        if self._written >= wanted:
            return
        async with self._lock:
            if self._written < wanted:
                # To its end even when the caller goes: the next must not begin before.
                await finish(self._write(), within=WRITE_WITHIN + 1)

    async def _write(self) -> None:
        number, work = self._put, partial(self._write_file, self._data)
        await host_calls.run(work, name="writing a checkpoint", key=str(self.path), within=WRITE_WITHIN)
        self._written = number

    def _write_file(self, data: bytes) -> None:
        write_atomic(self.path, data, mode=self._mode, durable=self._durable)


class Envelope:
    """JSON with the data beside its checksum, as upstream's kubelet writes it; names and checksum differ by file."""

    def __init__(self, checksum: Callable[[Any], int], *, data: str = "data", sum: str = "checksum") -> None:
        self._checksum = checksum
        self._data_key = data
        self._sum_key = sum

    def seal(self, data: object) -> bytes:
        whole = {self._data_key: data, self._sum_key: self._checksum(data)}
        return json.dumps(whole, separators=(",", ":")).encode()

    def open(self, raw: bytes) -> Any:
        """The data. CheckpointDamaged when it is not what was sealed."""
        try:
            whole = json.loads(raw)
            data, checksum = whole[self._data_key], whole[self._sum_key]
            matches = checksum == self._checksum(data)
        except Exception as error:  # a checksum over foreign data may fail in any way
            raise CheckpointDamaged(f"not a checkpoint: {error!r}") from error
        if not matches:
            raise CheckpointDamaged("checksum does not match the data")
        return data


def set_aside(path: Path) -> Path:
    """Rename a damaged file to a name that is never read; an older one is replaced."""
    aside = path.with_name(path.name + ASIDE)
    os.replace(path, aside)
    return aside


def copy_aside(path: Path, aside: Path) -> Path:
    """Keep a damaged file as `aside` while `path` stays, for owners that replace it in one step."""
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    os.link(path, aside)
    sync_folder(path.parent)
    return aside
