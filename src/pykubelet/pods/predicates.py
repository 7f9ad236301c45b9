"""Whether a pod fits this node: resources, labels and affinity, name, host ports, taints.

The scheduler's checks once more, because static pods are not scheduled and the node may have changed. Pure: a list of
failures, each with upstream's name and text. What a failure leads to (rejection,
preemption) is in admission.py and preemption.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import (
    Container,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    ResourceRequirements,
    Taint,
    Toleration,
)
from pykubelet.model.pod import is_sidecar, is_static
from pykubelet.model.pod_resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    in_units,
    is_counted,
    is_extended,
    pod_requests,
    served_by_claims,
)
from pykubelet.model.problems import Shortage

NODE_AFFINITY = "NodeAffinity"
NODE_NAME = "NodeName"
NODE_PORTS = "NodePorts"
TAINT_TOLERATION = "TaintToleration"

ANY_ADDRESS = "0.0.0.0"
_INTEGER = re.compile(r"[+-]?[0-9]+")


class NodeInfo(Struct, frozen=True, kw_only=True):
    """What admission must know of the node; from the Node object, or made up locally without a cluster."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    allocatable: Mapping[str, Quantity] = field(default_factory=dict)
    """Must hold `pods`: without it not a single pod is allowed."""
    supplemental_groups_policy: bool = False
    """The runtime can apply supplementalGroupsPolicy Strict."""


class InsufficientResource(Struct, frozen=True, kw_only=True):
    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def reason(self) -> str:
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}"
        )

    @property
    def missing(self) -> int:
        """How much would have to go free."""
        return self.requested - (self.capacity - self.used)

    @property
    def shortage(self) -> Shortage:
        return Shortage(
            resource=self.resource,
            missing=self.missing,
            requested=self.requested,
            free=self.capacity - self.used,
            capacity=self.capacity,
        )


class PredicateFailure(Struct, frozen=True, kw_only=True):
    reason: str
    description: str

    @property
    def message(self) -> str:
        return f"Predicate {self.reason} failed: {self.description}"


Failure = InsufficientResource | PredicateFailure


def find_failures(
    pod: Pod, node: NodeInfo, others: Sequence[Pod], *, pod_level: bool = True, compare_taints: bool = False
) -> list[Failure]:
    """Everything that keeps the pod off this node, in the order upstream reports it."""
    failures: list[Failure] = list(insufficient_resources(pod, node, others, pod_level=pod_level))
    if not matches_node(pod, node):
        failures.append(_failure(NODE_AFFINITY, "node(s) didn't match Pod's node affinity/selector"))
    if pod.spec.node_name and pod.spec.node_name != node.name:
        failures.append(_failure(NODE_NAME, "node(s) didn't match the requested node name"))
    if has_port_conflict(pod, others):
        failures.append(_failure(NODE_PORTS, "node(s) didn't have free ports for the requested pod ports"))
    if not is_static(pod) and untolerated_taint(pod, node, compare=compare_taints) is not None:
        failures.append(_failure(TAINT_TOLERATION, "node(s) had taints that the pod didn't tolerate"))
    return failures


def _failure(reason: str, description: str) -> PredicateFailure:
    return PredicateFailure(reason=reason, description=description)


# -- resources


def insufficient_resources(
    pod: Pod, node: NodeInfo, others: Sequence[Pod], *, pod_level: bool = True
) -> list[InsufficientResource]:
    found: list[InsufficientResource] = []
    allowed = _capacity(node, PODS)
    if len(others) + 1 > allowed:
        found.append(InsufficientResource(resource=PODS, requested=1, used=len(others), capacity=allowed))
    wanted = _wanted(pod, node, pod_level)
    if not wanted:
        return found
    used = dict.fromkeys(wanted, 0)
    for other in others:
        for name, amount in pod_requests(other, pod_level=pod_level, use_status=True).items():
            if name in used:
                used[name] += in_units(name, amount)
    for name in _in_order(wanted):
        capacity = _capacity(node, name)
        if wanted[name] > capacity - used[name]:
            found.append(
                InsufficientResource(resource=name, requested=wanted[name], used=used[name], capacity=capacity)
            )
    return found


def _wanted(pod: Pod, node: NodeInfo, pod_level: bool) -> dict[str, int]:
    requests = pod_requests(_without_claimed(pod), pod_level=pod_level)
    wanted = {name: in_units(name, amount) for name, amount in requests.items() if is_counted(name)}
    # A vendor's resource that the node does not list is checked by others (device manager, drivers).
    return {
        name: units
        for name, units in wanted.items()
        if units > 0 and (name in node.allocatable or not is_extended(name))
    }


def _in_order(names: Iterable[str]) -> list[str]:
    first = [CPU, MEMORY, EPHEMERAL_STORAGE]
    return sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name))


def _capacity(node: NodeInfo, name: str) -> int:
    amount = node.allocatable.get(name)
    return in_units(name, amount) if amount is not None else 0


