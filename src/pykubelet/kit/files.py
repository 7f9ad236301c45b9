"""Files that are either old or new, never half: atomic writes, and checkpoints with checksums.

A checkpoint that is torn, altered or of another shape is reported, set aside beside its place and
treated as absent, so that the owner rebuilds it; it never stops the agent. The checksum wraps the data
(`{"data": …, "checksum": …}`); formats that other kubelets must read have their own writers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


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


class Checkpoint:
    """One JSON value kept on disk across restarts."""

    def __init__(self, path: Path, *, mode: int = 0o600) -> None:
        self.path = path
        self._mode = mode

    def save(self, data: Any) -> None:
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        envelope = json.dumps({"data": text, "checksum": _checksum(text)})
        write_atomic(self.path, envelope.encode(), mode=self._mode)

    def load(self) -> Any | None:
        """The saved value; None when there is none or when it was damaged (then it is set aside)."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _open(raw)
        except CheckpointDamaged as problem:
            aside = set_aside(self.path)
            logger.error(
                "checkpoint is damaged and was set aside; it will be rebuilt",
                extra={"path": str(self.path), "aside": str(aside), "problem": str(problem)},
            )
            return None

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def set_aside(path: Path) -> Path:
    """Move a damaged file beside its place under a name nobody reads; an older one is replaced."""
    aside = path.with_name(path.name + ".damaged")
    os.replace(path, aside)
    return aside


def _open(raw: bytes) -> Any:
    try:
        envelope = json.loads(raw)
        text, checksum = envelope["data"], envelope["checksum"]
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointDamaged(f"not a checkpoint: {problem}") from problem
    if not isinstance(text, str) or checksum != _checksum(text):
        raise CheckpointDamaged("checksum does not match the data")
    return json.loads(text)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
