"""The node's server as one service: HTTPS with authentication, the read-only port, health, and a local socket.

Everything it shows or does is handed in as a function or a small Protocol (`ServerViews`). Settings that could
never work (no way to authenticate, an unknown cipher) fail when it is made; addresses that are taken, when it
starts. The local socket serves the same paths to root without TLS, for the human commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from pykubelet.api.types import PodStatus
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.runtime_status import ContainerStatus, PodRuntimeStatus
from pykubelet.server.admission import Strangers
from pykubelet.server.auth import Authenticator
from pykubelet.server.authz import make_authorizer
from pykubelet.server.configz import ConfigRoutes, Explain
from pykubelet.server.debug import DebugRoutes
from pykubelet.server.health import LOG, PING, HealthCheck, HealthRoutes
from pykubelet.server.listeners import Address, Limits, Listener, LocalAddress, TcpAddress
from pykubelet.server.logs import ContainerLogs
from pykubelet.server.metrics import MetricRoutes, RequestMetrics, StatsSource
from pykubelet.server.pods import PodRoutes, Pods
from pykubelet.server.reviews import Reviewer
from pykubelet.server.routes import Handlers, Offers, health_routes, main_routes, read_only_routes
from pykubelet.server.routing import Route, Router
from pykubelet.server.site import Gate, Site
from pykubelet.server.streams import StreamingRuntime, StreamRoutes
from pykubelet.server.system_logs import SystemLogs
from pykubelet.server.tls import FindServing, TlsFiles, tls_rules
from pykubelet.settings.schema_server import ServerSettings

if TYPE_CHECKING:
    from pykubelet.server.http import HttpFront

READ_WRITE, READ_ONLY, HEALTH, LOCAL = "readwrite", "readonly", "healthz", "local"


class ServedRuntime(StreamingRuntime, Protocol):
    """The part of the CRI client that the server uses."""

    async def container_status(self, container_id: str) -> ContainerStatus: ...


class ServerViews(Struct, frozen=True, kw_only=True):
    """What the server shows and does, from all over the agent."""

    pods: Pods
    status: Callable[[str], PodStatus | None]
    """The newest told status of a pod, by UID."""
    seen: Callable[[str], PodRuntimeStatus]
    """The newest known runtime status of a pod, by UID."""
    runtime: ServedRuntime
    metrics: Registry
    probe_metrics: Callable[[], str]
    """The text of /metrics/probes."""
    configz: Callable[[], Mapping[str, Any]]
    flags: Callable[[], Mapping[str, str]]
    health: Sequence[HealthCheck] = ()
    """Besides `ping` and `log`."""
    explain: Explain | None = None
    stats: StatsSource | None = None
    set_verbosity: Callable[[int], None] = field(default=lambda level: None)
    checkpoints: Path
    log_root: Path = Path("/var/log")
    version: str
    started: float
    """When the agent started, in unix seconds."""


class ServerGates(Struct, frozen=True, kw_only=True):
    """Feature gates the server looks at, with upstream's defaults."""

    split_log_streams: bool = False
    translate_websockets: bool = True
    checkpoint: bool = True
    statusz: bool = True
    flagz: bool = True


class NodeServer:
    name = "server"

    def __init__(
        self,
        *,
        settings: ServerSettings,
        views: ServerViews,
        node_name: str,
        clock: Clock,
        serving: FindServing,
        reviewer: Reviewer | None = None,
        gates: ServerGates | None = None,
        local_socket: Path | None = None,
        local_routes: Sequence[Route] = (),
        limits: Limits | None = None,
    ) -> None:
        """Without a `reviewer` there is no API server to ask about tokens and rights. `local_routes` are extra
        paths of the local socket only."""
        self._settings = settings
        self._views = views
        self._clock = clock
        self._limits = limits or Limits()
        self._metrics = RequestMetrics(views.metrics)
        self._gates = gates or ServerGates()
        self._main: Router | None = None
        self._handlers = handlers = self._make_handlers()
        self.listeners: list[Listener] = []
        if settings.enable_server:
            self._add_main(handlers, node_name, reviewer, serving)
        if settings.read_only_port:
            address = TcpAddress(settings.address, settings.read_only_port)
            self._add(READ_ONLY, address, read_only_routes(handlers))
        if settings.healthz_port:
            address = TcpAddress(settings.healthz_bind_address, settings.healthz_port)
            self._add(HEALTH, address, health_routes(HealthRoutes([PING])))
        if local_socket is not None:
            routes = [*main_routes(handlers, Offers()), *local_routes]
            self._add(LOCAL, LocalAddress(local_socket), routes)

    def _add_main(self, handlers: Handlers, node_name: str, reviewer: Reviewer | None, serving: FindServing) -> None:
        settings, gates = self._settings, self._gates
        gate = Gate(
            Authenticator(settings=settings.authentication, reviewer=reviewer, clock=self._clock),
            make_authorizer(settings=settings.authorization, reviewer=reviewer, node_name=node_name, clock=self._clock),
        )
        ca = settings.authentication.x509.client_ca_file
        tls = TlsFiles(rules=tls_rules(settings), serving=serving, client_ca=Path(ca) if ca else None)
        offers = Offers.of(settings, checkpoint=gates.checkpoint, statusz=gates.statusz, flagz=gates.flagz)
        address = TcpAddress(settings.address, settings.port)
        self._main = self._add(READ_WRITE, address, main_routes(handlers, offers), gate=gate, tls=tls)

    def _add(
        self,
        kind: str,
        address: Address,
        routes: Sequence[Route],
        *,
        gate: Gate | None = None,
        tls: TlsFiles | None = None,
    ) -> Router:
        router = Router(routes)
        site = Site(router=router, gate=gate, metrics=self._metrics, server_type=kind, clock=self._clock)
        strangers = Strangers(self._limits.strangers)

        def make_front(front: type[HttpFront]) -> HttpFront:
            return front(
                site=site,
                clock=self._clock,
                limits=self._limits,
                strangers=strangers,
                stream_idle=self._settings.streaming_connection_idle_timeout,
                tls=tls,
                trusted=isinstance(address, LocalAddress),
            )

        self.listeners.append(
            Listener(
                name=f"server {kind}",
                address=address,
                make_front=make_front,
                tls=tls,
                clock=self._clock,
                limits=self._limits,
                strangers=strangers,
            )
        )
        return router

    def _make_handlers(self) -> Handlers:
        views, clock, settings = self._views, self._clock, self._settings
        health = HealthRoutes([PING, LOG, *views.health])
        return Handlers(
            pods=PodRoutes(
                pods=views.pods,
                status=views.status,
                runtime=views.runtime,
                checkpoints=views.checkpoints,
                clock=clock,
            ),
            logs=ContainerLogs(
                pods=views.pods,
                status=views.status,
                runtime=views.runtime,
                seen=views.seen,
                clock=clock,
                split_streams=self._gates.split_log_streams,
            ),
            streams=StreamRoutes(pods=views.pods, runtime=views.runtime, translate=self._gates.translate_websockets),
            health=health,
            metrics=MetricRoutes(
                agent=views.metrics, probes=views.probe_metrics, health=health.problems, stats=views.stats
            ),
            configs=ConfigRoutes(
                configz=views.configz,
                flags=views.flags,
                explain=views.explain,
                version=views.version,
                started=views.started,
                paths=lambda: self._main.patterns() if self._main is not None else [],
                clock=clock,
            ),
            system_logs=SystemLogs(root=views.log_root, query_enabled=settings.enable_system_log_query),
            debug=DebugRoutes(set_verbosity=views.set_verbosity, clock=clock),
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
