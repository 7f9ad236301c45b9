"""What the rest of the agent gets from its API server, and what stands in for it on a node without one.

This is where the two kinds of node differ: `connect` makes the parts that talk to an API server,
`absent` those that do exactly what upstream does in standalone mode, nothing or a plain refusal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import CSIDriver, Node, ObjectMeta, Pod, PodStatus, RuntimeClass, Service
from pykubelet.certs import build as certs_build
from pykubelet.clients.kube.port import KubeClient, Unreadable
from pykubelet.clients.kube.readers import ClaimReader, KubeClaimObjects, KubeCsiObjects, PodTokens, TrustBundleWatcher
from pykubelet.clients.kube.references import DEFAULT_TTL, ReferenceWatcher, Strategy
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.clients.kube.tokens import TokenManager
from pykubelet.cm.build import ContainerManager
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.context import Context
from pykubelet.edges import ClusterEdges, Edges
from pykubelet.images.provider import ServiceAccounts
from pykubelet.kit import tasks
from pykubelet.kit.tasks import Services
from pykubelet.model.errors import ApiError, PykubeletError
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import is_static, name_of, namespace_of
from pykubelet.model.reasons import UNREADABLE_OBJECT, WARNING
from pykubelet.node import build as node_build
from pykubelet.node.build import container_addresses
from pykubelet.node.conditions import NodeConditions
from pykubelet.node.csi_node import CsiNodeKeeper
from pykubelet.node.facts import NodeSources
from pykubelet.node.fresh_node import FreshNode
from pykubelet.node.listers import RuntimeClasses, ServiceLister
from pykubelet.node.own_node import NodeAttachments, OwnNode
from pykubelet.node.register import initial_info
from pykubelet.node.status import NodeReporter
from pykubelet.pleg.pleg import Pleg
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.mirrors import MirrorPods
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.table import PodTable
from pykubelet.runtime.build import ContainerObjects
from pykubelet.runtime.spec.downward import PodFields
from pykubelet.runtime.spec.env import NoReferences
from pykubelet.runtime.start import RuntimeHandlers
from pykubelet.signals import ApiPodObserved, ObjectChanged
from pykubelet.sources.mux import Deliver
from pykubelet.sources.remote import ApiSource, bound_to
from pykubelet.status.sender import belongs
from pykubelet.volumes.build import Volumes
from pykubelet.volumes.objects import VolumeObjects

logger = logging.getLogger(__name__)

NODE_READ_WITHIN = 5.0
TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"


class StoragePlugins(Struct, frozen=True, kw_only=True):
    """What CSI drivers need of the API server."""

    objects: KubeCsiObjects
    node: CsiNodeKeeper
    attachments: NodeAttachments


class LocalNode(Struct, frozen=True, kw_only=True):
    """This node as its settings, its machine and its runtime describe it."""

    node: OwnNode
    """This node's own Node object; never known without an API server."""
    info: NodeInfo
    """What admission judges by until the Node is known."""
    runtime_state: RuntimeState
    pod_fields: PodFields


class ApiServer(Struct, frozen=True, kw_only=True):
    local: LocalNode
    mirrors: MirrorPods | NoMirrors
    registered: ReferenceWatcher | NoRegistrations
    """Watches the objects of the pods that are registered here."""
    container_objects: ContainerObjects
    volume_objects: VolumeObjects
    status_of: Callable[[Pod], PodStatus]
    """The status that the API server shows of a pod, for a static one of its mirror."""
    services: Services
    chores: Sequence[Callable[[], Awaitable[None]]] = ()
    """For housekeeping."""
    client: KubeClient | None = None
    pods: Reflector[Pod] | None = None
    fresh_node: FreshNode | None = None
    storage: StoragePlugins | None = None
    resource_claims: KubeClaimObjects | None = None

    @property
    def node(self) -> OwnNode:
        return self.local.node

    @property
    def runtime_classes(self) -> RuntimeHandlers:
        return self.container_objects.runtime_classes

    def node_info(self) -> NodeInfo:
        """Return what admission judges by: the Node as the API server has it, or what the machine says."""
        if self.client is None:
            # No Node shows what the runtime supports, so the runtime itself is asked.
            supported = self.local.runtime_state.conditions.supplemental_groups_policy
            return replace(self.local.info, supplemental_groups_policy=bool(supported))
        return node_info(self.node.node, self.local.info)

    def supports_recursive_read_only(self, pod: Pod) -> bool:
        handler = self.runtime_classes.handler_now(pod)
        return self.local.runtime_state.conditions.supports_recursive_read_only(handler)

    def unreadable_pods(self) -> Sequence[Unreadable]:
        """Pods that the agent cannot read and leaves out."""
        return [each for each in self.client.unreadable.now() if each.kind == "Pod"] if self.client is not None else ()


