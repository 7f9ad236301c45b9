"""Cgroups of pods and of the service classes above them: made before a pod's sandbox, removed after it.

The limits are computed here from the spec (pure, `pod_limits`); writing them is the host's business. The class
groups are refreshed whenever a pod comes or goes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Pod
from pykubelet.model.cgroup_limits import MIN_SHARES, CgroupLimits, milli_to_quota, milli_to_shares
from pykubelet.model.cgroup_names import cgroupfs_path, class_parts, pod_parts
from pykubelet.model.pod import QosClass, qos_class, uid_of
from pykubelet.model.pod_resources import pod_limits as limits_of
from pykubelet.model.pod_resources import pod_requests

logger = logging.getLogger(__name__)

POD_GROUP = re.compile(r"^pod([0-9a-zA-Z-]+)$")


class CgroupHost(Protocol):
    def create(self, path: str, limits: CgroupLimits) -> None: ...

    def apply(self, path: str, limits: CgroupLimits) -> None: ...

    def exists(self, path: str) -> bool: ...

    def children(self, path: str) -> Sequence[str]: ...

    async def destroy(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupRules:
    root: str = "/"
    enabled: bool = True
    """cgroupsPerQOS: without it pods sit directly below the root and nothing is made here."""
    cfs_quota: bool = True
    period_us: int = 100_000
    pids_per_pod: int = -1
    hugepage_sizes: tuple[int, ...] = ()


def pod_limits(pod: Pod, rules: CgroupRules) -> CgroupLimits:
    """The pod's own limits: requests give shares; quota and memory only when every container has a limit."""
    requests, limits = pod_requests(pod), limits_of(pod)
    qos = qos_class(pod)
    quota = memory = -1
    if qos is not QosClass.BEST_EFFORT:
        if rules.cfs_quota and _all_limited(pod, "cpu"):
            quota = milli_to_quota(limits.get("cpu", ZERO).milli_value(), rules.period_us) or -1
        if _all_limited(pod, "memory"):
            memory = limits.get("memory", ZERO).value() or -1
    return CgroupLimits(
        cpu_shares=milli_to_shares(requests.get("cpu", ZERO).milli_value()),
        cpu_quota_us=quota,
        cpu_period_us=rules.period_us,
        memory_bytes=memory,
        pids=rules.pids_per_pod if rules.pids_per_pod > 0 else None,
        hugepages={size: _hugepages(limits, size) for size in rules.hugepage_sizes},
    )


def _all_limited(pod: Pod, resource: str) -> bool:
    if pod.spec.resources is not None and resource in pod.spec.resources.limits:
        return True
    every = (*pod.spec.init_containers, *pod.spec.containers)
    return all(c.resources is not None and resource in c.resources.limits for c in every)


def _hugepages(limits: dict[str, Quantity], size: int) -> int:
    for unit, factor in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size % factor == 0:
            return limits.get(f"hugepages-{size // factor}{unit}", ZERO).value()
    return 0


class PodCgroups:
    def __init__(self, *, host: CgroupHost, rules: CgroupRules, active: Callable[[], Iterable[Pod]]) -> None:
        self._host = host
        self._rules = rules
        self._active = active
        self._made: dict[str, str] = {}

    async def ensure(self, pod: Pod) -> None:
        """The pod's group exists with its limits; nothing to do when it was made in this life of the agent."""
        uid = uid_of(pod)
        if not self._rules.enabled or uid in self._made:
            return
        path = self._path(pod_parts(pod))
        self._refresh_class(qos_class(pod))
        self._host.create(path, pod_limits(pod, self._rules))
        self._made[uid] = path

    async def remove(self, uid: str) -> None:
        if not self._rules.enabled:
            return
        known = self._made.get(uid)
        for path in [known] if known else self._paths_of(uid):
            await self._host.destroy(path)
        self._made.pop(uid, None)

    async def remove_orphans(self, known: set[str]) -> None:
        """Groups of pods that nobody knows any more, for instance from before a crash."""
        for uid in self.uids():
            if uid not in known:
                await self.remove(uid)

    def uids(self) -> set[str]:
        """Pods that have a group on this host."""
        found = set()
        for qos in QosClass:
            for name in self._host.children(self._path(class_parts(qos))):
                if match := POD_GROUP.match(name):
                    found.add(match.group(1))
        return found

    def _paths_of(self, uid: str) -> list[str]:
        return [self._path((*class_parts(qos), f"pod{uid}")) for qos in QosClass]

    def _path(self, parts: tuple[str, ...]) -> str:
        return cgroupfs_path(parts, self._rules.root)

    def _refresh_class(self, qos: QosClass) -> None:
        if qos is QosClass.GUARANTEED:
            return
        shares = MIN_SHARES
        if qos is QosClass.BURSTABLE:
            burstable = (pod for pod in self._active() if qos_class(pod) is QosClass.BURSTABLE)
            milli = sum(pod_requests(pod).get("cpu", ZERO).milli_value() for pod in burstable)
            shares = milli_to_shares(milli)
        self._host.create(self._path(class_parts(qos)), CgroupLimits(cpu_shares=shares))
