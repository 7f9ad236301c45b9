"""The composition root: every component is made here, once, in dependency order, and handed what it needs.

`Edges` is everything outside this process; tests replace these and nothing else. `assemble` only stores;
nothing starts, opens or reads before `run`. Leaving `run` stops producers first, then managers, then
sinks, so that the last news still reach whoever listens. Pods keep running: only the agent leaves.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from pykubelet.api.types import Pod
from pykubelet.clients.kube.events import ApiEvents
from pykubelet.kit.memory import give_back
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Service, running
from pykubelet.model.events import EventSink
from pykubelet.model.life import LifeRecorder
from pykubelet.model.pod import AnyContainer
from pykubelet.model.results import ProbeKind, ProbeOutcome, ProbeResults
from pykubelet.node.addresses import LocalAddresses
from pykubelet.node.event_fan import EventFan
from pykubelet.node.local_events import LocalEvents
from pykubelet.pleg.cache import PodStatusCache
from pykubelet.pleg.relist import Pleg
from pykubelet.pods.manager import PodManager
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.probes.manager import ProbeManager
from pykubelet.resources.allocation import POD_TERMINATED
from pykubelet.runtime.gc import ContainerGc
from pykubelet.runtime.gc_plan import GcPolicy
from pykubelet.runtime.image_volumes import ImageVolumes
from pykubelet.runtime.logs import LogFiles
from pykubelet.runtime.logs_rotate import LogRotation, RotationPolicy
from pykubelet.runtime.reason_cache import ReasonCache
from pykubelet.runtime.spec.builder import PodSpecBuilder
from pykubelet.runtime.spec.collaborators import NodeAddresses
from pykubelet.runtime.spec.env import literal_env
from pykubelet.runtime.spec.expand import expand
from pykubelet.server.app import NodeServer
from pykubelet.settings.settings import Settings
from pykubelet.sources.mux import PodMux
from pykubelet.status.manager import StatusManager
from pykubelet.sync.gate import AdmissionGate, RunningPods, WorkerStatuses
from pykubelet.sync.housekeeping import Housekeeping
from pykubelet.sync.loop import ProbeChanged, RuntimeBack, SyncLoop
from pykubelet.sync.node_facts import node_spec
from pykubelet.sync.phases import PodPhases
from pykubelet.sync.pod_fields import PodFields
from pykubelet.sync.pod_sync import PodSync
from pykubelet.sync.runtime_state import RuntimeState
from pykubelet.sync.status_maker import PodStatusMaker
from pykubelet.sync.worker import PodWorkers
from pykubelet.volumes.manager import VolumeManager, VolumeRules
from pykubelet.wiring.cluster import (
    Cluster,
    LocalParts,
    NodeHooks,
    Seams,
    api_events,
    assemble_cluster,
    standalone_seams,
)
from pykubelet.wiring.edges import Edges
from pykubelet.wiring.local import LocalNeeds, local_service
from pykubelet.wiring.resources import Surroundings, resource_parts
from pykubelet.wiring.runtime import RuntimeNeeds, runtime_parts
from pykubelet.wiring.server import ServerNeeds, server_parts
from pykubelet.wiring.sources import make_sources, source_kinds

logger = logging.getLogger(__name__)

HOUSEKEEPING_PERIOD = 30.0
"""Seconds between passes when nothing signalled one."""


@dataclass(slots=True, kw_only=True)
class Node:
    """The assembled agent: what runs, and what others may look at."""

    services: list[list[Service]] = field(default_factory=list)
    """Groups in the order they start; they stop in reverse."""
    pods: PodManager
    phases: PodPhases
    workers: PodWorkers
    statuses: StatusManager
    cache: PodStatusCache
    events: LocalEvents
    recorder: LifeRecorder
    runtime: RuntimeState
    pleg: Pleg
    mux: PodMux
    metrics: Registry
    probes: ProbeManager
    housekeeping: Housekeeping
    cluster: Cluster | None = None
    server: NodeServer | None = None


def assemble(settings: Settings, edges: Edges) -> Node:
    config, clock, cri = settings.config, edges.clock, edges.cri
    node_name = settings.node_name(edges.machine.hostname)
    metrics = Registry()
    local_events = LocalEvents(clock=clock, node_name=node_name)
    sent_events: ApiEvents | None = None
    events: EventSink = local_events
    if edges.cluster is not None:
        sent_events = api_events(edges.cluster, clock=clock, node_name=node_name, metrics=metrics)
        events = EventFan(local_events, sent_events)
    recorder = LifeRecorder(clock)
    phases, cache, results, reasons = PodPhases(), PodStatusCache(), ProbeResults(), ReasonCache()
    pods = PodManager()
    statuses = StatusManager(clock=clock)
    runtime_state = RuntimeState(cri=cri, clock=clock)
    mux = PodMux(sources=source_kinds(settings, edges), events=events, clock=clock)
    pleg = Pleg(cri=cri, cache=cache, clock=clock, sources=edges.event_sources, metrics=metrics)
    cluster: Cluster | None = None
    if edges.cluster is not None and sent_events is not None:
        parts = LocalParts(
            machine=edges.machine,
            cri=cri,
            runtime=runtime_state,
            statuses=statuses,
            pods=pods,
            phases=phases,
            sets=mux,
            events=events,
            sent_events=sent_events,
            clock=clock,
            metrics=metrics,
        )
        hooks_of_node = NodeHooks(runtime_problems=lambda: pleg_problems(pleg))
        cluster = assemble_cluster(settings, edges.cluster, parts, hooks_of_node)
    seams = cluster.seams if cluster is not None else standalone_seams()
    spec = node_spec(settings, edges.machine, edges.paths, cgroup_driver=edges.cgroup_driver)
    image_volumes = ImageVolumes()

    def recursive_read_only(pod: Pod) -> bool:
        return runtime_state.conditions.supports_recursive_read_only(seams.handlers.handler_now(pod))

    volumes = VolumeManager(
        mounts=edges.mounts,
        paths=edges.paths,
        clock=clock,
        events=events,
        recorder=recorder,
        metrics=metrics,
        objects=replace(seams.volume_objects, downward=PodFields(spec.allocatable), images=image_volumes),
        rules=VolumeRules(
            allocatable_memory=lambda: spec.memory_bytes,
            selinux=spec.selinux,
            supports_recursive_read_only=recursive_read_only,
        ),
    )
    local = NodeInfo(name=node_name, labels=settings.flags.node_labels, allocatable=spec.allocatable)
    admission = AdmissionGate(
        node=lambda: cluster.node_info(local) if cluster is not None else _with_features(local, runtime_state),
        sysctls=SysctlAllowList.for_kernel(edges.machine.kernel, config.runtime.allowed_unsafe_sysctls),
        apparmor_problem=None if edges.machine.apparmor else "AppArmor is not enabled on the host",
    )
    held = resource_parts(
        settings,
        spec,
        Surroundings(
            cri=cri,
            runtime=runtime_state,
            cgroups=edges.cgroups,
            paths=edges.paths,
            pods=pods,
            phases=phases,
            admission=admission,
            handlers=seams.handlers,
            sources_ready=mux.all_ready,
            host_ids=edges.host_ids,
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
        addresses=_told_addresses(settings, edges, seams),
        user_namespaces=held.user_namespaces,
    )
    side = runtime_parts(
        settings,
        edges,
        RuntimeNeeds(
            specs=specs,
            handlers=seams.handlers,
            resizer=held.resizer,
            references=seams.references,
            accounts=cluster.accounts if cluster is not None else None,
            image_volumes=image_volumes,
            results=results,
            cache=cache,
            look=pleg,
            phases=phases,
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
        expand_command=expand_literal,
        started=started,
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
    )
    workers = PodWorkers(
        phases=phases,
        steps=steps,
        statuses=WorkerStatuses(pleg=pleg, cache=cache),
        recorder=recorder,
        clock=clock,
        sync_frequency=config.sources.sync_frequency,
    )
    gc = ContainerGc(
        cri=cri,
        remover=side.remover,
        fate=phases,
        statuses=cache,
        sources_ready=mux.all_ready,
        events=events,
        clock=clock,
        pod_logs=edges.paths.pod_logs,
        container_logs=edges.paths.container_logs,
        policy=GcPolicy(),
        busy=phases.any_terminating,
    )
    rotation = LogRotation(
        cri=cri,
        clock=clock,
        policy=RotationPolicy(
            max_bytes=config.container_logs.max_size_bytes,
            max_files=config.container_logs.max_files,
            workers=config.container_logs.max_workers,
            period=config.container_logs.monitor_interval,
        ),
    )
    loop = SyncLoop(
        changes=mux,
        pods=pods,
        admission=admission,
        resizes=held.allocations,
        workers=workers,
        phases=phases,
        statuses=statuses,
        dead=gc,
        runtime=runtime_state,
        events=events,
        recorder=recorder,
        clock=clock,
        tidy=lambda: housekeeping.soon(),
    )

    async def collect_backoff() -> None:
        side.backoff.collect(clock.now())

    async def return_memory() -> None:
        give_back()

    async def remove_orphan_cgroups() -> None:
        await held.cgroups.remove_orphans({state.uid for state in phases}, still_held=volumes.has_mounts)

    housekeeping = Housekeeping(
        sources=mux,
        pods=pods,
        phases=phases,
        workers=workers,
        runtime=RunningPods(cache),
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
            collect_backoff,
            remove_orphan_cgroups,
            return_memory,
            *(cluster.chores if cluster is not None else []),
        ],
        period=HOUSEKEEPING_PERIOD,
        has_mounts=volumes.has_mounts,
    )

    def finished(uid: str) -> None:
        housekeeping.soon()
        gc.collect_pod_soon(uid)
        held.allocations.retry(POD_TERMINATED)

    held.allocations.on_change = workers.sync_now
    held.allocations.preempt = loop.preempt
    workers.on_finished = finished
    statuses.listen(probes.container_changed)

    def object_changed(kind: str, namespace: str, name: str, uids: Sequence[str]) -> None:
        volumes.poke(kind, namespace, name)
        for uid in uids:
            workers.retry_now(uid)

    volumes.on_mounted = workers.sync_now
    volumes.on_released = lambda uid: housekeeping.soon()
    if cluster is not None:
        cluster.objects.listen_objects(object_changed)
    pleg.listen(loop.handle)
    results.listen(lambda kind, cid, uid, outcome: loop.handle(_probe_changed(kind, cid, uid, outcome)))

    def runtime_back() -> None:
        loop.handle(RuntimeBack())
        if cluster is not None:
            cluster.reporter.soon()

    runtime_state.on_back = runtime_back
    services: list[list[Service]] = [
        [runtime_state, pleg],
        [held.allocations, held.cgroups, volumes, workers, probes, gc, side.images.gc, rotation, housekeeping],
        [loop, *make_sources(settings, edges, mux, events)],
    ]
    server: NodeServer | None = None
    if edges.serve is not None:
        local_side = local_service(
            settings,
            edges,
            LocalNeeds(
                pods=pods,
                phases=phases,
                statuses=statuses,
                workers=workers,
                recorder=recorder,
                volumes=volumes,
                events=local_events,
                cache=cache,
                runtime=runtime_state,
                pleg=pleg,
                stopper=side.stopper,
                started=started,
                forgive=side.backoff.forget,
            ),
        )
        needs = ServerNeeds(
            pods=pods,
            statuses=statuses,
            cache=cache,
            pleg=pleg,
            runtime=runtime_state,
            probes=probes,
            volumes=volumes,
            metrics=metrics,
            spec=spec,
            started=started,
            explain=local_side.explainer,
            local_routes=local_side.routes,
        )
        serving = server_parts(settings, edges, edges.serve, needs)
        services[-1].extend([serving.figures, serving.server])
        server = serving.server
    return Node(
        services=cluster.joined(services) if cluster is not None else services,
        pods=pods,
        phases=phases,
        workers=workers,
        statuses=statuses,
        cache=cache,
        events=local_events,
        recorder=recorder,
        runtime=runtime_state,
        pleg=pleg,
        mux=mux,
        metrics=metrics,
        probes=probes,
        housekeeping=housekeeping,
        cluster=cluster,
        server=server,
    )


def expand_literal(container: AnyContainer, command: Sequence[str]) -> Sequence[str]:
    """A probe's command with `$(VAR)` filled in; probes see only the values written out in the spec."""
    values = literal_env(container)
    return [expand(word, values.get) for word in command]


