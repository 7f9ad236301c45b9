"""Cgroups of pods and of the QoS classes above them, with their limits: made before a pod's sandbox, removed after it.

Requests become CPU shares; a quota and a memory limit exist only where every container has one, or the pod as a whole.
The class groups follow the pods: they are brought up to date when a pod comes or goes and once a minute. Writing files
is the host's work, and with systemd each group is a slice too. `OwnGroup` keeps the agent itself in the cgroup of
kubeletCgroups. Does not cover what all pods together are limited to (node_allocatable.py), systemCgroups, nor the
runtime's own group.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pykubelet.api.pod_resources import HUGE_PAGES, Amounts, is_huge_pages
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Pod, PodSpec, ResourceRequirements
from pykubelet.clients.host.port import CgroupHost, Slices
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.cgroups import (
    MIN_SHARES,
    CgroupLimits,
    class_parts,
    driver_path,
    milli_to_quota,
    milli_to_shares,
    named_path,
    pod_parts,
    uid_from_name,
)
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import QosClass, is_critical, qos_class, uid_of
from pykubelet.model.pod_resources import amount_of, pod_requests
from pykubelet.model.pod_resources import pod_limits as limits_of
from pykubelet.settings.settings import Settings

logger = logging.getLogger(__name__)


# --- limits ---------------------------------------------------------------------------------------------------


UNBOUNDED_HUGEPAGES = 1 << 62
MEMORY_MIN, MEMORY_LOW = "memory.min", "memory.low"


class CgroupRules(Struct, frozen=True, kw_only=True):
    root: str = "/"
    driver: str = "cgroupfs"
    enabled: bool = True
    """cgroupsPerQOS: without it pods sit directly below the root and nothing is made here."""
    cfs_quota: bool = True
    period_us: int = 100_000
    pids_per_pod: int = -1
    hugepage_sizes: tuple[int, ...] = ()
    memory_qos: bool = False
    """Gate MemoryQoS on a cgroup v2 host."""
    tiered_reservation: bool = False
    """With `memory_qos`: memory that was requested is protected from reclaim, class by class."""
    memory_reserve_percent: int = 0
    """Gate QOSReserved: how much of what a class requested is kept from the classes below it."""
    memory_for_pods_bytes: int = 0
    """What all pods together may use; only for `memory_reserve_percent`."""
    unthrottled: Callable[[Pod], bool] = lambda pod: False
    """Pods with exclusive CPUs, which no quota may slow down."""


def pod_limits(pod: Pod, rules: CgroupRules) -> CgroupLimits:
    requests, limits = pod_requests(pod), limits_of(pod)
    qos = qos_class(pod)
    shares, quota, memory = MIN_SHARES, -1, -1
    if qos is not QosClass.BEST_EFFORT:
        shares = milli_to_shares(requests.get("cpu", ZERO).milli_value())
        if rules.cfs_quota and _all_limited(pod, "cpu") and not rules.unthrottled(pod):
            quota = milli_to_quota(limits.get("cpu", ZERO).milli_value(), rules.period_us) or -1
        if _all_limited(pod, "memory"):
            memory = limits.get("memory", ZERO).value() or -1
    return CgroupLimits(
        cpu_shares=shares,
        cpu_quota_us=quota,
        cpu_period_us=rules.period_us,
        memory_bytes=memory,
        pids=rules.pids_per_pod if rules.pids_per_pod > 0 else None,
        hugepages=_hugepages(requests, rules.hugepage_sizes),
        unified=_protection(qos, requests) if rules.memory_qos and rules.tiered_reservation else {},
    )


def _all_limited(pod: Pod, resource: str) -> bool:
    if not amount_of(pod.spec.resources, resource).limit.is_zero():
        return True
    every = (*pod.spec.init_containers, *pod.spec.containers)
    return all(not amount_of(each.resources, resource).limit.is_zero() for each in every)


def _hugepages(requests: Amounts, sizes: Sequence[int]) -> dict[int, int]:
    """Every size of the node; what was not requested may not be used."""
    allowed = dict.fromkeys(sizes, 0)
    for name, amount in requests.items():
        if is_huge_pages(name):
            size = Quantity.parse(name.removeprefix(HUGE_PAGES)).value()
            allowed[size] = allowed.get(size, 0) + amount.value()
    return allowed


def _protection(qos: QosClass, requests: Amounts) -> dict[str, str]:
    request = requests.get("memory", ZERO).value()
    if not request:
        return {}
    return {MEMORY_MIN if qos is QosClass.GUARANTEED else MEMORY_LOW: str(request)}


class PodShare(Struct, frozen=True, kw_only=True):
    """What one pod adds to the group of its class."""

    qos: QosClass
    milli_cpu: int
    memory_bytes: int


def share_of(pod: Pod) -> PodShare:
    requests = pod_requests(pod)
    return PodShare(
        qos=qos_class(pod),
        milli_cpu=requests.get("cpu", ZERO).milli_value(),
        memory_bytes=requests.get("memory", ZERO).value(),
    )


def class_limits(shares: Iterable[PodShare], rules: CgroupRules) -> dict[QosClass, CgroupLimits]:
    """The three classes' groups while these pods are active; that of Guaranteed pods is kubepods itself."""
    milli = 0
    memory = dict.fromkeys(QosClass, 0)
    for share in shares:
        memory[share.qos] += share.memory_bytes
        if share.qos is QosClass.BURSTABLE:
            milli += share.milli_cpu
    hugepages = dict.fromkeys(rules.hugepage_sizes, UNBOUNDED_HUGEPAGES)
    upper, lower = _class_protection(memory, rules)
    most = _class_ceilings(memory, rules)
    return {
        QosClass.GUARANTEED: CgroupLimits(unified=upper),
        QosClass.BURSTABLE: CgroupLimits(
            cpu_shares=milli_to_shares(milli),
            memory_bytes=most[QosClass.BURSTABLE],
            hugepages=hugepages,
            unified=lower,
        ),
        QosClass.BEST_EFFORT: CgroupLimits(
            cpu_shares=MIN_SHARES, memory_bytes=most[QosClass.BEST_EFFORT], hugepages=hugepages
        ),
    }


