"""What a node has only with an API server: its Node and lease, pods from the API, statuses, mirrors, lookups.

Made by `assemble_cluster` from the parts every node has; `app.py` then takes the seams (`mirrors`, `own`,
`runtime_classes`, ...) instead of their stand-ins and runs the services. Constructors only store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Node, Pod, RuntimeClass, Service
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.port import Machine
from pykubelet.clients.kube.patch import node_status_patch, pod_status_patch
from pykubelet.clients.kube.port import KubeClient
from pykubelet.clients.kube.reflector import Reflector
from pykubelet.clients.kube.watch import Query
from pykubelet.kit import tasks
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.events import EventSink
from pykubelet.node.addresses import AddressFinder, HostNetwork, provided_node_ip
from pykubelet.node.capacity import NO_DEVICES, DeviceAmounts
from pykubelet.node.gather import FactsGatherer, RuntimeView
from pykubelet.node.images import ImageList
from pykubelet.node.lease import LeaseKeeper
from pykubelet.node.own import OwnNode
from pykubelet.node.register import NodeIdentity
from pykubelet.node.runtime_classes import RuntimeClasses
from pykubelet.node.services import ServiceLister
from pykubelet.node.status import NodeReporter, ReportTiming
from pykubelet.pods.manager import PodManager
from pykubelet.pods.mirrors import MirrorPods
from pykubelet.pods.predicates import NodeInfo
from pykubelet.settings.settings import Settings
from pykubelet.sources.api import ApiSource, bound_to
from pykubelet.sources.mux import PodSets
from pykubelet.status.manager import StatusManager
from pykubelet.status.sender import StatusSender
from pykubelet.sync.phases import Phase, PodPhases


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEdges:
    """The outside of a cluster node, beside what every node has."""

    client: KubeClient
    heartbeat: KubeClient
    """For lease and node status: a connection of its own and no rate limit, so that pods never delay it."""
    network: HostNetwork
    storage_size: Callable[[], int]
    """Bytes of the filesystem that holds the root folder."""
    runtime_version: str
    """`<name>://<version>` of the runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParts:
    """The parts of every node that the cluster parts work with."""

    machine: Machine
    cri: CriClient
    runtime: RuntimeView
    statuses: StatusManager
    pods: PodManager
    phases: PodPhases
    sets: PodSets
    events: EventSink
    clock: Clock
    metrics: Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHooks:
    """What other managers add to the Node; each may stay as it is."""

    pressures: Callable[[], Collection[str]] = frozenset
    """Names of the pressure conditions that hold, such as MemoryPressure."""
    devices: Callable[[], DeviceAmounts] = lambda: NO_DEVICES
    reset_extended: Callable[[], bool] = lambda: False
    volumes_in_use: Callable[[], Sequence[str] | None] = lambda: None
    volumes_reported: Callable[[Sequence[str]], None] = lambda names: None
    runtime_problems: Callable[[], Sequence[str]] = lambda: ()
    """Texts such as `PLEG is not healthy: ...`."""
    other_problems: Callable[[], Sequence[str]] = lambda: ()
    """Storage and shutdown."""


@dataclass(slots=True, kw_only=True)
class Cluster:
    own: OwnNode
    """Addresses for pod statuses (`host_ips`) and the Node for whoever needs it."""
    reporter: NodeReporter
    lease: LeaseKeeper
    sender: StatusSender
    mirrors: MirrorPods
    services: ServiceLister
    runtime_classes: RuntimeClasses
    api_pods: Reflector[Pod]
    sinks: list[tasks.Service] = field(default_factory=list)
    """Start first and stop last."""
    managers: list[tasks.Service] = field(default_factory=list)
    sources: list[tasks.Service] = field(default_factory=list)
    chores: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """For housekeeping."""

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


def assemble_cluster(
    settings: Settings, edges: ClusterEdges, local: LocalParts, hooks: NodeHooks | None = None
) -> Cluster:
    name, client, clock = settings.node_name(local.machine.hostname), edges.client, local.clock
    own = OwnNode(name)
    reporter = _reporter(settings, edges, local, own, hooks or NodeHooks())
    own.listen(reporter.observed)
    node_watch = Reflector(
        client=client,
        query=Query(kind=Node, field_selector=f"metadata.name={name}"),
        clock=clock,
        on_change=own.changed,
    )
    lease_seconds = settings.config.node.node_lease_duration_seconds
    lease = LeaseKeeper(
        client=edges.heartbeat, own=own, clock=clock, duration=lease_seconds, timeout=_heartbeat_timeout(settings)
    )
    api_pods = Reflector(
        client=client,
        query=Query(kind=Pod, field_selector=bound_to(name)),
        clock=clock,
        on_change=lambda change: sender.observed(change),
    )
    sender = StatusSender(
        statuses=local.statuses,
        client=client,
        api_pods=api_pods,
        make_patch=pod_status_patch,
        could_run=local.phases.could_have_running_containers,
        clock=clock,
        metrics=local.metrics,
    )
    local.statuses.listen(sender.changed)
    mirrors = MirrorPods(
        client=client,
        pods=local.pods,
        api_pods=api_pods,
        node=own,
        is_ending=lambda full_name: _is_ending(local.phases, full_name),
        clock=clock,
    )
    services = ServiceLister(live=Reflector(client=client, query=Query(kind=Service), clock=clock))
    classes = RuntimeClasses(live=Reflector(client=client, query=Query(kind=RuntimeClass), clock=clock), client=client)
    return Cluster(
        own=own,
        reporter=reporter,
        lease=lease,
        sender=sender,
        mirrors=mirrors,
        services=services,
        runtime_classes=classes,
        api_pods=api_pods,
        sinks=[sender],
        managers=[node_watch, reporter, lease, mirrors, services, classes],
        sources=[ApiSource(feed=api_pods, node=own, sets=local.sets)],
        chores=[mirrors.remove_orphans],
    )


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
    identity = NodeIdentity(
        name=own.name,
        hostname=own.name,
        architecture=local.machine.architecture,
        labels=settings.flags.node_labels,
        taints=config.node.register_with_taints,
        provider_id=config.node.provider_id,
        external_cloud=external,
        controller_attaches=config.volumes.enable_controller_attach_detach,
        provided_ip=provided_node_ip(addresses.fixed),
    )
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
    )


def _heartbeat_timeout(settings: Settings) -> float:
    node = settings.config.node
    return min(node.node_status_update_frequency, float(node.node_lease_duration_seconds))


def _is_ending(phases: PodPhases, full_name: str) -> bool:
    return any(state.full_name == full_name and state.phase is not Phase.FINISHED for state in phases)
