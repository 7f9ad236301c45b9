"""Reading a container's log for people: the end of it, since a time, with or without times, and following it.

`read_logs` yields what the container wrote, in pieces of whole lines. Following goes on across rotations without
losing lines: files rotated in between, compressed or not, are read before the current one. It ends when the
container does not run any more and everything was read. Not covered: finding the file (server), rotating it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import os
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from msgspec import Struct

from pykubelet.api.times import parse_nano_time
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.runtime.logs import open_log, parse_line, tail_offset
from pykubelet.runtime.logs_rotate import COMPRESSED, TEMPORARY, rotated_names

BLOCK: Final = 64 * 1024
"""Of this much at a time the records are picked out; it takes a fraction of a millisecond."""
AHEAD: Final = 8 * BLOCK
"""Read at once, in a thread, where there is more than a block."""
READ_WITHIN: Final = 30.0
MAX_RECORD: Final = 1024 * 1024
"""A record longer than this is nothing a runtime wrote; runtimes split lines at 16 KiB."""
RECHECK: Final = 1.0
"""Seconds after which a follower reads again although nothing woke it."""
GATHER: Final = 0.02
"""Seconds between reads of a log that is written all the time: a wake-up for each line would cost a processor."""
SETTLE: Final = 0.1
"""Seconds a runtime may still write to the old file after it opened the new one."""


class ReadOptions(Struct, frozen=True, kw_only=True):
    follow: bool = False
    tail: int | None = None
    """Records from the end of the current file; None = from its beginning."""
    since: int | None = None
    """Unix nanoseconds; older records are left out."""
    timestamps: bool = False
    limit_bytes: int | None = None
    stream: str | None = None
    """stdout or stderr; None = both."""


class LogSource(Protocol):
    """An open log file, plain or compressed."""

    def read(self, size: int) -> bytes: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


WHOLE: Final = {(b"stdout", b"F"), (b"stderr", b"F")}
IsRunning = Callable[[], Awaitable[bool]]


class Selection:
    """Turns raw blocks of one or more files into the requested bytes. Pure but for its memory of the last line."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._stream = options.stream.encode() if options.stream else None
        self._since = options.since
        """None as soon as one record was young enough: a runtime writes them in the order of time."""
        self._left = options.limit_bytes
        self._rest = b""
        self._fresh = True
        """The next record begins a line of the container's output."""

    @property
    def full(self) -> bool:
        return self._left is not None and self._left <= 0

    def take(self, block: bytes) -> bytes:
        """What whole records give; the begin of one that is not whole yet is kept for the next block."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > MAX_RECORD:
            self._rest = b""
        out = self._whole_lines(lines)
        if out is None:
            out = b"".join(self._shown(line + b"\n") for line in lines)
        if self._left is not None:
            out = out[: max(0, self._left)]
            self._left -= len(out)
        return out

    def _whole_lines(self, lines: list[bytes]) -> bytes | None:
        """The common case fast, several records in a microsecond: each is a whole line. None when one is not."""
        if self._since is not None or not self._fresh:
            return None
        records = [line.split(b" ", 3) for line in lines]
        try:
            kinds = {(stream, tag) for _, stream, tag, _ in records}
        except ValueError:  # fewer fields: an empty line, or nothing of this format
            return None
        if not kinds <= WHOLE:
            return None
        if self._stream is not None:
            records = [record for record in records if record[1] == self._stream]
        if self._options.timestamps:
            shown = [time + b" " + content for time, _, _, content in records]
        else:
            shown = [record[3] for record in records]
        shown.append(b"")  # for the last line's end
        return b"\n".join(shown)

    def drop_rest(self) -> None:
        """The file ended in the middle of a record, as after a crash of the runtime."""
        self._rest = b""

    def _shown(self, raw: bytes) -> bytes:
        line = parse_line(raw)
        if line is None or (self._stream is not None and line.stream != self._stream):
            return b""
        if self._since is not None:
            if _older(line.time, self._since):
                return b""
            self._since = None
        prefix = line.time + b" " if self._options.timestamps and self._fresh else b""
        self._fresh = not line.partial
        return prefix + line.content


def _older(stamp: bytes, since: int) -> bool:
    try:
        return parse_nano_time(stamp.decode("ascii", "replace")) < since
    except ValueError:
        return False


async def read_logs(
    path: Path,
    options: ReadOptions,
    *,
    clock: Clock,
    is_running: IsRunning,
    waker: FolderWaker | None = None,
    pace: Callable[[], float] = lambda: GATHER,
) -> AsyncGenerator[bytes, None]:
    """The requested part of the log. Raises OSError when there is none.

    `waker` serves following; without it, time does. `pace` is the seconds between reads of a log that is written all
    the time.
    """
    selection = Selection(options)
    plain = open_log(path)
    file: LogSource = plain
    read_at = 0.0
    try:
        if options.tail is not None:
            # Ten MiB may have to be searched, and to come from the disk.
            work = partial(tail_offset, plain, options.tail)
            plain.seek(await host_calls.run(work, name="searching a log", within=READ_WITHIN))
        while True:
            # Checked before reading: what the container wrote last is there when it is known to have ended.
            last_look = not options.follow or not await is_running()
            async with aclosing(_rest_of(file, selection, clock)) as pieces:
                async for piece in pieces:
                    yield piece
            if selection.full:
                return
            following = _next_file(path, file) if options.follow else None
            if following is not None:
                file, old = following, file
                async with aclosing(_last_of(old, selection, clock)) as pieces:
                    async for piece in pieces:
                        yield piece
            elif last_look:
                return
            else:
                gather = pace()
                at_most = max(RECHECK, gather)
                await (waker.wait(at_most) if waker is not None else clock.sleep(at_most))
                await clock.sleep(max(0.0, min(gather, read_at + gather - clock.monotonic())))
                read_at = clock.monotonic()
    finally:
        file.close()


async def _rest_of(file: LogSource, selection: Selection, clock: Clock) -> AsyncGenerator[bytes, None]:
    # What a follower reads was written a moment ago and is in memory; only after a full block is there so much that
    # it may have to come from the disk, for which nothing else should wait.
    size, found = BLOCK, b"" if selection.full else file.read(BLOCK)
    while found:
        for at in range(0, len(found), BLOCK):
            if piece := selection.take(found[at : at + BLOCK]):
                yield piece
            if selection.full:
                return
            await clock.sleep(0)  # a big log must not hold up the pods
        size = AHEAD if len(found) == size else BLOCK
        if size == AHEAD:
            found = await host_calls.run(partial(file.read, size), name="reading a container log", within=READ_WITHIN)
        else:
            found = file.read(size)


async def _last_of(old: LogSource, selection: Selection, clock: Clock) -> AsyncGenerator[bytes, None]:
    """The end of a file that was rotated away; the runtime may write to it for a moment more."""
    try:
        await clock.sleep(SETTLE)
        async with aclosing(_rest_of(old, selection, clock)) as pieces:
            async for piece in pieces:
                yield piece
    finally:
        selection.drop_rest()
        old.close()


# --- which file comes next -------------------------------------------------------------------------


def _next_file(path: Path, file: LogSource) -> LogSource | None:
    """The file that follows the one being read, opened; None while there is none."""
    name = _name_of(file)
    try:
        candidates = [*later_files(path, name), path]
    except FileNotFoundError:
        return None  # the whole folder is gone
    for candidate in candidates:
        try:
            opened = open_log(candidate)
        except OSError:
            continue  # compressed, removed or not yet made: the next one will do
        if candidate.name.endswith(COMPRESSED):
            return _Unpacked(opened, candidate.name)
        if os.path.sameopenfile(opened.fileno(), file.fileno()):
            opened.close()
            continue
        return opened
    return None


def later_files(path: Path, name: str) -> list[Path]:
    """Rotated files newer than the one called `name`, oldest first. Each counts once, compressed or not."""
    own = name.removesuffix(COMPRESSED)
    if not own.startswith(path.name + "."):
        return []
    later: dict[str, str] = {}
    for each in rotated_names(path):
        plain = each.removesuffix(COMPRESSED)
        if not each.endswith(TEMPORARY) and plain > own:
            # Both exist for a moment; the plain one is whole in any case.
            later[plain] = min(each, later.get(plain, each))
    return [path.with_name(each) for each in later.values()]


def _name_of(file: LogSource) -> str:
    """What an open file is called now; it may have been renamed or removed since it was opened."""
    if isinstance(file, _Unpacked):
        return file.name
    return os.path.basename(os.readlink(f"/proc/self/fd/{file.fileno()}").removesuffix(" (deleted)"))


class _Unpacked:
    """A compressed log. One that is damaged ends where the damage begins."""

    def __init__(self, packed: BinaryIO, name: str) -> None:
        self.name = name
        self._packed = packed
        self._plain = gzip.GzipFile(fileobj=packed, mode="rb")

    def read(self, size: int) -> bytes:
        try:
            return self._plain.read(size)
        except (OSError, EOFError, zlib.error):
            return b""

    def fileno(self) -> int:
        return self._packed.fileno()

    def close(self) -> None:
        self._plain.close()
        self._packed.close()


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