def _class_ceilings(memory: dict[QosClass, int], rules: CgroupRules) -> dict[QosClass, int | None]:
    """Memory of the lower classes, where part of what the higher ones requested is kept from them."""
    if not rules.memory_reserve_percent:
        return dict.fromkeys(QosClass)
    kept = {qos: requested * rules.memory_reserve_percent // 100 for qos, requested in memory.items()}
    burstable = max(0, rules.memory_for_pods_bytes - kept[QosClass.GUARANTEED])
    # 0 would be written as "no limit".
    return {
        QosClass.GUARANTEED: None,
        QosClass.BURSTABLE: max(1, burstable),
        QosClass.BEST_EFFORT: max(1, burstable - kept[QosClass.BURSTABLE]),
    }


def _class_protection(memory: dict[QosClass, int], rules: CgroupRules) -> tuple[dict[str, str], dict[str, str]]:
    """Protection holds only as far as the groups above have it too, so kubepods carries both classes."""
    if not rules.memory_qos:
        return {}, {}
    guaranteed, burstable = _protected(memory, rules)
    return {MEMORY_MIN: str(guaranteed + burstable)}, {MEMORY_LOW: str(burstable)}


def _protected(memory: dict[QosClass, int], rules: CgroupRules) -> tuple[int, int]:
    """Bytes of Guaranteed and of Burstable pods that are kept from reclaim."""
    if not rules.tiered_reservation:
        return 0, 0
    return memory[QosClass.GUARANTEED], memory[QosClass.BURSTABLE]


def add_protection_metrics(metrics: Registry, rules: CgroupRules, pods: Callable[[], Iterable[Pod]]) -> None:
    """What is protected at the moment, counted at each scrape; nothing without gate MemoryQoS."""
    if not rules.memory_qos:
        return
    hard = metrics.gauge("kubelet_memory_qos_node_memory_min_bytes", "Guaranteed pods' memory that is never reclaimed.")
    soft = metrics.gauge("kubelet_memory_qos_node_memory_low_bytes", "Burstable pods' memory that is reclaimed last.")

    def count() -> None:
        memory = dict.fromkeys(QosClass, 0)
        for share in map(share_of, pods()):
            memory[share.qos] += share.memory_bytes
        guaranteed, burstable = _protected(memory, rules)
        hard.set(guaranteed)
        soft.set(burstable)

    metrics.on_scrape(count)


def swap_limit(pod: Pod, resources: ResourceRequirements, node: NodeSpec) -> int:
    """Bytes of swap the container may use: its part of the node's, in proportion to its memory request."""
    if node.swap_behavior != "LimitedSwap" or is_critical(pod) or qos_class(pod) is not QosClass.BURSTABLE:
        return 0
    request, limit = amount_of(resources, "memory").request, amount_of(resources, "memory").limit
    # Equal also when both are zero: a container that requests nothing gets no swap.
    if request == limit or not 0 <= request.value() <= node.memory_bytes or not node.memory_bytes:
        return 0
    return int(request.value() / node.memory_bytes * node.swap_bytes)


def cgroup_rules(settings: Settings, spec: NodeSpec, *, owns_cpus: Callable[[Pod], bool]) -> CgroupRules:
    """`owns_cpus(pod)`: its quota would slow down exclusive CPUs."""
    return CgroupRules(
        root=spec.cgroup_root,
        driver=spec.cgroup_driver,
        enabled=spec.cgroups_per_qos,
        cfs_quota=spec.cpu_cfs_quota,
        period_us=spec.cpu_period_us,
        pids_per_pod=settings.config.cgroups.pod_pids_limit,
        hugepage_sizes=spec.hugepage_sizes,
        memory_qos=spec.memory_qos and spec.cgroup_v2,
        tiered_reservation=spec.tiered_memory_reservation,
        memory_reserve_percent=_qos_reserve(settings),
        memory_for_pods_bytes=spec.memory_for_pods_bytes,
        unthrottled=lambda pod: spec.exclusive_cpus_unthrottled and owns_cpus(pod),
    )


def _qos_reserve(settings: Settings) -> int:
    if not settings.gates.enabled("QOSReserved"):
        return 0
    return int(settings.config.reservations.qos_reserved.get("memory", "0%").removesuffix("%"))


# --- the agent's own group ------------------------------------------------------------------------------------


LOOK_EVERY = 60.0


class _KeptGroup(ABC):
    """A group that processes are moved into, now and again; what keeps them out is logged once."""

    name = ""
    complaint = ""

    def __init__(self, *, host: CgroupHost, group: str, driver: str, clock: Clock) -> None:
        """`group` is the setting; '' = everything stays where it is."""
        self._host = host
        self._path = named_path(group, driver=driver) if group else ""
        self._clock = clock

    async def run(self) -> None:
        if not self._path:
            await asyncio.Event().wait()
        logged = ""
        while True:
            problem = self.ensure()
            if problem and problem != logged:
                logger.warning(self.complaint, extra={"cgroup": self._path, "error": problem})
            logged = problem
            await self._clock.sleep(LOOK_EVERY)

    @abstractmethod
    def ensure(self) -> str:
        """Why the last of them could not be moved; empty when all were."""


class OwnGroup(_KeptGroup):
    """Moves the agent into the group that kubeletCgroups names."""

    name = "own-cgroup"
    complaint = "kubeletCgroups: the agent cannot move into its cgroup"

    def ensure(self) -> str:
        try:
            self._host.join(self._path, os.getpid())
        except OSError as error:
            return str(error)
        return ""


MOVES = 11
"""How often the root group is looked at in a row: processes start new ones while they are moved."""


class SystemGroup(_KeptGroup):
    """Moves what runs in the root group into the group that systemCgroups names, so that it can be counted."""

    name = "system-cgroup"
    complaint = "systemCgroups: processes stay in the root group"

    def ensure(self) -> str:
        problem = ""
        for _ in range(MOVES):
            found = self._host.programs("/")
            if not found:
                return ""
            for pid in found:
                try:
                    self._host.join(self._path, pid)
                except ProcessLookupError:
                    continue  # it ended
                except OSError as error:
                    problem = str(error)
        return problem


# --- groups of pods and QoS classes ---------------------------------------------------------------------------


REFRESH_EVERY = 60.0


def lacks_root(host: CgroupHost, rules: CgroupRules) -> bool:
    """Whether the group that all pods are to be in was named and is not there; it must not be made by accident."""
    named = bool(rules.root.strip("/"))
    return named and not host.exists(named_path(rules.root, driver=rules.driver))


class NoSlices:
    """Plain cgroupfs: there is no systemd to keep slices."""

    async def hold(self, path: str, limits: CgroupLimits) -> None: ...

    async def drop(self, path: str) -> None: ...


class PodCgroups:
    """Also a service, which keeps the class groups up to date."""

    name = "cgroups"

    def __init__(
        self,
        *,
        host: CgroupHost,
        rules: CgroupRules,
        active: Callable[[], Iterable[Pod]],
        in_force: Callable[[Pod], Pod],
        clock: Clock,
        slices: Slices | None = None,
    ) -> None:
        self._host = host
        self._rules = rules
        self._active = active
        self._in_force = in_force
        self._clock = clock
        self._slices: Slices = slices or NoSlices()
        self._refreshing = asyncio.Lock()
        """Around the class groups: an older sum must not be written after a newer one."""
        self._made: dict[str, str] = {}
        self._classes: dict[QosClass, CgroupLimits] = {}
        self._shares: dict[str, tuple[PodSpec, PodShare]] = {}

    async def run(self) -> None:
        if not self._rules.enabled:
            await asyncio.Event().wait()
        if lacks_root(self._host, self._rules):
            raise PykubeletError(f"cgroupRoot (--cgroup-root): the cgroup {self._rules.root} does not exist")
        while True:
            self._classes.clear()
            try:
                await self.refresh()
            except OSError as error:
                logger.warning("cgroups of the service classes cannot be kept, will retry", extra={"error": str(error)})
            await self._clock.sleep(REFRESH_EVERY)

    async def refresh(self) -> None:
        """Set the limits of the class groups to what the active pods request."""
        async with self._refreshing:
            wanted = class_limits([self._share(pod) for pod in self._active()], self._rules)
            for qos, limits in wanted.items():
                if self._classes.get(qos) != limits:
                    await self._create(self._path(class_parts(qos)), limits)
                    self._classes[qos] = limits

    async def _create(self, path: str, limits: CgroupLimits) -> None:
        await self._slices.hold(path, limits)
        self._host.create(path, limits)

    def _share(self, pod: Pod) -> PodShare:
        """Kept while the spec is the same object: a burst of pods would add up all pods for each of them."""
        spec, share = self._shares.get(uid_of(pod), (None, None))
        if share is None or spec is not pod.spec:
            share = share_of(pod)
            self._shares[uid_of(pod)] = (pod.spec, share)
        return share

    # --- one pod --------------------------------------------------------------------------------

    def is_missing(self, pod: Pod) -> bool:
        """Whether the pod should have a group and has none, so that what runs of it runs elsewhere."""
        return self._rules.enabled and not self._host.exists(self._path(pod_parts(pod)))

    async def ensure(self, pod: Pod) -> None:
        """Make the pod's group with its limits. Cheap when this life of the agent has ensured it before."""
        if not self._rules.enabled:
            return
        uid, path = uid_of(pod), self._path(pod_parts(pod))
        there = self._host.exists(path)
        if there and uid in self._made:
            return
        await self.refresh()
        # A group from before may hold containers in the middle of a resize: it gets what is in force, not what
        # is to come. And it may have been made by an agent that was killed before it wrote the limits.
        await self._create(path, pod_limits(self._in_force(pod) if there else pod, self._rules))
        self._made[uid] = path

    async def remove(self, uid: str) -> None:
        if not self._rules.enabled:
            return
        known = self._made.get(uid)
        for path in [known] if known else self._paths_of(uid):
            await self._slices.drop(path)
            await self._host.destroy(path)
        self._made.pop(uid, None)
        self._shares.pop(uid, None)
        await self.refresh()

    # --- resizes --------------------------------------------------------------------------------

    def wanted(self, pod: Pod) -> CgroupLimits:
        return pod_limits(pod, self._rules)

    def current(self, pod: Pod) -> CgroupLimits | None:
        """What the kernel has for the pod's group now; None when pods have no groups of their own."""
        return self._host.read(self._path(pod_parts(pod))) if self._rules.enabled else None

    def memory_usage(self, pod: Pod) -> int | None:
        return self._host.memory_usage(self._path(pod_parts(pod))) if self._rules.enabled else None

    async def change(self, pod: Pod, limits: CgroupLimits) -> None:
        """OSError when the kernel refuses, for instance a memory limit below what is in use."""
        path = self._path(pod_parts(pod))
        # The kernel first: systemd would take what the kernel refuses, and write it again at its next reload.
        self._host.apply(path, limits)
        await self._slices.hold(path, limits)

    # --- leftovers ------------------------------------------------------------------------------

    async def remove_orphans(self, known: set[str], *, still_held: Callable[[str], bool] = lambda uid: False) -> None:
        """Remove groups of pods that are not known any more, for instance from before a crash.

        While a pod is `still_held` (a volume is mounted) its group stays, with next to no claim on CPUs.
        """
        if not self._rules.enabled:
            return
        for uid in self.uids() - known:
            try:
                if still_held(uid):
                    self._starve(uid)
                else:
                    await self.remove(uid)
            except OSError as error:
                logger.warning(
                    "cgroup of a pod that is gone cannot be removed, will retry",
                    extra={"uid": uid, "error": str(error)},
                )

    def uids(self) -> set[str]:
        """Pods that have a group on this host."""
        found = set()
        for qos in QosClass:
            for name in self._host.children(self._path(class_parts(qos))):
                uid = uid_from_name(name, driver=self._rules.driver)
                if uid is not None:
                    found.add(uid)
        return found

    def _starve(self, uid: str) -> None:
        for path in self._paths_of(uid):
            if self._host.exists(path):
                self._host.apply(path, CgroupLimits(cpu_shares=MIN_SHARES))

    def _paths_of(self, uid: str) -> list[str]:
        return [self._path((*class_parts(qos), f"pod{uid}")) for qos in QosClass]

    def _path(self, parts: tuple[str, ...]) -> str:
        return driver_path(parts, driver=self._rules.driver, root=self._rules.root)
