"""The Node's status from the facts of the moment, field by field. Pure.

`node_status` starts from what the API server has and sets every field this agent owns; `transitions` returns
the events of the change. Does not cover gathering the facts (facts.py) nor when a status is sent (status.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import (
    ContainerImage,
    DaemonEndpoint,
    NodeAddress,
    NodeDaemonEndpoints,
    NodeFeatures,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    NodeStatus,
    NodeSwapStatus,
    NodeSystemInfo,
    QuantityValue,
)
from pykubelet.clients.host.port import Machine
from pykubelet.cm.capacity import NO_DEVICES, DeviceAmounts, allocatable, with_devices
from pykubelet.model.reasons import NORMAL, WARNING
from pykubelet.model.runtime_status import RuntimeHandler
from pykubelet.node.conditions import PRESSURES, READY, TRUE, conditions, find_condition


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything a status is made from, as it is now."""

    machine: Machine
    addresses: Sequence[NodeAddress] | None
    """None when they could not be found: what the Node has stays."""
    capacity: Mapping[str, Quantity]
    """Of the machine itself, without devices."""
    kept: Mapping[str, Quantity] = field(default_factory=dict)
    """What is taken off the capacity."""
    devices: DeviceAmounts = NO_DEVICES
    runtime: str = ""
    """`<name>://<version>`."""
    kubelet_version: str
    port: int
    images: Sequence[ContainerImage] = ()
    handlers: Sequence[RuntimeHandler] = ()
    supplemental_groups_policy: bool | None = None
    """None with a runtime that does not report its features."""
    declared_features: Sequence[str] = ()
    pressures: frozenset[str] = frozenset()
    problems: Sequence[str] = ()
    """Why the node is not ready."""
    volumes_in_use: Sequence[str] | None = None
    """None while it is not known which volumes are."""
    now: float = field(kw_only=True)


def node_status(old: NodeStatus, facts: NodeFacts) -> NodeStatus:
    """Return the new status; fields that others own stay."""
    capacity = with_devices(
        _parsed(old.capacity), facts.capacity, facts.devices.capacity, removed=facts.devices.removed
    )
    usable = {**allocatable(capacity, facts.kept), **facts.devices.allocatable}
    return msgspec.structs.replace(
        old,
        addresses=old.addresses if facts.addresses is None else list(facts.addresses),
        capacity=_written(capacity),
        allocatable=_written(usable),
        node_info=system_info(facts),
        daemon_endpoints=NodeDaemonEndpoints(kubelet_endpoint=DaemonEndpoint(port=facts.port)),
        images=list(facts.images),
        runtime_handlers=runtime_handlers(facts.handlers),
        features=node_features(facts.supplemental_groups_policy),
        declared_features=sorted(facts.declared_features),
        conditions=conditions(old.conditions, facts.pressures, facts.problems, facts.now),
        volumes_in_use=old.volumes_in_use if facts.volumes_in_use is None else sorted(set(facts.volumes_in_use)),
    )


def _parsed(values: Mapping[str, QuantityValue]) -> dict[str, Quantity]:
    return {name: Quantity.parse(value) for name, value in values.items()}


def _written(values: Mapping[str, Quantity]) -> dict[str, QuantityValue]:
    return {name: str(value) for name, value in values.items()}


def node_features(supplemental_groups_policy: bool | None) -> NodeFeatures | None:
    if supplemental_groups_policy is None:
        return None
    return NodeFeatures(supplemental_groups_policy=supplemental_groups_policy)


def system_info(facts: NodeFacts) -> NodeSystemInfo:
    machine = facts.machine
    return NodeSystemInfo(
        architecture=machine.architecture,
        boot_id=machine.boot_id,
        container_runtime_version=facts.runtime,
        kernel_version=machine.kernel,
        kube_proxy_version="",
        kubelet_version=facts.kubelet_version,
        machine_id=machine.machine_id,
        operating_system="linux",
        os_image=machine.os_image,
        swap=NodeSwapStatus(capacity=machine.swap_bytes) if machine.swap_bytes > 0 else None,
        system_uuid=machine.system_uuid,
    )


def runtime_handlers(handlers: Iterable[RuntimeHandler]) -> list[NodeRuntimeHandler]:
    return [
        NodeRuntimeHandler(
            name=handler.name,
            features=NodeRuntimeHandlerFeatures(
                recursive_read_only_mounts=handler.recursive_read_only_mounts,
                user_namespaces=handler.user_namespaces,
            ),
        )
        for handler in sorted(handlers, key=lambda each: each.name)
    ]


# -- what a change means


@dataclass(frozen=True, slots=True)
class Transition:
    """An event about the node."""

    kind: str
    reason: str
    message: str


def transitions(name: str, old: NodeStatus, new: NodeStatus) -> list[Transition]:
    """Return the events of the change. A first Ready condition causes none, a first pressure condition does."""
    found = []
    boot = old.node_info.boot_id if old.node_info is not None else ""
    booted = new.node_info.boot_id if new.node_info is not None else ""
    if boot and booted and boot != booted:
        found.append(Transition(WARNING, "Rebooted", f"Node {name} has been rebooted, boot id: {booted}"))
    for kind, texts in PRESSURES.items():
        before, after = find_condition(old.conditions, kind), find_condition(new.conditions, kind)
        if after is not None and (before is None or before.status != after.status):
            found.append(now_is(name, texts.on[2] if after.status == TRUE else texts.off[2]))
    before, after = find_condition(old.conditions, READY), find_condition(new.conditions, READY)
    if before is not None and after is not None and before.status != after.status:
        found.append(now_is(name, "NodeReady" if after.status == TRUE else "NodeNotReady"))
    return found


def now_is(name: str, reason: str) -> Transition:
    return Transition(NORMAL, reason, f"Node {name} status is now: {reason}")


def same_status(old: NodeStatus, new: NodeStatus) -> bool:
    """Whether nothing but heartbeat times differs."""
    return _without_heartbeats(old) == _without_heartbeats(new)


def _without_heartbeats(status: NodeStatus) -> NodeStatus:
    return msgspec.structs.replace(
        status,
        capacity=_written(_parsed(status.capacity)),
        allocatable=_written(_parsed(status.allocatable)),
        conditions=[msgspec.structs.replace(each, last_heartbeat_time=None) for each in status.conditions],
    )
