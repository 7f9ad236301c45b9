"""What the rest of the agent gets from its API server, and what stands in for it on a node without one.

This is the one place where the two kinds of node differ: `connect` makes the parts that talk to an API server,
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
from pykubelet.clients.kube.port import KubeClient, Unreadable
from pykubelet.clients.kube.readers import ClaimReader, KubeClaimObjects, KubeCsiObjects, PodTokens, TrustBundleWatcher
from pykubelet.clients.kube.references import DEFAULT_TTL, ReferenceWatcher, Strategy
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.clients.kube.tokens import TokenManager
from pykubelet.context import Context
from pykubelet.edges import ClusterEdges
from pykubelet.images.provider import ServiceAccounts
from pykubelet.kit.tasks import Services
from pykubelet.model.errors import ApiError, PykubeletError
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import is_static, name_of, namespace_of
from pykubelet.model.reasons import UNREADABLE_OBJECT, WARNING
from pykubelet.node.csi_node import CsiNodeKeeper
from pykubelet.node.listers import RuntimeClasses, ServiceLister
from pykubelet.node.own_node import NodeAttachments, OwnNode
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.mirrors import MirrorPods
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.table import PodTable
from pykubelet.runtime.spec.env import NoReferences, References
from pykubelet.runtime.start import RuntimeHandlers
from pykubelet.signals import ApiPodObserved, NodeStatusChanged, ObjectChanged
from pykubelet.sources.remote import bound_to
from pykubelet.status.sender import belongs
from pykubelet.sync.fresh_node import FreshNode
from pykubelet.sync.pod_sync import Mirrors
from pykubelet.sync.pod_sync import References as ReferencesHeld
from pykubelet.volumes.objects import VolumeObjects

logger = logging.getLogger(__name__)

NODE_READ_WITHIN = 5.0
TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"


class StoragePlugins(Struct, frozen=True, kw_only=True):
    """What CSI drivers need of the API server."""

    objects: KubeCsiObjects
    node: CsiNodeKeeper
    attachments: NodeAttachments


class ApiServer(Struct, frozen=True, kw_only=True):
    node: OwnNode
    """This node's own Node object; never known without an API server."""
    node_info: Callable[[NodeInfo], NodeInfo]
    """What admission judges by, made from what the machine says."""
    mirrors: Mirrors
    registered: ReferencesHeld
    """Told which pods refer to objects."""
    references: References
    runtime_classes: RuntimeHandlers
    volume_objects: VolumeObjects
    status_of: Callable[[Pod], PodStatus]
    """The status that the API server shows of a pod, for a static one of its mirror."""
    services: Services
    chores: Sequence[Callable[[], Awaitable[None]]] = ()
    """For housekeeping."""
    client: KubeClient | None = None
    pods: Reflector[Pod] | None = None
    fresh_node: FreshNode | None = None
    accounts: ServiceAccounts | None = None
    storage: StoragePlugins | None = None
    resource_claims: KubeClaimObjects | None = None

    def unreadable(self) -> Sequence[Unreadable]:
        """Objects that the agent cannot read and leaves out."""
        return self.client.unreadable.now() if self.client is not None else ()


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


def absent(ctx: Context, runtime: RuntimeState) -> ApiServer:
    def node_info(local: NodeInfo) -> NodeInfo:
        # No Node shows what the runtime supports, so the runtime itself is asked.
        return replace(local, supplemental_groups_policy=bool(runtime.conditions.supplemental_groups_policy))

    return ApiServer(
        node=OwnNode(ctx.node_name),
        node_info=node_info,
        mirrors=NoMirrors(),
        registered=NoRegistrations(),
        references=NoReferences(),
        runtime_classes=DefaultHandler(),
        volume_objects=VolumeObjects(),
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


def connect(ctx: Context, edges: ClusterEdges, table: PodTable) -> ApiServer:
    client, clock, signals = edges.client, ctx.clock, ctx.signals
    own = OwnNode(ctx.node_name)
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
    mirrors = MirrorPods(
        client=client,
        table=table,
        api_pod=api_pods.get,
        node=own,
        clock=clock,
    )
    services = ServiceLister(Reflector(client=client, query=Query(kind=Service), clock=clock))
    objects = ReferenceWatcher(
        kube=client,
        clock=clock,
        strategy=Strategy(ctx.settings.config.node.change_detection_strategy),
        sync_frequency=ctx.settings.config.sources.sync_frequency,
        ttl=lambda: object_ttl(own.node),
    )
    objects.listen(lambda *changed: signals.publish(ObjectChanged(*changed)))
    tokens, claims = TokenManager(kube=client, clock=clock), ClaimReader(client)
    bundles = TrustBundleWatcher(
        kube=client,
        clock=clock,
        on_change=lambda name: signals.publish(ObjectChanged("ClusterTrustBundle", "", name)),
    )
    attachments = NodeAttachments(own, report=lambda: signals.publish(NodeStatusChanged()))
    own.listen(attachments.changed)
    storage = StoragePlugins(
        objects=KubeCsiObjects(
            client=client,
            drivers=Reflector(client=client, query=Query(kind=CSIDriver), clock=clock),
            tokens=PodTokens(tokens),
            claims=claims,
        ),
        node=CsiNodeKeeper(client=client, own=own, clock=clock, on_made=lambda: signals.publish(NodeStatusChanged())),
        attachments=attachments,
    )
    classes = RuntimeClasses(live=Reflector(client=client, query=Query(kind=RuntimeClass), clock=clock), client=client)
    fresh_node = FreshNode(ctx, read=lambda: _read_node(edges.heartbeat, own))
    return ApiServer(
        node=own,
        node_info=lambda local: node_info(own.node, local),
        mirrors=mirrors,
        registered=objects,
        references=ApiReferences(objects=objects, services=services),
        runtime_classes=classes,
        volume_objects=VolumeObjects(
            references=objects,
            tokens=PodTokens(tokens),
            claims=claims,
            attachments=attachments,
            trust=bundles,
            csi=storage.objects,
            csi_node=storage.node,
            node_uid=lambda: (own.node.metadata.uid or "") if own.node is not None else "",
        ),
        status_of=lambda pod: _status_of(api_pods, pod),
        services=Services(
            managers=[
                node_watch,
                fresh_node,
                mirrors,
                objects,
                tokens,
                services,
                classes,
                storage.objects,
                storage.node,
                bundles,
            ]
        ),
        chores=[mirrors.remove_orphans],
        client=client,
        pods=api_pods,
        fresh_node=fresh_node,
        accounts=ServiceAccounts(client=client, tokens=tokens),
        storage=storage,
        resource_claims=KubeClaimObjects(client, own.name),
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
