"""Holds all pods together to what the node may give, and the system's groups to what was reserved for them.

Reserved groups are set once at start, and a node that cannot must not start: the settings promise it. The group above
all pods is set as far as the host lets us, and put right every minute. A host that refuses is told once, with the
event upstream has for it, and the node goes on; each setting stands alone, so one refusal does not undo the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.clients.host.port import Slices
from pykubelet.kit.clock import Clock
from pykubelet.model.cgroup_limits import CgroupLimits
from pykubelet.model.cgroup_names import class_parts, driver_path, named_path
from pykubelet.model.errors import PykubeletError
from pykubelet.model.events import EventSink
from pykubelet.model.pod import QosClass
from pykubelet.model.reasons import NORMAL, WARNING
from pykubelet.resources.cgroups import NoSlices, lacks_root
from pykubelet.resources.node_limits import ReservedGroup
from pykubelet.resources.pod_limits import CgroupRules

logger = logging.getLogger(__name__)

AGAIN_AFTER = 60.0
CGROUP_V1 = "cgroup v1 detected. cgroup v1 support is deprecated: move this machine to cgroup v2"
ENFORCED, NOT_ENFORCED = "NodeAllocatableEnforced", "FailedNodeAllocatableEnforcement"


class GroupHost(Protocol):
    def create(self, path: str, limits: CgroupLimits) -> None: ...

    def apply(self, path: str, limits: CgroupLimits) -> None:
        """OSError when the host refuses."""
        ...

    def exists(self, path: str) -> bool: ...


class NodeLimits(Struct, frozen=True, kw_only=True):
    pods: CgroupLimits = field(default_factory=CgroupLimits)
    enforced: bool = True
    """Whether `pods` in enforceNodeAllocatable asks for them, so that people are told how it went."""
    reserved: Sequence[ReservedGroup] = ()


class NodeAllocatable:
    name = "node-allocatable"

    def __init__(
        self,
        *,
        host: GroupHost,
        rules: CgroupRules,
        limits: NodeLimits,
        events: EventSink,
        clock: Clock,
        slices: Slices | None = None,
        old_cgroups: bool = False,
    ) -> None:
        """`old_cgroups`: the host has cgroup v1, which people are to know."""
        self._host = host
        self._rules = rules
        self._limits = limits
        self._events = events
        self._clock = clock
        self._slices: Slices = slices or NoSlices()
        self._old_cgroups = old_cgroups
        self._told: str | None = None

    async def run(self) -> None:
        if self._old_cgroups:
            self._events.node_event(WARNING, "CgroupV1", CGROUP_V1)
        if not self._rules.enabled or lacks_root(self._host, self._rules):
            await asyncio.Event().wait()  # without its root the agent is about to end (cgroups.py)
        for group in self._limits.reserved:
            self._reserve(group)
        while True:
            await self.enforce()
            await self._clock.sleep(AGAIN_AFTER)

    def _reserve(self, group: ReservedGroup) -> None:
        path = named_path(group.name, driver=self._rules.driver)
        if not self._host.exists(path):
            raise PykubeletError(f"{group.setting}: the cgroup {path} does not exist; it must, for its limits are set")
        try:
            self._host.apply(path, group.limits)
        except OSError as error:
            raise PykubeletError(f"{group.setting}: the limits of {path} cannot be set: {error}") from error
        logger.info("reserved cgroup limited", extra={"setting": group.setting, "cgroup": path})

    async def enforce(self) -> None:
        """One pass over the group above all pods."""
        path = driver_path(class_parts(QosClass.GUARANTEED), driver=self._rules.driver, root=self._rules.root)
        problems = []
        try:
            await self._slices.hold(path, self._limits.pods)
            self._host.create(path, CgroupLimits())
        except OSError as error:
            problems.append(str(error))
        else:
            for each in apart(self._limits.pods):
                try:
                    self._host.apply(path, each)
                except OSError as error:
                    problems.append(str(error))
        self._tell("; ".join(problems))

    def _tell(self, problem: str) -> None:
        if problem == self._told:
            return
        self._told = problem
        if problem:
            logger.warning(
                "the limit of all pods together is not enforced, or only in part; the node goes on without it",
                extra={"error": problem},
            )
        if not self._limits.enforced:
            return
        if problem:
            text = f"Failed to update Node Allocatable Limits {', '.join(problem.split('; '))}"
            self._events.node_event(WARNING, NOT_ENFORCED, text)
        else:
            self._events.node_event(NORMAL, ENFORCED, "Updated Node Allocatable limit across pods")


def apart(limits: CgroupLimits) -> list[CgroupLimits]:
    """The same limits, one by one."""
    nothing = CgroupLimits()
    found = [
        replace(nothing, cpu_shares=limits.cpu_shares),
        replace(nothing, memory_bytes=limits.memory_bytes),
        replace(nothing, pids=limits.pids),
        *(replace(nothing, hugepages={size: allowed}) for size, allowed in limits.hugepages.items()),
    ]
    return [each for each in found if each != nothing]
