"""What the cgroups of pods and of the service classes are limited to. Pure.

Requests give CPU shares; a quota and a memory limit exist only where every container has one, or the pod as a
whole. The kubepods group above them is the node's business (node allocatable) and not computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pykubelet.api.pod_resources import HUGE_PAGES, Amounts, is_huge_pages
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.kit.metrics import Registry
from pykubelet.model.cgroups import MIN_SHARES, CgroupLimits, milli_to_quota, milli_to_shares
from pykubelet.model.pod import QosClass, is_critical, qos_class
from pykubelet.model.pod_resources import amount_of, pod_requests
from pykubelet.model.pod_resources import pod_limits as limits_of
from pykubelet.settings.settings import Settings

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
    allocatable_memory_bytes: int = 0
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
    burstable = max(0, rules.allocatable_memory_bytes - kept[QosClass.GUARANTEED])
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
        allocatable_memory_bytes=spec.allocatable["memory"].value() if "memory" in spec.allocatable else 0,
        unthrottled=lambda pod: spec.exclusive_cpus_unthrottled and owns_cpus(pod),
    )


def _qos_reserve(settings: Settings) -> int:
    if not settings.gates.enabled("QOSReserved"):
        return 0
    return int(settings.config.reservations.qos_reserved.get("memory", "0%").removesuffix("%"))
