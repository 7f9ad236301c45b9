"""Rules a configuration must keep before the agent starts with it; all faults are found at once.

`Checks` collects faults; each names its field and, where there is one, the flag of that field. Rules that need to know
the machine (cgroup version, swap, online CPUs) are pure too: the caller passes what it found.
runOnce is allowed here, unlike in the Go kubelet.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from pykubelet.api.validation import names
from pykubelet.model.topology import format_cpu_list, parse_cpu_list
from pykubelet.settings.flag_forms import TAINT_EFFECTS
from pykubelet.settings.gates import Gates, gate_problems
from pykubelet.settings.kinds import WrongValue, quantity_of
from pykubelet.settings.node_flags import NodeFlags
from pykubelet.settings.schema import KubeletConfig, settings_by_path, value_at
from pykubelet.settings.settings import KUBERNETES_VERSION
from pykubelet.settings.thresholds import read_thresholds


class Checks:
    """Faults found in one configuration. Fields are named by their wire path."""

    def __init__(self, config: KubeletConfig, gates: Gates) -> None:
        self.config = config
        self.gates = gates
        self.problems: list[str] = []

    def value(self, path: str) -> Any:
        return value_at(self.config, settings_by_path()[path].attributes)

    def fault(self, path: str, text: str) -> None:
        ref = settings_by_path().get(path)
        flag = f" ({'-' if ref.setting.flag == 'v' else '--'}{ref.setting.flag})" if ref and ref.setting.flag else ""
        self.problems.append(f"invalid configuration: {path}{flag}: {text}")

    def within(self, path: str, low: int, high: int) -> None:
        value = self.value(path)
        if not low <= value <= high:
            self.fault(path, f"{value} must be between {low} and {high}")

    def not_negative(self, *paths: str) -> None:
        for path in paths:
            value = self.value(path)
            if value < 0:
                shown = f"{value:g}s" if isinstance(value, float) else value
                self.fault(path, f"{shown} must not be negative")

    def one_of(self, path: str, allowed: Sequence[str]) -> None:
        value = self.value(path)
        if value not in allowed:
            words = ", ".join(word or '""' for word in allowed)
            self.fault(path, f"{value[:80]!r} must be one of {words}")

    def needs_gate(self, path: str, gate: str) -> None:
        if not self.gates.enabled(gate):
            self.fault(path, f"needs feature gate {gate}")


MAX_PORT = 65535
MAX_INT32 = 2**31 - 1
ALLOWED_NODE_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    }
)
ALLOWED_LABEL_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
VERIFICATION_POLICIES = (
    "NeverVerify",
    "NeverVerifyPreloadedImages",
    "NeverVerifyAllowlistedImages",
    "AlwaysVerify",
)
_SYSCTL_PATTERN = re.compile(r"[a-z0-9][-_a-z0-9]*([./][a-z0-9][-_a-z0-9]*)*([./]?\*)?|\*")


def config_problems(config: KubeletConfig) -> list[str]:
    """Every rule the configuration breaks, each a sentence that names the field."""
    gate_faults = gate_problems(config.process.feature_gates)
    checks = Checks(config, Gates(config.process.feature_gates))
    checks.problems += [f"invalid configuration: featureGates (--feature-gates): {text}" for text in gate_faults]
    for rule in (
        _check_server,
        _check_sources,
        _check_node,
        _check_taints,
        _check_network,
        _check_runtime,
        _check_images,
        _check_allowlist,
        _check_container_logs,
        _check_logging,
        _check_process,
        check_resources,
    ):
        rule(checks)
    return checks.problems


def flag_problems(flags: NodeFlags) -> list[str]:
    """Every rule that flags without a configuration field break."""
    problems = [f"--node-labels: {text}" for text in node_label_problems(flags.node_labels)]
    if flags.cloud_provider not in ("", "external"):
        problems.append(f"--cloud-provider: {flags.cloud_provider[:80]!r} must be empty or external")
    if bool(flags.image_credential_provider_config) != bool(flags.image_credential_provider_bin_dir):
        problems.append(
            "--image-credential-provider-config and --image-credential-provider-bin-dir must be given together"
        )
    if flags.exit_on_lock_contention and not flags.lock_file:
        problems.append("--exit-on-lock-contention: needs --lock-file")
    return problems


def node_label_problems(labels: Mapping[str, str]) -> list[str]:
    """Why labels may not be put on the node by the node itself."""
    problems = []
    for key, value in sorted(labels.items()):
        if complaint := names.qualified_name(key):
            problems.append(f"key {key[:80]!r} {complaint}")
        if complaint := names.label_value(value):
            problems.append(f"value of {key[:80]!r} {complaint}")
        if _is_kubernetes_label(key) and not _may_set_itself(key):
            problems.append(
                f"{key[:80]!r} is in a namespace of Kubernetes; allowed there are keys under"
                f" {' and '.join(ALLOWED_LABEL_NAMESPACES)} and {', '.join(sorted(ALLOWED_NODE_LABELS))}"
            )
    return problems


def _is_kubernetes_label(key: str) -> bool:
    namespace = key.partition("/")[0] if "/" in key else ""
    return any(namespace == domain or namespace.endswith("." + domain) for domain in ("kubernetes.io", "k8s.io"))


def _may_set_itself(key: str) -> bool:
    namespace = key.partition("/")[0]
    return key in ALLOWED_NODE_LABELS or any(
        namespace == allowed or namespace.endswith("." + allowed) for allowed in ALLOWED_LABEL_NAMESPACES
    )


def _check_server(checks: Checks) -> None:
    server = checks.config.server
    checks.within("port", 1, MAX_PORT)
    checks.within("readOnlyPort", 0, MAX_PORT)
    checks.within("healthzPort", 0, MAX_PORT)
    for path, text in (("address", server.address), ("healthzBindAddress", server.healthz_bind_address)):
        if not _is_address(text):
            checks.fault(path, f"{text[:80]!r} is not an IP address")
    checks.one_of("authorization.mode", ("AlwaysAllow", "Webhook"))
    checks.one_of("tlsMinVersion", ("", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"))
    if bool(server.tls_cert_file) != bool(server.tls_private_key_file):
        checks.fault("tlsCertFile", "must be given together with tlsPrivateKeyFile")
    if server.server_tls_bootstrap:
        checks.needs_gate("serverTLSBootstrap", "RotateKubeletServerCertificate")
    if server.enable_system_log_query and not server.enable_system_log_handler:
        checks.fault("enableSystemLogQuery", "needs enableSystemLogHandler")


def _check_sources(checks: Checks) -> None:
    sources = checks.config.sources
    if sources.pod_cidr:
        for part in sources.pod_cidr.split(","):
            if "/" not in part or not _is_network(part):
                checks.fault("podCIDR", f"{part[:80]!r} is not an address range such as 10.1.0.0/24")
    if sources.static_pod_url and not re.match(r"https?://[^/]", sources.static_pod_url):
        checks.fault("staticPodURL", "must be an http or https address")


def _check_node(checks: Checks) -> None:
    checks.not_negative("kubeAPIQPS", "kubeAPIBurst", "eventRecordQPS", "eventBurst", "maxOpenFiles")
    node = checks.config.node
    if node.node_lease_duration_seconds <= 0:
        checks.fault("nodeLeaseDurationSeconds", f"{node.node_lease_duration_seconds} must be greater than 0")
    if node.node_status_max_images < -1:
        checks.fault("nodeStatusMaxImages", f"{node.node_status_max_images} must be -1 or more")
    checks.within("oomScoreAdj", -1000, 1000)
    checks.one_of("configMapAndSecretChangeDetectionStrategy", ("Get", "Cache", "Watch"))


def _check_taints(checks: Checks) -> None:
    for index, taint in enumerate(checks.config.node.register_with_taints):
        complaints = {
            "key": names.qualified_name(taint.key),
            "value": names.label_value(taint.value),
            "effect": None if taint.effect in TAINT_EFFECTS else f"must be one of {', '.join(TAINT_EFFECTS)}",
            "timeAdded": "must not be set" if taint.time_added else None,
        }
        for name, complaint in complaints.items():
            if complaint:
                checks.fault("registerWithTaints", f"[{index}].{name} {complaint}")


def _check_network(checks: Checks) -> None:
    checks.one_of("hairpinMode", ("promiscuous-bridge", "hairpin-veth", "none"))
    checks.within("iptablesMasqueradeBit", 0, 31)
    checks.within("iptablesDropBit", 0, 31)


def _check_runtime(checks: Checks) -> None:
    runtime = checks.config.runtime
    if not runtime.container_runtime_endpoint:
        checks.fault("containerRuntimeEndpoint", "must not be empty")
    period = runtime.crash_loop_back_off.max_container_restart_period
    path = "crashLoopBackOff.maxContainerRestartPeriod"
    if period is not None:
        checks.needs_gate(path, "KubeletCrashLoopBackOffMax")
        if not 1 <= period <= 300:
            checks.fault(path, f"{period:g}s must be between 1s and 300s")
    elif checks.gates.enabled("KubeletCrashLoopBackOffMax"):
        checks.fault(path, "must be set while feature gate KubeletCrashLoopBackOffMax is on")
    ids = runtime.user_namespaces.ids_per_pod
    if ids < 65536 or ids % 65536 or ids > 2**32 - 1:
        checks.fault("userNamespaces.idsPerPod", f"{ids} must be a multiple of 65536 up to {2**32 - 1}")
    if not 0.001 <= runtime.cpu_cfs_quota_period <= 1:
        checks.fault("cpuCFSQuotaPeriod", f"{runtime.cpu_cfs_quota_period:g}s must be between 1ms and 1s")
    if runtime.cpu_cfs_quota_period != 0.1:
        checks.needs_gate("cpuCFSQuotaPeriod", "CustomCPUCFSQuotaPeriod")
    for pattern in runtime.allowed_unsafe_sysctls:
        if not _SYSCTL_PATTERN.fullmatch(pattern):
            checks.fault("allowedUnsafeSysctls", f"{pattern[:80]!r} is not a sysctl name or a prefix with *")


def _check_images(checks: Checks) -> None:
    images = checks.config.images
    checks.not_negative("registryPullQPS", "registryBurst", "imageMinimumGCAge", "imageMaximumGCAge")
    checks.within("imageGCHighThresholdPercent", 0, 100)
    checks.within("imageGCLowThresholdPercent", 0, 100)
    low, high = images.gc_low_threshold_percent, images.gc_high_threshold_percent
    if low >= high:
        checks.fault(
            "imageGCLowThresholdPercent",
            f"{low} must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) {high}",
        )
    if 0 < images.image_maximum_gc_age <= images.image_minimum_gc_age:
        checks.fault("imageMaximumGCAge", "must be greater than imageMinimumGCAge")
    pulls = images.max_parallel_image_pulls
    if pulls is not None and pulls < 1:
        checks.fault("maxParallelImagePulls", f"{pulls} must be 1 or more")
    if pulls is not None and pulls > 1 and images.serialize_image_pulls:
        checks.fault("maxParallelImagePulls", f"{pulls} needs serializeImagePulls (--serialize-image-pulls) false")


def _check_allowlist(checks: Checks) -> None:
    images = checks.config.images
    policy, allowlist = "imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"
    if not checks.gates.enabled("KubeletEnsureSecretPulledImages"):
        if images.credentials_verification_policy:
            checks.needs_gate(policy, "KubeletEnsureSecretPulledImages")
        if images.preloaded_images_allowlist:
            checks.needs_gate(allowlist, "KubeletEnsureSecretPulledImages")
        return
    checks.one_of(policy, VERIFICATION_POLICIES)
    if not images.preloaded_images_allowlist:
        return
    if images.credentials_verification_policy != "NeverVerifyAllowlistedImages":
        checks.fault(allowlist, f"needs {policy} NeverVerifyAllowlistedImages")
    for pattern in images.preloaded_images_allowlist:
        if complaint := allowlist_complaint(pattern):
            checks.fault(allowlist, f"{pattern[:80]!r} {complaint}")


def allowlist_complaint(pattern: str) -> str | None:
    """What is wrong with an image pattern; it may end in /* and has neither tag nor digest."""
    name = pattern.removesuffix("/*")
    if not name:
        return "must name a registry or an image"
    if "*" in name:
        return "may have * only as /* at its end"
    if "@" in name or ("/" in name and ":" in name.rpartition("/")[2]):
        return "must not have a tag or digest"
    if re.search(r"\s", name):
        return "must not contain spaces"
    return None


def _check_container_logs(checks: Checks) -> None:
    logs = checks.config.container_logs
    try:
        quantity_of(logs.max_size)
    except WrongValue as err:
        checks.fault("containerLogMaxSize", str(err))
    if logs.max_files <= 1:
        checks.fault("containerLogMaxFiles", f"{logs.max_files} must be greater than 1")
    if logs.max_workers < 1:
        checks.fault("containerLogMaxWorkers", f"{logs.max_workers} must be 1 or more")
    if logs.monitor_interval < 3:
        checks.fault("containerLogMonitorInterval", f"{logs.monitor_interval:g}s must be 3s or more")
    folder = logs.pod_logs_dir
    if not folder.startswith("/"):
        checks.fault("podLogsDir", f"{folder[:80]!r} must be an absolute path")
    elif posixpath.normpath(folder) != folder:
        checks.fault("podLogsDir", f"{folder[:80]!r} must be written without .., ., // or a final /")
    if not folder.isascii():
        checks.fault("podLogsDir", "must contain ASCII characters only")


def _check_logging(checks: Checks) -> None:
    logs = checks.config.process.logging
    checks.one_of("logging.format", ("text", "json"))
    if logs.format == "json":
        checks.needs_gate("logging.format", "LoggingBetaOptions")
    if logs.flush_frequency <= 0:
        checks.fault("logging.flushFrequency", "must be greater than zero")
    checks.within("logging.verbosity", 0, MAX_INT32)
    if logs.vmodule and logs.format != "text":
        checks.fault("logging.vmodule", "works only with logging.format text")
    for index, item in enumerate(logs.vmodule):
        if not item.file_pattern or set("=,") & set(item.file_pattern):
            checks.fault(
                f"logging.vmodule[{index}]", "the file pattern must not be empty or have an equal sign or comma"
            )
        if item.verbosity > MAX_INT32:
            checks.fault(f"logging.vmodule[{index}]", f"verbosity must be {MAX_INT32} or less")
    for name in ("text", "json"):
        if checks.value(f"logging.options.{name}.splitStream"):
            checks.needs_gate(f"logging.options.{name}.splitStream", "LoggingAlphaOptions")
        size = quantity_of(checks.value(f"logging.options.{name}.infoBufferSize"))
        if size.value() != 0:
            checks.needs_gate(f"logging.options.{name}.infoBufferSize", "LoggingAlphaOptions")


TRACING_SCHEMES = ("dns", "unix", "unix-abstract")


def _check_process(checks: Checks) -> None:
    process = checks.config.process
    if process.tracing is not None:
        rate, endpoint = process.tracing.sampling_rate_per_million, process.tracing.endpoint
        if rate is not None and not 0 <= rate <= 1_000_000:
            checks.fault("tracing.samplingRatePerMillion", f"{rate} must be between 0 and 1000000")
        if endpoint is not None and not endpoint:
            checks.fault("tracing.endpoint", "must not be empty")
        scheme = endpoint.partition("://")[0] if endpoint and "://" in endpoint else "dns"
        if scheme not in TRACING_SCHEMES:
            checks.fault("tracing.endpoint", f"unsupported scheme {scheme!r}; host:port, dns, unix or unix-abstract")
    major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
    previous = f"{major}.{int(minor) - 1}"
    if process.show_hidden_metrics_for_version not in ("", previous):
        checks.fault("showHiddenMetricsForVersion", f"must be empty or the previous release, {previous}")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
ENFORCEMENTS = (
    "none",
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
)
CPU_OPTIONS = (
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "distribute-cpus-across-cores",
    "strict-cpu-reservation",
    "prefer-align-cpus-by-uncorecache",
)
TOPOLOGY_OPTIONS = ("prefer-closest-numa-nodes", "max-allowable-numa-nodes")
_PERCENT = re.compile(r"([0-9]{1,3})%")


def check_resources(checks: Checks) -> None:
    """All rules of this file."""
    _check_cgroups(checks)
    _check_enforcement(checks)
    _check_reserved(checks, "systemReserved", checks.config.reservations.system_reserved)
    _check_reserved(checks, "kubeReserved", checks.config.reservations.kube_reserved)
    _check_reserved_cpus(checks)
    _check_qos_reserved(checks)
    _check_managers(checks)
    _check_reserved_memory(checks)
    for path, text in read_thresholds(checks.config.eviction)[1]:
        checks.fault(path, text)
    _check_shutdown(checks)


def _check_cgroups(checks: Checks) -> None:
    cgroups = checks.config.cgroups
    checks.not_negative("maxPods", "podsPerCore")
    checks.one_of("cgroupDriver", ("cgroupfs", "systemd"))
    if cgroups.system_cgroups and not cgroups.cgroup_root:
        checks.fault("systemCgroups", "needs cgroupRoot (--cgroup-root)")
    if cgroups.system_cgroups == "/":
        checks.fault("systemCgroups", "must not be the root group")
    checks.one_of("memorySwap.swapBehavior", ("", "NoSwap", "LimitedSwap"))
    factor = cgroups.memory_throttling_factor
    if not 0 < factor <= 1:
        checks.fault("memoryThrottlingFactor", f"{factor:g} must be greater than 0 and at most 1")
    checks.one_of("memoryReservationPolicy", ("None", "TieredReservation"))
    if cgroups.memory_reservation_policy == "TieredReservation":
        checks.needs_gate("memoryReservationPolicy", "MemoryQoS")


def _check_enforcement(checks: Checks) -> None:
    path = "enforceNodeAllocatable"
    reservations = checks.config.reservations
    chosen = reservations.enforce_node_allocatable
    for what in ("system-reserved", "kube-reserved"):
        if what in chosen and f"{what}-compressible" in chosen:
            checks.fault(path, f"{what} and {what}-compressible exclude each other")
    for name in sorted(set(chosen)):
        if chosen.count(name) > 1:
            checks.fault(path, f"{name[:80]!r} is given more than once")
        if name not in ENFORCEMENTS:
            checks.fault(path, f"{name[:80]!r} must be one of {', '.join(ENFORCEMENTS)}")
            continue
        if name == "none":
            if len(chosen) > 1:
                checks.fault(path, "none must stand alone")
            continue
        if name.startswith("system-reserved") and not reservations.system_reserved_cgroup:
            checks.fault("systemReservedCgroup", f"must be set when {path} has {name}")
        if name.startswith("kube-reserved") and not reservations.kube_reserved_cgroup:
            checks.fault("kubeReservedCgroup", f"must be set when {path} has {name}")
        if not checks.config.cgroups.cgroups_per_qos:
            checks.fault("cgroupsPerQOS", f"must be true when {path} has {name}")


def _check_reserved(checks: Checks, path: str, reserved: Mapping[str, str]) -> None:
    for name, text in reserved.items():
        if name not in RESERVABLE:
            checks.fault(path, f"{name[:80]!r} cannot be reserved, only {', '.join(RESERVABLE)}")
            continue
        try:
            if quantity_of(text).nano_value() < 0:
                checks.fault(path, f"{name}: {text[:40]} must not be negative")
        except WrongValue as err:
            checks.fault(path, f"{name}: {err}")


def _check_reserved_cpus(checks: Checks) -> None:
    reservations = checks.config.reservations
    if not reservations.reserved_system_cpus:
        return
    if reservations.system_reserved_cgroup or reservations.kube_reserved_cgroup:
        checks.fault("reservedSystemCPUs", "excludes systemReservedCgroup and kubeReservedCgroup")
    try:
        parse_cpu_list(reservations.reserved_system_cpus)
    except ValueError as err:
        checks.fault("reservedSystemCPUs", str(err))


def _check_qos_reserved(checks: Checks) -> None:
    reserved = checks.config.reservations.qos_reserved
    if reserved:
        checks.needs_gate("qosReserved", "QOSReserved")
    for name, text in reserved.items():
        match = _PERCENT.fullmatch(text)
        if name != "memory":
            checks.fault("qosReserved", f"{name[:80]!r} is not known, only memory")
        elif match is None or int(match[1]) > 100:
            checks.fault("qosReserved", f"memory: {text[:40]!r} must be a percentage such as 50%")


def _check_managers(checks: Checks) -> None:
    managers = checks.config.managers
    checks.one_of("cpuManagerPolicy", ("none", "static"))
    checks.one_of("memoryManagerPolicy", ("None", "Static"))
    checks.one_of("topologyManagerPolicy", ("none", "best-effort", "restricted", "single-numa-node"))
    checks.one_of("topologyManagerScope", ("container", "pod"))
    for path, options, known in (
        ("cpuManagerPolicyOptions", managers.cpu_manager_policy_options, CPU_OPTIONS),
        ("topologyManagerPolicyOptions", managers.topology_manager_policy_options, TOPOLOGY_OPTIONS),
    ):
        for name in options:
            if name not in known:
                checks.fault(path, f"{name[:80]!r} must be one of {', '.join(known)}")


def _check_reserved_memory(checks: Checks) -> None:
    path = "reservedMemory"
    seen: set[tuple[int, str]] = set()
    for reservation in checks.config.managers.reserved_memory:
        for name, text in reservation.limits.items():
            where = f"NUMA node {reservation.numa_node}, {name[:80]}"
            if name != "memory" and not name.startswith("hugepages-"):
                checks.fault(path, f"{where}: only memory and hugepages-<size> can be reserved")
            if quantity_of(text).nano_value() <= 0:
                checks.fault(path, f"{where}: must be more than zero")
            if (reservation.numa_node, name) in seen:
                checks.fault(path, f"{where}: is given more than once")
            seen.add((reservation.numa_node, name))


def _check_shutdown(checks: Checks) -> None:
    shutdown = checks.config.shutdown
    whole, critical = shutdown.shutdown_grace_period, shutdown.shutdown_grace_period_critical_pods
    for path, seconds in (("shutdownGracePeriod", whole), ("shutdownGracePeriodCriticalPods", critical)):
        if seconds != 0:
            checks.needs_gate(path, "GracefulNodeShutdown")
        if seconds < 0 or 0 < seconds < 1:
            checks.fault(path, f"{seconds:g}s must be 0 or at least 1s")
    if critical > whole:
        checks.fault("shutdownGracePeriodCriticalPods", f"{critical:g}s must not exceed shutdownGracePeriod {whole:g}s")
    by_priority = shutdown.shutdown_grace_period_by_pod_priority
    if by_priority:
        checks.needs_gate("shutdownGracePeriodByPodPriority", "GracefulNodeShutdownBasedOnPodPriority")
        if whole > 0 or critical > 0:
            checks.fault(
                "shutdownGracePeriodByPodPriority",
                "excludes shutdownGracePeriod and shutdownGracePeriodCriticalPods",
            )
    for index, entry in enumerate(by_priority):
        if entry.shutdown_grace_period_seconds < 0:
            checks.fault("shutdownGracePeriodByPodPriority", f"[{index}] must not be negative")


class HostFacts(Struct, frozen=True, kw_only=True):
    """What the rules ask about the machine."""

    cgroup_v1: bool
    swap_on: bool
    online_cpus: frozenset[int]


def host_problems(config: KubeletConfig, host: HostFacts) -> list[str]:
    """Every reason why the agent must not start on this machine with this configuration."""
    problems = []
    cgroups = config.cgroups
    if host.cgroup_v1 and cgroups.fail_cgroup_v1:
        problems.append(
            "failCgroupV1 (--fail-cgroupv1): this machine uses cgroup v1; set it to false to run here anyway"
        )
    if host.cgroup_v1 and cgroups.single_process_oom_kill is False:
        problems.append("singleProcessOOMKill: must not be false on a machine with cgroup v1")
    if host.cgroup_v1 and cgroups.memory_swap.swap_behavior == "LimitedSwap":
        problems.append("memorySwap.swapBehavior: LimitedSwap needs cgroup v2")
    if host.swap_on and cgroups.fail_swap_on:
        problems.append("failSwapOn (--fail-swap-on): swap is on; turn it off, or set failSwapOn to false")
    missing = parse_cpu_list(config.reservations.reserved_system_cpus) - host.online_cpus
    if missing:
        problems.append(
            f"reservedSystemCPUs (--reserved-cpus): CPUs {format_cpu_list(missing)} are not online,"
            f" only {format_cpu_list(host.online_cpus)}"
        )
    return [f"invalid configuration: {problem}" for problem in problems]