def build(
    ctx: Context, edges: Edges, table: PodTable, spec: NodeSpec, runtime_state: RuntimeState, deliver: Deliver
) -> ApiServer:
    """`deliver` takes the pods that the API server has bound to this node."""
    own = OwnNode(ctx.node_name)
    local = LocalNode(
        node=own,
        info=initial_info(ctx.settings, edges.machine, spec.allocatable),
        runtime_state=runtime_state,
        pod_fields=PodFields(spec.allocatable),
    )
    if edges.cluster is None:
        return absent(local, container_addresses(ctx, edges, own))
    return connect(ctx, edges.cluster, table, local, deliver)


# --- a node without an API server -------------------------------------------------------------------


class NoMirrors:
    """Static pods have no mirror."""

    async def reconcile(self, pod: Pod) -> None:
        return None


class NoRegistrations:
    """Secrets and config maps do not exist; pods that refer to them fail where they use them."""

    def register(self, pod: Pod) -> None:
        return None

    def unregister(self, pod: Pod) -> None:
        return None


class DefaultHandler:
    """Without RuntimeClass objects every pod runs with the runtime's default handler."""

    async def handler_for(self, pod: Pod) -> str:
        if pod.spec.runtime_class_name:
            raise PykubeletError(
                f"spec.runtimeClassName: {pod.spec.runtime_class_name} cannot be looked up without an API server"
            )
        return ""

    def handler_now(self, pod: Pod) -> str | None:
        return None if pod.spec.runtime_class_name else ""


def absent(local: LocalNode, container_ips: Callable[[], Sequence[str]]) -> ApiServer:
    return ApiServer(
        local=local,
        mirrors=NoMirrors(),
        registered=NoRegistrations(),
        container_objects=ContainerObjects(
            references=NoReferences(), runtime_classes=DefaultHandler(), accounts=None, host_ips=container_ips
        ),
        volume_objects=VolumeObjects(downward=local.pod_fields),
        status_of=lambda pod: pod.status,
        services=Services(),
    )


# --- a node with one --------------------------------------------------------------------------------


class ApiReferences:
    """Objects of the API that pods refer to, watched while these live; services are read when first requested."""

    def __init__(self, *, objects: ReferenceWatcher, services: ServiceLister) -> None:
        self.config_map = objects.config_map
        self.secret = objects.secret
        self.services = services.services


def connect(ctx: Context, edges: ClusterEdges, table: PodTable, local: LocalNode, deliver: Deliver) -> ApiServer:
    client, clock, signals, own = edges.client, ctx.clock, ctx.signals, local.node
    node_watch = Reflector(
        client=client,
        query=Query(kind=Node, field_selector=f"metadata.name={own.name}"),
        clock=clock,
        on_change=own.changed,
    )
    client.unreadable.listen(lambda unreadable: _unreadable(ctx.events, unreadable))
    api_pods = Reflector(
        client=client,
        query=Query(kind=Pod, field_selector=bound_to(own.name)),
        clock=clock,
        on_change=lambda change: signals.publish(ApiPodObserved(change)),
    )
    mirrors = MirrorPods(client=client, table=table, api_pod=api_pods.get, node=own, clock=clock)
    services = ServiceLister(Reflector(client=client, query=Query(kind=Service), clock=clock))
    objects = _references(ctx, client, own)
    tokens, claims = TokenManager(kube=client, clock=clock), ClaimReader(client)
    bundles = TrustBundleWatcher(
        kube=client, clock=clock, on_change=lambda name: signals.publish(ObjectChanged("ClusterTrustBundle", "", name))
    )
    storage = _storage(ctx, client, own, tokens, claims)
    classes = RuntimeClasses(live=Reflector(client=client, query=Query(kind=RuntimeClass), clock=clock), client=client)
    watches: list[tasks.Service] = [node_watch, services, classes, storage.objects]
    fresh_node = FreshNode(ctx, read=lambda: _read_node(edges.heartbeat, own))
    return ApiServer(
        local=local,
        mirrors=mirrors,
        registered=objects,
        container_objects=ContainerObjects(
            references=ApiReferences(objects=objects, services=services),
            runtime_classes=classes,
            accounts=ServiceAccounts(client=client, tokens=tokens),
            host_ips=own.host_ips,
        ),
        volume_objects=VolumeObjects(
            references=objects,
            tokens=PodTokens(tokens),
            claims=claims,
            attachments=storage.attachments,
            trust=bundles,
            csi=storage.objects,
            csi_node=storage.node,
            node_uid=lambda: (own.node.metadata.uid or "") if own.node is not None else "",
            downward=local.pod_fields,
        ),
        status_of=lambda pod: _status_of(api_pods, pod),
        services=Services(
            managers=[*watches, fresh_node, mirrors, objects, tokens, storage.node, bundles],
            producers=[ApiSource(sets=api_pods.sets, wait_node_known=own.wait_known, deliver=deliver)],
        ),
        chores=[mirrors.remove_orphans],
        client=client,
        pods=api_pods,
        fresh_node=fresh_node,
        storage=storage,
        resource_claims=KubeClaimObjects(client, own.name),
    )


