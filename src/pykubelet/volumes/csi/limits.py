"""How many volumes a driver can have here changes while the node lives: asked for again as often as its CSIDriver says.

Drivers that ask for nothing are not asked. Each has a question of its own under way, so that one which hangs keeps
only itself from being up to date.
"""

from __future__ import annotations

import logging

from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import PykubeletError
from pykubelet.volumes.csi.drivers import CsiDrivers
from pykubelet.volumes.csi.objects import CsiObjects

logger = logging.getLogger(__name__)

LOOK_EVERY = 10.0
"""Seconds; the shortest period that a CSIDriver can name."""


class LimitsKeeper:
    name = "csi limits"

    def __init__(self, *, drivers: CsiDrivers, objects: CsiObjects, clock: Clock) -> None:
        self._drivers = drivers
        self._objects = objects
        self._clock = clock
        self._asked: dict[str, float] = {}
        self._under_way: set[str] = set()

    async def run(self) -> None:
        async with TaskSet(self.name) as tasks:
            while True:
                now = self._clock.monotonic()
                names = set(self._drivers.names)
                if names:
                    await self._objects.known()
                self._asked = {name: self._asked.get(name, now) for name in names}
                for name in names - self._under_way:
                    said = self._objects.driver(name)
                    period = said.node_allocatable_update_period_seconds if said is not None else None
                    if period and now - self._asked[name] >= period:
                        self._asked[name] = now
                        self._under_way.add(name)
                        tasks.spawn(self._ask(name), name=f"limits of {name}")
                await self._clock.sleep(LOOK_EVERY)

    async def _ask(self, name: str) -> None:
        try:
            await self._drivers.refresh(name)
        except PykubeletError as error:
            logger.warning("limits of a driver not renewed", extra={"driver": name, "problem": str(error)})
        finally:
            self._under_way.discard(name)
