"""Keeps the agent itself in the cgroup that kubeletCgroups names, so that what is reserved for it can be enforced.

Looks every minute, because others move processes, too. A host that refuses is told once. Does not cover
systemCgroups (moving everybody else's processes) nor the runtime's own group.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Protocol

from pykubelet.kit.clock import Clock
from pykubelet.model.cgroup_names import named_path

logger = logging.getLogger(__name__)

LOOK_EVERY = 60.0


class ProcessGroups(Protocol):
    def join(self, path: str, pid: int) -> None:
        """Move a process into a group, which is made if missing. OSError when the host refuses."""
        ...


class OwnGroup:
    name = "own-cgroup"

    def __init__(self, *, host: ProcessGroups, group: str, driver: str, clock: Clock) -> None:
        """`group` is the setting kubeletCgroups; '' = the agent stays where it was started."""
        self._host = host
        self._group = group
        self._driver = driver
        self._clock = clock
        self._told = ""

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
        if problem and problem != self._told:
            logger.warning(
                "kubeletCgroups: the agent cannot move into its cgroup", extra={"cgroup": path, "error": problem}
            )
        self._told = problem