def _references(ctx: Context, client: KubeClient, own: OwnNode) -> ReferenceWatcher:
    objects = ReferenceWatcher(
        kube=client,
        clock=ctx.clock,
        strategy=Strategy(ctx.settings.config.node.change_detection_strategy),
        sync_frequency=ctx.settings.config.sources.sync_frequency,
        ttl=lambda: object_ttl(own.node),
    )
    objects.listen(lambda *changed: ctx.signals.publish(ObjectChanged(*changed)))
    return objects


def _storage(
    ctx: Context, client: KubeClient, own: OwnNode, tokens: TokenManager, claims: ClaimReader
) -> StoragePlugins:
    attachments = NodeAttachments(own, ctx.signals)
    own.listen(attachments.changed)
    drivers = Reflector(client=client, query=Query(kind=CSIDriver), clock=ctx.clock)
    return StoragePlugins(
        objects=KubeCsiObjects(client=client, drivers=drivers, tokens=PodTokens(tokens), claims=claims),
        node=CsiNodeKeeper(client=client, own=own, clock=ctx.clock, signals=ctx.signals),
        attachments=attachments,
    )


def node_info(node: Node | None, local: NodeInfo) -> NodeInfo:
    """The Node as the API server has it; what the machine says until then."""
    if node is None:
        return local
    amounts = {name: Quantity.parse(value) for name, value in node.status.allocatable.items()}
    features = node.status.features
    return NodeInfo(
        name=local.name,
        labels=node.metadata.labels,
        taints=node.spec.taints,
        allocatable={**local.allocatable, **amounts},
        supplemental_groups_policy=bool(features is not None and features.supplemental_groups_policy),
    )


def object_ttl(node: Node | None) -> float:
    """How long secrets and config maps may be kept with strategy Cache; a controller raises it in big clusters."""
    text = node.metadata.annotations.get(TTL_ANNOTATION, "") if node is not None else ""
    return float(text) if text.isdigit() else DEFAULT_TTL


async def _read_node(client: KubeClient, own: OwnNode) -> None:
    """Read the Node anew, once it was read at all."""
    await own.wait_known()
    try:
        async with asyncio.timeout(NODE_READ_WITHIN):
            own.learn(await client.get(Node, own.name))
    except (ApiError, TimeoutError) as error:
        logger.info("the Node cannot be read anew, the one at hand counts", extra={"error": str(error)})


def _unreadable(events: EventRecorder, unreadable: Unreadable) -> None:
    message = f"{unreadable.shown} cannot be read and is left out: {unreadable.why}"
    events.node_event(WARNING, UNREADABLE_OBJECT, message)
    if unreadable.kind == "Pod":
        # Only pods of this node are listed. Made of its name alone: that is all there is of it.
        metadata = ObjectMeta(name=unreadable.name, namespace=unreadable.namespace, uid=unreadable.uid)
        message = f"the node cannot read this pod: {unreadable.why}"
        events.pod_event(Pod(metadata=metadata), WARNING, UNREADABLE_OBJECT, message)


def _status_of(api_pods: Reflector[Pod], pod: Pod) -> PodStatus:
    mirror = api_pods.get(name_of(pod), namespace_of(pod)) if is_static(pod) else None
    return mirror.status if mirror is not None and belongs(mirror, pod) else pod.status


# --- reports to it ----------------------------------------------------------------------------------


class Reporting(Struct, frozen=True, kw_only=True):
    """What keeps the API server up to date about the node."""

    reporter: NodeReporter | None
    services: Services

    def node_status_changed(self) -> None:
        if self.reporter is not None:
            self.reporter.soon()


def report(
    ctx: Context,
    edges: Edges,
    api: ApiServer,
    conditions: NodeConditions,
    pleg: Pleg,
    cm: ContainerManager,
    volumes: Volumes,
) -> Reporting:
    """Build the Node's reporter, its lease and the renewal of the node's certificates."""
    if edges.cluster is None or api.storage is None:
        return Reporting(reporter=None, services=Services())
    sources = NodeSources(
        runtime=api.local.runtime_state,
        pleg=pleg,
        cm=cm,
        volumes=volumes.manager,
        conditions=conditions,
        csi_node=api.storage.node,
        attachments=api.storage.attachments,
        cri=edges.cri,
    )
    node = node_build.build(ctx, edges, edges.cluster, api.node, sources)
    certificates = certs_build.build(ctx, edges.cluster, lambda: api.node.node)
    api.node.listen(certificates.node_changed)
    return Reporting(reporter=node.reporter, services=Services.of(node.services, certificates.services))
