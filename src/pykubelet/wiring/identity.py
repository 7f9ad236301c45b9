"""What this node is by its settings and its machine, before and beside what the API server says of it."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.api.quantity import Quantity
from pykubelet.clients.host.port import Machine
from pykubelet.node.register import NodeIdentity, initial_labels, initial_taints
from pykubelet.pods.predicates import NodeInfo
from pykubelet.settings.settings import Settings


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
