"""What a node has only with an API server: its Node and lease, pods from the API, statuses, mirrors, lookups.

Made by `assemble_cluster` from the parts every node has; `app.py` then takes the seams (`mirrors`, `own`,
`runtime_classes`, ...) instead of their stand-ins and runs the services. Constructors only store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ConfigMap, CSIDriver, Node, ObjectMeta, Pod, PodStatus, RuntimeClass, Secret, Service
from pykubelet.certs.rotation import RotationSeams
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.port import Machine
from pykubelet.clients.kube.csi_objects import KubeCsiObjects
from pykubelet.clients.kube.dra_objects import KubeClaimObjects
from pykubelet.clients.kube.objects import DEFAULT_TTL, ObjectListener, ReferenceWatcher, Strategy
from pykubelet.clients.kube.patch import node_status_patch, pod_status_patch
from pykubelet.clients.kube.pod_objects import ClaimReader, PodTokens
from pykubelet.clients.kube.port import Change, KubeClient, Unreadable
from pykubelet.clients.kube.reflector import Reflector
from pykubelet.clients.kube.tokens import TokenManager
from pykubelet.clients.kube.watch import Query
from pykubelet.edges import ClusterEdges
from pykubelet.images.provider import ServiceAccounts
from pykubelet.kit import tasks
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import ApiError
from pykubelet.model.events import EventSink
from pykubelet.model.pod import is_mirror, is_static, name_of, namespace_of
from pykubelet.model.reasons import UNREADABLE_OBJECT, WARNING
from pykubelet.node.addresses import AddressFinder, provided_node_ip
from pykubelet.node.capacity import NO_DEVICES, DeviceAmounts
from pykubelet.node.csi_node import CsiNodeKeeper
from pykubelet.node.facts import FactsGatherer, ImageList, RuntimeView
from pykubelet.node.lease import LeaseKeeper
from pykubelet.node.listers import RuntimeClasses, ServiceLister
from pykubelet.node.own_node import NodeAttachments, OwnNode
from pykubelet.node.status import NodeReporter, ReportTiming, StartupTimes
from pykubelet.pods.mirrors import MirrorPods
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.table import PodTable
from pykubelet.runtime.manager import RuntimeHandlers
from pykubelet.runtime.spec.collaborators import NoReferences, References
from pykubelet.settings.settings import Settings
from pykubelet.sources.mux import Deliver
from pykubelet.sources.remote import ApiSource, bound_to
from pykubelet.status.manager import StatusManager
from pykubelet.status.sender import StatusSender, belongs, uid_here
from pykubelet.sync.absent import NoAddresses, NoMirrors, NoReferencesHeld, OneHandler
from pykubelet.sync.fresh_node import FreshNode
from pykubelet.sync.loop import SyncLoop
from pykubelet.sync.pod_sync import Mirrors
from pykubelet.sync.pod_sync import References as ReferencesHeld
from pykubelet.sync.status_maker import NodeAddresses
from pykubelet.volumes.objects import VolumeObjects
from pykubelet.wiring.certificates import client_rotation, serving_rotation
from pykubelet.wiring.identity import node_identity
from pykubelet.wiring.projections import Projections, projections

logger = logging.getLogger(__name__)

NODE_READ_WITHIN = 5.0


class LocalParts(Struct, frozen=True, kw_only=True):
    """The parts of every node that the cluster parts work with."""

    machine: Machine
    cri: CriClient
    runtime: RuntimeView
    statuses: StatusManager
    table: PodTable
    sets: Deliver
    events: EventSink
    clock: Clock
    metrics: Registry


class NodeHooks(Struct, frozen=True, kw_only=True):
    """What other managers add to the Node; each may stay as it is."""

    pressures: Callable[[], Collection[str]] = frozenset
    """Names of the pressure conditions that hold, such as MemoryPressure."""
    devices: Callable[[], DeviceAmounts] = lambda: NO_DEVICES
    reset_extended: Callable[[], bool] = lambda: False
    volumes_in_use: Callable[[], Sequence[str] | None] = lambda: None
    volumes_reported: Callable[[Sequence[str]], None] = lambda names: None
    """Told which of them the API server knows."""
    runtime_problems: Callable[[], Sequence[str]] = lambda: ()
    """Texts such as `PLEG is not healthy: ...`."""
    other_problems: Callable[[], Sequence[str]] = lambda: ()
    """Storage and shutdown."""


class ClusterReferences:
    """Objects of the API that pods refer to, held while they live; services are read when first asked for."""

    def __init__(self, *, objects: ReferenceWatcher, services: ServiceLister) -> None:
        self._objects = objects
        self._services = services

    def register(self, pod: Pod) -> None:
        self._objects.register(pod)

    def unregister(self, pod: Pod) -> None:
        self._objects.unregister(pod)

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        return await self._objects.config_map(namespace, name)

    async def secret(self, namespace: str, name: str) -> Secret | None:
        return await self._objects.secret(namespace, name)

    async def services(self, namespace: str) -> Sequence[Service] | None:
        return await self._services.services(namespace)


class Seams(Struct, frozen=True, kw_only=True):
    """Where a node with an API server differs from one without, as the rest of the agent sees it."""

    mirrors: Mirrors
    held: ReferencesHeld
    references: References
    handlers: RuntimeHandlers
    addresses: NodeAddresses
    volume_objects: VolumeObjects
    """Without the fields of pods, which need no API server."""


def standalone_seams() -> Seams:
    return Seams(
        mirrors=NoMirrors(),
        held=NoReferencesHeld(),
        references=NoReferences(),
        handlers=OneHandler(),
        addresses=NoAddresses(),
        volume_objects=VolumeObjects(),
    )


class Cluster(Struct, kw_only=True):
    own: OwnNode
    """Addresses for pod statuses (`host_ips`) and the Node for whoever needs it."""
    reporter: NodeReporter
    lease: LeaseKeeper
    sender: StatusSender
    mirrors: MirrorPods
    references: ClusterReferences
    objects: ReferenceWatcher
    """Its listeners hear which pods' objects changed."""
    tokens: TokenManager
    accounts: ServiceAccounts
    claims: ClaimReader
    runtime_classes: RuntimeClasses
    csi_objects: KubeCsiObjects
    csi_node: CsiNodeKeeper
    resource_claims: KubeClaimObjects
    projections: Projections
    attachments: NodeAttachments
    api_pods: Reflector[Pod]
    fresh_node: FreshNode
    sinks: list[tasks.Service] = field(default_factory=list)
    """Start first and stop last."""
    managers: list[tasks.Service] = field(default_factory=list)
    sources: list[tasks.Service] = field(default_factory=list)
    chores: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """For housekeeping."""
    holds_claims: Callable[[str], bool] = lambda uid: False
    """Whether dynamic resources of the pod must still be given back; set when plugins are joined."""

    @property
    def seams(self) -> Seams:
        return Seams(
            mirrors=self.mirrors,
            held=self.references,
            references=self.references,
            handlers=self.runtime_classes,
            addresses=self.own,
            volume_objects=VolumeObjects(
                references=self.references,
                tokens=PodTokens(self.tokens),
                claims=self.claims,
                attachments=self.attachments,
                trust=self.projections.trust,
                certificates=self.projections.certificates,
            ),
        )

    def join(self, loop: SyncLoop, told: ObjectListener) -> None:
        """Have the loop judge pods by a fresh Node where that may help, and tell `told` of every object that pods'
        volumes and variables are made of when it came, changed or went."""
        loop.fresh_node, self.fresh_node.judge = self.fresh_node, loop.judge_again
        self.objects.listen_objects(told)
        self.projections.listen(lambda name: told("ClusterTrustBundle", "", name, ()))

    def joined(self, groups: Sequence[Sequence[tasks.Service]]) -> list[list[tasks.Service]]:
        """The agent's three groups of services with those of the cluster."""
        own = (self.sinks, self.managers, self.sources)
        return [[*group, *more] for group, more in zip(groups, own, strict=True)]

    def node_info(self, local: NodeInfo) -> NodeInfo:
        """What admission judges by: the Node as the API server has it, and what the machine says until then."""
        node = self.own.node
        return local if node is None else info_of(node, local)


