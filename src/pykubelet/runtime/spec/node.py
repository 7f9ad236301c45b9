"""Facts about this node that every pod's config depends on; made once when the agent is wired."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from pykubelet.api.quantity import Quantity


class NodeSpec(Struct, frozen=True, kw_only=True):
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""
    in_cluster: bool = True
    """False without an API server: then nobody expects cluster DNS, and its absence is not told."""
    resolv_conf: str = "/etc/resolv.conf"
    """Path of the host's resolver file; '' = pods get none of it."""
    cgroups_per_qos: bool = True
    cgroup_driver: str = "cgroupfs"
    cgroup_root: str = "/"
    cpu_cfs_quota: bool = True
    cpu_period_us: int = 100_000
    memory_bytes: int = 0
    swap_bytes: int = 0
    swap_behavior: str = ""
    cgroup_v2: bool = False
    swap_controller: bool = False
    """The kernel accounts swap, so limits on it can be written."""
    single_process_oom_kill: bool = True
    memory_qos: bool = False
    """Gate MemoryQoS: throttle and protect memory through cgroup v2 files."""
    memory_throttling_factor: float = 0.9
    tiered_memory_reservation: bool = False
    page_bytes: int = 4096
    hugepage_sizes: tuple[int, ...] = ()
    seccomp_default: bool = False
    seccomp_root: str = "/var/lib/kubelet/seccomp"
    selinux: bool = False
    allocatable: Mapping[str, Quantity] = field(default_factory=dict)
    """What resourceFieldRef shows for a limit that is not set."""
    thermal_paths: tuple[str, ...] = ()
    """CPU throttle folders of this machine that are hidden from containers."""
    hostname_override: bool = True
    """Gate HostnameOverride."""
    env_files: bool = True
    """Gate EnvFiles: variables may come from files in volumes."""
    stop_signals: bool = False
    """Gate ContainerStopSignals."""
    exclusive_cpus_unthrottled: bool = True
    """Gate DisableCPUQuotaWithExclusiveCPUs."""
