"""Build what brings pods to what they should be: status, workers, the sync loop, housekeeping, the node's shutdown."""

from __future__ import annotations

from msgspec import Struct

from pykubelet.api_server import ApiServer
from pykubelet.clients.kube.patch import pod_status_patch
from pykubelet.cm.build import ContainerManager
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.explain.conditions import WhyNotReady
from pykubelet.explain.service import Explainer
from pykubelet.kit.tasks import Services
from pykubelet.node.build import Shutdown, build_shutdown
from pykubelet.node.conditions import NodeConditions
from pykubelet.pleg.pleg import Pleg
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.table import PodTable
from pykubelet.probes.manager import ProbeManager
from pykubelet.runtime.build import ContainerRuntime
from pykubelet.sources.build import Sources
from pykubelet.status.manager import StatusManager
from pykubelet.status.sender import StatusSender
from pykubelet.sync.evict import PodEnder, PodEvictor
from pykubelet.sync.housekeeping import Housekeeping
from pykubelet.sync.loop import SyncLoop
from pykubelet.sync.pod_metrics import PodMetrics
from pykubelet.sync.pod_sync import PodEnvironment, PodSync
from pykubelet.sync.status_maker import PodStatusMaker
from pykubelet.sync.worker import PodWorkers
from pykubelet.volumes.build import Volumes


class Subsystems(Struct, frozen=True):
    """The subsystems that syncing a pod works with."""

    table: PodTable
    conditions: NodeConditions
    sources: Sources
    pleg: Pleg
    runtime_state: RuntimeState
    api: ApiServer
    cm: ContainerManager
    volumes: Volumes
    runtime: ContainerRuntime
    probes: ProbeManager
    explainer: Explainer


class Sync(Struct, frozen=True, kw_only=True):
    statuses: StatusManager
    sender: StatusSender | None
    """None without an API server."""
    workers: PodWorkers
    loop: SyncLoop
    housekeeping: Housekeeping
    shutdown: Shutdown
    evictor: PodEvictor
    metrics: PodMetrics
    services: Services


def build(ctx: Context, edges: Edges, below: Subsystems) -> Sync:
    table, api, cm = below.table, below.api, below.cm
    statuses = StatusManager(ctx, table, status_of=api.status_of, explained=WhyNotReady(ctx, below.explainer))
    sender = _sender(ctx, table, api, cm)
    workers = PodWorkers(ctx, table=table, steps=_steps(ctx, edges, statuses, below), pleg=below.pleg)
    loop = SyncLoop(
        ctx,
        sources=below.sources.mux,
        table=table,
        cm=cm,
        workers=workers,
        statuses=statuses,
        runtime_state=below.runtime_state,
        fresh_node=api.fresh_node,
    )
    shutdown = build_shutdown(
        ctx,
        edges,
        conditions=below.conditions,
        table=table,
        ender=PodEnder(workers),
        own=api.node,
        sender=sender,
        api_pods=api.pods.all if api.pods is not None else tuple,
    )
    housekeeping = _housekeeping(ctx, edges, workers, sender, shutdown, below)
    return Sync(
        statuses=statuses,
        sender=sender,
        workers=workers,
        loop=loop,
        housekeeping=housekeeping,
        shutdown=shutdown,
        evictor=PodEvictor(ctx, workers=workers, table=table, active=cm.allocation.active_pods),
        metrics=PodMetrics(ctx, table),
        services=Services(
            sinks=[sender] if sender is not None else [],
            managers=shutdown.services.managers,
            # Stopped together with the servers: an agent whose ports are closed must not touch pods any more.
            producers=[workers, housekeeping, loop],
        ),
    )


def _sender(ctx: Context, table: PodTable, api: ApiServer, cm: ContainerManager) -> StatusSender | None:
    if api.client is None or api.pods is None:
        return None
    return StatusSender(
        ctx,
        table,
        client=api.client,
        api_pod=api.pods.get,
        make_patch=pod_status_patch,
        could_run=lambda uid: table.could_have_running_containers(uid) or cm.has_prepared_claims(uid),
    )


def _steps(ctx: Context, edges: Edges, statuses: StatusManager, below: Subsystems) -> PodSync:
    api, cm = below.api, below.cm
    maker = PodStatusMaker(
        ctx,
        edges,
        table=below.table,
        statuses=statuses,
        own_node=api.node,
        cm=cm,
        recursive_read_only=api.supports_recursive_read_only,
    )
    environment = PodEnvironment(
        ctx,
        folders=edges.folders,
        volumes=below.volumes.manager,
        cm=cm,
        mirrors=api.mirrors,
        references=api.registered,
    )
    return PodSync(
        ctx,
        runtime=below.runtime.manager,
        runtime_state=below.runtime_state,
        pleg=below.pleg,
        statuses=maker,
        probes=below.probes,
        cm=cm,
        environment=environment,
    )


def _housekeeping(
    ctx: Context,
    edges: Edges,
    workers: PodWorkers,
    sender: StatusSender | None,
    shutdown: Shutdown,
    below: Subsystems,
) -> Housekeeping:
    table, cm, volumes, runtime = below.table, below.cm, below.volumes, below.runtime

    async def remove_orphan_cgroups() -> None:
        await cm.cgroups.remove_orphans(table.uids_in_use(), still_held=volumes.manager.has_mounts)

    return Housekeeping(
        ctx,
        sources=below.sources.mux,
        table=table,
        workers=workers,
        folders=edges.folders,
        volumes=volumes.manager,
        holders=[
            *([sender] if sender is not None else []),
            below.probes,
            runtime.images.puller,
            volumes.image_volumes,
            volumes.manager,
            cm.allocation,
            cm.user_namespaces,
        ],
        chores=[
            runtime.tidy,
            remove_orphan_cgroups,
            *cm.chores,
            shutdown.sweep,
            *below.api.chores,
            *volumes.chores,
        ],
    )