def info_of(node: Node, local: NodeInfo) -> NodeInfo:
    amounts = {name: Quantity.parse(value) for name, value in node.status.allocatable.items()}
    features = node.status.features
    return NodeInfo(
        name=local.name,
        labels=node.metadata.labels,
        taints=node.spec.taints,
        allocatable={**local.allocatable, **amounts},
        supplemental_groups_policy=bool(features is not None and features.supplemental_groups_policy),
    )


TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"


def object_ttl(node: Node | None) -> float:
    """How long secrets and config maps may be kept with strategy Cache; a controller raises it in big clusters."""
    text = node.metadata.annotations.get(TTL_ANNOTATION, "") if node is not None else ""
    return float(text) if text.isdigit() else DEFAULT_TTL


def assemble_cluster(
    settings: Settings, edges: ClusterEdges, local: LocalParts, hooks: NodeHooks | None = None
) -> Cluster:
    name, client, clock = settings.node_name(local.machine.hostname), edges.client, local.clock
    own = OwnNode(name)
    csi_node = CsiNodeKeeper(client=client, own=own, clock=clock, on_made=lambda: reporter.soon())
    hooks = hooks or NodeHooks()
    others = hooks.other_problems
    attachments = NodeAttachments(own, report=lambda: reporter.soon())
    own.listen(attachments.changed)
    hooks = replace(
        hooks,
        other_problems=lambda: [*others(), *csi_node.problems()],
        volumes_reported=attachments.reported,
    )
    reporter = _reporter(settings, edges, local, own, hooks)
    own.listen(reporter.observed)
    node_watch = Reflector(
        client=client,
        query=Query(kind=Node, field_selector=f"metadata.name={name}"),
        clock=clock,
        on_change=own.changed,
    )
    client.unreadable.listen(lambda found: _tell_unreadable(local.events, found))
    lease_seconds = settings.config.node.node_lease_duration_seconds
    lease = LeaseKeeper(
        client=edges.heartbeat,
        own=own,
        clock=clock,
        duration=lease_seconds,
        timeout=_heartbeat_timeout(settings),
        on_silence=edges.abandon,
    )
    api_pods = Reflector(
        client=client,
        query=Query(kind=Pod, field_selector=bound_to(name)),
        clock=clock,
        on_change=lambda change: observed(change),
    )
    sender = StatusSender(
        statuses=local.statuses,
        client=client,
        api_pods=api_pods,
        make_patch=pod_status_patch,
        could_run=lambda uid: local.table.could_have_running_containers(uid) or cluster.holds_claims(uid),
        clock=clock,
        metrics=local.metrics,
    )

    def observed(change: Change[Pod]) -> None:
        if is_mirror(change.object):
            local.statuses.mirror_seen(uid_here(change.object))  # first, or what it remembers would be overwritten
        sender.observed(change)

    def shown(pod: Pod) -> PodStatus:
        there = api_pods.get(name_of(pod), namespace_of(pod)) if is_static(pod) else None
        return there.status if there is not None and belongs(there, pod) else pod.status

    local.statuses.shown = shown
    local.statuses.listen(sender.changed)
    mirrors = MirrorPods(
        client=client,
        table=local.table,
        api_pods=api_pods,
        node=own,
        clock=clock,
    )
    services = ServiceLister(Reflector(client=client, query=Query(kind=Service), clock=clock))
    objects = ReferenceWatcher(
        kube=client,
        clock=clock,
        strategy=Strategy(settings.config.node.change_detection_strategy),
        sync_frequency=settings.config.sources.sync_frequency,
        ttl=lambda: object_ttl(own.node),
    )
    tokens = TokenManager(kube=client, clock=clock)
    extra = projections(
        settings.gates,
        kube=client,
        clock=clock,
        events=local.events,
        node=lambda: (name, (own.node.metadata.uid or "") if own.node is not None else ""),
    )
    fresh_node = FreshNode(read=lambda: _read_node(edges.heartbeat, own))
    claims = ClaimReader(client)
    csi_objects = KubeCsiObjects(
        client=client,
        drivers=Reflector(client=client, query=Query(kind=CSIDriver), clock=clock),
        tokens=PodTokens(tokens),
        claims=claims,
    )
    classes = RuntimeClasses(Reflector(client=client, query=Query(kind=RuntimeClass), clock=clock), client=client)
    cluster = Cluster(
        own=own,
        reporter=reporter,
        lease=lease,
        sender=sender,
        mirrors=mirrors,
        references=ClusterReferences(objects=objects, services=services),
        objects=objects,
        tokens=tokens,
        accounts=ServiceAccounts(client=edges.client, tokens=tokens),
        claims=claims,
        runtime_classes=classes,
        csi_objects=csi_objects,
        csi_node=csi_node,
        resource_claims=KubeClaimObjects(client, name),
        projections=extra,
        attachments=attachments,
        api_pods=api_pods,
        fresh_node=fresh_node,
        sinks=[sender],
        managers=[
            *(
                node_watch,
                fresh_node,
                reporter,
                lease,
                mirrors,
                objects,
                tokens,
                services,
                classes,
                csi_objects,
                csi_node,
            ),
            *extra.services,
            *_rotation(edges, name, clock, local.metrics),
            *serving_rotation(settings, own, kube=client, clock=clock, metrics=local.metrics),
        ],
        sources=[ApiSource(sets=api_pods.sets, wait_node_known=own.wait_known, deliver=local.sets)],
        chores=[mirrors.remove_orphans],
    )
    return cluster


