"""Cgroups of pods and of the QoS classes above them: made before a pod's sandbox, removed after it.

The class groups follow the pods: they are brought up to date when a pod comes or goes and once a minute. Limits come
from `cgroup_limits.py`; writing files is the host's work, and with systemd each group is a slice too. `OwnGroup`
keeps the agent itself in the cgroup of kubeletCgroups. Does not cover what all pods together are limited to
(node_allocatable.py), systemCgroups, nor the runtime's own group.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable

from pykubelet.api.types import Pod, PodSpec
from pykubelet.clients.host.port import CgroupHost, Slices
from pykubelet.cm.cgroup_limits import CgroupRules, PodShare, class_limits, pod_limits, share_of
from pykubelet.kit.clock import Clock
from pykubelet.model.cgroups import (
    MIN_SHARES,
    CgroupLimits,
    class_parts,
    driver_path,
    named_path,
    pod_parts,
    uid_from_name,
)
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import QosClass, uid_of

logger = logging.getLogger(__name__)


# --- the agent's own group ------------------------------------------------------------------------------------


LOOK_EVERY = 60.0


class OwnGroup:
    name = "own-cgroup"

    def __init__(self, *, host: CgroupHost, group: str, driver: str, clock: Clock) -> None:
        """`group` is the setting kubeletCgroups; '' = the agent stays where it was started."""
        self._host = host
        self._group = group
        self._driver = driver
        self._clock = clock
        self._logged = ""

    async def run(self) -> None:
        if not self._group:
            await asyncio.Event().wait()
        while True:
            self.ensure()
            await self._clock.sleep(LOOK_EVERY)

    def ensure(self) -> None:
        path = named_path(self._group, driver=self._driver)
        problem = ""
        try:
            self._host.join(path, os.getpid())
        except OSError as error:
            problem = str(error)
        if problem and problem != self._logged:
            logger.warning(
                "kubeletCgroups: the agent cannot move into its cgroup", extra={"cgroup": path, "error": problem}
            )
        self._logged = problem


REFRESH_EVERY = 60.0


def lacks_root(host: CgroupHost, rules: CgroupRules) -> bool:
    """Whether the group that all pods are to be in was named and is not there; it must not be made by accident."""
    named = bool(rules.root.strip("/"))
    return named and not host.exists(named_path(rules.root, driver=rules.driver))


class NoSlices:
    """Plain cgroupfs: nothing beside it must agree."""

    async def hold(self, path: str, limits: CgroupLimits) -> None: ...

    async def drop(self, path: str) -> None: ...


class PodCgroups:
    """Also a service, which keeps the class groups right."""

    name = "cgroups"

    def __init__(
        self,
        *,
        host: CgroupHost,
        rules: CgroupRules,
        active: Callable[[], Iterable[Pod]],
        in_force: Callable[[Pod], Pod],
        clock: Clock,
        slices: Slices | None = None,
    ) -> None:
        self._host = host
        self._rules = rules
        self._active = active
        self._in_force = in_force
        self._clock = clock
        self._slices: Slices = slices or NoSlices()
        self._refreshing = asyncio.Lock()
        """Around the class groups: an older sum must not be written after a newer one."""
        self._made: dict[str, str] = {}
        self._classes: dict[QosClass, CgroupLimits] = {}
        self._shares: dict[str, tuple[PodSpec, PodShare]] = {}

    async def run(self) -> None:
        if not self._rules.enabled:
            await asyncio.Event().wait()
        if lacks_root(self._host, self._rules):
            raise PykubeletError(f"cgroupRoot (--cgroup-root): the cgroup {self._rules.root} does not exist")
        while True:
            self._classes.clear()
            try:
                await self.refresh()
            except OSError as error:
                logger.warning("cgroups of the service classes cannot be kept, will retry", extra={"error": str(error)})
            await self._clock.sleep(REFRESH_EVERY)

    async def refresh(self) -> None:
        """Bring the groups of the classes to what the active pods ask for."""
        async with self._refreshing:
            wanted = class_limits([self._share(pod) for pod in self._active()], self._rules)
            for qos, limits in wanted.items():
                if self._classes.get(qos) != limits:
                    await self._create(self._path(class_parts(qos)), limits)
                    self._classes[qos] = limits

    async def _create(self, path: str, limits: CgroupLimits) -> None:
        await self._slices.hold(path, limits)
        self._host.create(path, limits)

    def _share(self, pod: Pod) -> PodShare:
        """Kept while the spec is the same object: a burst of pods would add up all pods for each of them."""
        spec, share = self._shares.get(uid_of(pod), (None, None))
        if share is None or spec is not pod.spec:
            share = share_of(pod)
            self._shares[uid_of(pod)] = (pod.spec, share)
        return share

    # --- one pod --------------------------------------------------------------------------------

    def is_missing(self, pod: Pod) -> bool:
        """Whether the pod should have a group and has none, so that what runs of it runs elsewhere."""
        return self._rules.enabled and not self._host.exists(self._path(pod_parts(pod)))

    async def ensure(self, pod: Pod) -> None:
        """The pod's group exists with its limits. Cheap when this life of the agent has ensured it before."""
        if not self._rules.enabled:
            return
        uid, path = uid_of(pod), self._path(pod_parts(pod))
        there = self._host.exists(path)
        if there and uid in self._made:
            return
        await self.refresh()
        # A group from before may hold containers in the middle of a resize: it gets what is in force, not what
        # is to come. And it may have been made by an agent that was killed before it wrote the limits.
        await self._create(path, pod_limits(self._in_force(pod) if there else pod, self._rules))
        self._made[uid] = path

    async def remove(self, uid: str) -> None:
        if not self._rules.enabled:
            return
        known = self._made.get(uid)
        for path in [known] if known else self._paths_of(uid):
            await self._slices.drop(path)
            await self._host.destroy(path)
        self._made.pop(uid, None)
        self._shares.pop(uid, None)
        await self.refresh()

    # --- resizes --------------------------------------------------------------------------------

    def wanted(self, pod: Pod) -> CgroupLimits:
        return pod_limits(pod, self._rules)

    def current(self, pod: Pod) -> CgroupLimits | None:
        """What the kernel has for the pod's group now; None when pods have no groups of their own."""
        return self._host.read(self._path(pod_parts(pod))) if self._rules.enabled else None

    def memory_usage(self, pod: Pod) -> int | None:
        return self._host.memory_usage(self._path(pod_parts(pod))) if self._rules.enabled else None

    async def change(self, pod: Pod, limits: CgroupLimits) -> None:
        """OSError when the kernel refuses, for instance a memory limit below what is in use."""
        path = self._path(pod_parts(pod))
        # The kernel first: systemd would take what the kernel refuses, and write it again at its next reload.
        self._host.apply(path, limits)
        await self._slices.hold(path, limits)

    # --- leftovers ------------------------------------------------------------------------------

    async def remove_orphans(self, known: set[str], *, still_held: Callable[[str], bool] = lambda uid: False) -> None:
        """Remove groups of pods that are not known any more, for instance from before a crash.

        While a pod is `still_held` (a volume is mounted) its group stays, with next to no claim on CPUs.
        """
        if not self._rules.enabled:
            return
        for uid in self.uids() - known:
            try:
                if still_held(uid):
                    self._starve(uid)
                else:
                    await self.remove(uid)
            except OSError as error:
                logger.warning(
                    "cgroup of a pod that is gone cannot be removed, will retry",
                    extra={"uid": uid, "error": str(error)},
                )

    def uids(self) -> set[str]:
        """Pods that have a group on this host."""
        found = set()
        for qos in QosClass:
            for name in self._host.children(self._path(class_parts(qos))):
                uid = uid_from_name(name, driver=self._rules.driver)
                if uid is not None:
                    found.add(uid)
        return found

    def _starve(self, uid: str) -> None:
        for path in self._paths_of(uid):
            if self._host.exists(path):
                self._host.apply(path, CgroupLimits(cpu_shares=MIN_SHARES))

    def _paths_of(self, uid: str) -> list[str]:
        return [self._path((*class_parts(qos), f"pod{uid}")) for qos in QosClass]

    def _path(self, parts: tuple[str, ...]) -> str:
        return driver_path(parts, driver=self._rules.driver, root=self._rules.root)
