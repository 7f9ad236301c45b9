"""Validation rules about capacity, cgroups, reservations, managers, eviction and shutdown.

Called by validate.py on one Checks. Does not cover what depends on the machine (validate_host.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pykubelet.settings.checks import Checks
from pykubelet.settings.cpu_list import parse_cpu_list
from pykubelet.settings.kinds import WrongValue, quantity_of
from pykubelet.settings.thresholds import read_thresholds

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
