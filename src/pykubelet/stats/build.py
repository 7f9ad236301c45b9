"""Builds stats: what the node, its pods and their volumes use."""

from __future__ import annotations

from msgspec import Struct

from pykubelet.cm.node_spec import NodeSpec
from pykubelet.context import Context
from pykubelet.edges import Edges, ServeEdges
from pykubelet.kit.tasks import Services
from pykubelet.model.pod_resources import limits_disk
from pykubelet.model.reasons import WARNING
from pykubelet.pods.table import PodTable
from pykubelet.stats.cadvisor import machine_lines
from pykubelet.stats.provider import StatsProvider, StatsSettings
from pykubelet.stats.runtime_metrics import RuntimeMetrics
from pykubelet.stats.snapshot import CgroupNames
from pykubelet.stats.source import NodeStatsSource
from pykubelet.stats.volumes import VolumeStatsCalculator
from pykubelet.volumes.manager import VolumeManager


class Stats(Struct, frozen=True, kw_only=True):
    provider: StatsProvider
    volumes: VolumeStatsCalculator
    cgroups: CgroupNames
    services: Services


def build(ctx: Context, edges: Edges, spec: NodeSpec, table: PodTable, volumes: VolumeManager) -> Stats | None:
    """None for an agent that does not watch its node."""
    if edges.guard is None:
        return None
    config = ctx.settings.config
    cgroups = CgroupNames(root=spec.cgroup_root, driver=spec.cgroup_driver, per_qos=spec.cgroups_per_qos)
    system = {
        "kubelet": config.cgroups.kubelet_cgroups or edges.guard.own_group,
        "runtime": ctx.settings.flags.runtime_cgroups,
        "misc": config.cgroups.system_cgroups,
    }
    provider = StatsProvider(
        edges.guard,
        cri=edges.cri,
        table=table,
        paths=edges.paths,
        clock=ctx.clock,
        settings=StatsSettings(
            cgroups=cgroups,
            system_cgroups={name: cgroup for name, cgroup in system.items() if cgroup},
            from_runtime=ctx.settings.gates.enabled("PodAndContainerStatsFromCRI"),
        ),
    )
    measured = VolumeStatsCalculator(
        meter=volumes,
        table=table,
        clock=ctx.clock,
        metrics=ctx.metrics,
        period=config.volumes.volume_stats_agg_period,
        is_limited=limits_disk if config.volumes.local_storage_capacity_isolation else lambda pod: False,
        on_abnormal=lambda pod, volume: ctx.events.pod_event(
            pod, WARNING, "VolumeConditionAbnormal", f"Volume {volume.name}: {volume.condition}"
        ),
    )
    return Stats(provider=provider, volumes=measured, cgroups=cgroups, services=Services(managers=[measured]))


def shown(ctx: Context, edges: Edges, serve: ServeEdges, stats: Stats) -> NodeStatsSource:
    """Return what the server shows of them; adds metrics about stats to the registry."""
    cores, sockets = serve.node_stats.cpu_layout()
    source = NodeStatsSource(
        provider=stats.provider,
        volumes=stats.volumes,
        machine=edges.machine,
        machine_text=machine_lines(
            edges.machine, physical_cores=cores, sockets=sockets, version=ctx.settings.kubernetes_version
        ),
        node_name=ctx.node_name,
        disk_names=serve.node_stats.device_name,
        runtime_metrics=(
            RuntimeMetrics(edges.cri) if ctx.settings.gates.enabled("PodAndContainerStatsFromCRI") else None
        ),
        shows_hidden=bool(ctx.settings.config.process.show_hidden_metrics_for_version),
    )
    source.add_instruments(ctx.metrics, cgroup_version=serve.cgroup_stats.version)
    return source
