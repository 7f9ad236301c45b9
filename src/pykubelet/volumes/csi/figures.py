"""How full volumes are, as their drivers say. Others wait for figures behind a driver, so one that hangs has none."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pykubelet.clients.plugins.port import CsiUsage
from pykubelet.volumes.csi import rules
from pykubelet.volumes.csi.drivers import CsiDrivers
from pykubelet.volumes.csi.records import VolumeRecord
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.spec import VolumeSpec
from pykubelet.volumes.usage import VolumeUsage

FIGURES_SECONDS = 5.0
"""Others wait for their figures behind a driver: one that takes longer has none."""
FIGURES_SKIPPED = 20
"""How often such a driver is passed over before it is asked again."""


class Figures:
    def __init__(self, drivers: CsiDrivers) -> None:
        self._drivers = drivers
        self._passed_over: dict[str, int] = {}
        """Drivers that hang when they are asked, and how often they still go without."""

    def driver_back(self, name: str) -> None:
        self._passed_over.pop(name, None)

    async def of(
        self, spec: VolumeSpec, record: VolumeRecord, target: Path, staging: Path | None
    ) -> VolumeUsage | None:
        """None when the driver has none. A block volume's are those of the whole device."""
        said = await self._asked(record, target, staging)
        if said is None:
            return None
        return VolumeUsage(
            name=spec.name,
            used_bytes=said.used_bytes,
            capacity_bytes=said.total_bytes,
            available_bytes=said.available_bytes,
            inodes=said.total_inodes,
            inodes_free=said.available_inodes,
            inodes_used=said.used_inodes,
            claim=spec.claim,
        )

    async def _asked(self, record: VolumeRecord, target: Path, staging: Path | None) -> CsiUsage | None:
        name = record.driver
        late = f"driver {name} has not answered NodeGetVolumeStats within {FIGURES_SECONDS:g} s"
        if left := self._passed_over.pop(name, 0):
            self._passed_over[name] = left - 1
            raise VolumeProblem(f"{late} and is asked again later")
        try:
            async with asyncio.timeout(FIGURES_SECONDS):
                if rules.STATS not in await self._drivers.capabilities(name):
                    return None
                return await self._drivers.find(name).usage(record.handle, target, staging=staging)
        except TimeoutError:
            self._passed_over[name] = FIGURES_SKIPPED
            raise VolumeProblem(late) from None
