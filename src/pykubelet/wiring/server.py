"""The node's server with everything it shows, and the figures behind it.

Made only where `Edges.serve` says how to serve; tests of pods on fakes have no server. Figures are read when
somebody asks and shared for a second, so a node that nobody scrapes pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pykubelet.kit.metrics import Registry
from pykubelet.pleg.cache import PodStatusCache
from pykubelet.pleg.relist import Pleg
from pykubelet.pods.manager import PodManager
from pykubelet.probes.manager import ProbeManager
from pykubelet.runtime.spec.node import NodeSpec
from pykubelet.server.app import NodeServer, ServerViews
from pykubelet.server.configz import Explain
from pykubelet.server.health import HealthCheck
from pykubelet.server.make import flag_values, make_server, set_verbosity
from pykubelet.server.routing import Route
from pykubelet.settings.settings import Settings
from pykubelet.stats.inventory import GroupNames
from pykubelet.stats.provider import StatsProvider, StatsSettings
from pykubelet.stats.source import NodeStatsSource
from pykubelet.stats.volumes import VolumeFigures
from pykubelet.status.manager import StatusManager
from pykubelet.sync.runtime_state import RuntimeState
from pykubelet.volumes.manager import VolumeManager
from pykubelet.wiring.edges import Edges, ServeEdges


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNeeds:
    pods: PodManager
    statuses: StatusManager
    cache: PodStatusCache
    pleg: Pleg
    runtime: RuntimeState
    probes: ProbeManager
    volumes: VolumeManager
    metrics: Registry
    spec: NodeSpec
    started: float
    explain: Explain | None = None
    local_routes: Sequence[Route] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    server: NodeServer
    figures: VolumeFigures


def server_parts(settings: Settings, edges: Edges, serve: ServeEdges, needs: ServerNeeds) -> ServerParts:
    node_name = settings.node_name(edges.machine.hostname)
    figures = VolumeFigures(
        meter=needs.volumes,
        pods=needs.pods,
        clock=edges.clock,
        metrics=needs.metrics,
        period=settings.config.volumes.volume_stats_agg_period,
    )
    stats = _stats(settings, edges, serve, needs, figures, node_name)
    views = ServerViews(
        pods=needs.pods,
        status=needs.statuses.get,
        seen=needs.cache.last_known,
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
    return ServerParts(server=server, figures=figures)


def _stats(
    settings: Settings,
    edges: Edges,
    serve: ServeEdges,
    needs: ServerNeeds,
    figures: VolumeFigures,
    node_name: str,
) -> NodeStatsSource:
    spec, cgroups = needs.spec, settings.config.cgroups
    named = {
        "kubelet": cgroups.kubelet_cgroups,
        "runtime": settings.flags.runtime_cgroups,
        "misc": cgroups.system_cgroups,
    }
    provider = StatsProvider(
        cgroups=serve.cgroup_stats,
        host=serve.node_stats,
        cri=edges.cri,
        pods=needs.pods,
        statuses=needs.cache,
        paths=edges.paths,
        clock=edges.clock,
        settings=StatsSettings(
            groups=GroupNames(root=spec.cgroup_root, driver=spec.cgroup_driver, per_qos=spec.cgroups_per_qos),
            system_groups={name: group for name, group in named.items() if group},
        ),
    )
    stats = NodeStatsSource(
        provider=provider,
        volumes=figures,
        machine=edges.machine,
        node_name=node_name,
        version=settings.kubernetes_version,
        cpu_layout=serve.node_stats.cpu_layout(),
        disk_names=serve.node_stats.device_name,
    )
    stats.add_instruments(needs.metrics, cgroup_version=serve.cgroup_stats.version)
    return stats
