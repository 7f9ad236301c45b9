"""Cgroups of pods and QoS classes: their limits, the arithmetic between CPU amounts and kernel values, their names.

Names exist for both drivers: the cgroupfs form is a plain path; the systemd form nests slices whose names repeat
their parents. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from pykubelet.api.types import Pod
from pykubelet.model.pod import QosClass, qos_class, uid_of

MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1000
PERIOD_US = 100_000


class CgroupLimits(Struct, frozen=True, kw_only=True):
    """None = leave as it is; -1 = no limit."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int = PERIOD_US
    memory_bytes: int | None = None
    pids: int | None = None
    hugepages: Mapping[int, int] = field(default_factory=dict)
    """Bytes allowed by page size in bytes."""
    unified: Mapping[str, str] = field(default_factory=dict)
    """Files of cgroup v2 by name; without meaning on v1."""

    def over(self, other: CgroupLimits) -> CgroupLimits:
        """These, and the other's where these say nothing."""
        quota = self if self.cpu_quota_us is not None else other
        return CgroupLimits(
            cpu_shares=self.cpu_shares if self.cpu_shares is not None else other.cpu_shares,
            cpu_quota_us=quota.cpu_quota_us,
            cpu_period_us=quota.cpu_period_us,
            memory_bytes=self.memory_bytes if self.memory_bytes is not None else other.memory_bytes,
            pids=self.pids if self.pids is not None else other.pids,
            hugepages={**other.hugepages, **self.hugepages},
            unified={**other.unified, **self.unified},
        )


def milli_to_shares(milli: int) -> int:
    if milli <= 0:
        return MIN_SHARES
    return max(MIN_SHARES, min(MAX_SHARES, milli * 1024 // 1000))


def milli_to_quota(milli: int, period_us: int = PERIOD_US) -> int:
    """Microseconds of CPU per period; 0 = not limited."""
    if milli <= 0:
        return 0
    return max(MIN_QUOTA_US, milli * period_us // 1000)


def shares_to_weight(shares: int) -> int:
    """cgroup v2 weight as the kubelet writes it (linear)."""
    if shares >= MAX_SHARES:
        return 10_000
    return 1 + (max(shares, MIN_SHARES) - 2) * 9999 // 262_142


def weight_to_shares(weight: int) -> int:
    """The way back; not exact, as a weight is coarser."""
    return (weight - 1) * 262_142 // 9999 + 2


ROOT_NAME = "kubepods"
_CLASS_PART = {QosClass.GUARANTEED: (), QosClass.BURSTABLE: ("burstable",), QosClass.BEST_EFFORT: ("besteffort",)}


def class_parts(qos: QosClass) -> tuple[str, ...]:
    """The path of a class below the cgroup root, driver neutral."""
    return (ROOT_NAME, *_CLASS_PART[qos])


def pod_parts(pod: Pod) -> tuple[str, ...]:
    """The path of a pod's cgroup below the cgroup root, driver neutral."""
    return (*class_parts(qos_class(pod)), f"pod{uid_of(pod)}")


def cgroupfs_path(parts: tuple[str, ...], root: str = "/") -> str:
    return "/".join((root.rstrip("/"), *parts))


def systemd_path(parts: tuple[str, ...], root: str = "/") -> str:
    """`/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`; parts of a root come first."""
    above = tuple(part.removesuffix(".slice") for part in root.split("/") if part)
    # A root given as systemd shows it repeats its parents already: only its last name counts.
    above = tuple(above[-1].split("-")) if root.endswith(".slice") else tuple(_escaped(part) for part in above)
    names = (*above, *(_escaped(part) for part in parts))
    return "".join(f"/{'-'.join(names[: index + 1])}.slice" for index in range(len(names)))


def _escaped(part: str) -> str:
    return part.replace("-", "_")


def named_path(name: str, *, driver: str) -> str:
    """Where a group is that an administrator named: a path, or for systemd a slice with or without its parents."""
    if driver == "systemd":
        return systemd_path((), name if name.endswith(".slice") else f"/{name.strip('/')}")
    return f"/{name.strip('/')}"


def driver_path(parts: tuple[str, ...], *, driver: str, root: str = "/") -> str:
    """Where the group is below each hierarchy, in the driver's spelling."""
    return systemd_path(parts, root) if driver == "systemd" else cgroupfs_path(parts, root)


def uid_from_name(name: str, *, driver: str) -> str | None:
    """The pod whose group goes by this name; None for any other group."""
    if driver == "systemd":
        last = name.removesuffix(".slice").rpartition("-")[2]
        return last.removeprefix("pod").replace("_", "-") if name.endswith(".slice") and _is_pod(last) else None
    return name.removeprefix("pod") if _is_pod(name) else None


def _is_pod(part: str) -> bool:
    return part.startswith("pod") and part != "pod"


def parent_for_runtime(pod: Pod, *, driver: str, root: str = "/") -> str:
    """What the sandbox's cgroup_parent says."""
    return driver_path(pod_parts(pod), driver=driver, root=root)
