"""The Pod object: names, annotations, QoS classes, restart rules, probes, changes that sources deliver.

Pure questions over the API types. A pod object is never changed once it is shared; a changed pod is
a new object with the same UID. Runtime state is in `runtime_status.py`, status in `status/`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NewType

from msgspec import Struct

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, EphemeralContainer, Pod, Probe, ResourceRequirements

PodUID = NewType("PodUID", str)

SOURCE_ANNOTATION = "kubernetes.io/config.source"
SEEN_ANNOTATION = "kubernetes.io/config.seen"
HASH_ANNOTATION = "kubernetes.io/config.hash"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

CRITICAL_PRIORITY = 2_000_000_000
NODE_CRITICAL = "system-node-critical"

AnyContainer = Container | EphemeralContainer


class Source(enum.Enum):
    """Where a pod came from; the value is what the source annotation holds."""

    FILE = "file"
    HTTP = "http"
    API = "api"


class QosClass(enum.Enum):
    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerKind(enum.Enum):
    REGULAR = "containers"
    INIT = "initContainers"
    EPHEMERAL = "ephemeralContainers"

    def field_path(self, name: str) -> str:
        """How events name the container: `spec.containers{web}`."""
        return f"spec.{self.value}{{{name}}}"


def uid_of(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")


def name_of(pod: Pod) -> str:
    return pod.metadata.name or ""


def namespace_of(pod: Pod) -> str:
    return pod.metadata.namespace or ""


def full_name(pod: Pod) -> str:
    """`<name>_<namespace>`: equal for a static pod and its mirror."""
    return f"{name_of(pod)}_{namespace_of(pod)}"


def readable(pod: Pod) -> str:
    """`<namespace>/<name>`, for people."""
    return f"{namespace_of(pod)}/{name_of(pod)}"


def pod_attributes(pod: Pod) -> dict[str, str]:
    """What spans say of a pod, under upstream's names."""
    return {
        "k8s.pod.uid": uid_of(pod),
        "k8s.pod": readable(pod),
        "k8s.pod.name": name_of(pod),
        "k8s.namespace.name": namespace_of(pod),
    }


def log_form(pod: Pod) -> str:
    """`<name>_<namespace>(<uid>)`, the form upstream puts into event and status messages."""
    return f"{full_name(pod)}({uid_of(pod)})"


def source_of(pod: Pod) -> Source:
    return Source(pod.metadata.annotations.get(SOURCE_ANNOTATION, Source.API.value))


def is_static(pod: Pod) -> bool:
    return pod.metadata.annotations.get(SOURCE_ANNOTATION, Source.API.value) != Source.API.value


def is_mirror(pod: Pod) -> bool:
    return MIRROR_ANNOTATION in pod.metadata.annotations


def is_critical(pod: Pod) -> bool:
    return is_static(pod) or is_mirror(pod) or (pod.spec.priority or 0) >= CRITICAL_PRIORITY


def is_node_critical(pod: Pod) -> bool:
    return is_critical(pod) and pod.spec.priority_class_name == NODE_CRITICAL


def is_terminal_phase(phase: str | None) -> bool:
    return phase in ("Failed", "Succeeded")


