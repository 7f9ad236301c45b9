"""TLS handshakes beside the loop: their arithmetic runs in one thread of its own, by address in turn.

A stranger can have a handshake computed as often as it connects; on the loop that would be time taken from pods,
probes and the lease. The bytes are read and written on the loop, each step is computed in the thread (OpenSSL lets
Python's lock go meanwhile), and the finished connection is handed to the loop's own TLS transport, which finds its
handshake done. Does not cover: certificates and settings (tls.py), who may hold how many connections (admission.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, cast

from pykubelet.kit.tls_records import Records
from pykubelet.server.admission import Turns

BLOCK = 16 * 1024
MAX_STEPS = 32
"""Reads until the handshake must be done: real callers need two to four, unless their chain is very long."""
SPARE_RECORDS, SPARE_FOR_DATA = 32.0, 1 / 16
"""Records without data that a caller may send, and what each one with data earns it. Upstream's library allows 16
one after the other; real callers change keys after millions of records, if ever."""

_finished: ContextVar[FinishedTls | None] = ContextVar("finished_tls", default=None)


class FinishedTls:
    """A TLS session after its handshake, in the shape of an SSLObject. It was begun on buffers of its own; what the
    transport puts into and takes from its buffers is moved between the two, record by record: a change of keys costs
    many times what the bytes cost that ask for it, so a caller may send only few records that carry no data."""

    def __init__(self, session: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._session = session
        self._incoming, self._outgoing = incoming, outgoing
        self._from_peer, self._to_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._records = Records(incoming.read())
        """Not yet given to the session."""
        self._spare: float = SPARE_RECORDS

    def join(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        """These are the transport's buffers."""
        self._from_peer, self._to_peer = incoming, outgoing

    def _feed(self) -> bool:
        """Give the session the next record; False when there is none as a whole."""
        if self._from_peer.pending:
            self._records.add(self._from_peer.read())
        record = self._records.take()
        if not record:
            return False
        self._incoming.write(record)
        self._spare -= 1
        if self._spare < 0:
            raise ssl.SSLError("too many TLS records without data")
        return True

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._to_peer.write(self._outgoing.read())

    def do_handshake(self) -> None:
        self._flush()  # session tickets

    def read(self, *arguments: Any) -> Any:
        try:
            fed = 0
            while True:
                try:
                    found = self._session.read(*arguments)
                except ssl.SSLWantReadError:
                    if not self._feed():
                        raise
                    fed = 1  # the last one, should data come now
                else:
                    self._spare = min(SPARE_RECORDS, self._spare + fed + SPARE_FOR_DATA)
                    return found
        finally:
            self._flush()

    def write(self, data: Any) -> int:
        try:
            return self._session.write(data)
        finally:
            self._flush()

    def unwrap(self) -> None:
        try:
            while True:
                try:
                    self._session.unwrap()
                except ssl.SSLWantReadError:
                    if not self._feed():
                        raise
                else:
                    return
        finally:
            self._flush()

    def pending(self) -> int:
        return self._session.pending() + self._incoming.pending + len(self._records)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class ServingContext(ssl.SSLContext):
    """A context whose transports take over the session that was handed to them, if one was."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        finished = _finished.get()
        if finished is None:
            return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        finished.join(incoming, outgoing)
        return cast(ssl.SSLObject, finished)


def hand_over(finished: FinishedTls) -> None:
    """The transport that this task makes next finds this session; other tasks have contexts of their own."""
    _finished.set(finished)


class Handshakes:
    def __init__(self) -> None:
        self._turns = Turns()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="handshake")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def shake(self, connection: socket.socket, context: ssl.SSLContext, address: str) -> FinishedTls:
        """Raises OSError (SSLError is one) when it fails. Has no deadline of its own."""
        loop = asyncio.get_running_loop()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(incoming, outgoing, server_side=True)
        for _ in range(MAX_STEPS):
            received = await loop.sock_recv(connection, BLOCK)
            if not received:
                raise ConnectionResetError("the caller left during the handshake")
            incoming.write(received)
            try:
                async with self._turns.turn(address):
                    await loop.run_in_executor(self._thread, session.do_handshake)
            except ssl.SSLWantReadError:
                await loop.sock_sendall(connection, outgoing.read())
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # the alert that says why, if it fits
                    connection.send(outgoing.read())
                raise
            else:
                return FinishedTls(session, incoming, outgoing)
        raise ConnectionResetError("the handshake took too many pieces")
