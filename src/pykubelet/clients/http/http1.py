"""Reading one HTTP/1.1 response, trusting nothing in it.

Covers the status line, headers within limits, and bodies by length, in chunks or until the end, up to a cap; the
answer to an upgrade, which leaves what follows it unread. Does not cover: keep-alive, trailers, compression (never
requested).
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from pykubelet.model.http import BodyProblem, HttpAnswer, HttpProblem

MAX_HEAD: Final = 64 * 1024
BLOCK: Final = 64 * 1024
MAX_CHUNK_LINE: Final = 4096
MAX_INTERIM: Final = 5
"""1xx answers accepted before the real one."""
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: .*)?")
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_SHOWN: Final = 80

Headers = list[tuple[str, str]]
"""Names in lower case."""
Receive = Callable[[], Awaitable[bytes]]
"""Returns some bytes; none at the end."""


async def read_upgrade_head(reader: asyncio.StreamReader) -> tuple[bytes, int, Headers]:
    """The head of an answer as it came, its status and headers. Raises HttpProblem."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise HttpProblem(str(error)) from error
    if len(head) > MAX_HEAD:
        raise HttpProblem("head too long")
    first, *lines = head.split(b"\r\n")
    return head, _status_of(first), [_header_of(line) for line in lines if line]


async def read_body(reader: asyncio.StreamReader, headers: Headers, limit: int) -> bytes:
    """The body behind such a head, cut at `limit`. Raises HttpProblem."""
    return await ResponseReader(partial(reader.read, BLOCK)).body(headers, limit)


class ResponseReader:
    """Reads one response. `in_body` says how far it came when the caller gives up waiting."""

    __slots__ = ("_buffer", "_receive", "in_body")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._buffer = bytearray()
        self.in_body = False

    async def answer(self, max_body: int) -> HttpAnswer:
        for _ in range(MAX_INTERIM + 1):
            status, headers = await self._head()
            if not 100 <= status < 200 or status == 101:
                break
        else:
            raise HttpProblem("net/http: too many 1xx informational responses")
        self.in_body = True
        try:
            # One byte more than wanted shows whether there was more.
            body = b"" if status in (101, 204, 304) else await self.body(headers, max_body + 1)
        except (HttpProblem, OSError) as error:
            raise BodyProblem(error_text(error)) from error
        kept = body[:max_body]
        return HttpAnswer(status=status, body=kept, truncated=len(body) > len(kept), headers=tuple(headers))

    # --- head -------------------------------------------------------------------------------------

    async def _head(self) -> tuple[int, Headers]:
        room = MAX_HEAD
        line = await self._line(room)
        status = _status_of(line)
        headers: Headers = []
        while True:
            room -= len(line)
            line = await self._line(room)
            if not line:
                return status, headers
            headers.append(_header_of(line))

    # --- body -------------------------------------------------------------------------------------

    async def body(self, headers: Headers, limit: int) -> bytes:
        by_name = dict(headers)
        encoding = by_name.get("transfer-encoding", "").lower()
        if encoding == "chunked":
            return await self._chunked(limit)
        if encoding not in ("", "identity"):
            raise HttpProblem(f'unsupported transfer encoding: "{encoding[:_SHOWN]}"')
        length = by_name.get("content-length")
        if length is None:
            return await self._until_end(limit)
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            raise HttpProblem(f'bad Content-Length "{length[:_SHOWN]}"')
        return await self._exactly(min(int(length), limit))

    async def _until_end(self, limit: int) -> bytes:
        while len(self._buffer) < limit and await self._more():
            pass
        return bytes(self._buffer[:limit])

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if not await self._more():
                raise HttpProblem("unexpected EOF")
        return self._take(count)

    async def _chunked(self, limit: int) -> bytes:
        body = bytearray()
        while len(body) < limit:
            size = _chunk_size(await self._line(MAX_CHUNK_LINE))
            if size == 0:
                break
            body += await self._exactly(min(size, limit - len(body)))
            if len(body) < limit and await self._line(MAX_CHUNK_LINE):
                raise HttpProblem("malformed chunked encoding")
        return bytes(body)

    # --- bytes ------------------------------------------------------------------------------------

    async def _line(self, limit: int) -> bytes:
        """The next line without its end; bare line feeds are accepted as Go accepts them."""
        searched = 0
        while (at := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > limit:
                break
            if not await self._more():
                raise HttpProblem("unexpected EOF" if self._buffer else "EOF")
        if at < 0 or at > limit:
            raise HttpProblem(f"net/http: server response headers exceeded {MAX_HEAD} bytes; aborted")
        return self._take(at + 1).rstrip(b"\r\n")

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def _more(self) -> bool:
        data = await self._receive()
        self._buffer += data
        return bool(data)


def os_error_text(error: OSError) -> str:
    """`connection refused`, as the system says it, in lower case as Go prints it."""
    text = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
    return text[:1].lower() + text[1:]


def error_text(error: Exception) -> str:
    """The text of a connection's error; without port numbers, which would make each text new."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"tls: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return f"read: {os_error_text(error)}" if isinstance(error, OSError) else str(error)


def _status_of(line: bytes) -> int:
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise HttpProblem(f'malformed HTTP response "{_shown(line)}"')
    return int(match.group(1))


def _header_of(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    if not colon or not name.strip():
        raise HttpProblem(f'malformed MIME header line: "{_shown(line)}"')
    return name.decode("latin-1").strip().lower(), value.decode("latin-1").strip()


def _shown(line: bytes) -> str:
    return line[:_SHOWN].decode("ascii", "backslashreplace").replace('"', '\\"').replace("\x00", "\\x00")


def _chunk_size(line: bytes) -> int:
    size = line.partition(b";")[0].strip()
    if not _HEX.fullmatch(size):
        raise HttpProblem("invalid byte in chunk length")
    return int(size, 16)