def deletion_requested(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def uses_host_network(pod: Pod) -> bool:
    return bool(pod.spec.host_network)


def is_sidecar(container: AnyContainer) -> bool:
    """An init container that is restarted for ever and runs beside the regular ones."""
    return container.restart_policy == "Always"


def sidecars(pod: Pod) -> list[Container]:
    return [c for c in pod.spec.init_containers if is_sidecar(c)]


def all_containers(pod: Pod) -> Iterator[tuple[ContainerKind, AnyContainer]]:
    """Init, regular and ephemeral containers, in the order they start."""
    for init in pod.spec.init_containers:
        yield ContainerKind.INIT, init
    for regular in pod.spec.containers:
        yield ContainerKind.REGULAR, regular
    for ephemeral in pod.spec.ephemeral_containers:
        yield ContainerKind.EPHEMERAL, ephemeral


def find_container(pod: Pod, name: str) -> tuple[ContainerKind, AnyContainer] | None:
    return next((pair for pair in all_containers(pod) if pair[1].name == name), None)


def restarts_on_exit(pod: Pod, container: AnyContainer, exit_code: int) -> bool:
    """Whether a container of this kind that ended with `exit_code` is to be started again.

    For a regular init container of a pod with policy Always, upstream treats the policy as OnFailure;
    callers that look at init containers ask only for failed ones, so the answers agree.
    """
    if container.restart_policy is not None:
        for rule in container.restart_policy_rules:
            if rule.action in ("Restart", "RestartAllContainers") and _rule_matches(rule.exit_codes, exit_code):
                return True
        return _policy_restarts(container.restart_policy, exit_code)
    return _policy_restarts(pod.spec.restart_policy or "Always", exit_code)


def restarts_all_on_exit(container: AnyContainer, exit_code: int) -> bool:
    """Whether a rule of this container requests to restart the whole pod's containers for this exit code."""
    for rule in container.restart_policy_rules:
        if _rule_matches(rule.exit_codes, exit_code):
            return rule.action == "RestartAllContainers"
    return False


def _rule_matches(exit_codes: object, exit_code: int) -> bool:
    if exit_codes is None:
        return False
    operator, values = getattr(exit_codes, "operator", None), getattr(exit_codes, "values", [])
    return (exit_code in values) if operator == "In" else (exit_code not in values)


def _policy_restarts(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def effective_restart_policy(pod: Pod, container: AnyContainer) -> str:
    return container.restart_policy or pod.spec.restart_policy or "Always"


def probes_of(container: AnyContainer) -> dict[str, Probe]:
    """The container's probes by upstream's word for them."""
    found = {
        "liveness": container.liveness_probe,
        "readiness": container.readiness_probe,
        "startup": container.startup_probe,
    }
    return {kind: probe for kind, probe in found.items() if probe is not None}


def qos_class(pod: Pod) -> QosClass:
    """The class kept in status once set; else computed from cpu and memory of the spec."""
    if pod.status.qos_class:
        return QosClass(pod.status.qos_class)
    return compute_qos(pod)


_QOS_RESOURCES = ("cpu", "memory")
NOTHING = Quantity.parse(0)


def compute_qos(pod: Pod) -> QosClass:
    if pod.spec.resources is not None and (pod.spec.resources.requests or pod.spec.resources.limits):
        holders: list[ResourceRequirements | None] = [pod.spec.resources]
    else:
        holders = [c.resources for c in (*pod.spec.init_containers, *pod.spec.containers)]
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    guaranteed = True
    for resources in holders:
        if resources is None or not (resources.requests or resources.limits):
            guaranteed = False
            continue
        requested, limited = _positive(resources.requests), _positive(resources.limits)
        guaranteed = guaranteed and len(limited) == len(_QOS_RESOURCES)
        _add_into(requests, requested)
        _add_into(limits, limited)
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    same = len(requests) == len(limits) and all(limits.get(name) == value for name, value in requests.items())
    return QosClass.GUARANTEED if guaranteed and same else QosClass.BURSTABLE


def _positive(values: dict[str, str | int | float]) -> dict[str, Quantity]:
    parsed = {name: Quantity.parse(values[name]) for name in _QOS_RESOURCES if name in values}
    return {name: value for name, value in parsed.items() if value > NOTHING}


def _add_into(total: dict[str, Quantity], more: dict[str, Quantity]) -> None:
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


class Operation(enum.Enum):
    ADD = "add"
    """Pods this source did not have before. Empty on the first delivery of a source without pods."""
    UPDATE = "update"
    """Spec, labels, annotations or deletion fields changed."""
    REMOVE = "remove"
    """The source has these pods no more; the pods are as they were last known."""
    DELETE = "delete"
    """Changed, and deletion has been requested (graceful)."""
    RECONCILE = "reconcile"
    """Only the status at the source differs from what was known."""


class PodsChanged(Struct, frozen=True, kw_only=True):
    op: Operation
    pods: tuple[Pod, ...]
    source: Source


class ProbeKind(enum.Enum):
    """As in `probes_of`."""

    LIVENESS = "liveness"
    READINESS = "readiness"
    STARTUP = "startup"

    @property
    def title(self) -> str:
        """As events write it: `Readiness probe failed`."""
        return self.value.capitalize()


class ProbeOutcome(enum.Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


ProbeKey = tuple[ProbeKind, str]
"""The probe of one kind of the container with this bare id."""
