"""A TLS session after its handshake: records without data are bounded, whatever carries something comes through."""

from __future__ import annotations

import ssl
from typing import Any, cast

import pytest

from pykubelet.server.tls import FinishedTls

NOTHING = b""


class Session:
    """Takes the records of its buffer one by one; those without content are work for it, and nothing for the reader."""

    def __init__(self, incoming: ssl.MemoryBIO) -> None:
        self._incoming = incoming
        self.worked = 0

    def pending(self) -> int:
        return 0

    def read(self, most: int) -> bytes:
        while header := self._incoming.read(5):
            self.worked += 1
            if content := self._incoming.read(int.from_bytes(header[3:])):
                return content
        raise ssl.SSLWantReadError


def record(content: bytes) -> bytes:
    return b"\x17\x03\x03" + len(content).to_bytes(2, "big") + content


def finished(behind_the_handshake: bytes = b"") -> tuple[FinishedTls, Session, ssl.MemoryBIO]:
    incoming, from_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(behind_the_handshake)
    session = Session(incoming)
    tls = FinishedTls(cast(Any, session), incoming, ssl.MemoryBIO())
    tls.join(from_peer, ssl.MemoryBIO())
    return tls, session, from_peer


@pytest.mark.parametrize("behind", [True, False])
def test_records_that_carry_nothing_end_the_connection(behind: bool) -> None:
    """Each change of keys costs more than the bytes that ask for it; no caller needs more than a few."""
    flood = record(NOTHING) * 10_000
    tls, session, from_peer = finished(flood if behind else b"")
    if not behind:
        from_peer.write(flood)
    with pytest.raises(ssl.SSLError, match="without data"):
        tls.read(1 << 18)
    assert session.worked < 100


def test_a_few_among_much_data_do_no_harm() -> None:
    tls, _, from_peer = finished()
    for _ in range(100):
        from_peer.write(record(NOTHING) + record(b"data") * 20)
        for _ in range(20):
            assert tls.read(1 << 18) == b"data"
    with pytest.raises(ssl.SSLWantReadError):
        tls.read(1 << 18)


def test_as_many_as_there_is_data_are_too_many() -> None:
    tls, session, from_peer = finished()
    from_peer.write((record(NOTHING) + record(b"x")) * 10_000)
    with pytest.raises(ssl.SSLError, match="without data"):
        for _ in range(10_000):
            tls.read(1 << 18)
    assert session.worked < 200


def test_records_that_come_in_pieces_are_put_together() -> None:
    tls, _, from_peer = finished(record(b"first")[:3])
    got = b""
    for byte in record(b"first")[3:] + record(b"second") * 50:
        from_peer.write(bytes([byte]))
        try:
            got += tls.read(1 << 18)
        except ssl.SSLWantReadError:
            continue
    assert got == b"first" + b"second" * 50
    assert tls.pending() == 0