def _probe_changed(kind: ProbeKind, container_id: str, uid: str, outcome: ProbeOutcome) -> ProbeChanged:
    return ProbeChanged(kind=kind, container_id=container_id, pod_uid=uid, outcome=outcome)


def pleg_problems(pleg: Pleg) -> list[str]:
    healthy, why = pleg.healthy()
    return [] if healthy else [f"PLEG is not healthy: {why}"]


def _with_features(local: NodeInfo, runtime: RuntimeState) -> NodeInfo:
    """Where no Node tells what the runtime can do, the runtime itself is asked."""
    return replace(local, supplemental_groups_policy=runtime.conditions.supplemental_groups_policy)


def _told_addresses(settings: Settings, edges: Edges, seams: Seams) -> NodeAddresses:
    """Containers learn the node's address even where no Node exists; statuses, as upstream, do not."""
    if edges.cluster is not None or edges.host_network is None:
        return seams.addresses
    return LocalAddresses(network=edges.host_network, node_ips=settings.node_ips)


@asynccontextmanager
async def live(node: Node) -> AsyncIterator[None]:
    """The agent runs for as long as the block lasts. An address that is taken is told before anything starts."""
    if node.server is not None:
        node.server.open()
    first, second, third = node.services
    async with running(*first), running(*second), running(*third):
        yield
