"""The Node object this agent creates, and how an existing one is aligned. Pure.

An existing Node keeps everything operators and controllers wrote; only the well-known labels, one annotation and
the amounts this agent owns are aligned. Does not cover talking to the API server (status.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Node, NodeSpec, NodeStatus, ObjectMeta, Taint
from pykubelet.clients.host.port import Machine
from pykubelet.model.pod_resources import is_extended
from pykubelet.pods.predicates import NodeInfo
from pykubelet.settings.flag_forms import NodeTaint
from pykubelet.settings.settings import Settings

HOSTNAME_LABEL = "kubernetes.io/hostname"
OS_LABELS = ("kubernetes.io/os", "beta.kubernetes.io/os")
ARCH_LABELS = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
ATTACH_DETACH = "volumes.kubernetes.io/controller-managed-attach-detach"
PROVIDED_NODE_IP = "alpha.kubernetes.io/provided-node-ip"
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"

ALIGNED_LABELS = (
    HOSTNAME_LABEL,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    *OS_LABELS,
    *ARCH_LABELS,
    "node.kubernetes.io/windows-build",
)
"""The labels of an existing Node that follow this agent; all others stay."""


class NodeIdentity(Struct, frozen=True, kw_only=True):
    """What this node is by its settings and its machine."""

    name: str
    hostname: str
    architecture: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[NodeTaint] = ()
    provider_id: str = ""
    external_cloud: bool = False
    controller_attaches: bool = True
    provided_ip: str = ""
    """Addresses the operator chose, for a cloud controller."""
    booted: float = 0.0
    """When the machine booted; 0 when unknown."""


def initial_node(identity: NodeIdentity, status: NodeStatus) -> Node:
    return Node(
        api_version="v1",
        kind="Node",
        metadata=ObjectMeta(name=identity.name, labels=initial_labels(identity), annotations=own_annotations(identity)),
        spec=NodeSpec(provider_id=identity.provider_id or None, taints=initial_taints(identity)),
        status=status,
    )


def initial_labels(identity: NodeIdentity) -> dict[str, str]:
    return {HOSTNAME_LABEL: identity.hostname, **platform_labels(identity), **identity.labels}


def platform_labels(identity: NodeIdentity) -> dict[str, str]:
    return {**{key: "linux" for key in OS_LABELS}, **{key: identity.architecture for key in ARCH_LABELS}}


def own_annotations(identity: NodeIdentity) -> dict[str, str]:
    found = {ATTACH_DETACH: "true"} if identity.controller_attaches else {}
    if identity.external_cloud and identity.provided_ip:
        found[PROVIDED_NODE_IP] = identity.provided_ip
    return found


def initial_taints(identity: NodeIdentity) -> list[Taint]:
    found = [Taint(key=each.key, value=each.value or None, effect=each.effect) for each in identity.taints]
    if identity.external_cloud and all(taint.key != UNINITIALIZED for taint in found):
        found.append(Taint(key=UNINITIALIZED, value="true", effect="NoSchedule"))
    return found


def adopt(existing: Node, identity: NodeIdentity, *, reset_extended: bool) -> Node:
    """The existing Node with what this agent aligns. `reset_extended`: its extended resources are stale."""
    wanted = initial_labels(identity)
    labels = dict(existing.metadata.labels)
    for key in ALIGNED_LABELS:
        if key not in wanted:
            continue  # zones and the like belong to a cloud controller unless --node-labels has them
        labels[key] = wanted[key]
        if not labels[key]:
            del labels[key]
    status = existing.status
    if reset_extended:
        status = msgspec.structs.replace(
            status, capacity=_reset(status.capacity), allocatable=_reset(status.allocatable)
        )
    metadata = msgspec.structs.replace(
        existing.metadata, labels=labels, annotations=with_own_annotations(existing.metadata.annotations, identity)
    )
    return msgspec.structs.replace(existing, metadata=metadata, status=status)


def with_own_annotations(annotations: Mapping[str, str], identity: NodeIdentity) -> dict[str, str]:
    kept = {key: value for key, value in annotations.items() if key not in (ATTACH_DETACH, PROVIDED_NODE_IP)}
    return {**kept, **own_annotations(identity)}


def with_platform_labels(labels: Mapping[str, str], identity: NodeIdentity) -> dict[str, str]:
    return {**labels, **platform_labels(identity)}


def _reset(amounts: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    return {name: "0" if is_extended(name) else amount for name, amount in amounts.items()}


def node_identity(settings: Settings, machine: Machine, *, provided_ip: str = "") -> NodeIdentity:
    config, name = settings.config, settings.node_name(machine.hostname)
    return NodeIdentity(
        name=name,
        hostname=name,
        architecture=machine.architecture,
        labels=settings.flags.node_labels,
        taints=config.node.register_with_taints,
        provider_id=config.node.provider_id,
        external_cloud=settings.flags.cloud_provider == "external",
        controller_attaches=config.volumes.enable_controller_attach_detach,
        provided_ip=provided_ip,
        booted=machine.booted,
    )


def initial_info(settings: Settings, machine: Machine, allocatable: Mapping[str, Quantity]) -> NodeInfo:
    """What pods are judged by until the Node is known: the Node as it would be registered."""
    identity = node_identity(settings, machine)
    return NodeInfo(
        name=identity.name,
        labels=initial_labels(identity),
        taints=initial_taints(identity),
        allocatable=allocatable,
    )
