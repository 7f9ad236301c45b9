"""Reading a container's log for people: the end of it, since a time, with or without times, and following it.

`read_logs` yields what the container wrote, in pieces of whole lines. Following goes on across rotations without
losing lines: files rotated in between, compressed or not, are read before the current one. It ends when the
container does not run any more and everything was read. Not covered: finding the file (server), rotating it.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from pykubelet.api.times import parse_nano_time
from pykubelet.kit.clock import Clock
from pykubelet.runtime.logs import open_log, parse_line, tail_offset
from pykubelet.runtime.logs_rotate import COMPRESSED, TEMPORARY, rotated_names

BLOCK: Final = 64 * 1024
MAX_RECORD: Final = 1024 * 1024
"""A record longer than this is nothing a runtime wrote; runtimes split lines at 16 KiB."""
RECHECK: Final = 1.0
"""Seconds after which a follower looks again although nothing woke it."""
SETTLE: Final = 0.1
"""Seconds a runtime may still write to the old file after it opened the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    follow: bool = False
    tail: int | None = None
    """Records from the end of the current file; None = from its beginning."""
    since: int | None = None
    """Unix nanoseconds; older records are left out."""
    timestamps: bool = False
    limit_bytes: int | None = None
    stream: str | None = None
    """stdout or stderr; None = both."""


class Waker(Protocol):
    """Tells that something happened in the folder of a log."""

    async def wait(self, at_most: float) -> None: ...


IsRunning = Callable[[], Awaitable[bool]]


class Selection:
    """Turns raw blocks of one or more files into the bytes asked for. Pure but for its memory of the last line."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._stream = options.stream.encode() if options.stream else None
        self._left = options.limit_bytes
        self._rest = b""
        self._fresh = True
        """The next record begins a line of the container's output."""

    @property
    def full(self) -> bool:
        return self._left is not None and self._left <= 0

    @property
    def unread(self) -> int:
        """Bytes of a record whose end was not there yet."""
        return len(self._rest)

    def take(self, block: bytes) -> bytes:
        """What whole records give; the begin of one that is not whole yet is kept for the next block."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > MAX_RECORD:
            self._rest = b""
        out = b"".join(self._shown(line + b"\n") for line in lines)
        if self._left is not None:
            out = out[: max(0, self._left)]
            self._left -= len(out)
        return out

    def drop_rest(self) -> None:
        """The file ended in the middle of a record, as after a crash of the runtime."""
        self._rest = b""

    def _shown(self, raw: bytes) -> bytes:
        line = parse_line(raw)
        if line is None or (self._stream is not None and line.stream != self._stream):
            return b""
        if self._options.since is not None and _older(line.time, self._options.since):
            return b""
        prefix = line.time + b" " if self._options.timestamps and self._fresh else b""
        self._fresh = not line.partial
        return prefix + line.content


def _older(stamp: bytes, since: int) -> bool:
    try:
        return parse_nano_time(stamp.decode("ascii", "replace")) < since
    except ValueError:
        return False


async def read_logs(
    path: Path, options: ReadOptions, *, clock: Clock, is_running: IsRunning, waker: Waker | None = None
) -> AsyncIterator[bytes]:
    """The log as asked for. Raises OSError when there is none. `waker` serves following; without it, time does."""
    selection = Selection(options)
    file: BinaryIO = open_log(path)
    try:
        if options.tail is not None:
            file.seek(tail_offset(file, options.tail))
        while True:
            # Asked before reading: what the container wrote last is there when it is known to have ended.
            last_look = not options.follow or not await is_running()
            while block := file.read(BLOCK):
                if piece := selection.take(block):
                    yield piece
                if selection.full:
                    return
                await clock.sleep(0)  # a big log must not hold up the pods
            following = _next_file(path, file)
            if following is not None and options.follow:
                file, old = following, file
                async for piece in _drain(old, selection, clock):
                    yield piece
                continue
            if last_look:
                return
            await (waker.wait(RECHECK) if waker is not None else clock.sleep(RECHECK))
    finally:
        file.close()


async def _drain(old: BinaryIO, selection: Selection, clock: Clock) -> AsyncIterator[bytes]:
    """The last lines of a file that is being written no more, or will not be in a moment."""
    with old:
        await clock.sleep(SETTLE)
        while not selection.full and (block := old.read(BLOCK)):
            if piece := selection.take(block):
                yield piece
        selection.drop_rest()


def _next_file(path: Path, file: BinaryIO) -> BinaryIO | None:
    """The file that follows the one being read, opened; None while there is none."""
    name = _name_of(file)
    if name == path.name:
        return None
    try:
        candidates = [*later_files(path, name), path]
    except FileNotFoundError:
        return None
    for candidate in candidates:
        try:
            opened = open_log(candidate)
        except OSError:
            continue  # compressed, removed or not yet made: the next one will do
        if candidate.name.endswith(COMPRESSED):
            return _Unpacked(opened)
        if os.path.sameopenfile(opened.fileno(), file.fileno()):
            opened.close()
            continue
        return opened
    return None


def later_files(path: Path, name: str) -> list[Path]:
    """Rotated files newer than the one called `name`, oldest first. Each counts once, compressed or not."""
    own = name.removesuffix(COMPRESSED)
    later: dict[str, str] = {}
    for each in rotated_names(path):
        plain = each.removesuffix(COMPRESSED)
        if not each.endswith(TEMPORARY) and plain > own and own.startswith(path.name + "."):
            # Both exist for a moment; the plain one is whole in any case.
            later[plain] = min(each, later.get(plain, each))
    return [path.with_name(each) for each in later.values()]


def _name_of(file: BinaryIO) -> str:
    """What an open file is called now; it may have been renamed or removed since it was opened."""
    if isinstance(file, _Unpacked):
        return file.log_name
    return os.path.basename(os.readlink(f"/proc/self/fd/{file.fileno()}").removesuffix(" (deleted)"))


class _Unpacked(gzip.GzipFile):
    """A compressed log that keeps its own name."""

    def __init__(self, packed: BinaryIO) -> None:
        self.log_name = _name_of(packed)
        self._packed = packed
        super().__init__(fileobj=packed, mode="rb")

    def close(self) -> None:
        super().close()
        self._packed.close()
