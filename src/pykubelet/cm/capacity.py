"""What the machine has and what of it pods may use: capacity, reservations, allocatable. Pure.

Covers cpu, memory, huge pages, pods and ephemeral storage, device resources on top, and the fatal check at start.
Does not cover reading the machine (clients/host/machine.py) nor enforcing the limits (node_allocatable.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from pykubelet.api.quantity import Quantity
from pykubelet.clients.host.port import Machine
from pykubelet.model.pod_resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, is_extended
from pykubelet.model.topology import parse_cpu_list
from pykubelet.settings.schema_resources import CgroupSettings, ReservationSettings
from pykubelet.settings.settings import Settings
from pykubelet.settings.thresholds import Threshold, eviction_thresholds

HUGEPAGES_PREFIX = "hugepages-"
ESSENTIAL = (CPU, MEMORY, PODS, EPHEMERAL_STORAGE)
"""Without these a node cannot be ready."""

Amounts = dict[str, Quantity]

_ZERO = Quantity.of(0)
_EVICTION_RESOURCES = {"memory.available": MEMORY, "nodefs.available": EPHEMERAL_STORAGE}


class DeviceAmounts(Struct, frozen=True, kw_only=True):
    """What device plugins offer; resources of a plugin that left stay known with 0."""

    capacity: Mapping[str, Quantity] = field(default_factory=dict)
    allocatable: Mapping[str, Quantity] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()


NO_DEVICES = DeviceAmounts()


def machine_capacity(machine: Machine, settings: CgroupSettings, storage_bytes: int | None) -> Amounts:
    """The capacity of this machine; no ephemeral storage when its size cannot be read."""
    found = {
        CPU: Quantity.of(machine.cpus),
        MEMORY: Quantity.of_bytes(machine.memory_bytes),
        PODS: Quantity.of(pod_capacity(machine.cpus, settings)),
    }
    for size, count in machine.hugepages:
        found[HUGEPAGES_PREFIX + str(Quantity.of_bytes(size))] = Quantity.of_bytes(size * count)
    if storage_bytes is not None:
        found[EPHEMERAL_STORAGE] = Quantity.of_bytes(storage_bytes)
    return found


def pod_capacity(cpus: int, settings: CgroupSettings) -> int:
    if settings.pods_per_core > 0:
        return min(cpus * settings.pods_per_core, settings.max_pods)
    return settings.max_pods


def quantities(texts: Mapping[str, str]) -> Amounts:
    return {name: Quantity.parse(text) for name, text in texts.items()}


def reserved(settings: ReservationSettings) -> Amounts:
    """What is kept for the system and for Kubernetes' own programs together."""
    total: Amounts = {}
    for texts in (settings.system_reserved, settings.kube_reserved):
        for name, amount in quantities(texts).items():
            total[name] = total[name] + amount if name in total else amount
    if settings.reserved_system_cpus:
        # Whole CPUs kept by number: their count replaces what both reservations say.
        total[CPU] = Quantity.of(len(parse_cpu_list(settings.reserved_system_cpus)))
    return total


def eviction_reserve(thresholds: Iterable[Threshold], capacity: Mapping[str, Quantity]) -> Amounts:
    """What hard eviction never lets pods use."""
    found: Amounts = {}
    for threshold in thresholds:
        name = _EVICTION_RESOURCES.get(threshold.signal)
        if name is None or threshold.soft or name not in capacity:
            continue
        found[name] = Quantity.of_bytes(threshold.amount.of(capacity[name].value()))
    return found


def kept_from_pods(settings: Settings, capacity: Mapping[str, Quantity]) -> Amounts:
    """Both reservations and what hard eviction never lets pods use."""
    kept = reserved(settings.config.reservations)
    if settings.flags.experimental_allocatable_ignore_eviction:
        return kept
    for name, amount in eviction_reserve(eviction_thresholds(settings.config.eviction), capacity).items():
        kept[name] = kept[name] + amount if name in kept else amount
    return kept


def allocatable(capacity: Mapping[str, Quantity], kept: Mapping[str, Quantity]) -> Amounts:
    """Capacity less everything kept; memory also less all huge pages, which are taken out of it at boot."""
    found: Amounts = {}
    for name, amount in capacity.items():
        found[name] = _at_least_zero(amount - kept[name] if name in kept else amount)
    if MEMORY in found:
        for name, amount in capacity.items():
            if name.startswith(HUGEPAGES_PREFIX):
                found[MEMORY] = _at_least_zero(found[MEMORY] - amount)
    return found


def reservation_problem(capacity: Mapping[str, Quantity], kept: Mapping[str, Quantity]) -> str:
    """Why the agent must not start with these reservations; empty when it may."""
    for name, amount in sorted(kept.items()):
        has = capacity.get(name)
        if has is not None and has < amount:
            return (
                f'invalid Node Allocatable configuration. Resource "{name}" has a reservation of {amount} '
                f"but capacity of {has}. Expected capacity >= reservation."
            )
    return ""


def with_devices(
    old: Mapping[str, Quantity], own: Mapping[str, Quantity], devices: Mapping[str, Quantity], removed: Iterable[str]
) -> Amounts:
    """Own amounts, those of device plugins, and vendors' resources that others wrote into the Node."""
    foreign = {name: amount for name, amount in old.items() if is_extended(name)}
    return {**foreign, **{name: _ZERO for name in removed}, **own, **devices}


def missing_essentials(capacity: Iterable[str]) -> list[str]:
    known = set(capacity)
    return [name for name in ESSENTIAL if name not in known]


def _at_least_zero(amount: Quantity) -> Quantity:
    return amount if amount > _ZERO else amount - amount
