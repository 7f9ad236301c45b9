"""One request and its answer by HTTP/1.1 on a connected socket, blocking.

Python's own client brings the parser of e-mails and TLS with it, which takes longer than most commands. Covers answers
of a known length, in chunks and to the end of the connection. Does not cover redirects and connections used twice.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from io import BufferedReader

BLOCK = 64 * 1024
LONGEST_LINE = 64 * 1024
MOST_HEADERS = 200


class BadAnswer(ConnectionError):
    """What came back is no HTTP, or not all of it."""


class Response:
    """The head of an answer, and its body as it comes."""

    def __init__(self, status: int, headers: Mapping[str, str], file: BufferedReader) -> None:
        self.status = status
        self._headers = headers
        self._file = file

    def read(self) -> bytes:
        return b"".join(self.blocks())

    def blocks(self) -> Iterator[bytes]:
        """The body piece by piece, each as soon as it is here."""
        if self.status in (204, 304):
            return
        if "chunked" in self._headers.get("transfer-encoding", "").lower():
            yield from self._chunks()
        elif "content-length" in self._headers:
            yield from self._exactly(_number(self._headers["content-length"], 10))
        else:
            while block := self._file.read1(BLOCK):
                yield block

    def _chunks(self) -> Iterator[bytes]:
        while size := _number(_line(self._file).partition(";")[0], 16):
            yield from self._exactly(size)
            _line(self._file)
        while _line(self._file):  # trailers
            pass

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size > 0:
            block = self._file.read1(min(size, BLOCK))
            if not block:
                raise BadAnswer("the answer is not complete")
            size -= len(block)
            yield block


def exchange(
    connection: socket.socket, method: str, target: str, *, host: str, headers: Mapping[str, str], body: bytes
) -> Response:
    """Send the request; gives the answer when its head is here."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Accept-Encoding: identity", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise BadAnswer("a line break cannot be sent in a request")
    connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    file = connection.makefile("rb")
    while True:
        version, _, rest = _line(file).partition(" ")
        if not version.startswith("HTTP/1."):
            raise BadAnswer("the answer is no HTTP")
        status, found = _number(rest[:3], 10), _headers(file)
        if status >= 200:  # those below only say that it goes on
            return Response(status, found, file)


def _headers(file: BufferedReader) -> dict[str, str]:
    found: dict[str, str] = {}
    for _ in range(MOST_HEADERS):
        line = _line(file)
        if not line:
            return found
        name, _, value = line.partition(":")
        found[name.strip().lower()] = value.strip()
    raise BadAnswer("the answer has too many headers")


def _line(file: BufferedReader) -> str:
    line = file.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise BadAnswer("the answer is not complete" if len(line) < LONGEST_LINE else "the answer has an endless line")
    return line.decode("latin-1").rstrip("\r\n")


def _number(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise BadAnswer(f"the answer has {text[:20]!r} where a number belongs") from None
