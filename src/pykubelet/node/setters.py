"""The Node's status from the facts of the moment, field by field. Pure.

`node_status` starts from what the API server has and sets every field this agent owns; `transitions` says which
events the change is worth. Does not cover gathering the facts (gather.py) nor when a status is sent (status.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import (
    ContainerImage,
    DaemonEndpoint,
    NodeAddress,
    NodeCondition,
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
from pykubelet.kit.clock import utc
from pykubelet.model.reasons import NORMAL, WARNING
from pykubelet.model.runtime_status import RuntimeHandler

MEMORY_PRESSURE: Final = "MemoryPressure"
DISK_PRESSURE: Final = "DiskPressure"
PID_PRESSURE: Final = "PIDPressure"
READY: Final = "Ready"

TRUE: Final = "True"
FALSE: Final = "False"


@dataclass(frozen=True, slots=True)
class _Words:
    """Reason, message and event of a pressure while it holds and while it does not."""

    on: tuple[str, str, str]
    off: tuple[str, str, str]


PRESSURES: Final[Mapping[str, _Words]] = {
    MEMORY_PRESSURE: _Words(
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"),
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"),
    ),
    DISK_PRESSURE: _Words(
        ("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"),
    ),
    PID_PRESSURE: _Words(
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"),
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"),
    ),
}


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
    """None with a runtime that does not tell its features."""
    declared_features: Sequence[str] = ()
    pressures: frozenset[str] = frozenset()
    problems: Sequence[str] = ()
    """Why the node is not ready."""
    volumes_in_use: Sequence[str] | None = None
    """None while it is not known which volumes are."""
    now: float = field(kw_only=True)


def node_status(old: NodeStatus, facts: NodeFacts) -> NodeStatus:
    """The status as this node would have it; fields of others stay as they are."""
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
        conditions=conditions(old.conditions, facts),
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


# -- conditions


def conditions(old: Sequence[NodeCondition], facts: NodeFacts) -> list[NodeCondition]:
    """The four conditions of this agent, in place where the Node has them already, among those of others."""
    made = {kind: pressure_condition(kind, kind in facts.pressures) for kind in PRESSURES}
    made[READY] = ready_condition(facts.problems)
    now = utc(facts.now)
    for kind, condition in made.items():
        before = find_condition(old, kind)
        _stamp(condition, before, now)
    kept = [made.pop(condition.type, condition) if condition.type else condition for condition in old]
    return [*kept, *made.values()]


def _stamp(condition: NodeCondition, before: NodeCondition | None, now: datetime) -> None:
    same = before is not None and before.status == condition.status
    condition.last_heartbeat_time = now
    condition.last_transition_time = before.last_transition_time if before is not None and same else now


def pressure_condition(kind: str, present: bool) -> NodeCondition:
    reason, message, _ = PRESSURES[kind].on if present else PRESSURES[kind].off
    return NodeCondition(type=kind, status=TRUE if present else FALSE, reason=reason, message=message)


def ready_condition(problems: Sequence[str]) -> NodeCondition:
    if problems:
        return NodeCondition(type=READY, status=FALSE, reason="KubeletNotReady", message=joined(problems))
    return NodeCondition(type=READY, status=TRUE, reason="KubeletReady", message="kubelet is posting ready status")


def joined(problems: Sequence[str]) -> str:
    """One problem as it is, several as `[a, b]`, none twice."""
    distinct = list(dict.fromkeys(problems))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"


def find_condition(known: Iterable[NodeCondition], kind: str) -> NodeCondition | None:
    return next((condition for condition in known if condition.type == kind), None)


def is_ready(status: NodeStatus) -> bool:
    ready = find_condition(status.conditions, READY)
    return ready is not None and ready.status == TRUE


# -- what a change means


@dataclass(frozen=True, slots=True)
class Transition:
    """An event about the node."""

    kind: str
    reason: str
    message: str


def transitions(name: str, old: NodeStatus, new: NodeStatus) -> list[Transition]:
    """The events of going from `old` to `new`. A first Ready condition is no news, a first pressure one is."""
    found = []
    boot = old.node_info.boot_id if old.node_info is not None else ""
    booted = new.node_info.boot_id if new.node_info is not None else ""
    if boot and booted and boot != booted:
        found.append(Transition(WARNING, "Rebooted", f"Node {name} has been rebooted, boot id: {booted}"))
    for kind, words in PRESSURES.items():
        before, after = find_condition(old.conditions, kind), find_condition(new.conditions, kind)
        if after is not None and (before is None or before.status != after.status):
            found.append(now_is(name, words.on[2] if after.status == TRUE else words.off[2]))
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
