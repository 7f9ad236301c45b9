"""What a pod requests as a whole: requests and limits including init containers, sidecars and overhead.

The sums are part of the Kubernetes API: long-running containers together, or the hungriest moment of
start-up if that is more; amounts set for the whole pod replace the sums; overhead comes on top. Also counts
of resources as the fit check uses them, and `PodResourceInfo`: a resize changes the spec first; what was admitted
(allocated) and what was put into force (actuated) follow. Does not cover whether they fit (pods/predicates.py) and
keeping them on disk (cm/allocation.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct, field

from pykubelet.api.pod_resources import (
    Amounts,
    aggregate_limits,
    aggregate_requests,
    is_native,
    is_pod_level,
    parse_amount,
)
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Container, ContainerStatus, Pod, PodSpec, QuantityValue, ResourceRequirements
from pykubelet.api.validation.names import qualified_name
from pykubelet.model.pod import AnyContainer, is_sidecar
from pykubelet.model.reasons import RESIZE_PENDING

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"

Which = Literal["requests", "limits"]


def served_by_claims(pod: Pod) -> frozenset[tuple[str, str]]:
    """(container, resource) of extended resources that a resource claim serves, not a device plugin."""
    status = pod.status.extended_resource_claim_status
    mappings = status.request_mappings if status is not None else ()
    return frozenset((each.container_name or "", each.resource_name or "") for each in mappings)


def pod_requests(pod: Pod, *, overhead: bool = True, pod_level: bool = True, use_status: bool = False) -> Amounts:
    """Requests of the pod. `use_status` counts what a running pod still holds while it is being resized."""
    spec = _with_status(pod, "requests") if use_status else pod.spec
    total = aggregate_requests(spec)
    if pod_level and pod.spec.resources is not None:
        total.update(_pod_level(pod, "requests", use_status))
    if overhead:
        for name, amount in _parsed(pod.spec.overhead).items():
            total[name] = total[name] + amount if name in total else amount
    return total


def pod_limits(pod: Pod, *, overhead: bool = True, pod_level: bool = True, use_status: bool = False) -> Amounts:
    """Limits of the pod. Overhead is added only where there is a limit at all: none stays none."""
    spec = _with_status(pod, "limits") if use_status else pod.spec
    total = aggregate_limits(spec)
    if pod_level and pod.spec.resources is not None:
        total.update(_pod_level(pod, "limits", use_status))
    if overhead:
        for name, amount in _parsed(pod.spec.overhead).items():
            if name in total and not total[name].is_zero():
                total[name] = total[name] + amount
    return total


def has_pod_level_resources(pod: Pod) -> bool:
    """Whether cpu, memory or huge pages are set for the pod as a whole."""
    resources = pod.spec.resources
    return resources is not None and any(is_pod_level(name) for name in (*resources.requests, *resources.limits))


def is_extended(name: str) -> bool:
    """A resource of a vendor: counted by a device plugin or a driver, not by Kubernetes."""
    return not is_native(name) and not name.startswith("requests.") and qualified_name(f"requests.{name}") is None


def is_counted(name: str) -> bool:
    """Whether the fit check looks at this resource at all."""
    return (
        name in (CPU, MEMORY, EPHEMERAL_STORAGE)
        or is_extended(name)
        or name.startswith(("hugepages-", "attachable-volumes-"))
        or "kubernetes.io/" in name
    )


def in_units(name: str, amount: Quantity) -> int:
    """The whole number the fit check compares: millicores for cpu, units or bytes for the rest."""
    return amount.milli_value() if name == CPU else amount.value()


def requested_units(pod: Pod, name: str) -> int:
    """How much of one resource goes free when the pod goes; a pod counts one of `pods`.

    Pod-level resources hide those of the containers, and overhead of nothing is nothing.
    """
    if name == PODS:
        return 1
    if has_pod_level_resources(pod):
        assert pod.spec.resources is not None
        requests = _only_pod_level(pod.spec.resources.requests)
    else:
        requests = pod_requests(pod, overhead=False)
    amount = requests.get(name)
    if amount is None or amount.is_zero():
        return 0
    extra = _parsed(pod.spec.overhead).get(name)
    return in_units(name, amount + extra if extra is not None else amount)


def _parsed(values: Mapping[str, QuantityValue]) -> Amounts:
    parsed = ((name, parse_amount(value)) for name, value in values.items())
    return {name: amount for name, amount in parsed if amount is not None}


def _only_pod_level(values: Mapping[str, QuantityValue]) -> Amounts:
    return {name: amount for name, amount in _parsed(values).items() if is_pod_level(name)}


def _pod_level(pod: Pod, which: Which, use_status: bool) -> Amounts:
    assert pod.spec.resources is not None
    wanted = _only_pod_level(getattr(pod.spec.resources, which))
    if not use_status or pod.status.resources is None:
        return wanted
    held = _held(pod, wanted, *_without_overhead(pod), which)
    return {name: held.get(name, Quantity(0)) for name in wanted}


def _without_overhead(pod: Pod) -> tuple[ResourceRequirements, Mapping[str, QuantityValue]]:
    """What the status says of the pod as a whole, apart from its overhead, which is added elsewhere."""
    reported, overhead = pod.status.resources or ResourceRequirements(), _parsed(pod.spec.overhead)

    def apart(values: Mapping[str, QuantityValue]) -> dict[str, QuantityValue]:
        return {n: str(amount - overhead[n]) if n in overhead else values[n] for n, amount in _parsed(values).items()}

    return ResourceRequirements(requests=apart(reported.requests), limits=apart(reported.limits)), apart(
        pod.status.allocated_resources
    )


def _with_status(pod: Pod, which: Which) -> PodSpec:
    """The spec with each long-running container's amounts replaced by what it holds or will hold."""
    statuses = {each.name: each for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    if not any(status.resources is not None for status in statuses.values()):
        return pod.spec
    return msgspec.structs.replace(
        pod.spec,
        containers=[_effective(pod, each, statuses.get(each.name), which) for each in pod.spec.containers],
        init_containers=[
            _effective(pod, each, statuses.get(each.name), which) if is_sidecar(each) else each
            for each in pod.spec.init_containers
        ],
    )


def _effective(pod: Pod, container: Container, status: ContainerStatus | None, which: Which) -> Container:
    if status is None or status.resources is None:
        return container
    wanted = _parsed(getattr(container.resources, which)) if container.resources is not None else {}
    held = _held(pod, wanted, status.resources, status.allocated_resources, which)
    amounts: dict[str, QuantityValue] = {name: str(amount) for name, amount in held.items()}
    return msgspec.structs.replace(container, resources=_requirements(which, amounts))


def _requirements(which: Which, amounts: dict[str, QuantityValue]) -> ResourceRequirements:
    return ResourceRequirements(requests=amounts) if which == "requests" else ResourceRequirements(limits=amounts)


def _held(
    pod: Pod,
    wanted: Amounts,
    actuated: ResourceRequirements,
    allocated: Mapping[str, QuantityValue],
    which: Which,
) -> Amounts:
    """The most of: wanted (unless that resize can never happen), in force, and promised."""
    candidates = [] if _resize_is_infeasible(pod) else [wanted]
    candidates.append(_parsed(getattr(actuated, which)))
    if which == "requests":
        candidates.append(_parsed(allocated))
    most: Amounts = {}
    for amounts in candidates:
        for name, amount in amounts.items():
            if name not in most or amount > most[name]:
                most[name] = amount
    return most


def _resize_is_infeasible(pod: Pod) -> bool:
    condition = next((each for each in pod.status.conditions if each.type == RESIZE_PENDING), None)
    return condition is not None and condition.reason == "Infeasible"


# -- local storage


def empty_dir_limits(pod: Pod) -> dict[str, Quantity]:
    """Return emptyDir size limits by volume; a limit of 0 is none."""
    found = {}
    for volume in pod.spec.volumes:
        if volume.empty_dir is not None and volume.empty_dir.size_limit is not None:
            limit = Quantity.parse(volume.empty_dir.size_limit)
            if limit > Quantity.of(0):
                found[volume.name] = limit
    return found


def container_storage_limits(pod: Pod) -> dict[str, Quantity]:
    """Return limits on ephemeral-storage by container."""
    found = {}
    for container in pod.spec.containers:
        amount = container.resources.limits.get(EPHEMERAL_STORAGE) if container.resources is not None else None
        if amount is not None and (limit := Quantity.parse(amount)).value() != 0:
            found[container.name] = limit
    return found


def storage_limit(pod: Pod) -> Quantity | None:
    """Return the limit on ephemeral-storage of the whole pod."""
    return pod_limits(pod).get(EPHEMERAL_STORAGE)


def limits_volumes(pod: Pod) -> bool:
    return bool(empty_dir_limits(pod))


def limits_storage(pod: Pod) -> bool:
    return storage_limit(pod) is not None or bool(container_storage_limits(pod))


def limits_disk(pod: Pod) -> bool:
    """Whether the pod has any limit on local storage."""
    return limits_volumes(pod) or limits_storage(pod)


# -- allocated and actuated resources


RESIZABLE = ("memory", "cpu")
"""In the order in which changes are put into force."""

_NONE = ResourceRequirements()
C = TypeVar("C", bound=AnyContainer)


class PodResourceInfo(Struct, frozen=True, kw_only=True):
    """Allocated or actuated resources of a pod, apart from what its spec requests now."""

    containers: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    pod: ResourceRequirements | None = None
    """Amounts for the pod as a whole, when it sets any."""


class Amount(Struct, frozen=True, kw_only=True):
    """One resource of one holder; absent counts as 0, as it does for the kernel."""

    request: Quantity
    limit: Quantity


def amount_of(resources: ResourceRequirements | None, name: str) -> Amount:
    held = resources or _NONE
    return Amount(request=_quantity(held.requests, name), limit=_quantity(held.limits, name))


def _quantity(values: Mapping[str, QuantityValue], name: str) -> Quantity:
    return Quantity.parse(values[name]) if name in values else ZERO


def differing(wanted: ResourceRequirements | None, held: ResourceRequirements | None) -> tuple[str, ...]:
    """Which of memory and cpu differ."""
    return tuple(name for name in RESIZABLE if amount_of(wanted, name) != amount_of(held, name))


def same_resources(one: ResourceRequirements | None, other: ResourceRequirements | None) -> bool:
    """Whether both say the same, however it is spelt."""
    left, right = one or _NONE, other or _NONE
    return _same_amounts(left.requests, right.requests) and _same_amounts(left.limits, right.limits)


def _same_amounts(one: Mapping[str, QuantityValue], other: Mapping[str, QuantityValue]) -> bool:
    return one == other or (
        one.keys() == other.keys()
        and all(Quantity.parse(value) == Quantity.parse(other[name]) for name, value in one.items())
    )


def effective_resources(pod_level: ResourceRequirements | None, container: AnyContainer) -> ResourceRequirements:
    """What the container lives under: its own amounts, and the pod's limit where it has none."""
    own = container.resources or _NONE
    if pod_level is None:
        return own
    lent = {name: value for name, value in pod_level.limits.items() if is_pod_level(name)}
    limits = lent | {name: value for name, value in own.limits.items() if name not in lent or not _is_zero(value)}
    return msgspec.structs.replace(own, limits=limits)


def _is_zero(value: QuantityValue) -> bool:
    return Quantity.parse(value).is_zero()


# --- taking from a pod and putting back ---------------------------------------------------------------


def allocation_of(pod: Pod, *, init_containers: bool = True) -> PodResourceInfo:
    """What the spec requests, of everything that can be resized."""
    held = [each for each in pod.spec.init_containers if init_containers or is_sidecar(each)]
    named = {each.name: each.resources or _NONE for each in (*held, *pod.spec.containers)}
    return PodResourceInfo(containers=named, pod=pod.spec.resources)


def effect_of(pod: Pod) -> PodResourceInfo:
    """What is in force once every container of the pod was started from this spec."""
    every = (*pod.spec.init_containers, *pod.spec.containers)
    named = {each.name: effective_resources(pod.spec.resources, each) for each in every}
    return PodResourceInfo(containers=named, pod=pod.spec.resources)


def with_resources(pod: Pod, held: PodResourceInfo | None) -> Pod:
    """The pod with these resources in place of those in its spec; the same object when nothing changes."""
    if held is None:
        return pod
    containers = [_with_own(each, held) for each in pod.spec.containers]
    init = [_with_own(each, held) for each in pod.spec.init_containers]
    resources = pod.spec.resources
    if not same_resources(resources, held.pod):
        resources = held.pod
    before: list[Container] = [*pod.spec.containers, *pod.spec.init_containers]
    after: list[Container] = [*containers, *init]
    if resources is pod.spec.resources and all(a is b for a, b in zip(before, after, strict=True)):
        return pod
    spec = msgspec.structs.replace(pod.spec, containers=containers, init_containers=init, resources=resources)
    return msgspec.structs.replace(pod, spec=spec)


def _with_own(container: C, held: PodResourceInfo) -> C:
    own = held.containers.get(container.name)
    if own is None or same_resources(container.resources, own):
        return container
    return msgspec.structs.replace(container, resources=own)
