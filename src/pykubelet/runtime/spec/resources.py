"""Requests and limits as the numbers the runtime writes into cgroups. Pure; the maths is upstream's.

Covers containers, sandboxes and overhead; swap on cgroup v1 and v2; memory QoS. Does not cover the pod's own
cgroup, which the agent writes itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from pykubelet.api.pod_resources import HUGE_PAGES, aggregate_limits, aggregate_requests, is_huge_pages, is_pod_level
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Pod, QuantityValue, ResourceRequirements
from pykubelet.cm.cgroups import swap_limit
from pykubelet.cm.container_resources import NO_RESOURCES, ContainerResources
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.model.pod import AnyContainer, QosClass, is_node_critical, is_sidecar, qos_class
from pykubelet.wire import cri_pb2

MIN_SHARES: Final = 2
MAX_SHARES: Final = 262_144
MIN_QUOTA_US: Final = 1000
UNLIMITED_QUOTA: Final = -1
GUARANTEED_OOM: Final = -997
BEST_EFFORT_OOM: Final = 1000
MAX_INT64: Final = 2**63 - 1
_NONE: Final = ResourceRequirements()


def shares(milli_cpu: int) -> int:
    """The weight of a CPU request against its siblings."""
    return min(max(milli_cpu * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def quota(milli_cpu: int, period_us: int) -> int:
    """CPU time per period; 0 = no limit."""
    if milli_cpu == 0:
        return 0
    return min(max(milli_cpu * period_us // 1000, MIN_QUOTA_US), MAX_INT64)


def container_resources(
    pod: Pod, container: AnyContainer, node: NodeSpec, allocated: ContainerResources = NO_RESOURCES
) -> cri_pb2.LinuxContainerResources:
    """What a container is started with, and what a resize sends."""
    own = container.resources or _NONE
    pod_level = _pod_level(pod)
    result = _basic(
        node,
        cpu_request=_amount(own.requests, "cpu") if "cpu" in own.requests else None,
        cpu_limit=_limit_or_pods(own, pod_level, "cpu"),
        memory_limit=_limit_or_pods(own, pod_level, "memory"),
        unthrottled=allocated.exclusive_cpus and node.exclusive_cpus_unthrottled,
    )
    result.oom_score_adj = oom_score(pod, container, node.memory_bytes)
    result.hugepage_limits.extend(_hugepages(own, pod_level, node))
    _add_swap(result, pod, own, node)
    if node.memory_qos and node.cgroup_v2:
        result.unified.update(_memory_qos(pod, own, node))
    result.cpuset_cpus = allocated.cpuset_cpus
    result.cpuset_mems = allocated.cpuset_mems
    return result


def sandbox_resources(pod: Pod, node: NodeSpec, *, exclusive_cpus: bool = False) -> cri_pb2.LinuxContainerResources:
    """What the whole pod may use, its overhead not counted."""
    requests, limits = aggregate_requests(pod.spec), aggregate_limits(pod.spec)
    if pod.spec.resources is not None:
        requests |= {n: Quantity.parse(v) for n, v in pod.spec.resources.requests.items() if is_pod_level(n)}
        limits |= {n: Quantity.parse(v) for n, v in pod.spec.resources.limits.items() if is_pod_level(n)}
    return _basic(
        node,
        cpu_request=requests.get("cpu"),
        cpu_limit=limits.get("cpu", ZERO),
        memory_limit=limits.get("memory", ZERO),
        unthrottled=exclusive_cpus and node.exclusive_cpus_unthrottled,
    )


def overhead_resources(pod: Pod, node: NodeSpec) -> cri_pb2.LinuxContainerResources:
    """What the sandbox itself costs; request and limit are the same. Empty when nothing is declared."""
    if not pod.spec.overhead:
        return cri_pb2.LinuxContainerResources()
    cpu = _amount(pod.spec.overhead, "cpu")
    memory = _amount(pod.spec.overhead, "memory")
    return _basic(node, cpu_request=cpu, cpu_limit=cpu, memory_limit=memory, unthrottled=False)


def _basic(
    node: NodeSpec, *, cpu_request: Quantity | None, cpu_limit: Quantity, memory_limit: Quantity, unthrottled: bool
) -> cri_pb2.LinuxContainerResources:
    # A limit without a request counts as the request; the API server does the same for new pods.
    weight_from = cpu_limit if cpu_request is None else cpu_request
    result = cri_pb2.LinuxContainerResources(
        cpu_shares=shares(weight_from.milli_value()), memory_limit_in_bytes=min(memory_limit.value(), MAX_INT64)
    )
    if node.cpu_cfs_quota:
        limited = quota(cpu_limit.milli_value(), node.cpu_period_us)
        result.cpu_quota = UNLIMITED_QUOTA if unthrottled else limited
        result.cpu_period = node.cpu_period_us
    if node.cgroup_v2 and not node.single_process_oom_kill:
        result.unified["memory.oom.group"] = "1"
    return result


def _amount(values: Mapping[str, QuantityValue], name: str) -> Quantity:
    raw = values.get(name)
    return Quantity.parse(raw) if raw is not None else ZERO


def _pod_level(pod: Pod) -> ResourceRequirements:
    """Amounts for the pod as a whole; empty when it sets none that count."""
    resources = pod.spec.resources
    if resources is None or not any(is_pod_level(name) for name in (*resources.requests, *resources.limits)):
        return _NONE
    return resources


def _limit_or_pods(own: ResourceRequirements, pod_level: ResourceRequirements, name: str) -> Quantity:
    limit = _amount(own.limits, name)
    return limit if not limit.is_zero() else _amount(pod_level.limits, name)


# --- who is killed first ----------------------------------------------------------------------------


def oom_score(pod: Pod, container: AnyContainer, capacity_bytes: int) -> int:
    """The kernel's readiness to kill the container when memory runs out: the more it requests, the less."""
    qos = qos_class(pod)
    if is_node_critical(pod) or qos is QosClass.GUARANTEED:
        return GUARANTEED_OOM
    if qos is QosClass.BEST_EFFORT:
        return BEST_EFFORT_OOM
    extra = _unclaimed_per_container(pod)
    request = _memory_request(container)
    if is_sidecar(container) and any(each.name == container.name for each in pod.spec.init_containers):
        # A sidecar must not die before the containers it serves.
        request = max(request, min((_memory_request(each) for each in pod.spec.containers), default=0))
    score = 1000 - 1000 * (request + extra) // max(capacity_bytes, 1)
    return min(max(score, 1000 + GUARANTEED_OOM), BEST_EFFORT_OOM - 1)


