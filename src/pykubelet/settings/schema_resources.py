"""Settings about resources: cgroups, reservations, resource managers, eviction, swap, shutdown.

Names, defaults and flags are those of KubeletConfiguration v1beta1.
Does not cover the CPU quota of containers (schema_runtime.py) nor rules between fields (validate*.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.settings.flag_forms import LANGLE_MAP, ONE_PAIR, RESERVED_MEMORY, MemoryReservation, PriorityGracePeriod
from pykubelet.settings.kinds import (
    BOOL,
    DURATION,
    FLOAT,
    INT32,
    INT64,
    STRING,
    STRING_MAP,
    STRINGS,
    ListOf,
    Nested,
    SettingsGroup,
    nested,
    setting,
)

# Linux hard eviction thresholds; they apply only through a configuration file (see decode.py).
DEFAULT_EVICTION_HARD = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}


class MemorySwap(SettingsGroup):
    swap_behavior: str = setting("swapBehavior", STRING, "", "NoSwap or LimitedSwap (cgroup v2 only); empty is NoSwap.")


class CgroupSettings(SettingsGroup):
    """Pod capacity, cgroups and what the kernel must offer."""

    max_pods: int = setting("maxPods", INT32, 110, "Pods this node can hold.", flag="max-pods")
    pods_per_core: int = setting(
        "podsPerCore", INT32, 0, "Above 0: pods are also limited to this for each core.", flag="pods-per-core"
    )
    pod_pids_limit: int = setting(
        "podPidsLimit",
        INT64,
        -1,
        "Processes in each pod; -1 is no limit of its own.",
        flag="pod-max-pids",
        optional=True,
    )
    cgroup_driver: str = setting(
        "cgroupDriver",
        STRING,
        "cgroupfs",
        "systemd or cgroupfs; the runtime's own answer wins when it gives one.",
        flag="cgroup-driver",
    )
    cgroup_root: str = setting(
        "cgroupRoot", STRING, "", "Cgroup above all pods; empty is the root.", flag="cgroup-root"
    )
    cgroups_per_qos: bool = setting(
        "cgroupsPerQOS",
        BOOL,
        True,
        "Keep a cgroup for each QoS class and pod.",
        flag="cgroups-per-qos",
        optional=True,
    )
    kubelet_cgroups: str = setting(
        "kubeletCgroups", STRING, "", "Cgroup this process moves into.", flag="kubelet-cgroups"
    )
    system_cgroups: str = setting(
        "systemCgroups",
        STRING,
        "",
        "Cgroup for all other processes of the machine; needs cgroupRoot.",
        flag="system-cgroups",
    )
    memory_swap: MemorySwap = nested("memorySwap", MemorySwap, "Use of swap.")
    fail_swap_on: bool = setting(
        "failSwapOn", BOOL, True, "Refuse to start while swap is on.", flag="fail-swap-on", optional=True
    )
    fail_cgroup_v1: bool = setting(
        "failCgroupV1", BOOL, True, "Refuse to start on cgroup v1.", flag="fail-cgroupv1", optional=True
    )
    single_process_oom_kill: bool | None = setting(
        "singleProcessOOMKill",
        BOOL,
        None,
        "Out of memory kills only the process at fault, not its container. Absent: false on cgroup v2, true on v1.",
        optional=True,
    )
    memory_throttling_factor: float = setting(
        "memoryThrottlingFactor",
        FLOAT,
        0.9,
        "Share of the memory limit at which a container is throttled, above 0 up to 1; gate MemoryQoS.",
        optional=True,
    )
    memory_reservation_policy: str = setting(
        "memoryReservationPolicy",
        STRING,
        "None",
        "None, or TieredReservation to protect requested memory; gate MemoryQoS.",
    )
    protect_kernel_defaults: bool = setting(
        "protectKernelDefaults",
        BOOL,
        False,
        "Fail instead of changing kernel settings.",
        flag="protect-kernel-defaults",
    )
    kernel_memcg_notification: bool = setting(
        "kernelMemcgNotification",
        BOOL,
        False,
        "Use the kernel's memory pressure notices.",
        flag="kernel-memcg-notification",
    )


class ReservationSettings(SettingsGroup):
    """What of the machine is kept from pods."""

    enforce_node_allocatable: tuple[str, ...] = setting(
        "enforceNodeAllocatable",
        STRINGS,
        ("pods",),
        "What is enforced: none, pods, system-reserved, system-reserved-compressible, kube-reserved,"
        " kube-reserved-compressible.",
        flag="enforce-node-allocatable",
    )
    system_reserved: Mapping[str, str] = setting(
        "systemReserved",
        STRING_MAP,
        {},
        "Kept for the operating system: cpu, memory, ephemeral-storage, pid.",
        flag="system-reserved",
    )
    kube_reserved: Mapping[str, str] = setting(
        "kubeReserved",
        STRING_MAP,
        {},
        "Kept for Kubernetes' own programs: cpu, memory, ephemeral-storage, pid.",
        flag="kube-reserved",
    )
    system_reserved_cgroup: str = setting(
        "systemReservedCgroup",
        STRING,
        "",
        "Cgroup that systemReserved is enforced on.",
        flag="system-reserved-cgroup",
    )
    kube_reserved_cgroup: str = setting(
        "kubeReservedCgroup",
        STRING,
        "",
        "Cgroup that kubeReserved is enforced on.",
        flag="kube-reserved-cgroup",
    )
    reserved_system_cpus: str = setting(
        "reservedSystemCPUs",
        STRING,
        "",
        "CPUs kept for the system, such as 0-1,8; replaces the cpu of both reservations.",
        flag="reserved-cpus",
    )
    qos_reserved: Mapping[str, str] = setting(
        "qosReserved",
        STRING_MAP,
        {},
        "Share of requests kept from lower QoS classes, memory=N%; gate QOSReserved.",
        flag="qos-reserved",
    )


class ResourceManagerSettings(SettingsGroup):
    """CPU, memory and topology managers."""

    cpu_manager_policy: str = setting("cpuManagerPolicy", STRING, "none", "none or static.", flag="cpu-manager-policy")
    cpu_manager_policy_options: Mapping[str, str] = setting(
        "cpuManagerPolicyOptions",
        STRING_MAP,
        {},
        "Options of the static policy, such as full-pcpus-only=true.",
        flag="cpu-manager-policy-options",
        flag_form=ONE_PAIR,
    )
    cpu_manager_reconcile_period: float = setting(
        "cpuManagerReconcilePeriod",
        DURATION,
        10.0,
        "How often CPU assignments are checked.",
        flag="cpu-manager-reconcile-period",
    )
    memory_manager_policy: str = setting(
        "memoryManagerPolicy", STRING, "None", "None or Static.", flag="memory-manager-policy"
    )
    reserved_memory: tuple[MemoryReservation, ...] = setting(
        "reservedMemory",
        ListOf(Nested(MemoryReservation)),
        (),
        "Memory of each NUMA node kept from pods.",
        flag="reserved-memory",
        flag_form=RESERVED_MEMORY,
    )
    topology_manager_policy: str = setting(
        "topologyManagerPolicy",
        STRING,
        "none",
        "none, best-effort, restricted or single-numa-node.",
        flag="topology-manager-policy",
    )
    topology_manager_scope: str = setting(
        "topologyManagerScope", STRING, "container", "container or pod.", flag="topology-manager-scope"
    )
    topology_manager_policy_options: Mapping[str, str] = setting(
        "topologyManagerPolicyOptions",
        STRING_MAP,
        {},
        "prefer-closest-numa-nodes, max-allowable-numa-nodes.",
        flag="topology-manager-policy-options",
    )


class EvictionSettings(SettingsGroup):
    """When pods are evicted because the node runs short."""

    eviction_hard: Mapping[str, str] = setting(
        "evictionHard",
        STRING_MAP,
        DEFAULT_EVICTION_HARD,
        "Thresholds that evict at once: a quantity or a percentage for each signal.",
        flag="eviction-hard",
        flag_form=LANGLE_MAP,
        legacy={},
    )
    eviction_soft: Mapping[str, str] = setting(
        "evictionSoft",
        STRING_MAP,
        {},
        "Thresholds that evict when they hold for their grace period.",
        flag="eviction-soft",
        flag_form=LANGLE_MAP,
    )
    eviction_soft_grace_period: Mapping[str, str] = setting(
        "evictionSoftGracePeriod",
        STRING_MAP,
        {},
        "How long each signal of evictionSoft must hold.",
        flag="eviction-soft-grace-period",
    )
    eviction_pressure_transition_period: float = setting(
        "evictionPressureTransitionPeriod",
        DURATION,
        300.0,
        "How long a pressure condition stays after the pressure is gone.",
        flag="eviction-pressure-transition-period",
    )
    eviction_max_pod_grace_period: int = setting(
        "evictionMaxPodGracePeriod",
        INT32,
        0,
        "Longest grace period in seconds of a soft eviction; negative: the pod's own.",
        flag="eviction-max-pod-grace-period",
    )
    eviction_minimum_reclaim: Mapping[str, str] = setting(
        "evictionMinimumReclaim",
        STRING_MAP,
        {},
        "How much more than the threshold is freed, for each signal.",
        flag="eviction-minimum-reclaim",
    )
    merge_default_eviction_settings: bool = setting(
        "mergeDefaultEvictionSettings",
        BOOL,
        False,
        "Signals that evictionHard leaves out keep their default threshold.",
        optional=True,
    )


class ShutdownSettings(SettingsGroup):
    """Grace given to pods when the machine shuts down."""

    shutdown_grace_period: float = setting(
        "shutdownGracePeriod", DURATION, 0.0, "Time the shutdown is held back for pods; 0 turns it off."
    )
    shutdown_grace_period_critical_pods: float = setting(
        "shutdownGracePeriodCriticalPods", DURATION, 0.0, "Part of it that only critical pods get."
    )
    shutdown_grace_period_by_pod_priority: tuple[PriorityGracePeriod, ...] = setting(
        "shutdownGracePeriodByPodPriority",
        ListOf(Nested(PriorityGracePeriod)),
        (),
        "Grace by pod priority; excludes the two above.",
    )
