"""Limits all pods together to the node's allocatable, and the system's groups to what was reserved for them.

All pods get the capacity less both reservations; the eviction threshold is not taken off, since eviction must see it
crossed. Reserved groups are set once at start, and a node that cannot must not start: the settings promise it. The
group above all pods is set as far as the host permits, and corrected every minute. A host that refuses is logged once,
with upstream's event, and the node goes on. What the Node shows is in cm/capacity.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.pod_resources import HUGE_PAGES, is_huge_pages
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.clients.host.port import CgroupHost, Machine, Slices
from pykubelet.cm.capacity import machine_capacity, quantities, reserved
from pykubelet.cm.cgroups import CgroupRules, NoSlices, lacks_root
from pykubelet.kit.clock import Clock
from pykubelet.model.cgroups import CgroupLimits, class_parts, driver_path, milli_to_shares, named_path
from pykubelet.model.errors import PykubeletError
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import QosClass
from pykubelet.model.reasons import NORMAL, WARNING
from pykubelet.settings.settings import Settings

logger = logging.getLogger(__name__)


# --- the limits -----------------------------------------------------------------------------------------------


PIDS = "pid"
COMPRESSIBLE = "-compressible"

Amounts = Mapping[str, Quantity]


class NodeAmounts(Struct, frozen=True, kw_only=True):
    """What there is and what is kept of it; `pid` among them where the kernel shows its limit."""

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
    """A group that exists already and is limited to what was reserved for it."""

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


AGAIN_AFTER = 60.0
CGROUP_V1 = "cgroup v1 detected. cgroup v1 support is deprecated: move this machine to cgroup v2"
ENFORCED, NOT_ENFORCED = "NodeAllocatableEnforced", "FailedNodeAllocatableEnforcement"


class NodeLimits(Struct, frozen=True, kw_only=True):
    pods: CgroupLimits = field(default_factory=CgroupLimits)
    enforced: bool = True
    """Whether `pods` is in enforceNodeAllocatable, so that the outcome is an event."""
    reserved: Sequence[ReservedGroup] = ()


class NodeAllocatable:
    name = "node-allocatable"

    def __init__(
        self,
        *,
        host: CgroupHost,
        rules: CgroupRules,
        limits: NodeLimits,
        events: EventRecorder,
        clock: Clock,
        slices: Slices | None = None,
        old_cgroups: bool = False,
    ) -> None:
        """`old_cgroups`: the host has cgroup v1, which is worth an event."""
        self._host = host
        self._rules = rules
        self._limits = limits
        self._events = events
        self._clock = clock
        self._slices: Slices = slices or NoSlices()
        self._old_cgroups = old_cgroups
        self._reported: str | None = None

    async def run(self) -> None:
        if self._old_cgroups:
            self._events.node_event(WARNING, "CgroupV1", CGROUP_V1)
        if not self._rules.enabled or lacks_root(self._host, self._rules):
            await asyncio.Event().wait()  # without its root the agent is about to end (cgroups.py)
        for group in self._limits.reserved:
            await self._reserve(group)
        while True:
            await self.enforce()
            await self._clock.sleep(AGAIN_AFTER)

    async def _reserve(self, group: ReservedGroup) -> None:
        path = named_path(group.name, driver=self._rules.driver)
        if not self._host.exists(path):
            raise PykubeletError(f"{group.setting}: the cgroup {path} does not exist; it must, for its limits are set")
        try:
            # systemd must know them too: it writes all of its own again when anything of the slice changes.
            await self._slices.hold(path, group.limits)
            self._host.apply(path, group.limits)
        except OSError as error:
            raise PykubeletError(f"{group.setting}: the limits of {path} cannot be set: {error}") from error
        logger.info("reserved cgroup limited", extra={"setting": group.setting, "cgroup": path})

    async def enforce(self) -> None:
        """One pass over the group above all pods."""
        path = driver_path(class_parts(QosClass.GUARANTEED), driver=self._rules.driver, root=self._rules.root)
        problems = []
        try:
            await self._slices.hold(path, self._limits.pods)
            self._host.create(path, CgroupLimits())
        except OSError as error:
            problems.append(str(error))
        else:
            for each in apart(self._limits.pods):
                try:
                    self._host.apply(path, each)
                except OSError as error:
                    problems.append(str(error))
        self._report("; ".join(problems))

    def _report(self, problem: str) -> None:
        if problem == self._reported:
            return
        self._reported = problem
        if problem:
            logger.warning(
                "the limit of all pods together is not enforced, or only in part; the node goes on without it",
                extra={"error": problem},
            )
        if not self._limits.enforced:
            return
        if problem:
            text = f"Failed to update Node Allocatable Limits {', '.join(problem.split('; '))}"
            self._events.node_event(WARNING, NOT_ENFORCED, text)
        else:
            self._events.node_event(NORMAL, ENFORCED, "Updated Node Allocatable limit across pods")


def apart(limits: CgroupLimits) -> list[CgroupLimits]:
    """The same limits, one by one."""
    nothing = CgroupLimits()
    found = [
        replace(nothing, cpu_shares=limits.cpu_shares),
        replace(nothing, memory_bytes=limits.memory_bytes),
        replace(nothing, pids=limits.pids),
        *(replace(nothing, hugepages={size: allowed}) for size, allowed in limits.hugepages.items()),
    ]
    return [each for each in found if each != nothing]


def node_limits(settings: Settings, machine: Machine) -> NodeLimits:
    """Limits of the group above all pods and of the groups that the reservations name."""
    reservations = settings.config.reservations
    capacity = machine_capacity(machine, settings.config.cgroups, None)
    if machine.pids:
        capacity[PIDS] = Quantity.of(machine.pids)
    amounts = NodeAmounts(
        capacity=capacity,
        system=quantities(reservations.system_reserved),
        kube=quantities(reservations.kube_reserved),
        reserved=reserved(reservations),
    )
    enforcement = Enforcement(
        what=frozenset(reservations.enforce_node_allocatable),
        system_group=reservations.system_reserved_cgroup,
        kube_group=reservations.kube_reserved_cgroup,
    )
    return NodeLimits(
        pods=pods_limits(amounts, enforcement),
        enforced=enforcement.pods,
        reserved=reserved_groups(amounts, enforcement),
    )
