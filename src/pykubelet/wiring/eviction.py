"""The node guards itself: figures, eviction with its alarms, and the watch for out-of-memory kills.

Made only where `Edges.guard` says how to measure; tests of pods on fakes need none of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.cm.allocation import Allocations
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.edges import Edges, GuardEdges
from pykubelet.eviction.local_storage import StorageLimits, limits_disk
from pykubelet.eviction.manager import EvictionManager, EvictionRules
from pykubelet.eviction.pressure import PressureBoard
from pykubelet.eviction.thresholds import ALLOCATABLE, MEMORY, Reclaim
from pykubelet.images.gc import ImageGc
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Service
from pykubelet.model.events import AnnotatedSink
from pykubelet.model.life import LifeRecorder
from pykubelet.node.oom import OomWatcher, OwnScore
from pykubelet.pods.table import PodTable
from pykubelet.runtime.gc import ContainerGc
from pykubelet.settings.settings import Settings
from pykubelet.settings.thresholds import eviction_thresholds
from pykubelet.stats.provider import StatsProvider, StatsSettings
from pykubelet.stats.signals import EvictionFigures
from pykubelet.stats.snapshot import GroupNames
from pykubelet.stats.volumes import VolumeFigures
from pykubelet.sync.evict import PodEvictor
from pykubelet.sync.worker import PodWorkers
from pykubelet.volumes.manager import VolumeManager


class GuardNeeds(Struct, frozen=True, kw_only=True):
    table: PodTable
    volumes: VolumeManager
    workers: PodWorkers
    containers: ContainerGc
    images: ImageGc
    allocations: Allocations
    spec: NodeSpec
    board: PressureBoard
    events: AnnotatedSink
    recorder: LifeRecorder
    metrics: Registry


class GuardParts(Struct, frozen=True, kw_only=True):
    provider: StatsProvider
    volumes: VolumeFigures
    eviction: EvictionManager
    services: Sequence[Service]


def guard_parts(settings: Settings, edges: Edges, guard: GuardEdges, needs: GuardNeeds) -> GuardParts:
    spec = needs.spec
    groups = GroupNames(root=spec.cgroup_root, driver=spec.cgroup_driver, per_qos=spec.cgroups_per_qos)
    volumes = VolumeFigures(
        meter=needs.volumes,
        pods=needs.table,
        clock=edges.clock,
        metrics=needs.metrics,
        period=settings.config.volumes.volume_stats_agg_period,
        is_limited=limits_disk if settings.config.volumes.local_storage_capacity_isolation else lambda pod: False,
    )
    provider = _provider(settings, edges, guard, needs, groups)
    eviction = _eviction(settings, edges, guard, needs, provider, volumes, groups)
    score = settings.config.node.oom_score_adj
    watcher = OomWatcher(
        log=guard.kernel_log,
        alarms=guard.alarms,
        groups=guard.cgroups,
        pods_group=groups.pods(),
        group_of=groups.pod,
        table=needs.table,
        events=needs.events,
        recorder=needs.recorder,
        clock=edges.clock,
        own=OwnScore(wanted=score, set=guard.set_oom_score) if guard.set_oom_score is not None else None,
    )
    return GuardParts(provider=provider, volumes=volumes, eviction=eviction, services=[volumes, eviction, watcher])


def _provider(
    settings: Settings, edges: Edges, guard: GuardEdges, needs: GuardNeeds, groups: GroupNames
) -> StatsProvider:
    cgroups = settings.config.cgroups
    named = {
        "kubelet": cgroups.kubelet_cgroups or guard.own_group,
        "runtime": settings.flags.runtime_cgroups,
        "misc": cgroups.system_cgroups,
    }
    return StatsProvider(
        cgroups=guard.cgroups,
        host=guard.host,
        cri=edges.cri,
        pods=needs.table,
        statuses=needs.table,
        paths=edges.paths,
        clock=edges.clock,
        settings=StatsSettings(groups=groups, system_groups={name: group for name, group in named.items() if group}),
    )


def _eviction(
    settings: Settings,
    edges: Edges,
    guard: GuardEdges,
    needs: GuardNeeds,
    provider: StatsProvider,
    volumes: VolumeFigures,
    groups: GroupNames,
) -> EvictionManager:
    config, clock = settings.config, edges.clock
    figures = EvictionFigures(
        provider=provider,
        volumes=volumes,
        cgroups=guard.cgroups,
        host=guard.host,
        cri=edges.cri,
        clock=clock,
        memory_bytes=edges.machine.memory_bytes,
        pods_group=groups.pods(),
        root_dir=str(edges.paths.root),
    )
    evictor = PodEvictor(
        workers=needs.workers, table=needs.table, events=needs.events, recorder=needs.recorder, clock=clock
    )

    async def remove_dead() -> None:
        await needs.containers.collect(evict_ended=True)

    async def remove_images() -> None:
        await needs.images.remove_unused()

    def active() -> Sequence[Pod]:
        return needs.allocations.active_pods()

    return EvictionManager(
        figures=figures,
        storage=StorageLimits(volumes=volumes, uses=figures, clock=clock),
        active=active,
        evictor=evictor,
        reclaimers={Reclaim.DEAD_CONTAINERS: remove_dead, Reclaim.UNUSED_IMAGES: remove_images},
        board=needs.board,
        alarms=guard.alarms,
        rules=EvictionRules(
            thresholds=eviction_thresholds(config.eviction),
            transition=config.eviction.eviction_pressure_transition_period,
            max_grace=config.eviction.eviction_max_pod_grace_period,
            pods_enforced="pods" in config.reservations.enforce_node_allocatable,
            local_storage=config.volumes.local_storage_capacity_isolation,
            groups={MEMORY: "/", ALLOCATABLE: groups.pods()},
        ),
        events=needs.events,
        clock=clock,
        metrics=needs.metrics,
    )
