"""Builds eviction: the manager, what it measures with, and what it reclaims before it evicts a pod."""

from __future__ import annotations

from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.eviction.local_storage import StorageLimits
from pykubelet.eviction.manager import EvictionManager, EvictionRules, Evictor
from pykubelet.eviction.stats import EvictionStats
from pykubelet.eviction.thresholds import ALLOCATABLE, MEMORY, Reclaim
from pykubelet.kit.tasks import Services
from pykubelet.node.conditions import NodeConditions
from pykubelet.node.oom import OomWatcher
from pykubelet.pods.table import PodTable
from pykubelet.runtime.build import ContainerRuntime
from pykubelet.settings.thresholds import eviction_thresholds
from pykubelet.stats.build import Stats


def build(
    ctx: Context,
    edges: Edges,
    table: PodTable,
    stats: Stats | None,
    conditions: NodeConditions,
    runtime: ContainerRuntime,
    evictor: Evictor,
) -> Services:
    """Build the eviction manager and the watcher of OOM kills; none for an agent that does not watch its node."""
    guard = edges.guard
    if guard is None or stats is None:
        return Services()
    measured = EvictionStats(
        stats,
        guard,
        cri=edges.cri,
        clock=ctx.clock,
        memory_bytes=edges.machine.memory_bytes,
        root_dir=str(edges.paths.root),
    )

    async def remove_dead_containers() -> None:
        await runtime.gc.collect(evict_ended=True)

    async def remove_unused_images() -> None:
        await runtime.images.gc.remove_unused()

    manager = EvictionManager(
        ctx,
        stats=measured,
        storage=StorageLimits(stats=measured, volumes=stats.volumes, clock=ctx.clock),
        evictor=evictor,
        reclaimers={Reclaim.DEAD_CONTAINERS: remove_dead_containers, Reclaim.UNUSED_IMAGES: remove_unused_images},
        conditions=conditions,
        alarms=guard.alarms,
        rules=eviction_rules(ctx, stats),
    )
    oom = OomWatcher(ctx, guard, cgroups=stats.cgroups, table=table)
    return Services(managers=[*stats.services.managers, manager, oom])


def eviction_rules(ctx: Context, stats: Stats) -> EvictionRules:
    config = ctx.settings.config
    return EvictionRules(
        thresholds=eviction_thresholds(config.eviction),
        transition=config.eviction.eviction_pressure_transition_period,
        max_grace=config.eviction.eviction_max_pod_grace_period,
        pods_enforced="pods" in config.reservations.enforce_node_allocatable,
        local_storage=config.volumes.local_storage_capacity_isolation,
        groups={MEMORY: "/", ALLOCATABLE: stats.cgroups.pods()},
    )
