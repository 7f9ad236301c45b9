"""What settings and machine together mean for pods: the facts every pod's config depends on, made once."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.clients.host.port import Machine
from pykubelet.cm.capacity import allocatable, kept_from_pods, machine_capacity, reserved
from pykubelet.edges import Edges
from pykubelet.model.pod_resources import EPHEMERAL_STORAGE, MEMORY
from pykubelet.settings.settings import Settings


class NodeSpec(Struct, frozen=True, kw_only=True):
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""
    in_cluster: bool = True
    """False without an API server: then cluster DNS is not expected, and its absence not reported."""
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
    memory_for_pods_bytes: int = 0
    """What limits are worked out from: unlike in allocatable, neither eviction thresholds nor huge pages are off."""
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


def node_spec(settings: Settings, edges: Edges) -> NodeSpec:
    config, gates, machine = settings.config, settings.gates, edges.machine
    single = config.cgroups.single_process_oom_kill
    return NodeSpec(
        cluster_dns=config.network.cluster_dns,
        cluster_domain=config.network.cluster_domain,
        in_cluster=edges.cluster is not None,
        resolv_conf=config.network.resolv_conf,
        cgroups_per_qos=config.cgroups.cgroups_per_qos,
        # What the runtime says counts more than the setting.
        cgroup_driver=edges.cgroup_driver or config.cgroups.cgroup_driver,
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
        seccomp_root=str(edges.paths.seccomp),
        selinux=machine.selinux,
        allocatable=local_allocatable(settings, machine),
        memory_for_pods_bytes=memory_for_pods(settings, machine),
        thermal_paths=machine.thermal_paths,
        hostname_override=gates.enabled("HostnameOverride"),
        env_files=gates.enabled("EnvFiles"),
        stop_signals=gates.enabled("ContainerStopSignals"),
        exclusive_cpus_unthrottled=gates.enabled("DisableCPUQuotaWithExclusiveCPUs"),
    )


def local_allocatable(settings: Settings, machine: Machine) -> dict[str, Quantity]:
    """What pods may use of this machine, as far as a node without an API server needs to know.

    Disk space is not counted here: without an API server only eviction uses it.
    """
    capacity = machine_capacity(machine, settings.config.cgroups, None)
    kept = kept_from_pods(settings, capacity)
    return {**allocatable(capacity, kept), EPHEMERAL_STORAGE: Quantity.of_bytes(1 << 62)}


def memory_for_pods(settings: Settings, machine: Machine) -> int:
    """Bytes: the machine's memory less both reservations, whether they are enforced or not."""
    return max(0, machine.memory_bytes - reserved(settings.config.reservations).get(MEMORY, ZERO).value())
