"""Sockets that accept callers: TCP with or without TLS, and a local one for root.

Accepting is done here, not by the HTTP library, for three reasons: each connection gets the newest certificate,
strangers are bounded so that one address cannot keep out others (admission.py), and the HTTP library is loaded only
when the first caller connects. Does not cover: HTTP and connections of known callers (http.py).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import importlib
import logging
import os
import socket
import ssl
import stat
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.tasks import TaskSet, finish
from pykubelet.model.errors import PykubeletError
from pykubelet.server.admission import PendingConnection, PendingConnections, address_of
from pykubelet.server.tls import Handshakes, TlsFiles, hand_over

if TYPE_CHECKING:
    from pykubelet.server.http import HttpServer

logger = logging.getLogger(__name__)

BACKLOG = 512
ACCEPT_AT_ONCE = 32
"""Connections accepted in one step of the loop. Not one: a crowd would keep others in the kernel's queue."""
KEEPALIVE_IDLE, KEEPALIVE_EVERY, KEEPALIVE_PROBES = 15, 15, 9
"""Upstream's: a caller whose machine vanished is noticed by the kernel after two and a half minutes. Unlike pings of
our own these are answered by a caller that is alive and does not read."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NOT_LISTENING = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP)
"""Any other error is of the connection that was to be accepted, or passes."""
PAUSE_WITHOUT_FILES = 0.1
STOP_WITHIN = 2.0
TELL_EVERY = 60.0


class CannotListen(PykubeletError):
    """The address is taken or not ours; the agent cannot do its work."""


class TcpAddress(Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class LocalAddress(Struct, frozen=True):
    """A socket in the file system that only root (or the agent's own user) may use."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Address = TcpAddress | LocalAddress


class Limits(Struct, frozen=True, kw_only=True):
    pending_connections: int = 256
    """Not authenticated yet; beyond, the address with the most loses its oldest."""
    connections: int = 1000
    """Of known callers without a request under way; beyond, the one idle for longest is closed."""
    requests: int = 2000
    """Under way for known callers, streams included; a namespace may have as many as are still free."""
    handshake: float = 5.0
    """Seconds from connecting until TLS must be set up."""
    head: float = 15.0
    """Seconds from the first byte of a request (from connecting for the first one) until its headers must be there."""
    head_bytes: int = 1024 * 1024
    """Request line and headers together; commands of exec travel in the line."""
    heads_bytes: int = 32 * 1024 * 1024
    """All headers that are not complete yet, together; beyond, the largest loses its connection."""
    fields: int = 100
    idle: float = 90.0
    """Seconds a connection may wait for its next request."""
    stalled_answer: float = 60.0
    """Seconds in which a caller takes nothing of an answer that is in memory as a whole."""
    stalled_flow: float = 4 * 3600.0
    """Seconds in which a caller takes nothing of an answer that is made as it is taken, as a log; a pager may wait."""


def open_socket(address: Address) -> socket.socket:
    """A listening socket. Raises CannotListen with the address in it."""
    try:
        if isinstance(address, LocalAddress):
            return _open_local(address.path)
        # The unspecified address means both families, as upstream's library takes it.
        if address.host in ("0.0.0.0", "::") and _has_ipv6():
            return _open_tcp(socket.AF_INET6, "::", address.port)
        return _open_tcp(socket.AF_INET6 if ":" in address.host else socket.AF_INET, address.host, address.port)
    except (OSError, OverflowError) as error:
        raise CannotListen(f"cannot listen on {address}: {getattr(error, 'strerror', None) or error}") from error


def _has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return Path("/proc/net/if_inet6").exists()


def _open_tcp(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections that are accepted inherit these.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        if family is socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind((host, port))
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


def _open_local(path: Path) -> socket.socket:
    """The caller holds the lock, so an existing socket was left by an agent that was killed."""
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # The file gets the socket's mode; the umask is of the whole process, and other threads make files meanwhile.
        os.fchmod(found.fileno(), 0o600)
        found.bind(str(path))
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


def take_lock(path: Path) -> int:
    """A descriptor that keeps other agents from this local socket until it is closed or the process ends. Raises
    CannotListen when another one has it."""
    lock = path.with_suffix(".lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.exists() and os.path.samestat(lock.stat(), os.fstat(descriptor)):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its holder removed it just then
    except BlockingIOError:
        raise CannotListen(f"cannot listen on {path}: another agent with the same root folder runs") from None
    except OSError as error:
        raise CannotListen(f"cannot listen on {path}: {error.strerror}: {error.filename or lock}") from error


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a local socket, from the kernel."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", packed)[1]
    return uid


async def _readable(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    happened: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not happened.done():
            happened.set_result(None)

    loop.add_reader(listening, wake)
    try:
        await happened
    finally:
        loop.remove_reader(listening)


class Listener:
    """One address. `open` binds, `run` serves until cancelled."""

    def __init__(
        self,
        *,
        name: str,
        address: Address,
        make_server: Callable[[type[HttpServer]], HttpServer],
        tls: TlsFiles | None,
        clock: Clock,
        limits: Limits,
        pending_connections: PendingConnections,
    ) -> None:
        """`make_server` builds the HTTP side from its class, which is loaded when the first caller comes; both count
        the same `strangers`."""
        self.name = name
        self.address = address
        self._make_server = make_server
        self._tls = tls
        self._clock = clock
        self._limits = limits
        self._socket: socket.socket | None = None
        self._lock: int | None = None
        """Held for a local socket: a second agent would take its place."""
        self._server: HttpServer | None = None
        self._pending = pending_connections
        self._tell_again = 0.0
        self._handshakes = Handshakes()

    @property
    def port(self) -> int:
        """The real one, also when 0 was configured."""
        assert self._socket is not None
        return int(self._socket.getsockname()[1])

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self) -> None:
        """Raises BadTls for certificates that cannot be used, CannotListen for an address that cannot be had."""
        if self._socket is not None:
            return
        if self._tls is not None:
            self._tls.check()
        if isinstance(self.address, LocalAddress):
            self._lock = take_lock(self.address.path)
        try:
            self._socket = open_socket(self.address)
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if isinstance(self.address, LocalAddress):
                self.address.path.unlink(missing_ok=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None and isinstance(self.address, LocalAddress):
            self.address.path.with_suffix(".lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    async def run(self) -> None:
        if self._socket is None:
            self.open()
        assert self._socket is not None
        logger.info("listening", extra={"server": self.name, "address": str(self.address)})
        try:
            async with TaskSet(self.name, on_error=self._log) as tasks:
                while True:
                    await _readable(self._socket)
                    if not self._accept(self._socket, tasks):
                        await self._clock.sleep(PAUSE_WITHOUT_FILES)
        finally:
            self.close()
            self._handshakes.close()
            if self._server is not None:
                try:
                    await finish(self._server.shutdown(STOP_WITHIN / 2), within=STOP_WITHIN)
                except TimeoutError:
                    logger.warning("a connection did not end in time", extra={"server": self.name})

    def _accept(self, listening: socket.socket, tasks: TaskSet) -> bool:
        """Accept waiting connections, without a pause in which one could be lost. False when that fails for now."""
        try:
            for _ in range(ACCEPT_AT_ONCE):
                connection, peer = listening.accept()
                connection.setblocking(False)
                self._greet(tasks, connection, address_of(peer))
        except (ConnectionError, BlockingIOError):
            return True
        except OSError as error:
            if error.errno in NOT_LISTENING:
                raise
            logger.error("no more connections can be accepted for now", extra={"error": error.strerror})
            is_full = error.errno in OUT_OF_FILES
            if is_full and not self._pending.drop_one() and self._server is not None:
                self._server.drop_longest_idle()
            return False
        return True

    def _greet(self, tasks: TaskSet, connection: socket.socket, address: str) -> None:
        pending = PendingConnection(address)
        task = tasks.spawn(self._welcome(connection, pending), name=f"{self.name} handshake")

        def ended(_: asyncio.Task[None]) -> None:
            # Here and not in the task: it may be dropped before its first step.
            if not pending.met:
                self._pending.leave(pending)
                connection.close()

        task.add_done_callback(ended)
        pending.drop = task.cancel
        if not self._pending.enter(pending) and self._clock.monotonic() >= self._tell_again:
            self._tell_again = self._clock.monotonic() + TELL_EVERY
            logger.warning("callers are refused: too many unauthenticated connections", extra={"server": self.name})

    async def _welcome(self, connection: socket.socket, pending: PendingConnection) -> None:
        server = await self._loaded_server()
        if not self._may_enter(connection):
            return
        context = self._tls.context() if self._tls is not None else None
        if self._tls is not None and context is None:
            logger.info("a caller was refused: no serving certificate available for the kubelet")
            return
        try:
            async with asyncio.timeout(self._limits.handshake):
                if context is not None:
                    hand_over(await self._handshakes.shake(connection, context, pending.address))
                await self._connect(server, connection, context, pending)
        except (OSError, TimeoutError) as error:  # SSLError is an OSError
            logger.debug("a handshake failed", extra={"server": self.name, "error": str(error)})

    async def _connect(
        self, server: HttpServer, connection: socket.socket, context: ssl.SSLContext | None, pending: PendingConnection
    ) -> None:
        pending.met = True
        handler = server.handler(pending)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: handler, connection, ssl=context)
        except BaseException:
            self._pending.leave(pending)
            handler.connection_lost(None)  # uvloop closes a plain transport without a word to its protocol
            raise

    def _may_enter(self, connection: socket.socket) -> bool:
        if isinstance(self.address, TcpAddress):
            return True
        uid = peer_uid(connection)
        if uid in (0, os.geteuid()):
            return True
        logger.warning("a caller on the local socket is not root", extra={"uid": uid})
        return False

    async def _loaded_server(self) -> HttpServer:
        if self._server is None:
            # Some 20 MiB that a node whose server is never called does not need; in a thread, for it takes a while.
            module = await host_calls.run(
                partial(importlib.import_module, "pykubelet.server.http"), name="loading the server", within=120.0
            )
            if self._server is None:
                self._server = self._make_server(module.HttpServer)
        return self._server

    def _log(self, error: BaseException) -> None:
        logger.error("a connection failed unexpectedly", extra={"server": self.name, "error": repr(error)})