async def _read_node(client: KubeClient, own: OwnNode) -> None:
    """Read the Node anew, for whoever is to be judged by it; before it was ever read nobody can be."""
    await own.wait_known()
    try:
        async with asyncio.timeout(NODE_READ_WITHIN):
            own.learn(await client.get(Node, own.name))
    except (ApiError, TimeoutError) as error:
        logger.info("the Node cannot be read anew, the one at hand counts", extra={"error": str(error)})


def _tell_unreadable(events: EventSink, found: Unreadable) -> None:
    events.node_event(WARNING, UNREADABLE_OBJECT, f"{found.shown} cannot be read and is left out: {found.why}")
    if found.kind == "Pod":
        # Only pods of this node are asked for. Made of its name alone: that is all there is of it.
        pod = Pod(metadata=ObjectMeta(name=found.name, namespace=found.namespace, uid=found.uid))
        events.pod_event(pod, WARNING, UNREADABLE_OBJECT, f"the node cannot read this pod: {found.why}")


def _rotation(edges: ClusterEdges, name: str, clock: Clock, metrics: Registry) -> list[tasks.Service]:
    if edges.certificates is None:
        return []
    seams = RotationSeams(kube=edges.client, files=edges.certificates, clock=clock, metrics=metrics)
    return [client_rotation(seams, name, renew=edges.renew, locked_out=edges.locked_out)]


