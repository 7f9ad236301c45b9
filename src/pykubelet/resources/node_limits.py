"""What the groups of all pods, of the system and of Kubernetes' own programs are limited to. Pure.

All pods together get the capacity less both reservations, so that what is reserved is there when it is needed; the
eviction threshold is not taken off, since eviction must be able to see it crossed. Does not cover writing the limits
(node_allocatable.py) nor what the Node shows (node/capacity.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from pykubelet.api.pod_resources import HUGE_PAGES, is_huge_pages
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.model.cgroup_limits import CgroupLimits, milli_to_shares

PIDS = "pid"
COMPRESSIBLE = "-compressible"

Amounts = Mapping[str, Quantity]


class NodeAmounts(Struct, frozen=True, kw_only=True):
    """What there is and what is kept of it; `pid` among them where the kernel tells its limit."""

    capacity: Amounts = field(default_factory=dict)
    system: Amounts = field(default_factory=dict)
    kube: Amounts = field(default_factory=dict)
    reserved: Amounts = field(default_factory=dict)
    """Both together, with CPUs that are reserved by number in place of both."""


class Enforcement(Struct, frozen=True, kw_only=True):
    """Settings enforceNodeAllocatable, systemReservedCgroup, kubeReservedCgroup."""

    what: frozenset[str] = frozenset({"pods"})
    system_group: str = ""
    kube_group: str = ""

    @property
    def pods(self) -> bool:
        return "pods" in self.what


class ReservedGroup(Struct, frozen=True, kw_only=True):
    """A group that exists already and is held to what was reserved for it."""

    setting: str
    name: str
    limits: CgroupLimits


def pods_limits(amounts: NodeAmounts, enforcement: Enforcement) -> CgroupLimits:
    """The group above all pods; all there is when nothing is enforced on it."""
    kept = amounts.reserved if enforcement.pods else {}
    return group_limits({name: _less(amount, kept.get(name)) for name, amount in amounts.capacity.items()})


def reserved_groups(amounts: NodeAmounts, enforcement: Enforcement) -> list[ReservedGroup]:
    found = []
    for what, setting, name, kept in (
        ("system-reserved", "systemReservedCgroup", enforcement.system_group, amounts.system),
        ("kube-reserved", "kubeReservedCgroup", enforcement.kube_group, amounts.kube),
    ):
        if what in enforcement.what:
            found.append(ReservedGroup(setting=setting, name=name, limits=group_limits(kept)))
        elif what + COMPRESSIBLE in enforcement.what:
            only_cpu = {each: amount for each, amount in kept.items() if each == "cpu"}
            found.append(ReservedGroup(setting=setting, name=name, limits=group_limits(only_cpu)))
    return found


def group_limits(amounts: Amounts) -> CgroupLimits:
    """These amounts as limits; what is not named stays as it is."""
    cpu, memory, pids = amounts.get("cpu"), amounts.get("memory"), amounts.get(PIDS)
    pages = {
        Quantity.parse(name.removeprefix(HUGE_PAGES)).value(): amount.value()
        for name, amount in amounts.items()
        if is_huge_pages(name)
    }
    return CgroupLimits(
        cpu_shares=None if cpu is None else milli_to_shares(cpu.milli_value()),
        memory_bytes=memory.value() if memory is not None and memory > ZERO else None,
        pids=pids.value() if pids is not None and pids > ZERO else None,
        hugepages=pages,
    )


def _less(amount: Quantity, kept: Quantity | None) -> Quantity:
    left = amount if kept is None else amount - kept
    return left if left > ZERO else amount - amount
