"""What settings and machine together mean for pods: the facts every pod's config depends on, made once."""

from __future__ import annotations

from pykubelet.api.quantity import Quantity
from pykubelet.clients.host.paths import NodePaths
from pykubelet.clients.host.port import Machine
from pykubelet.model.pod_resources import EPHEMERAL_STORAGE
from pykubelet.node.capacity import allocatable, eviction_reserve, machine_capacity, reserved
from pykubelet.runtime.spec.node import NodeSpec
from pykubelet.settings.settings import Settings
from pykubelet.settings.thresholds import eviction_thresholds


def node_spec(
    settings: Settings, machine: Machine, paths: NodePaths, *, cgroup_driver: str = "", in_cluster: bool = True
) -> NodeSpec:
    """`cgroup_driver` is what the runtime says, which counts more than the setting."""
    config, gates = settings.config, settings.gates
    single = config.cgroups.single_process_oom_kill
    return NodeSpec(
        cluster_dns=config.network.cluster_dns,
        cluster_domain=config.network.cluster_domain,
        in_cluster=in_cluster,
        resolv_conf=config.network.resolv_conf,
        cgroups_per_qos=config.cgroups.cgroups_per_qos,
        cgroup_driver=cgroup_driver or config.cgroups.cgroup_driver,
        cgroup_root=config.cgroups.cgroup_root or "/",
        cpu_cfs_quota=config.runtime.cpu_cfs_quota,
        cpu_period_us=int(config.runtime.cpu_cfs_quota_period * 1_000_000),
        memory_bytes=machine.memory_bytes,
        swap_bytes=machine.swap_bytes,
        swap_behavior=config.cgroups.memory_swap.swap_behavior,
        swap_controller=machine.swap_controller,
        cgroup_v2=machine.cgroup_v2,
        single_process_oom_kill=not machine.cgroup_v2 if single is None else single,
        memory_qos=gates.enabled("MemoryQoS"),
        memory_throttling_factor=config.cgroups.memory_throttling_factor,
        tiered_memory_reservation=config.cgroups.memory_reservation_policy == "TieredReservation",
        page_bytes=machine.page_bytes,
        hugepage_sizes=machine.hugepage_sizes,
        seccomp_default=config.runtime.seccomp_default,
        seccomp_root=str(paths.seccomp),
        selinux=machine.selinux,
        allocatable=local_allocatable(settings, machine),
        thermal_paths=machine.thermal_paths,
        hostname_override=gates.enabled("HostnameOverride"),
        env_files=gates.enabled("EnvFiles"),
        stop_signals=gates.enabled("ContainerStopSignals"),
        exclusive_cpus_unthrottled=gates.enabled("DisableCPUQuotaWithExclusiveCPUs"),
    )


def local_allocatable(settings: Settings, machine: Machine) -> dict[str, Quantity]:
    """What pods may use of this machine, as far as a node without an API server needs to know.

    Disk space is not counted here: without an API server nobody but eviction asks for it.
    """
    capacity = machine_capacity(machine, settings.config.cgroups, None)
    kept = [reserved(settings.config.reservations)]
    if not settings.flags.experimental_allocatable_ignore_eviction:
        kept.append(eviction_reserve(eviction_thresholds(settings.config.eviction), capacity))
    return {**allocatable(capacity, *kept), EPHEMERAL_STORAGE: Quantity.of_bytes(1 << 62)}
