"""Reading one HTTP/1.1 answer from a wire, trusting nothing in it.

Covers the status line, headers within limits, and bodies by length, in chunks or until the end, up to a cap.
Does not cover: keep-alive, trailers (read over), compression (never asked for).
"""

from __future__ import annotations

import re
import ssl
from typing import Final

from pykubelet.clients.http.wires import Wire, os_words
from pykubelet.model.http import BodyProblem, HttpAnswer, HttpProblem

MAX_HEAD: Final = 64 * 1024
MAX_CHUNK_LINE: Final = 4096
MAX_INTERIM: Final = 5
"""How many 1xx answers may come before the real one."""
_STATUS_LINE: Final = re.compile(rb"^HTTP/(1\.[01]) (\d{3})(?: .*)?$")
_HEX: Final = re.compile(rb"^[0-9A-Fa-f]{1,15}$")
_SHOWN: Final = 80


class Reader:
    __slots__ = ("_buffer", "_wire")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._buffer = b""

    async def answer(self, max_body: int) -> HttpAnswer:
        for _ in range(MAX_INTERIM + 1):
            status, headers = await self._head()
            if not 100 <= status < 200 or status == 101:
                break
        else:
            raise HttpProblem("net/http: too many 1xx informational responses")
        try:
            body = b"" if status in (101, 204, 304) else await self._body(headers, max_body + 1)
        except (HttpProblem, OSError) as error:
            raise BodyProblem(words_of(error)) from error
        kept = body[:max_body]
        return HttpAnswer(status=status, body=kept, truncated=len(body) > len(kept), headers=tuple(headers))

    # --- head -------------------------------------------------------------------------------------

    async def _head(self) -> tuple[int, list[tuple[str, str]]]:
        while (end := _head_end(self._buffer)) is None:
            if len(self._buffer) > MAX_HEAD:
                raise HttpProblem(f"net/http: server response headers exceeded {MAX_HEAD} bytes; aborted")
            if b"\n" in self._buffer:
                _status_of(self._buffer)  # something that is not HTTP may never end its "headers"
            if not await self._more():
                raise HttpProblem("unexpected EOF" if self._buffer else "EOF")
        head, self._buffer = self._buffer[: end[0]], self._buffer[end[1] :]
        return _status_of(head), _headers_of(head)

    # --- body -------------------------------------------------------------------------------------

    async def _body(self, headers: list[tuple[str, str]], limit: int) -> bytes:
        by_name = dict(headers)
        if by_name.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunked(limit)
        length = by_name.get("content-length")
        if length is None:
            return await self._until_end(limit)
        if not (length.isascii() and length.isdigit()):
            raise HttpProblem(f'bad Content-Length "{length[:_SHOWN]}"')
        return await self._exactly(min(int(length), limit))

    async def _until_end(self, limit: int) -> bytes:
        while len(self._buffer) < limit and await self._more():
            pass
        return self._buffer[:limit]

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if not await self._more():
                raise HttpProblem("unexpected EOF")
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    async def _chunked(self, limit: int) -> bytes:
        parts: list[bytes] = []
        room = limit
        while room > 0:
            size = _chunk_size(await self._line())
            if size == 0:
                break
            parts.append(await self._exactly(min(size, room)))
            room -= len(parts[-1])
            if room > 0 and await self._line():
                raise HttpProblem("malformed chunked encoding")
        return b"".join(parts)

    async def _line(self) -> bytes:
        while (at := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_CHUNK_LINE:
                raise HttpProblem("header line too long")
            if not await self._more():
                raise HttpProblem("unexpected EOF")
        line, self._buffer = self._buffer[:at], self._buffer[at + 1 :]
        return line.rstrip(b"\r")

    async def _more(self) -> bool:
        data = await self._wire.recv()
        self._buffer += data
        return bool(data)


def words_of(error: Exception) -> str:
    """What went wrong on a wire, for people; without port numbers, which would make each text new."""
    if isinstance(error, ssl.SSLError):
        return f"tls: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return f"read: {os_words(error)}" if isinstance(error, OSError) else str(error)


def _head_end(buffer: bytes) -> tuple[int, int] | None:
    """End of the last header line and begin of the body; bare line feeds are accepted as Go accepts them."""
    found = [(at, at + len(mark)) for mark in (b"\r\n\r\n", b"\n\n") if (at := buffer.find(mark)) >= 0]
    return min(found) if found else None


def _status_of(head: bytes) -> int:
    line = head.partition(b"\n")[0].rstrip(b"\r")
    match = _STATUS_LINE.match(line)
    if match is None:
        shown = line[:_SHOWN].decode("ascii", "backslashreplace").replace('"', '\\"')
        raise HttpProblem(f'malformed HTTP response "{shown}"')
    return int(match.group(2))


def _headers_of(head: bytes) -> list[tuple[str, str]]:
    headers = []
    for line in head.split(b"\n")[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name.strip():
            shown = line[:_SHOWN].decode("ascii", "backslashreplace")
            raise HttpProblem(f"malformed MIME header line: {shown.rstrip()}")
        headers.append((name.decode("latin-1").strip().lower(), value.decode("latin-1").strip()))
    return headers


def _chunk_size(line: bytes) -> int:
    size = line.partition(b";")[0].strip()
    if not _HEX.match(size):
        raise HttpProblem("invalid byte in chunk length")
    return int(size, 16)
