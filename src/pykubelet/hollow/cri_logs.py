"""Log files of the runtime in memory, in the CRI format.

A file stays open across a rename, as with a real runtime, so a rotation that forgets ReopenContainerLog
shows: the lines go on into the renamed file.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from pykubelet.hollow.cri_values import MemoryContainer
from pykubelet.model.errors import CriError


def open_log(container: MemoryContainer) -> None:
    if not container.log_path:
        return
    try:
        container.log_fd = os.open(container.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    except OSError as error:
        raise CriError(f"failed to create container loggers: failed to create and open log file: {error}") from error


def close_log(container: MemoryContainer) -> None:
    if container.log_fd is not None:
        os.close(container.log_fd)
        container.log_fd = None


def write_log(container: MemoryContainer, now: int, text: str, stream: str) -> None:
    """One whole line, stamped with `now` in unix nanoseconds."""
    if container.log_fd is None:
        return
    stamp = datetime.fromtimestamp(now // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    os.write(container.log_fd, f"{stamp}.{now % 1_000_000_000:09d}Z {stream} F {text}\n".encode())
