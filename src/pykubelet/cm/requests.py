"""Requests of pods and containers for whole CPUs and for memory on single NUMA nodes. Pure.

Only Guaranteed pods request them, and CPUs only in whole numbers. A pod with amounts for the pod as a whole requests
nothing unless the gate PodLevelResourceManagers is on (`pod_level`); then its containers that are Guaranteed on
their own get their part exclusively, and the others share the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pykubelet.api.pod_resources import is_huge_pages
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Container, Pod, QuantityValue, ResourceRequirements
from pykubelet.model.pod import QosClass, is_sidecar, qos_class
from pykubelet.model.pod_resources import CPU, MEMORY, has_pod_level_resources

Bytes = dict[str, int]
"""By resource name: memory or hugepages-<size>."""

_NONE = ResourceRequirements()


def containers_of(pod: Pod) -> list[Container]:
    """Those that can own something, in the order they start."""
    return [*pod.spec.init_containers, *pod.spec.containers]


def is_run_to_end(pod: Pod, container: Container) -> bool:
    """An init container that has ended before the next one starts."""
    return not is_sidecar(container) and any(each.name == container.name for each in pod.spec.init_containers)


def asks_for_nothing(pod: Pod, *, pod_level: bool) -> bool:
    return qos_class(pod) is not QosClass.GUARANTEED or (not pod_level and has_pod_level_resources(pod))


def is_whole(container: Container) -> bool:
    """Whether its requests equal its limits, as if it were a Guaranteed pod of its own."""
    resources = container.resources or _NONE
    return all(
        not (request := _amount(resources.requests, name)).is_zero() and request == _amount(resources.limits, name)
        for name in (CPU, MEMORY)
    )


def _shares_with_pod(pod: Pod, container: Container) -> bool:
    return has_pod_level_resources(pod) and not is_whole(container)


# --- CPUs ---------------------------------------------------------------------------------------------


def container_cpus(pod: Pod, container: Container, *, pod_level: bool) -> int:
    """CPUs the container is to own; 0 = it runs in a shared pool."""
    if asks_for_nothing(pod, pod_level=pod_level) or _shares_with_pod(pod, container):
        return 0
    return _whole(_amount((container.resources or _NONE).requests, CPU))


def pod_cpus(pod: Pod, *, pod_level: bool) -> int:
    """CPUs all containers need together at the moment of the highest demand."""
    if asks_for_nothing(pod, pod_level=pod_level):
        return 0
    if has_pod_level_resources(pod):
        assert pod.spec.resources is not None
        return _whole(_amount(pod.spec.resources.requests, CPU))
    wanted = {each.name: container_cpus(pod, each, pod_level=pod_level) for each in containers_of(pod)}
    return _at_most(pod, lambda each: wanted[each.name])


def _whole(amount: Quantity) -> int:
    return amount.value() if amount.value() * 1000 == amount.milli_value() else 0


def _at_most(pod: Pod, wanted: Callable[[Container], int]) -> int:
    """Sidecars stay, other init containers come and go, then the regular ones run beside the sidecars."""
    sidecars = highest = 0
    for each in pod.spec.init_containers:
        if is_sidecar(each):
            sidecars += wanted(each)
        else:
            highest = max(highest, sidecars + wanted(each))
    return max(highest, sidecars + sum(wanted(each) for each in pod.spec.containers))


# --- memory -------------------------------------------------------------------------------------------


def container_memory(pod: Pod, container: Container, *, pod_level: bool) -> Bytes:
    if asks_for_nothing(pod, pod_level=pod_level) or _shares_with_pod(pod, container):
        return {}
    return _bytes((container.resources or _NONE).requests)


def pod_memory(pod: Pod, *, pod_level: bool) -> Bytes:
    if asks_for_nothing(pod, pod_level=pod_level):
        return {}
    if has_pod_level_resources(pod):
        assert pod.spec.resources is not None
        return {name: size for name, size in _bytes(pod.spec.resources.requests).items() if size > 0}
    by_name = {each.name: container_memory(pod, each, pod_level=pod_level) for each in containers_of(pod)}
    # As upstream: a resource that only init containers request does not count for the pod.
    names = {name for each in pod.spec.containers for name in by_name[each.name]}
    return {name: _at_most(pod, lambda each, n=name: by_name[each.name].get(n, 0)) for name in sorted(names)}  # type: ignore[misc]


def _bytes(requests: Mapping[str, QuantityValue]) -> Bytes:
    names: Iterable[str] = (name for name in requests if name == MEMORY or is_huge_pages(name))
    return {name: Quantity.parse(requests[name]).value() for name in sorted(names)}


def _amount(values: Mapping[str, QuantityValue], name: str) -> Quantity:
    return Quantity.parse(values[name]) if name in values else ZERO
