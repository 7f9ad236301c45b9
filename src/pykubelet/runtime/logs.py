"""Container log files in the CRI format: `<RFC 3339 time> <stdout|stderr> <P|F> <content>`.

Covers one line of the format, and the end of a file as the container wrote it (`LogFiles.tail`, what status
messages fall back to). Long lines come in parts marked P; the part marked F ends them. Does not cover: reading
and following for people (logs_read.py), rotation (logs_rotate.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from pykubelet.kit.files import open_checked

BLOCK: Final = 16 * 1024
MAX_TAIL_BYTES: Final = 10 * 1024 * 1024
"""How far back the end of a file is searched; a line cannot be longer than this and still be shown whole."""


class LogLine(Struct, frozen=True):
    """One record of the file; a line of the container's output may be several."""

    time: bytes
    stream: bytes
    partial: bool
    content: bytes
    """With its line end unless it is a part."""


def parse_line(raw: bytes) -> LogLine | None:
    """None for what is no record of this format: a torn line after a crash, something foreign."""
    fields = raw.split(b" ", 3)
    if len(fields) < 3 or fields[1] not in (b"stdout", b"stderr"):
        return None
    tags = fields[2].rstrip(b"\n").split(b":")
    content = fields[3] if len(fields) == 4 else b"\n"
    if tags[0] == b"P":
        return LogLine(fields[0], fields[1], True, content.removesuffix(b"\n"))
    return LogLine(fields[0], fields[1], False, content) if tags[0] == b"F" else None


def open_log(path: Path) -> BinaryIO:
    """Open a log for reading without being caught by a pipe or a device in its place. Raises OSError."""
    # Without a buffer, whose lock would make a close wait for a read of another thread that hangs on its disk.
    return os.fdopen(open_checked(path), "rb", buffering=0)


def tail_offset(file: BinaryIO, records: int) -> int:
    """Where the last `records` records begin. A last record without its line end does not count as one."""
    end = file.seek(0, os.SEEK_END)
    if records <= 0:
        return end
    # The first line end met only ends the last record; one more than requested begins the tail.
    position, wanted = end, records + 1
    floor = max(0, end - MAX_TAIL_BYTES)
    while position > floor:
        start = max(floor, position - BLOCK)
        file.seek(start)
        block = file.read(position - start)
        found = block.count(b"\n")
        if found >= wanted:
            at = len(block)
            for _ in range(wanted):
                at = block.rfind(b"\n", 0, at)
            return start + at + 1
        wanted -= found
        position = start
    return floor


class LogFiles:
    """Reads log files as they are on disk; blocking, for short reads only."""

    def tail(self, path: Path, *, lines: int, limit_bytes: int) -> str:
        """The last `lines` records without their marks, at most the last `limit_bytes`; empty without a log."""
        try:
            with open_log(path) as file:
                file.seek(tail_offset(file, lines))
                # Marks take room too: their share is bounded, the content is cut below.
                raw = file.read(MAX_TAIL_BYTES)
        except OSError:
            return ""
        # Not splitlines(): carriage returns are content.
        parsed = (parse_line(line + b"\n") for line in raw.split(b"\n"))
        text = b"".join(line.content for line in parsed if line is not None)
        return text[-limit_bytes:].decode(errors="replace") if limit_bytes > 0 else ""
