"""TLS with a pod that has more to say to our TLS library than to us."""

from __future__ import annotations

import socket
import ssl
from typing import Any, cast

import pytest

from pykubelet.clients.http.wires import TlsWire, unverified
from pykubelet.model.http import HttpProblem

pytestmark = pytest.mark.real_loop


class Session:
    """Takes the records of its buffer one by one; those without content are work for it, and nothing for the reader."""

    def __init__(self, incoming: ssl.MemoryBIO) -> None:
        self._incoming = incoming
        self.worked = 0

    def do_handshake(self) -> None:
        return

    def read(self, most: int) -> bytes:
        while header := self._incoming.read(5):
            self.worked += 1
            if content := self._incoming.read(int.from_bytes(header[3:])):
                return content
        if self._incoming.eof:
            raise ssl.SSLZeroReturnError
        raise ssl.SSLWantReadError


class Context:
    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_hostname: str) -> Session:
        self.session = Session(incoming)
        return self.session


def record(content: bytes) -> bytes:
    return b"\x17\x03\x03" + len(content).to_bytes(2, "big") + content


async def received(sent: bytes) -> tuple[bytes, Session]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        context = Context()
        wire = TlsWire(ours, "pod", cast(Any, context))
        await wire.handshake()
        got = b""
        try:
            while data := await wire.recv():
                got += data
        except HttpProblem as problem:
            got += str(problem).encode()
        return got, context.session


async def test_an_answer_comes_through_whatever_is_between_it() -> None:
    got, _ = await received(record(b"") * 4 + (record(b"answer") * 100 + record(b"")) * 3)
    assert got == b"answer" * 300


async def test_a_pod_that_only_changes_keys_fails_its_probe() -> None:
    got, session = await received(record(b"HTTP/1.1") + record(b"") * 5000)
    assert got == b"HTTP/1.1tls: too many ignored records" and session.worked < 100


async def test_one_word_between_every_two_changes_of_keys_does_not_help() -> None:
    got, session = await received((record(b"x") + record(b"")) * 5000)
    assert got.endswith(b"too many ignored records") and session.worked < 200


def test_a_pod_cannot_ask_for_another_handshake() -> None:
    assert unverified().options & ssl.OP_NO_RENEGOTIATION
