"""/logs/: files below the machine's log folder, and node log query: journal or files of named services.

A file is opened first and its real place is checked on the open descriptor, so neither `..` nor a link, not even
one swapped in between, leads out of the folder. Queries run journalctl with a deadline and a bounded output.
Does not cover: logs of containers (logs.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import shutil
import stat
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from pykubelet.kit.host_calls import host_calls
from pykubelet.server.calls import Answer, Call, Flow, Refused, Reply
from pykubelet.server.log_query import NodeLogQuery, journal_command, node_log_query

BLOCK = 64 * 1024
MAX_ENTRIES = 10_000
QUERY_TIMEOUT = 30.0
READ_WITHIN = 30.0
HTML = "text/html; charset=utf-8"
PLAIN = "text/plain;charset=UTF-8"


def open_below(root: Path, relative: str) -> int:
    """A descriptor of a file or folder below `root`. Raises OSError; what leads outside does not exist."""
    if "\0" in relative:
        raise FileNotFoundError(relative)
    real_root = os.path.realpath(root)
    # Found first and opened for reading only when it is known to be harmless: opening a device can do things.
    found = os.open(Path(real_root, relative.lstrip("/")), os.O_PATH | os.O_CLOEXEC)
    try:
        real = os.readlink(f"/proc/self/fd/{found}")
        if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
            raise FileNotFoundError(relative)
        mode = os.fstat(found).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise FileNotFoundError(relative)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)


def open_file_below(root: Path, relative: str) -> BinaryIO:
    """A regular file below `root`. Raises OSError; a folder is none."""
    descriptor = open_below(root, relative)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(relative)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


class SystemLogs:
    def __init__(
        self,
        *,
        root: Path,
        query_enabled: bool,
        find_program: Callable[[str], str | None] = shutil.which,
    ) -> None:
        self._root = root
        self._query_enabled = query_enabled
        self._find_program = find_program

    async def handle(self, call: Call) -> Reply:
        path = call.params.get("path", "")
        if self._query_enabled and call.query:
            # With a query the path must be the root: the query itself says which file.
            if path not in ("", "/"):
                raise Refused(406, "path not allowed in query mode\n")
            return await self._query(node_log_query(call))
        return self._file(call, path)

    def _file(self, call: Call, path: str) -> Reply:
        try:
            descriptor = open_below(self._root, path)
        except OSError as error:
            raise _not_found(error) from None
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            try:
                if path and not path.endswith("/"):
                    location = quote(path.rpartition("/")[2]) + "/"
                    return Answer(status=301, headers={"Location": location})
                return Answer(body=_listing(descriptor), content_type=HTML)
            finally:
                os.close(descriptor)
        file = os.fdopen(descriptor, "rb")
        return Flow(chunks=_pieces(file, found.st_size), length=found.st_size)

    async def _query(self, query: NodeLogQuery) -> Reply:
        if query.file:
            try:
                file = open_file_below(self._root, query.file)
            except OSError as error:
                raise _not_found(error) from None
            return Flow(chunks=_pieces(file, None), content_type=PLAIN)
        return Flow(chunks=self._services(query), content_type=PLAIN)

    async def _services(self, query: NodeLogQuery) -> AsyncGenerator[bytes, None]:
        journalctl = self._find_program("journalctl")
        for service in query.services:
            known = journalctl is not None and await _knows(journalctl, service)
            if known and journalctl is not None:
                async for piece in _run(journal_command(journalctl, query, service)):
                    yield piece
                continue
            file = self._service_file(service)
            if file is None:
                yield f"failed to get logs for {service}: no journal and no log file for it\n".encode()
                continue
            async for piece in _pieces(file, None):
                yield piece

    def _service_file(self, service: str) -> BinaryIO | None:
        for candidate in (service, f"{service}.log", f"{service}/{service}.log"):
            with contextlib.suppress(OSError):
                return open_file_below(self._root, candidate)
        return None


def _not_found(error: OSError) -> Refused:
    if isinstance(error, PermissionError):
        return Refused(403, "403 Forbidden\n")
    return Refused(404, "404 page not found\n")


def _listing(descriptor: int) -> bytes:
    names = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            names.append(entry.name + "/" if entry.is_dir() else entry.name)
            if len(names) >= MAX_ENTRIES:
                break
    rows = "".join(f'<a href="{quote(name)}">{html.escape(name)}</a>\n' for name in sorted(names))
    return f"<!doctype html>\n<pre>\n{rows}</pre>\n".encode(errors="replace")


async def _pieces(file: BinaryIO, length: int | None) -> AsyncGenerator[bytes, None]:
    """The file, up to `length` bytes: what is written meanwhile was not promised."""
    left = length
    try:
        while left is None or left > 0:
            work = partial(file.read, BLOCK if left is None else min(BLOCK, left))
            block = await host_calls.run(work, name="reading a system log", within=READ_WITHIN)
            if not block:
                break
            if left is not None:
                left -= len(block)
            yield block
    finally:
        file.close()


async def _knows(journalctl: str, service: str) -> bool:
    """Whether the journal has anything of this unit."""
    command = [journalctl, "--no-pager", "--quiet", "--lines=1", f"--unit={service}"]
    found = [piece async for piece in _run(command)]
    return bool(b"".join(found).strip())


async def _run(command: list[str]) -> AsyncGenerator[bytes, None]:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except OSError as error:
        yield f"{command[0]}: {error.strerror}\n".encode()
        return
    assert process.stdout is not None
    try:
        deadline = asyncio.get_running_loop().time() + QUERY_TIMEOUT
        while True:
            # Around the reading only: a caller who takes its time must not be interrupted from in here.
            async with asyncio.timeout_at(deadline):
                block = await process.stdout.read(BLOCK)
            if not block:
                break
            yield block
    except TimeoutError:
        yield f"{command[0]} did not end within {QUERY_TIMEOUT:g} s\n".encode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