def _memory_request(container: AnyContainer) -> int:
    return _amount((container.resources or _NONE).requests, "memory").value()


def _unclaimed_per_container(pod: Pod) -> int:
    """Each container's share of what the pod requests beyond its containers' requests."""
    whole = _amount(_pod_level(pod).requests, "memory").value()
    if not whole:
        return 0
    claimed = aggregate_requests(pod.spec).get("memory", ZERO).value()
    return (whole - claimed) // (len(pod.spec.containers) + len(pod.spec.init_containers))


# --- huge pages, swap, memory QoS -------------------------------------------------------------------


def page_size_name(size_bytes: int) -> str:
    """As cgroup files name it: 64KB, 2MB, 1GB."""
    kilobytes = size_bytes >> 10
    for shift, unit in ((20, "GB"), (10, "MB")):
        if kilobytes >= 1 << shift:
            return f"{kilobytes >> shift}{unit}"
    return f"{kilobytes}KB"


def _hugepages(
    own: ResourceRequirements, pod_level: ResourceRequirements, node: NodeSpec
) -> list[cri_pb2.HugepageLimit]:
    """Every size the node has: nothing may be used unless the container, or else the pod, says so."""
    wanted: dict[int, int] = {}
    for limits in (pod_level.limits, own.limits):
        for name, value in limits.items():
            if is_huge_pages(name):
                size = Quantity.parse(name.removeprefix(HUGE_PAGES)).value()
                wanted[size] = Quantity.parse(value).value()
    return [
        cri_pb2.HugepageLimit(page_size=page_size_name(size), limit=wanted.get(size, 0)) for size in node.hugepage_sizes
    ]


def _add_swap(result: cri_pb2.LinuxContainerResources, pod: Pod, own: ResourceRequirements, node: NodeSpec) -> None:
    if not node.swap_controller:
        return
    if node.cgroup_v2:
        result.unified["memory.swap.max"] = str(swap_limit(pod, own, node))
    else:
        # Memory and swap together: no more than memory alone means no swap.
        result.memory_swap_limit_in_bytes = result.memory_limit_in_bytes


def _memory_qos(pod: Pod, own: ResourceRequirements, node: NodeSpec) -> dict[str, str]:
    request, limit = _amount(own.requests, "memory").value(), _amount(own.limits, "memory").value()
    if request and node.tiered_memory_reservation:
        guaranteed = qos_class(pod) is QosClass.GUARANTEED
        files = {"memory.min" if guaranteed else "memory.low": str(request)}
    else:
        files = {"memory.min": "0", "memory.low": "0"}
    ceiling = limit or node.memory_for_pods_bytes
    if request != limit and ceiling:
        pages = math.floor(request + (ceiling - request) * node.memory_throttling_factor) // node.page_bytes
        if pages * node.page_bytes > request:
            files["memory.high"] = str(pages * node.page_bytes)
    return files
