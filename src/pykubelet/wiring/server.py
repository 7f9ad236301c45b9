"""The node's server with everything it shows, and the figures behind it.

Made only where `Edges.serve` says how to serve; tests of pods on fakes have no server. Figures are read when
somebody asks and shared for a second, so a node that nobody scrapes pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from pykubelet.edges import Edges, ServeEdges
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Service
from pykubelet.model.assigned import Assigned
from pykubelet.pleg.pleg import Pleg
from pykubelet.pods.table import PodTable
from pykubelet.probes.manager import ProbeManager
from pykubelet.server.app import NodeServer, ServerViews
from pykubelet.server.configz import Explain
from pykubelet.server.health import HealthCheck
from pykubelet.server.make import flag_values, make_server, set_verbosity
from pykubelet.server.pod_resources import ActivePods, PodResourcesServer
from pykubelet.server.routing import Route
from pykubelet.settings.settings import Settings
from pykubelet.stats.provider import StatsProvider
from pykubelet.stats.source import NodeStatsSource
from pykubelet.stats.volumes import VolumeFigures
from pykubelet.status.manager import StatusManager
from pykubelet.sync.runtime_state import RuntimeState


class ServerNeeds(Struct, frozen=True, kw_only=True):
    table: PodTable
    statuses: StatusManager
    pleg: Pleg
    runtime: RuntimeState
    probes: ProbeManager
    metrics: Registry
    provider: StatsProvider
    volume_figures: VolumeFigures
    started: float
    explain: Explain | None = None
    local_routes: Sequence[Route] = ()
    active: ActivePods
    """Pods that may hold something of the machine."""
    assigned: Assigned = field(default_factory=Assigned)
    """Who hands out CPUs, memory and devices to single containers; each manager that does takes its place here."""


class ServerParts(Struct, frozen=True, kw_only=True):
    server: NodeServer
    pod_resources: PodResourcesServer

    @property
    def services(self) -> list[Service]:
        return [self.pod_resources, self.server]


def server_parts(settings: Settings, edges: Edges, serve: ServeEdges, needs: ServerNeeds) -> ServerParts:
    node_name = settings.node_name(edges.machine.hostname)
    stats = _stats(settings, edges, serve, needs, node_name)
    views = ServerViews(
        pods=needs.table,
        status=needs.statuses.get,
        seen=needs.table.runtime_status,
        runtime=edges.cri,
        metrics=needs.metrics,
        probe_metrics=needs.probes.metrics.expose,
        configz=settings.configz,
        flags=lambda: flag_values(settings.flags),
        health=[
            HealthCheck("syncloop", needs.runtime.runtime_problem),
            HealthCheck("pleg", lambda: "" if needs.pleg.healthy()[0] else needs.pleg.healthy()[1]),
        ],
        explain=needs.explain,
        stats=stats,
        set_verbosity=set_verbosity,
        checkpoints=edges.paths.checkpoints,
        version=settings.kubernetes_version,
        started=needs.started,
    )
    server = make_server(
        settings=settings,
        views=views,
        node_name=node_name,
        node_ips=[str(ip) for ip in settings.node_ips],
        clock=edges.clock,
        kube=edges.cluster.client if edges.cluster is not None else None,
        local_socket=serve.local_socket,
        local_routes=needs.local_routes,
    )
    pod_resources = PodResourcesServer(
        socket=edges.paths.root / "pod-resources" / "kubelet.sock",
        active=needs.active,
        assigned=needs.assigned,
        clock=edges.clock,
        metrics=needs.metrics,
    )
    return ServerParts(server=server, pod_resources=pod_resources)


def _stats(
    settings: Settings,
    edges: Edges,
    serve: ServeEdges,
    needs: ServerNeeds,
    node_name: str,
) -> NodeStatsSource:
    stats = NodeStatsSource(
        provider=needs.provider,
        volumes=needs.volume_figures,
        machine=edges.machine,
        node_name=node_name,
        version=settings.kubernetes_version,
        cpu_layout=serve.node_stats.cpu_layout(),
        disk_names=serve.node_stats.device_name,
    )
    stats.add_instruments(needs.metrics, cgroup_version=serve.cgroup_stats.version)
    return stats
