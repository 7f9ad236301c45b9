"""Figures of the CPU, memory and topology managers under upstream's names."""

from __future__ import annotations

from typing import Final

from pykubelet.kit.metrics import Registry

PHYSICAL_CPU: Final = "physical_cpu"
NUMA_NODE: Final = "numa_node"
UNCORE_CACHE: Final = "uncore_cache"
SCOPES: Final = ("container", "pod")


class ResourceManagerMetrics:
    def __init__(self, registry: Registry) -> None:
        self.cpu_requests = registry.counter(
            "kubelet_cpu_manager_pinning_requests_total", "Allocations of exclusive CPUs that were asked for."
        )
        self.cpu_errors = registry.counter(
            "kubelet_cpu_manager_pinning_errors_total", "Allocations of exclusive CPUs that failed."
        )
        self.shared_pool = registry.gauge(
            "kubelet_cpu_manager_shared_pool_size_millicores",
            "CPUs that are nobody's own and not reserved, in thousandths.",
        )
        self.exclusive = registry.gauge(
            "kubelet_cpu_manager_exclusive_cpu_allocation_count", "CPUs that containers own exclusively."
        )
        self.per_numa = registry.gauge(
            "kubelet_cpu_manager_allocation_per_numa", "Exclusive CPUs on each NUMA node.", [NUMA_NODE]
        )
        self.memory_requests = registry.counter(
            "kubelet_memory_manager_pinning_requests_total", "Allocations of pinned memory that were asked for."
        )
        self.memory_errors = registry.counter(
            "kubelet_memory_manager_pinning_errors_total", "Allocations of pinned memory that failed."
        )
        self.admissions = registry.counter(
            "kubelet_topology_manager_admission_requests_total", "Pods whose resources had to be aligned."
        )
        self.admission_errors = registry.counter(
            "kubelet_topology_manager_admission_errors_total", "Pods whose resources could not be aligned."
        )
        self.admission_time = registry.histogram(
            "kubelet_topology_manager_admission_duration_ms",
            "Time to align the resources of a pod, in milliseconds.",
            buckets=[0.05 * 2**step for step in range(15)],
        )
        labels = ["scope", "boundary"]
        self.aligned = registry.counter(
            "kubelet_container_aligned_compute_resources_count", "Allocations that were aligned.", labels
        )
        self.unaligned = registry.counter(
            "kubelet_container_aligned_compute_resources_failure_count",
            "Allocations that had to be aligned and could not.",
            labels,
        )
        by_source = ["resource_name", "source"]
        self.allocations = registry.counter(
            "resource_manager_allocations_total", "Exclusive allocations from the node or a pod's own pool.", by_source
        )
        self.allocation_errors = registry.counter(
            "resource_manager_allocation_errors_total", "Exclusive allocations that failed.", by_source
        )
        self.containers = registry.counter(
            "resource_manager_container_assignments",
            "Containers by the kind of resources they were given.",
            ["resource_name", "assignment_type"],
        )

    def show_alignment(self, *series: tuple[str, str]) -> None:
        """Make these (scope, boundary) visible with 0 before anything happened."""
        for each in series:
            self.aligned.inc(*each, by=0)
            self.unaligned.inc(*each, by=0)
