"""One request and its answer on a socket: every form of body, and what is no answer."""

from __future__ import annotations

import socket
import threading

import pytest

from pykubelet.cli.http_exchange import MOST_HEADERS, BadAnswer, Response, exchange


class Peer:
    """The other end: reads a request to its end, then says what it was told to."""

    def __init__(self, answer: bytes) -> None:
        self.ours, self._theirs = socket.socketpair()
        self._answer = answer
        self.request = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._theirs:
            while b"\r\n\r\n" not in self.request:
                self.request += self._theirs.recv(65536)
            self._theirs.sendall(self._answer)

    def ask(self, method: str = "GET", body: bytes = b"") -> tuple[Response, bytes]:
        with self.ours:
            try:
                response = exchange(self.ours, method, "/pods?a=b", host="node", headers={"X-One": "1"}, body=body)
                return response, response.read()
            finally:
                self._thread.join()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (HEAD + b"Content-Length: 5\r\n\r\nhello and more", b"hello"),
        (HEAD + b"content-length: 0\r\n\r\n", b""),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: t\r\n\r\n", b"hello"),
        (HEAD + b"\r\nhello to the end", b"hello to the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_bodies_of_every_form(answer: bytes, body: bytes) -> None:
    assert Peer(answer).ask()[1] == body


def test_a_request_says_its_length_and_its_headers() -> None:
    peer = Peer(HEAD + b"Content-Length: 0\r\n\r\n")
    response, _ = peer.ask("POST", b"body")
    assert response.status == 200
    assert peer.request.startswith(b"POST /pods?a=b HTTP/1.1\r\nHost: node\r\n")
    assert b"\r\nX-One: 1\r\nContent-Length: 4\r\n\r\nbody" in peer.request
    empty = Peer(HEAD + b"Content-Length: 0\r\n\r\n")
    empty.ask("POST")
    assert b"Content-Length: 0\r\n" in empty.request


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "not complete"),
        (b"220 mail ready\r\n", "no HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "where a number belongs"),
        (HEAD + b"Content-Length: 5\r\n\r\nhel", "not complete"),
        (HEAD + b"Content-Length: many\r\n\r\n", "where a number belongs"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel", "not complete"),
        (HEAD + b"A: b\r\n" * (MOST_HEADERS + 1), "too many headers"),
        (HEAD + b"A: " + b"b" * 70_000, "endless line"),
    ],
)
def test_what_is_no_answer_is_an_error(answer: bytes, says: str) -> None:
    with pytest.raises(BadAnswer, match=says):
        Peer(answer).ask()


def test_a_line_break_is_not_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(BadAnswer, match="line break"):
        exchange(ours, "GET", "/", host="node", headers={"Authorization": "Bearer a\nX: y"}, body=b"")