def _without_claimed(pod: Pod) -> Pod:
    """The pod without those requests that a resource claim already serves."""
    served = served_by_claims(pod)
    if not served:
        return pod

    def stripped(container: Container) -> Container:
        if container.resources is None:
            return container
        left = {k: v for k, v in container.resources.requests.items() if (container.name, k) not in served}
        return msgspec.structs.replace(container, resources=ResourceRequirements(requests=left))

    spec = msgspec.structs.replace(
        pod.spec,
        containers=[stripped(each) for each in pod.spec.containers],
        init_containers=[stripped(each) for each in pod.spec.init_containers],
    )
    return msgspec.structs.replace(pod, spec=spec)


# -- node selector and affinity


def matches_node(pod: Pod, node: NodeInfo) -> bool:
    """Node selector and required node affinity; preferences are the scheduler's."""
    if any(node.labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return required is None or matches_selector(required, node)


def matches_selector(selector: NodeSelector, node: NodeInfo) -> bool:
    """Any of its terms."""
    return any(_term_matches(term, node) for term in selector.node_selector_terms)


def _term_matches(term: NodeSelectorTerm, node: NodeInfo) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name} if node.name else {}
    return all(_label_matches(each, node.labels) for each in term.match_expressions) and all(
        _field_matches(each, fields) for each in term.match_fields
    )


def _label_matches(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    check = _OPERATORS.get(requirement.operator or "")
    return check is not None and check(labels.get(requirement.key or ""), requirement.values)


def _field_matches(requirement: NodeSelectorRequirement, fields: Mapping[str, str]) -> bool:
    if requirement.operator not in ("In", "NotIn") or len(requirement.values) != 1:
        return False
    if not fields:
        return True
    same = fields.get(requirement.key or "", "") == requirement.values[0]
    return same if requirement.operator == "In" else not same


def _compare(actual: str | None, values: Sequence[str], holds: Callable[[int, int], bool]) -> bool:
    if actual is None or len(values) != 1:
        return False
    left, right = parse_int64(actual), parse_int64(values[0])
    return left is not None and right is not None and holds(left, right)


_OPERATORS: dict[str, Callable[[str | None, Sequence[str]], bool]] = {
    # A malformed requirement (no values, or values where none belong) matches nothing.
    "In": lambda actual, values: actual is not None and actual in values,
    "NotIn": lambda actual, values: bool(values) and (actual is None or actual not in values),
    "Exists": lambda actual, values: not values and actual is not None,
    "DoesNotExist": lambda actual, values: not values and actual is None,
    "Gt": lambda actual, values: _compare(actual, values, lambda left, right: left > right),
    "Lt": lambda actual, values: _compare(actual, values, lambda left, right: left < right),
}


def parse_int64(text: str) -> int | None:
    """A decimal number as Go reads one: no blanks, no underscores, at most 64 bits."""
    if len(text) > 40 or not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


# -- host ports

HostPort = tuple[str, str, int]


def host_ports(pod: Pod) -> list[HostPort]:
    """(address, protocol, port) of everything that occupies a port of the host while the pod runs."""
    lasting = (*(each for each in pod.spec.init_containers if is_sidecar(each)), *pod.spec.containers)
    return [
        (port.host_ip or ANY_ADDRESS, port.protocol or "TCP", port.host_port)
        for container in lasting
        for port in container.ports
        if port.host_port is not None and port.host_port > 0
    ]


def has_port_conflict(pod: Pod, others: Sequence[Pod]) -> bool:
    wanted = host_ports(pod)
    if not wanted:
        return False
    taken: dict[tuple[str, int], set[str]] = {}
    for other in others:
        for address, protocol, number in host_ports(other):
            taken.setdefault((protocol, number), set()).add(address)
    for address, protocol, number in wanted:
        addresses = taken.get((protocol, number), set())
        if addresses and (address == ANY_ADDRESS or address in addresses or ANY_ADDRESS in addresses):
            return True
    return False


# -- taints


def untolerated_taint(pod: Pod, node: NodeInfo, *, compare: bool = False) -> Taint | None:
    """The first NoExecute taint of the node that the pod does not bear; other effects are the scheduler's."""
    for taint in node.taints:
        if taint.effect == "NoExecute" and not tolerates(pod, taint, compare=compare):
            return taint
    return None


def tolerates(pod: Pod, taint: Taint, *, compare: bool = False) -> bool:
    return any(_toleration_covers(each, taint, compare) for each in pod.spec.tolerations)


def _toleration_covers(toleration: Toleration, taint: Taint, compare: bool) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator or "Equal":
        case "Equal":
            return (toleration.value or "") == (taint.value or "")
        case "Exists":
            return True
        case "Gt" | "Lt" as operator if compare:
            limit, actual = parse_int64(toleration.value or ""), parse_int64(taint.value or "")
            if limit is None or actual is None:
                return False
            return actual > limit if operator == "Gt" else actual < limit
        case _:
            return False
