"""/logs/: files below the machine's log folder, and node log query: journal or files of named services.

A file is opened first and its real place is checked on the open descriptor, so neither `..` nor a link, not even
one swapped in between, leads out of the folder. Queries run journalctl with a deadline and a bounded output; their
limits are upstream's: four services, names of 256 characters, one file alone, 100,000 lines.
Does not cover: logs of containers (logs.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import stat
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from msgspec import Struct

from pykubelet.api.times import parse_nano_time
from pykubelet.kit.host_calls import host_calls
from pykubelet.server.requests import Refused, Reply, Request, Response, Stream

MAX_SERVICES = 4
MAX_NAME = 256
MAX_LINES = 100_000
SERVICE = re.compile(r"[a-zA-Z\-_.:0-9@]+")
BILLION = 1_000_000_000


class NodeLogQuery(Struct, frozen=True, kw_only=True):
    services: tuple[str, ...] = ()
    file: str = ""
    since: int | None = None
    """Unix seconds, as journalctl takes them with an @."""
    until: int | None = None
    tail_lines: int | None = None
    pattern: str = ""
    boot: int | None = None


def node_log_query(request: Request) -> NodeLogQuery:
    """Raises Refused: 400 for what cannot be read, 406 for what is not allowed."""
    words = [word for word in request.all("query") if word]
    files = [word for word in words if "/" in word or "\\" in word]
    query = NodeLogQuery(
        services=tuple(word for word in words if word not in files),
        file=files[0] if files else "",
        since=_time(request, "sinceTime"),
        until=_time(request, "untilTime"),
        tail_lines=_integer(request, "tailLines"),
        pattern=request.get("pattern"),
        boot=_integer(request, "boot"),
    )
    if problem := _problem(query, files):
        raise Refused(406, problem + "\n")
    return query


def _problem(query: NodeLogQuery, files: list[str]) -> str:
    options = (query.since, query.until, query.tail_lines, query.boot)
    restricted = any(option is not None for option in options) or bool(query.pattern)
    checks = [
        (not files and not query.services, "query: Required value: at least one service or file"),
        (len(files) > 1, "query: Invalid value: cannot specify more than one file"),
        (bool(files) and bool(query.services), "query: Invalid value: cannot specify a file and a service"),
        (bool(files) and restricted, "query: Invalid value: cannot specify file with other options"),
        (".." in query.file.replace("\\", "/").split("/"), "query: Invalid value: path cannot leave the log folder"),
        (len(query.services) > MAX_SERVICES, f"query: Too many: {len(query.services)}: must have at most 4 items"),
        (any(len(name) > MAX_NAME for name in query.services), "query: Too long: must have at most 256 characters"),
        (
            any(not SERVICE.fullmatch(name) or name.startswith("-") for name in query.services),
            "query: Invalid value: input contains unsupported characters",
        ),
        (
            query.since is not None and query.until is not None and query.since > query.until,
            "untilTime: Invalid value: must be after `sinceTime`",
        ),
        (
            query.tail_lines is not None and not 0 <= query.tail_lines <= MAX_LINES,
            f"tailLines: Invalid value: {query.tail_lines}: must be between 0 and 100000, inclusive",
        ),
        (query.boot is not None and query.boot > 0, f"boot: Invalid value: {query.boot}: must be less than 1"),
        ("\0" in query.pattern + query.file, "pattern: Invalid value: input contains unsupported characters"),
    ]
    return next((text for wrong, text in checks if wrong), "")


def journal_command(program: str, query: NodeLogQuery, service: str) -> list[str]:
    words = [program, "--utc", "--no-pager", "--output=short-precise"]
    if query.since is not None:
        words.append(f"--since=@{query.since}")
    if query.until is not None:
        words.append(f"--until=@{query.until}")
    if query.tail_lines is not None:
        words += ["--pager-end", f"--lines={query.tail_lines}"]
    words.append(f"--unit={service}")
    if query.pattern:
        words.append(f"--grep={query.pattern}")
    if query.boot is not None:
        words += ["--boot", str(query.boot)]
    return words


def _time(request: Request, name: str) -> int | None:
    text = request.get(name)
    if not text:
        return None
    try:
        return parse_nano_time(text) // BILLION
    except ValueError:
        raise Refused(400, f"{name}: {text[:40]!r} is not a time\n") from None


def _integer(request: Request, name: str) -> int | None:
    text = request.get(name)
    if not text:
        return None
    if not re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII):
        raise Refused(400, f"{name}: {text[:40]!r} is not a number\n")
    return int(text)


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

    async def handle(self, request: Request) -> Reply:
        path = request.params.get("path", "")
        if self._query_enabled and request.query:
            # With a query the path must be the root: the query itself says which file.
            if path not in ("", "/"):
                raise Refused(406, "path not allowed in query mode\n")
            return await self._query(node_log_query(request))
        return self._file(request, path)

    def _file(self, request: Request, path: str) -> Reply:
        try:
            descriptor = open_below(self._root, path)
        except OSError as error:
            raise _not_found(error) from None
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            try:
                if path and not path.endswith("/"):
                    location = quote(path.rpartition("/")[2]) + "/"
                    return Response(status=301, headers={"Location": location})
                return Response(body=_listing(descriptor), content_type=HTML)
            finally:
                os.close(descriptor)
        file = os.fdopen(descriptor, "rb")
        return Stream(chunks=_pieces(file, found.st_size), length=found.st_size)

    async def _query(self, query: NodeLogQuery) -> Reply:
        if query.file:
            try:
                file = open_file_below(self._root, query.file)
            except OSError as error:
                raise _not_found(error) from None
            return Stream(chunks=_pieces(file, None), content_type=PLAIN)
        return Stream(chunks=self._services(query), content_type=PLAIN)

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
    from html import escape  # a table of all entities comes with it, for a page that few ask for

    rows = "".join(f'<a href="{quote(name)}">{escape(name)}</a>\n' for name in sorted(names))
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
            # Around the reading only: a slow caller must not be interrupted from in here.
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
