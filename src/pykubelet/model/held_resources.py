"""Resources a pod was promised or that are in force for it, apart from what its spec asks for now.

A resize changes the spec first; what was admitted (allocated) and what was put into force (actuated) follow.
Pure: comparing, taking from a pod, putting back into one. Keeping them on disk is `cm/allocation_state.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from pykubelet.api.pod_resources import is_pod_level
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Container, Pod, QuantityValue, ResourceRequirements
from pykubelet.model.pod import AnyContainer, is_sidecar

RESIZABLE = ("memory", "cpu")
"""In the order in which changes are put into force."""

_NONE = ResourceRequirements()
C = TypeVar("C", bound=AnyContainer)


class HeldResources(Struct, frozen=True, kw_only=True):
    containers: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    pod: ResourceRequirements | None = None
    """Amounts for the pod as a whole, when it sets any."""


class Amount(Struct, frozen=True, kw_only=True):
    """One resource of one holder; absent counts as 0, as it does for the kernel."""

    request: Quantity
    limit: Quantity


def amount_of(resources: ResourceRequirements | None, name: str) -> Amount:
    held = resources or _NONE
    return Amount(request=_parsed(held.requests, name), limit=_parsed(held.limits, name))


def _parsed(values: Mapping[str, QuantityValue], name: str) -> Quantity:
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


def allocation_of(pod: Pod, *, init_containers: bool = True) -> HeldResources:
    """What the spec asks for, of everything that can be resized."""
    held = [each for each in pod.spec.init_containers if init_containers or is_sidecar(each)]
    named = {each.name or "": each.resources or _NONE for each in (*held, *pod.spec.containers)}
    return HeldResources(containers=named, pod=pod.spec.resources)


def effect_of(pod: Pod) -> HeldResources:
    """What is in force once every container of the pod was started from this spec."""
    every = (*pod.spec.init_containers, *pod.spec.containers)
    named = {each.name or "": effective_resources(pod.spec.resources, each) for each in every}
    return HeldResources(containers=named, pod=pod.spec.resources)


def with_held(pod: Pod, held: HeldResources | None) -> Pod:
    """The pod with what it holds in place of what it asks for; the very same object when that is no change."""
    if held is None:
        return pod
    containers = [_with_own(each, held) for each in pod.spec.containers]
    init = [_with_own(each, held) for each in pod.spec.init_containers]
    resources = pod.spec.resources
    # A record without pod-level amounts comes from an agent that did not keep them.
    if held.pod is not None and not same_resources(resources, held.pod):
        resources = held.pod
    before: list[Container] = [*pod.spec.containers, *pod.spec.init_containers]
    after: list[Container] = [*containers, *init]
    if resources is pod.spec.resources and all(a is b for a, b in zip(before, after, strict=True)):
        return pod
    spec = msgspec.structs.replace(pod.spec, containers=containers, init_containers=init, resources=resources)
    return msgspec.structs.replace(pod, spec=spec)


def _with_own(container: C, held: HeldResources) -> C:
    own = held.containers.get(container.name or "")
    if own is None or same_resources(container.resources, own):
        return container
    return msgspec.structs.replace(container, resources=own)
