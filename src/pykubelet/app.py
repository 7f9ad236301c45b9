"""The composition root: every component is made here, once, in dependency order, and handed what it needs.

`Edges` is everything outside this process; tests replace these and nothing else. `assemble` only stores;
nothing starts, opens or reads before `run`. Leaving `run` stops producers first, then managers, then
sinks, so that the last news still reach whoever listens. Pods keep running: only the agent leaves.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet import reactions
from pykubelet.api.types import Pod
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.eviction.pressure import PressureBoard
from pykubelet.explain.service import Explainer
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Service, running
from pykubelet.model.events import AnnotatedSink
from pykubelet.model.life import LifeRecorder
from pykubelet.model.results import ProbeResults
from pykubelet.node.event_fan import EventFan
from pykubelet.node.local_events import LocalEvents
from pykubelet.node.shutdown import ShutdownManager
from pykubelet.pinning.manager import PinningManager
from pykubelet.pleg.pleg import Pleg
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.pods.table import PodTable
from pykubelet.probes.manager import ProbeManager
from pykubelet.resources.allocation import POD_TERMINATED
from pykubelet.runtime.image_volumes import ImageVolumes
from pykubelet.runtime.logs import LogFiles
from pykubelet.runtime.reason_cache import ReasonCache
from pykubelet.runtime.spec.builder import PodSpecBuilder
from pykubelet.runtime.spec.env import expand_command
from pykubelet.server.app import NodeServer
from pykubelet.settings.settings import Settings
from pykubelet.sources.mux import PodMux
from pykubelet.status.manager import StatusManager
from pykubelet.sync.gate import AdmissionGate
from pykubelet.sync.housekeeping import Housekeeping
from pykubelet.sync.loop import SyncLoop
from pykubelet.sync.node_facts import node_spec
from pykubelet.sync.pod_fields import PodFields
from pykubelet.sync.pod_metrics import TimedSteps
from pykubelet.sync.pod_sync import PodSync
from pykubelet.sync.runtime_state import RuntimeState
from pykubelet.sync.status_maker import PodStatusMaker
from pykubelet.sync.worker import PodWorkers
from pykubelet.volumes.manager import VolumeManager
from pykubelet.wiring.agent_metrics import add_agent_metrics, count_pods
from pykubelet.wiring.alone import told_addresses, with_features
from pykubelet.wiring.cluster import (
    Cluster,
    LocalParts,
    NodeHooks,
    api_events,
    assemble_cluster,
    standalone_seams,
)
from pykubelet.wiring.eviction import GuardNeeds, guard_parts
from pykubelet.wiring.explaining import explaining
from pykubelet.wiring.identity import initial_info
from pykubelet.wiring.local import LocalNeeds, local_routes
from pykubelet.wiring.pinning import pinning_parts
from pykubelet.wiring.plugins import PluginParts, plugin_parts
from pykubelet.wiring.resources import Surroundings, resource_parts
from pykubelet.wiring.runtime import RuntimeNeeds, container_gc, log_rotation, runtime_parts
from pykubelet.wiring.server import ServerNeeds, server_parts
from pykubelet.wiring.shutdown import shutdown_parts
from pykubelet.wiring.sources import make_mux, make_sources
from pykubelet.wiring.volumes import volume_rules

logger = logging.getLogger(__name__)


class Node(Struct, kw_only=True):
    """The assembled agent: what runs, and what others may look at."""

    services: list[list[Service]] = field(default_factory=list)
    """Groups in the order they start; they stop in reverse."""
    table: PodTable
    workers: PodWorkers
    statuses: StatusManager
    events: LocalEvents
    recorder: LifeRecorder
    runtime: RuntimeState
    pleg: Pleg
    mux: PodMux
    metrics: Registry
    probes: ProbeManager
    housekeeping: Housekeeping
    pinning: PinningManager
    extensions: PluginParts
    shutdown: ShutdownManager
    explainer: Explainer
    cluster: Cluster | None = None
    server: NodeServer | None = None


def assemble(settings: Settings, edges: Edges) -> Node:
    config, clock, cri, metrics = settings.config, edges.clock, edges.cri, edges.metrics
    node_name = settings.node_name(edges.machine.hostname)
    local_events = LocalEvents(clock=clock, node_name=node_name)
    sent_events = (
        api_events(edges.cluster, clock=clock, node_name=node_name, metrics=metrics) if edges.cluster else None
    )
    events: AnnotatedSink = EventFan(local_events, sent_events) if sent_events is not None else local_events
    ctx = Context(
        settings=settings,
        node_name=node_name,
        clock=clock,
        events=events,
        recorder=LifeRecorder(clock),
        metrics=metrics,
    )
    recorder, table, results = ctx.recorder, PodTable(), ProbeResults()
    recalls = not settings.gates.enabled("ChangeContainerStatusOnKubeletRestart")
    statuses = StatusManager(clock=clock, recalls=recalls)
    board, reasons = PressureBoard(), ReasonCache()
    runtime_state = RuntimeState(cri=cri, clock=clock)
    mux = make_mux(settings, edges, events)
    pleg = Pleg(cri=cri, table=table, clock=clock, signals=ctx.signals, source=edges.event_source, metrics=metrics)
    shutdown = shutdown_parts(settings, edges, table=table, events=events, metrics=metrics)
    cluster: Cluster | None = None
    if edges.cluster is not None and sent_events is not None:
        parts = LocalParts(
            machine=edges.machine,
            cri=cri,
            runtime=runtime_state,
            statuses=statuses,
            table=table,
            sets=mux,
            events=events,
            sent_events=sent_events,
            clock=clock,
            metrics=metrics,
        )
        hooks_of_node = NodeHooks(
            pressures=board.held,
            runtime_problems=pleg.problems,
            other_problems=shutdown.manager.problems,
            volumes_in_use=lambda: volumes.volumes_in_use(),
            devices=lambda: extensions.amounts(),
            reset_extended=lambda: extensions.has_no_history(),
        )
        cluster = assemble_cluster(settings, edges.cluster, parts, hooks_of_node)
    seams = cluster.seams if cluster is not None else standalone_seams()
    spec = node_spec(
        settings,
        edges.machine,
        edges.paths,
        cgroup_driver=edges.cgroup_driver,
        in_cluster=edges.cluster is not None,
    )
    image_volumes = ImageVolumes()

    def recursive_read_only(pod: Pod) -> bool:
        return runtime_state.conditions.supports_recursive_read_only(seams.handlers.handler_now(pod))

    def node_now() -> NodeInfo:
        known = cluster.node_info(local) if cluster is not None else with_features(local, runtime_state)
        return extensions.with_devices(known)

    local = initial_info(settings, edges.machine, spec.allocatable)
    extensions = plugin_parts(
        edges,
        cluster,
        node_name=node_name,
        table=table,
        events=events,
        recorder=recorder,
        sources_ready=mux.all_ready,
    )
    volumes = VolumeManager(
        more_plugins=extensions.volumes,
        mounts=edges.mounts,
        paths=edges.paths,
        clock=clock,
        events=events,
        recorder=recorder,
        metrics=metrics,
        objects=replace(seams.volume_objects, downward=PodFields(spec.allocatable), images=image_volumes),
        rules=volume_rules(settings, edges, spec, node=node_now, recursive_read_only=recursive_read_only),
    )
    pinning = pinning_parts(settings, edges, table=table, sources_ready=mux.all_ready)
    admission = AdmissionGate(
        node=node_now,
        sysctls=SysctlAllowList.for_kernel(edges.machine.kernel, config.runtime.allowed_unsafe_sysctls),
        apparmor_problem=None if edges.machine.apparmor else "AppArmor is not enabled on the host",
        gates=settings.gates,
        pressure=board.held,
        shutting_down=shutdown.is_on,
        allocator=pinning.allocator,
    )
    held = resource_parts(
        settings,
        spec,
        Surroundings(
            cri=cri,
            runtime=runtime_state,
            cgroups=edges.cgroups,
            slices=edges.slices,
            machine=edges.machine,
            paths=edges.paths,
            table=table,
            admission=admission,
            handlers=seams.handlers,
            sources_ready=mux.all_ready,
            host_ids=edges.host_ids,
            pinning=pinning.manager,
            events=events,
            clock=clock,
            metrics=metrics,
        ),
    )
    specs = PodSpecBuilder(
        node=spec,
        folders=edges.folders,
        images=cri,
        volumes=volumes,
        references=seams.references,
        events=events,
        addresses=told_addresses(settings, edges, seams),
        user_namespaces=held.user_namespaces,
        devices=pinning.devices(extensions.granted()),
    )
    side = runtime_parts(
        settings,
        edges,
        RuntimeNeeds(
            ctx=ctx,
            specs=specs,
            handlers=seams.handlers,
            resizer=held.resizer,
            references=seams.references,
            accounts=cluster.accounts if cluster is not None else None,
            image_volumes=image_volumes,
            results=results,
            look=pleg,
            table=table,
            events=events,
            recorder=recorder,
            metrics=metrics,
        ),
    )
    started = clock.now()
    probes = ProbeManager(
        cri=cri,
        network=edges.network,
        statuses=statuses,
        results=results,
        events=events,
        recorder=recorder,
        clock=clock,
        expand_command=expand_command,
        started=started,
        recalls=recalls,
    )
    maker = PodStatusMaker(
        told=statuses,
        probes=results,
        reasons=reasons,
        folders=edges.folders,
        logs=LogFiles(),
        addresses=seams.addresses,
        resizes=held.allocations,
        events=events,
        clock=clock,
        runtime_name=edges.runtime_name,
        recursive_read_only=recursive_read_only,
        health=extensions.health if settings.gates.enabled("ResourceHealthStatus") else lambda pod, container: [],
        gates=settings.gates,
    )
    steps = PodSync(
        runtime=side.manager,
        look=pleg,
        maker=maker,
        statuses=statuses,
        volumes=volumes,
        probes=probes,
        cgroups=held.cgroups,
        resizes=held.allocations,
        id_ranges=held.user_namespaces,
        mirrors=seams.mirrors,
        references=seams.held,
        network=runtime_state,
        folders=edges.folders,
        reasons=reasons,
        events=events,
        recorder=recorder,
        clock=clock,
        claims=extensions.claims,
    )
    workers = PodWorkers(
        table=table,
        steps=TimedSteps(steps, recorder=recorder, clock=clock, metrics=metrics),
        pleg=pleg,
        events=events,
        recorder=recorder,
        clock=clock,
        sync_frequency=config.sources.sync_frequency,
    )
    gc = container_gc(settings, edges, side, table=table, events=events, sources_ready=mux.all_ready)
    loop = SyncLoop(
        changes=mux,
        admission=admission,
        resizes=held.allocations,
        workers=workers,
        table=table,
        statuses=statuses,
        dead=gc,
        runtime=runtime_state,
        events=events,
        recorder=recorder,
        clock=clock,
        tidy=lambda: housekeeping.soon(),
        metrics=metrics,
    )

    async def remove_orphan_cgroups() -> None:
        await held.cgroups.remove_orphans(table.uids_in_use(), still_held=volumes.has_mounts)

    housekeeping = Housekeeping(
        sources=mux,
        table=table,
        workers=workers,
        folders=edges.folders,
        holders=[
            *([cluster.sender] if cluster is not None else []),
            statuses,
            probes,
            maker,
            side.images.puller,
            image_volumes,
            volumes,
            held.allocations,
            held.user_namespaces,
        ],
        chores=[
            side.forget,
            remove_orphan_cgroups,
            pinning.sweep,
            shutdown.sweep,
            *(cluster.chores if cluster is not None else []),
            *extensions.chores,
        ],
        metrics=metrics,
        has_mounts=volumes.has_mounts,
    )

    def finished(uid: str) -> None:
        housekeeping.soon()
        gc.collect_pod_soon(uid)
        pinning.manager.release(uid)
        held.allocations.retry(POD_TERMINATED)

    held.allocations.on_change = workers.sync_now
    held.allocations.preempt = loop.preempt
    workers.on_finished = finished
    workers.on_restart = statuses.begin_anew
    statuses.listen(probes.container_changed)

    def object_changed(kind: str, namespace: str, name: str, uids: Sequence[str]) -> None:
        volumes.object_changed(kind, namespace, name)
        for uid in uids:
            workers.retry_now(uid)

    volumes.on_mounted = workers.sync_now
    extensions.join(volumes, workers, pinning.manager, cluster)
    volumes.on_released = lambda uid: housekeeping.soon()
    if cluster is not None:
        cluster.join(loop, object_changed)
        board.on_change = cluster.reporter.soon
    reactions.connect(
        ctx.signals,
        loop=loop,
        pod_metrics=count_pods(node_name, edges, table=table, recorder=recorder),
        cpus=pinning,
    )
    add_agent_metrics(metrics, settings)
    results.listen(loop.probe_result)
    shutdown.bind(workers, cluster, edges.cluster.client if edges.cluster is not None else None)

    def runtime_back() -> None:
        workers.sync_all()
        if cluster is not None:
            cluster.reporter.soon()

    runtime_state.on_back = runtime_back
    services: list[list[Service]] = [
        [runtime_state, pleg, pinning.manager, side.stopper],
        [
            *(*held.services, *shutdown.services, *extensions.managers, volumes, workers, probes, gc),
            *(side.images.gc, log_rotation(settings, edges), housekeeping),
        ],
        [loop, *make_sources(settings, edges, mux, events), *extensions.finders],
    ]
    explainer = explaining(
        edges,
        table=table,
        statuses=statuses,
        workers=workers,
        recorder=recorder,
        volumes=volumes,
        remembered=local_events,
        events=events,
        runtime=runtime_state,
    )
    server: NodeServer | None = None
    if edges.guard is not None:
        guard_needs = GuardNeeds(
            table=table,
            volumes=volumes,
            workers=workers,
            containers=gc,
            images=side.images.gc,
            allocations=held.allocations,
            spec=spec,
            board=board,
            events=events,
            recorder=recorder,
            metrics=metrics,
        )
        guard = guard_parts(settings, edges, edges.guard, guard_needs)
        services[1].extend(guard.services)
    if edges.serve is not None and edges.guard is not None:
        local_needs = LocalNeeds(
            explainer=explainer,
            table=table,
            statuses=statuses,
            events=local_events,
            runtime=runtime_state,
            pleg=pleg,
            stopper=side.stopper,
            started=started,
            forgive=side.backoff.forget,
        )
        needs = ServerNeeds(
            table=table,
            statuses=statuses,
            pleg=pleg,
            runtime=runtime_state,
            probes=probes,
            metrics=metrics,
            provider=guard.provider,
            volume_figures=guard.volumes,
            started=started,
            explain=explainer,
            local_routes=[*local_routes(settings, edges, local_needs), *shutdown.routes],
            active=table.active_pods,
            assigned=pinning.assigned(extensions.assigned()),
        )
        serving = server_parts(settings, edges, edges.serve, needs)
        services[-1].extend(serving.services)
        server = serving.server
    return Node(
        services=cluster.joined(services) if cluster is not None else services,
        table=table,
        workers=workers,
        statuses=statuses,
        events=local_events,
        recorder=recorder,
        runtime=runtime_state,
        pleg=pleg,
        mux=mux,
        metrics=metrics,
        probes=probes,
        housekeeping=housekeeping,
        pinning=pinning.manager,
        extensions=extensions,
        shutdown=shutdown.manager,
        explainer=explainer,
        cluster=cluster,
        server=server,
    )


@asynccontextmanager
async def live(node: Node) -> AsyncIterator[None]:
    """The agent runs for as long as the block lasts. An address that is taken is told before anything starts."""
    node.pinning.open()
    node.extensions.open()
    if node.server is not None:
        node.server.open()
    first, second, third = node.services
    async with running(*first), running(*second), running(*third):
        yield
