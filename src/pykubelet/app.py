"""The composition root: every component is made here, once, in dependency order, and handed what it needs.

`Edges` is everything outside this process; tests replace these and nothing else. `assemble` only stores;
nothing starts, opens or reads before `run`. Leaving `run` stops producers first, then managers, then
sinks, so that the last news still reach whoever listens. Pods keep running: only the agent leaves.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace

from pykubelet import api_server
from pykubelet.api.types import Pod
from pykubelet.certs import build as certs_build
from pykubelet.clients.kube.patch import pod_status_patch
from pykubelet.cm.admission import NodeNow
from pykubelet.cm.build import ContainerManager, plugin_services
from pykubelet.cm.build import build as build_cm
from pykubelet.cm.node_spec import node_spec
from pykubelet.cm.user_namespaces import pod_user_namespaces
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.events import build as events_build
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.eviction import build as eviction
from pykubelet.explain.build import build as build_explain
from pykubelet.explain.conditions import WhyNotReady
from pykubelet.explain.service import Explainer
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Services
from pykubelet.node.build import build as build_node
from pykubelet.node.build import build_shutdown, container_addresses
from pykubelet.node.conditions import NodeConditions
from pykubelet.node.facts import NodeSources
from pykubelet.node.oom import OomWatcher
from pykubelet.node.register import initial_info
from pykubelet.node.shutdown import ShutdownManager
from pykubelet.pleg.pleg import Pleg
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.table import PodTable
from pykubelet.probes.manager import ProbeManager
from pykubelet.reactions import connect
from pykubelet.recorder import LifeRecorder
from pykubelet.runtime.build import build as build_runtime
from pykubelet.runtime.spec.downward import PodFields
from pykubelet.server import build as server_build
from pykubelet.server.app import NodeServer
from pykubelet.server.metrics import add_agent_metrics
from pykubelet.settings.settings import Settings
from pykubelet.signals import NodeStatusChanged, Signals
from pykubelet.sources import build as sources_build
from pykubelet.sources.mux import PodMux
from pykubelet.sources.remote import ApiSource
from pykubelet.stats import build as stats
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
from pykubelet.volumes.build import build as build_volumes

logger = logging.getLogger(__name__)


class Node(Struct, kw_only=True):
    """The assembled agent: what runs, and what others may look at."""

    ctx: Context
    services: Services
    table: PodTable
    workers: PodWorkers
    statuses: StatusManager
    signals: Signals
    events: EventBroadcaster
    recorder: LifeRecorder
    runtime: RuntimeState
    pleg: Pleg
    mux: PodMux
    metrics: Registry
    probes: ProbeManager
    housekeeping: Housekeeping
    volumes: Volumes
    cm: ContainerManager
    shutdown: ShutdownManager
    explainer: Explainer
    server: NodeServer | None = None


def assemble(settings: Settings, edges: Edges) -> Node:
    clock, cri, metrics = edges.clock, edges.cri, edges.metrics
    node_name = settings.node_name(edges.machine.hostname)
    event_parts = events_build.build(
        edges.cluster.events if edges.cluster is not None else None, clock=clock, node_name=node_name, metrics=metrics
    )
    events = event_parts.recorder
    ctx = Context(
        settings=settings,
        node_name=node_name,
        clock=clock,
        events=events,
        recorder=LifeRecorder(clock),
        metrics=metrics,
    )
    recorder, table = ctx.recorder, PodTable()
    conditions = NodeConditions(ctx.signals)
    runtime_state = RuntimeState(ctx, cri)
    sources = sources_build.build(ctx, edges)
    mux = sources.mux
    pleg = Pleg(cri=cri, table=table, clock=clock, signals=ctx.signals, source=edges.event_source, metrics=metrics)
    api = (
        api_server.connect(ctx, edges.cluster, table)
        if edges.cluster is not None
        else api_server.absent(ctx, runtime_state)
    )
    spec = node_spec(settings, edges)

    def recursive_read_only(pod: Pod) -> bool:
        return runtime_state.conditions.supports_recursive_read_only(api.runtime_classes.handler_now(pod))

    local = initial_info(settings, edges.machine, spec.allocatable)
    cm = build_cm(
        ctx,
        edges,
        spec,
        table,
        node=NodeNow(
            info=lambda: api.node_info(local), pressure=conditions.pressures, shutting_down=conditions.shutting_down
        ),
        sources_ready=mux.all_ready,
        claim_objects=api.resource_claims,
    )
    volumes = build_volumes(
        ctx,
        edges,
        replace(api.volume_objects, downward=PodFields(spec.allocatable)),
        node=cm.admission.node_info,
        supports_recursive_read_only=recursive_read_only,
    )
    explainer = build_explain(ctx, api.client, table=table, volumes=volumes.manager, runtime=runtime_state)
    statuses = StatusManager(ctx, table, status_of=api.status_of, explained=WhyNotReady(ctx, explainer))
    user_namespaces = pod_user_namespaces(
        settings,
        edges,
        handlers=api.runtime_classes,
        supports=lambda handler: runtime_state.conditions.supports_user_namespaces(handler),
    )
    runtime = build_runtime(
        ctx,
        edges,
        spec,
        cm,
        table,
        pleg,
        volumes=volumes,
        user_namespaces=user_namespaces,
        references=api.references,
        handlers=api.runtime_classes,
        accounts=api.accounts,
        host_ips=container_addresses(ctx, edges, api.node),
        sources_ready=mux.all_ready,
    )
    started = clock.now()
    probes = ProbeManager(ctx, cri=cri, network=edges.network, table=table, started=started)
    maker = PodStatusMaker(
        ctx,
        edges,
        table=table,
        statuses=statuses,
        own_node=api.node,
        cm=cm,
        recursive_read_only=recursive_read_only,
    )
    environment = PodEnvironment(
        ctx,
        folders=edges.folders,
        volumes=volumes.manager,
        cm=cm,
        user_namespaces=user_namespaces,
        mirrors=api.mirrors,
        references=api.registered,
    )
    steps = PodSync(
        ctx,
        runtime=runtime.manager,
        runtime_state=runtime_state,
        pleg=pleg,
        statuses=maker,
        probes=probes,
        cm=cm,
        environment=environment,
    )
    workers = PodWorkers(ctx, table=table, steps=steps, pleg=pleg)
    loop = SyncLoop(
        ctx,
        sources=mux,
        table=table,
        cm=cm,
        workers=workers,
        statuses=statuses,
        runtime_state=runtime_state,
        fresh_node=api.fresh_node,
    )
    sender: StatusSender | None = None
    if edges.cluster is not None and api.pods is not None:
        sender = StatusSender(
            ctx,
            table,
            client=edges.cluster.client,
            api_pod=api.pods.get,
            make_patch=pod_status_patch,
            could_run=lambda uid: table.could_have_running_containers(uid) or cm.has_prepared_claims(uid),
        )

    async def remove_orphan_cgroups() -> None:
        await cm.cgroups.remove_orphans(table.uids_in_use(), still_held=volumes.manager.has_mounts)

    shutdown = build_shutdown(
        ctx,
        edges,
        conditions=conditions,
        table=table,
        ender=PodEnder(workers),
        own=api.node,
        sender=sender,
        api_pods=api.pods.all if api.pods is not None else tuple,
    )
    housekeeping = Housekeeping(
        ctx,
        sources=mux,
        table=table,
        workers=workers,
        folders=edges.folders,
        volumes=volumes.manager,
        holders=[
            *([sender] if sender is not None else []),
            probes,
            runtime.images.puller,
            volumes.image_volumes,
            volumes.manager,
            cm.allocation,
            user_namespaces,
        ],
        chores=[
            runtime.tidy,
            remove_orphan_cgroups,
            *cm.chores,
            shutdown.sweep,
            *api.chores,
            *volumes.chores,
        ],
    )

    add_agent_metrics(metrics, settings)

    handlers = {**cm.plugin_handlers, **({"CSIPlugin": volumes.csi_drivers} if volumes.csi_drivers is not None else {})}
    services = Services(
        sinks=[runtime_state, pleg, *cm.services.sinks, *runtime.services.sinks, *event_parts.services.sinks],
        managers=[
            *(*cm.services.managers, *shutdown.services.managers, *volumes.services.managers),
            workers,
            probes,
            *runtime.services.managers,
            housekeeping,
        ],
        producers=[
            loop,
            *sources.services.producers,
            *plugin_services(ctx, edges, cm.devices, handlers, mux.all_ready),
        ],
    )
    services.add(api.services)
    connect(
        ctx,
        loop=loop,
        workers=workers,
        volumes=volumes.manager,
        housekeeping=housekeeping,
        statuses=statuses,
        probes=probes,
        sender=sender,
        pod_metrics=PodMetrics(ctx, table),
        cm=cm,
        containers=runtime.gc,
    )
    if edges.cluster is not None and api.storage is not None and api.pods is not None and sender is not None:
        node_sources = NodeSources(
            runtime=runtime_state,
            pleg=pleg,
            cm=cm,
            volumes=volumes.manager,
            conditions=conditions,
            csi_node=api.storage.node,
            attachments=api.storage.attachments,
            cri=cri,
        )
        reporting = build_node(ctx, edges, edges.cluster, api.node, node_sources)
        ctx.signals.subscribe(NodeStatusChanged, lambda _: reporting.reporter.soon())
        services.add(reporting.services)
        services.sinks.append(sender)
        certificates = certs_build.build(ctx, edges.cluster, lambda: api.node.node)
        api.node.listen(certificates.node_changed)
        services.add(certificates.services)
        services.producers.append(
            ApiSource(sets=api.pods.sets, wait_node_known=api.node.wait_known, deliver=mux.deliver)
        )
    server: NodeServer | None = None
    if edges.guard is not None:
        usage = stats.build(ctx, edges, edges.guard, spec=spec, table=table, volumes=volumes.manager)
        evicting = eviction.build(
            ctx,
            edges,
            edges.guard,
            stats=usage,
            conditions=conditions,
            evictor=PodEvictor(ctx, workers=workers, table=table, active=cm.allocation.active_pods),
            containers=runtime.gc,
            images=runtime.images.gc,
        )
        oom = OomWatcher(ctx, edges.guard, cgroups=usage.cgroups, table=table)
        services.managers += [*usage.services.managers, *evicting.services.managers, oom]
    if edges.serve is not None and edges.guard is not None:
        serving = server_build.build(
            ctx,
            edges,
            edges.serve,
            table=table,
            pleg=pleg,
            runtime=runtime,
            runtime_state=runtime_state,
            probes=probes,
            stats=stats.shown(ctx, edges, edges.serve, usage),
            explainer=explainer,
            events=events,
            shutdown=shutdown,
            assigned=cm.assigned,
            started=started,
        )
        services.add(serving.services)
        server = serving.node_server
    return Node(
        ctx=ctx,
        services=services,
        table=table,
        workers=workers,
        statuses=statuses,
        signals=ctx.signals,
        events=events,
        recorder=recorder,
        runtime=runtime_state,
        pleg=pleg,
        mux=mux,
        metrics=metrics,
        probes=probes,
        housekeeping=housekeeping,
        volumes=volumes,
        cm=cm,
        shutdown=shutdown.manager,
        explainer=explainer,
        server=server,
    )


@asynccontextmanager
async def live(node: Node) -> AsyncIterator[None]:
    """The agent runs for as long as the block lasts. An address that is taken is told before anything starts."""
    node.cm.open()
    if node.server is not None:
        node.server.open()
    async with node.services.running():
        yield
