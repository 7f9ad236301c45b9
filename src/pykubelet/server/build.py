"""Build the node's server with everything it shows, and the services on local sockets.

A node without an API server cannot check tokens and rights: if the settings want that, which is their default, the
HTTPS server stays off with a warning and the local socket serves alone. Everything else that cannot work is an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.certs.build import SERVING_PREFIX
from pykubelet.certs.self_signed import ensure_self_signed
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.kit.clock import Clock
from pykubelet.kit.log import set_verbosity
from pykubelet.kit.tasks import Services
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.server.app import Gate, Https, Local, NodeServer
from pykubelet.server.auth import Authenticator, Reviewer, make_authorizer
from pykubelet.server.introspection import LOG, PING, ConfigRoutes, DebugRoutes, HealthCheck, HealthRoutes
from pykubelet.server.local import InPlaceRestart, LocalRoutes, ShutdownRoutes
from pykubelet.server.logs import ContainerLogs
from pykubelet.server.metrics import MetricRoutes, add_agent_metrics
from pykubelet.server.node_logs import SystemLogs
from pykubelet.server.pod_resources import PodResources, PodResourcesServer
from pykubelet.server.pods import PodRoutes
from pykubelet.server.pods_api import PodFeed, PodsServer
from pykubelet.server.profiles import LoopStalls
from pykubelet.server.routes import Handlers, Offers
from pykubelet.server.streams import StreamRoutes
from pykubelet.server.tls import FindServing, Reload, ServingFiles, TlsFiles, tls_rules
from pykubelet.settings.gates import Gates
from pykubelet.settings.node_flags import NodeFlags
from pykubelet.settings.schema_server import ServerSettings
from pykubelet.settings.settings import Settings
from pykubelet.stats.build import Stats, shown
from pykubelet.stats.source import NodeStatsSource
from pykubelet.sync.build import Subsystems, Sync

logger = logging.getLogger(__name__)

BOOTSTRAPPED = f"{SERVING_PREFIX}-current.pem"


class Server(Struct, frozen=True, kw_only=True):
    node_server: NodeServer | None
    """None for an agent that serves nothing."""
    services: Services
    pod_feed: PodFeed | None
    """What the Pods service shows; None when its gate is off."""

    def open(self) -> None:
        if self.node_server is not None:
            self.node_server.open()


def build(
    ctx: Context, edges: Edges, events: EventBroadcaster, served: Subsystems, sync: Sync, stats: Stats | None
) -> Server:
    """Raises PykubeletError for settings that cannot work."""
    feed = PodFeed(served.table) if ctx.settings.gates.enabled("PodsAPI") else None
    if edges.serve is None or stats is None:
        return Server(node_server=None, services=Services(), pod_feed=feed)
    table, pleg, runtime, shutdown = served.table, served.pleg, served.runtime, sync.shutdown
    settings, kube = ctx.settings, edges.cluster.client if edges.cluster is not None else None
    server = servable(settings.config.server, alone=kube is None)
    reviewer = Reviewer(kube=kube, clock=ctx.clock) if kube is not None else None
    serving = serving_files(settings, ctx.node_name, [str(ip) for ip in settings.node_ips])
    local = None
    if edges.serve.local_socket is not None:
        routes = LocalRoutes(
            table=table,
            pods=served.explainer,
            events=events,
            restarts=InPlaceRestart(
                pleg=pleg, stopper=runtime.stopper, table=table, forget_crashes=runtime.backoff.forget
            ),
            images=edges.cri,
            about=_about(ctx, edges, served.runtime_state),
            clock=ctx.clock,
        )
        turning_off = ShutdownRoutes(manager=shutdown.manager, periods=shutdown.periods)
        local = Local(socket=edges.serve.local_socket, routes=[*routes.routes(), *turning_off.routes()])
    stalls = LoopStalls(ctx.clock) if settings.config.server.enable_contention_profiling else None
    health = HealthRoutes(
        [
            *(PING, LOG),
            HealthCheck("syncloop", served.runtime_state.runtime_problem),
            HealthCheck("pleg", lambda: "" if pleg.healthy()[0] else pleg.healthy()[1]),
        ]
    )
    node_server = NodeServer(
        settings=server,
        handlers=_handlers(ctx, edges, served, health, shown(ctx, edges, edges.serve, stats), stalls),
        metrics=ctx.metrics,
        clock=ctx.clock,
        https=https(server, settings.gates, ctx.node_name, reviewer, serving, ctx.clock),
        local=local,
    )
    pod_resources = PodResourcesServer(
        socket=edges.paths.root / "pod-resources" / "kubelet.sock",
        resources=PodResources(
            active=table.active_pods,
            known=table.pods,
            assigned=served.cm.assigned,
            lists_active=settings.gates.enabled("KubeletPodResourcesListUseActivePods"),
        ),
        clock=ctx.clock,
        metrics=ctx.metrics,
    )
    add_agent_metrics(ctx.metrics, settings)
    services = Services(producers=[pod_resources, node_server, *([stalls] if stalls else [])])
    if feed is not None:
        socket = edges.paths.root / "pods-api" / "pods-api.sock"
        services.producers.append(PodsServer(socket=socket, feed=feed, clock=ctx.clock, metrics=ctx.metrics))
    return Server(node_server=node_server, services=services, pod_feed=feed)


def https(
    settings: ServerSettings,
    gates: Gates,
    node_name: str,
    reviewer: Reviewer | None,
    serving: FindServing,
    clock: Clock,
) -> Https | None:
    """None when HTTPS is switched off. Without a `reviewer` there is no API server to ask about tokens and rights."""
    if not settings.enable_server:
        return None
    gate = Gate(
        Authenticator(settings=settings.authentication, reviewer=reviewer, clock=clock),
        make_authorizer(settings=settings.authorization, reviewer=reviewer, node_name=node_name, clock=clock),
    )
    ca = settings.authentication.x509.client_ca_file
    # What the cluster's signer gives is always followed.
    by_signer = settings.server_tls_bootstrap
    reload = Reload(
        certificate=by_signer or gates.enabled("ReloadKubeletServerCertificateFile"),
        client_ca=gates.enabled("ReloadKubeletClientCAFile"),
    )
    tls = TlsFiles(rules=tls_rules(settings), serving=serving, client_ca=Path(ca) if ca else None, reload=reload)
    return Https(gate=gate, tls=tls, offers=Offers.of(settings, gates))


def _handlers(
    ctx: Context,
    edges: Edges,
    served: Subsystems,
    health: HealthRoutes,
    stats: NodeStatsSource,
    stalls: LoopStalls | None,
) -> Handlers:
    settings, clock, cri, table = ctx.settings, ctx.clock, edges.cri, served.table
    gates = settings.gates
    return Handlers(
        pods=PodRoutes(table=table, runtime=cri, checkpoints=edges.paths.checkpoints, clock=clock),
        logs=ContainerLogs(
            table=table, runtime=cri, clock=clock, split_streams=gates.enabled("PodLogsQuerySplitStreams")
        ),
        streams=StreamRoutes(table=table, runtime=cri, translate=gates.enabled("ExtendWebSocketsToKubelet")),
        health=health,
        metrics=MetricRoutes(
            agent=ctx.metrics, probes=served.probes.metrics.expose, health=health.problems, stats=stats
        ),
        configs=ConfigRoutes(
            configz=settings.configz,
            flags=lambda: flag_values(settings.flags),
            explain=served.explainer,
            version=settings.kubernetes_version,
            started=ctx.started,
            clock=clock,
        ),
        system_logs=SystemLogs(root=Path("/var/log"), query_enabled=settings.config.server.enable_system_log_query),
        debug=DebugRoutes(set_verbosity=set_verbosity, clock=clock, stalls=stalls.shown if stalls else None),
    )


def _about(ctx: Context, edges: Edges, runtime: RuntimeState) -> Callable[[], dict[str, Any]]:
    def about() -> dict[str, Any]:
        unreadable = edges.cluster.client.unreadable.now() if edges.cluster is not None else ()
        return {
            "node": ctx.node_name,
            "pid": os.getpid(),
            "version": ctx.settings.kubernetes_version,
            "started": ctx.started,
            "runtime": edges.runtime_name,
            "endpoint": ctx.settings.config.runtime.container_runtime_endpoint,
            "runtimeProblem": "" if runtime.is_up() else runtime.runtime_problem() or "does not answer",
            "networkProblem": runtime.network_problem(),
            "unreadable": [f"{each.shown}: {each.why}" for each in unreadable],
        }

    return about


def servable(settings: ServerSettings, *, alone: bool) -> ServerSettings:
    """The settings without an HTTPS server that could let no caller in."""
    needs_api_server = settings.authentication.webhook.enabled or settings.authorization.mode == "Webhook"
    if not (alone and needs_api_server and settings.enable_server):
        return settings
    logger.warning(
        "the HTTPS server stays off: without an API server tokens and rights cannot be checked; to have it, set "
        "authentication.webhook.enabled to false, authentication.x509.clientCAFile and authorization.mode AlwaysAllow"
    )
    return replace(settings, enable_server=False)


def serving_files(settings: Settings, host: str, ips: Sequence[str]) -> FindServing:
    """Upstream's order: the cluster's signer, the operator, self-signed. Nothing is made before it is used."""
    server, folder = settings.config.server, Path(settings.flags.cert_dir)
    if server.server_tls_bootstrap:
        current = folder / BOOTSTRAPPED
        return lambda: ServingFiles(current, current) if current.exists() else None
    if server.tls_cert_file:
        given = ServingFiles(Path(server.tls_cert_file), Path(server.tls_private_key_file))
        return lambda: given
    made: list[ServingFiles] = []

    def own() -> ServingFiles:
        if not made:
            made.append(ServingFiles(*ensure_self_signed(folder, host, ips)))
        return made[0]

    return own


def flag_values(flags: NodeFlags) -> Mapping[str, str]:
    """The command line's flags, for /flagz."""
    return {name.replace("_", "-"): str(getattr(flags, name)) for name in flags.__struct_fields__}
