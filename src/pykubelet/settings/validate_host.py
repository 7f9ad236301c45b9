"""Rules that need to know the machine: cgroup version, swap, online CPUs.

Pure: the caller looks at the machine and passes what it found. Called once at start, after the configuration
itself was found valid.
"""

from __future__ import annotations

from dataclasses import dataclass

from pykubelet.settings.cpu_list import format_cpu_list, parse_cpu_list
from pykubelet.settings.schema import KubeletConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
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