def _reporter(
    settings: Settings, edges: ClusterEdges, local: LocalParts, own: OwnNode, hooks: NodeHooks
) -> NodeReporter:
    config, external = settings.config, settings.flags.cloud_provider == "external"
    addresses = AddressFinder(
        network=edges.network,
        node_ips=settings.node_ips,
        node_name=own.name,
        hostname=own.name,
        external_cloud=external,
    )
    gather = FactsGatherer(
        settings=settings,
        machine=local.machine,
        addresses=addresses,
        images=ImageList(runtime=local.cri, limit=config.node.node_status_max_images, clock=local.clock),
        runtime=local.runtime,
        runtime_version=edges.runtime_version,
        storage_size=edges.storage_size,
        events=local.events,
        clock=local.clock,
        pressures=hooks.pressures,
        devices=hooks.devices,
        volumes_in_use=hooks.volumes_in_use,
        runtime_problems=hooks.runtime_problems,
        other_problems=hooks.other_problems,
    )
    identity = node_identity(settings, local.machine, provided_ip=provided_node_ip(addresses.fixed))
    timing = ReportTiming(
        update_every=config.node.node_status_update_frequency,
        report_every=config.node.node_status_report_frequency,
        timeout=_heartbeat_timeout(settings),
    )
    return NodeReporter(
        client=edges.heartbeat,
        own=own,
        gather=gather,
        identity=identity,
        make_patch=node_status_patch,
        events=local.events,
        clock=local.clock,
        timing=timing,
        register=config.node.register_node,
        reset_extended=hooks.reset_extended,
        volumes_reported=hooks.volumes_reported,
        set_pod_cidr=local.cri.update_runtime_config,
        startup=StartupTimes(clock=local.clock, metrics=local.metrics, booted=local.machine.booted),
    )


def _heartbeat_timeout(settings: Settings) -> float:
    node = settings.config.node
    return min(node.node_status_update_frequency, float(node.node_lease_duration_seconds))
