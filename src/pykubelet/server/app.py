"""The node's server as one service, and how each of its listeners answers a request.

`App` finds the route, identifies the caller, checks the right, calls the handler and counts the request. The order is
upstream's: unknown paths are checked like known ones, so that unauthorized callers learn nothing. Every error becomes
a response here; details of our own mistakes go to the log, never to the caller. `NodeServer` is HTTPS with
authentication, the read-only port, health, and a local socket that serves the same paths to root without TLS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.server.admission import PendingConnections
from pykubelet.server.auth import Authenticator, Authorizer, PeerCertificate, User
from pykubelet.server.introspection import PING, HealthRoutes
from pykubelet.server.listeners import Address, Limits, Listener, LocalAddress, TcpAddress
from pykubelet.server.metrics import RequestMetrics, method_label, path_label
from pykubelet.server.request_spans import note_reply, request_span
from pykubelet.server.requests import Admit, Match, Refused, Reply, Request, Response, Route, Router, Upgrade
from pykubelet.server.routes import Handlers, Offers, health_routes, main_routes, read_only_routes
from pykubelet.server.tls import TlsFiles
from pykubelet.settings.schema_server import ServerSettings

if TYPE_CHECKING:
    from pykubelet.server.http import HttpServer

logger = logging.getLogger(__name__)

READ_WRITE, READ_ONLY, HEALTH, LOCAL = "readwrite", "readonly", "healthz", "local"

NOT_FOUND = Response.text("404 page not found\n", 404)
WRONG_METHOD = Response.text("405: Method Not Allowed\n", 405)


class Gate(Struct, frozen=True):
    """Authentication and authorization. An app without one serves every caller that can reach it."""

    authenticator: Authenticator
    authorizer: Authorizer


class App:
    def __init__(
        self, *, router: Router, gate: Gate | None, metrics: RequestMetrics, server_type: str, clock: Clock
    ) -> None:
        self.router = router
        self._gate = gate
        self._metrics = metrics
        self._server_type = server_type
        self._clock = clock
        self._scheme = "http" if gate is None else "https"
        self._trusted = gate is not None or server_type == LOCAL
        """Whether callers may decide that a trace goes on here."""
        self._heads = frozenset(_heads(router))

    async def handle(
        self, request: Request, certificate: PeerCertificate | None, admit: Admit, until_sent: ExitStack
    ) -> Reply:
        """`until_sent` is left when the reply has been sent."""
        match = self.router.find(request.method, request.path)
        long_running = "true" if match.route is not None and match.route.long_running else "false"
        labels = (long_running, method_label(request.method), path_label(request.path, self._heads), self._server_type)
        begun = self._clock.monotonic()
        self._metrics.begin(labels)
        try:
            reply = await self._respond(request, certificate, match, admit, until_sent)
            note_reply(reply)
            if isinstance(reply, Upgrade) and request.header("upgrade").lower() == "websocket":
                self._metrics.websocket(labels[2])
            return reply
        finally:
            self._metrics.end(labels, self._clock.monotonic() - begun)

    async def _respond(
        self,
        request: Request,
        certificate: PeerCertificate | None,
        match: Match,
        admit: Admit,
        until_sent: ExitStack,
    ) -> Reply:
        try:
            if self._gate is not None:
                user = await self._gate.authenticator.identify(request, certificate)
                await self._gate.authorizer.check(user, request.method, match.access)
                _note(request, user)
                admit(_tenant(match, user))
            if self._server_type != HEALTH:
                until_sent.enter_context(request_span(request, match, scheme=self._scheme, trusted=self._trusted))
            if match.route is None:
                return NOT_FOUND if match.status == 404 else WRONG_METHOD
            return await match.route.handler(replace(request, params=match.params or {}))
        except Refused as refusal:
            if refusal.status >= 500:
                logger.warning("a request failed", extra={"path": request.path[:200], "problem": refusal.text[:500]})
            return Response(status=refusal.status, body=refusal.text.encode(), headers=refusal.headers)
        except (PykubeletError, OSError) as error:
            status = 503 if isinstance(error, RuntimeDown) else 500
            kind = "the runtime" if isinstance(error, CriError) else "the agent"
            logger.warning("a request failed", extra={"path": request.path[:200], "problem": str(error), "in": kind})
            return Response.text(f"Internal Error: {error}\n", status)
        except asyncio.CancelledError:
            raise
        except Exception:  # one request's trouble; the server serves on
            logger.exception("a request failed unexpectedly", extra={"path": request.path[:200]})
            return Response.text("Internal Error: see the agent's log\n", 500)


def _tenant(match: Match, user: User) -> str:
    """The share of the requests under way this one counts against. The API server calls as one user for all."""
    namespace = (match.params or {}).get("namespace")
    return f"namespace {namespace}" if namespace else f"user {user.name}"


def _note(request: Request, user: User) -> None:
    logger.debug("request", extra={"method": request.method, "path": request.path[:200], "user": user.name})


def _heads(router: Router) -> list[str]:
    """First segments that may appear as a label; two of them for the metrics paths."""
    found = []
    for pattern in router.patterns():
        parts = pattern.strip("/").split("/")
        found.append(parts[0])
        if parts[0] == "metrics" and len(parts) > 1:
            found.append("/".join(parts[:2]))
    return found


class Https(Struct, frozen=True, kw_only=True):
    """The HTTPS listener's access control, TLS files and paths."""

    gate: Gate
    tls: TlsFiles
    offers: Offers


class Local(Struct, frozen=True, kw_only=True):
    """The local socket, and paths that it serves beside those of HTTPS."""

    socket: Path
    routes: Sequence[Route] = ()


class NodeServer:
    name = "server"

    def __init__(
        self,
        *,
        settings: ServerSettings,
        handlers: Handlers,
        metrics: Registry,
        clock: Clock,
        https: Https | None,
        local: Local | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._limits = limits or Limits()
        self._metrics = RequestMetrics(metrics)
        self.listeners: list[Listener] = []
        if https is not None:
            address = TcpAddress(settings.address, settings.port)
            self._add(READ_WRITE, address, main_routes(handlers, https.offers), gate=https.gate, tls=https.tls)
        if settings.read_only_port:
            address = TcpAddress(settings.address, settings.read_only_port)
            self._add(READ_ONLY, address, read_only_routes(handlers))
        if settings.healthz_port:
            address = TcpAddress(settings.healthz_bind_address, settings.healthz_port)
            self._add(HEALTH, address, health_routes(HealthRoutes([PING])))
        if local is not None:
            self._add(LOCAL, LocalAddress(local.socket), [*main_routes(handlers, Offers()), *local.routes])

    def _add(
        self,
        kind: str,
        address: Address,
        routes: Sequence[Route],
        *,
        gate: Gate | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        app = App(router=Router(routes), gate=gate, metrics=self._metrics, server_type=kind, clock=self._clock)
        pending_connections = PendingConnections(self._limits.pending_connections)

        def make_server(http: type[HttpServer]) -> HttpServer:
            return http(
                app=app,
                clock=self._clock,
                limits=self._limits,
                pending_connections=pending_connections,
                stream_idle=self._settings.streaming_connection_idle_timeout,
                tls=tls,
                trusted=isinstance(address, LocalAddress),
            )

        self.listeners.append(
            Listener(
                name=f"server {kind}",
                address=address,
                make_server=make_server,
                tls=tls,
                clock=self._clock,
                limits=self._limits,
                pending_connections=pending_connections,
            )
        )

    def open(self) -> None:
        """Read the certificates and take the addresses. Raises BadTls or CannotListen. `run` does it if need be."""
        try:
            for listener in self.listeners:
                listener.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()

    async def run(self) -> None:
        try:
            self.open()
            async with running(*self.listeners):
                await asyncio.Event().wait()
        finally:
            self.close()
