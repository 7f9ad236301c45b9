"""CSI drivers registered on this node: registration, instrumented calls, volume limits and volume stats.

`CsiDrivers` is the plugin manager's handler for type CSIPlugin: it checks the version, calls NodeGetInfo, updates the
CSINode and from then on returns the driver by name. Every call is timed under upstream's metric. `LimitsKeeper`
refreshes the volume limits as often as the CSIDriver says; `CsiStats` calls NodeGetVolumeStats with a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from pykubelet.clients.plugins.port import CsiConnect, CsiNode, CsiUsage, timed
from pykubelet.context import Context
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import PykubeletError
from pykubelet.signals import CsiDriverRegistered
from pykubelet.volumes.csi import rules
from pykubelet.volumes.csi.records import VolumeRecord
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import CsiNodeUpdater, CsiObjects
from pykubelet.volumes.spec import VolumeSpec, VolumeUsage

logger = logging.getLogger(__name__)

Version = tuple[int, int, int]
HIGHEST_MAJOR = 1
SERVICE = "/csi.v1.Node"
_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)


class DriverRefused(PykubeletError):
    """Why a CSI driver is not registered."""


class _Driver(Struct):
    endpoint: Path
    version: Version
    capabilities: frozenset[str] | None = None
    """Asked once per registration: a driver that changes is restarted, and registers again."""


class CsiDrivers:
    def __init__(self, ctx: Context, *, connect: CsiConnect, node: CsiNodeUpdater) -> None:
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._connect = connect
        self._node = node
        self._drivers: dict[str, _Driver] = {}
        self._durations = ctx.metrics.histogram(
            "csi_operations_seconds",
            "How long storage drivers took to answer, by the status they answered with.",
            ("driver_name", "method_name", "grpc_status_code", "migrated"),
            _BUCKETS,
        )

    @property
    def names(self) -> list[str]:
        return sorted(self._drivers)

    def find(self, name: str, *, migrated: bool = False, waiting: Callable[[str], None] = lambda text: None) -> CsiNode:
        """The driver, instrumented: `waiting` is called before each call with what the volume then waits for.

        `migrated` when it replaces an in-tree plugin.
        """
        driver = self._drivers.get(name)
        if driver is None:
            raise VolumeProblem(f"driver name {name} not found in the list of registered CSI drivers")
        return self._client(driver.endpoint, name, migrated=migrated, waiting=waiting)

    def _client(
        self, endpoint: Path, name: str, *, migrated: bool = False, waiting: Callable[[str], None] = lambda text: None
    ) -> CsiNode:
        @contextmanager
        def observe(method: str) -> Iterator[None]:
            waiting(f"driver {name} has not answered {method}")
            labels = "true" if migrated else "false"
            with timed(
                self._clock,
                lambda took, code: self._durations.observe(took, name, f"{SERVICE}/{method}", code, labels),
            ):
                yield

        return self._connect(endpoint, observe)

    async def capabilities(self, name: str, client: CsiNode | None = None) -> frozenset[str]:
        """Capabilities of the driver, requested through `client` when there is one."""
        found = self.find(name)
        driver = self._drivers[name]
        if driver.capabilities is None:
            driver.capabilities = await (client or found).capabilities()
        return driver.capabilities

    # --- the plugin manager's handler -----------------------------------------------------------

    async def register(self, name: str, endpoint: Path, versions: tuple[str, ...]) -> None:
        if not name:
            raise DriverRefused("a CSI driver must have a name")
        version = highest_supported(versions)
        known = self._drivers.get(name)
        if known is not None and known.endpoint != endpoint and known.version >= version:
            raise DriverRefused(
                f"the version specified [{_shown(version)}] is not higher than that of the already registered "
                f"driver {name} [{_shown(known.version)}]"
            )
        info = await self._client(endpoint, name).info()
        if not info.node_id:
            raise DriverRefused(f"driver {name} did not say this node's id (NodeGetInfo)")
        await self._node.add_driver(name, info)
        self._drivers[name] = _Driver(endpoint, version)
        self._signals.publish(CsiDriverRegistered(name))

    async def deregister(self, name: str, endpoint: Path) -> None:
        known = self._drivers.get(name)
        if known is None or known.endpoint != endpoint:
            return  # a newer one took over its name
        del self._drivers[name]
        try:
            await self._node.remove_driver(name)
        except PykubeletError as error:
            # A driver that is updated comes back within seconds and is added again.
            logger.warning("driver not taken off the node's list", extra={"driver": name, "problem": str(error)})

    async def refresh(self, name: str) -> None:
        """Ask the driver for its limits and update the CSINode."""
        info = await self.find(name).info()
        if name in self._drivers:
            await self._node.add_driver(name, info)


def highest_supported(versions: tuple[str, ...]) -> Version:
    """The highest version we can speak; raises when there is none."""
    if not versions:
        raise DriverRefused("a CSI driver must list the versions it supports")
    parsed = [_version(text) for text in versions]
    usable = [version for version in parsed if version[0] <= HIGHEST_MAJOR]
    if not usable:
        raise DriverRefused(
            f"none of the driver's versions [{', '.join(versions)}] is supported, which are 0.x and 1.x"
        )
    return max(usable)


def _version(text: str) -> Version:
    parts = text.removeprefix("v").partition("-")[0].split(".")
    if not 1 <= len(parts) <= 3 or not all(part.isdigit() for part in parts):
        raise DriverRefused(f"the driver's version {text!r} is not a version")
    numbers = [int(part) for part in parts] + [0, 0]
    return numbers[0], numbers[1], numbers[2]


def _shown(version: Version) -> str:
    return ".".join(str(part) for part in version)


LIMITS_EVERY = 10.0
"""Seconds; the shortest period that a CSIDriver can name."""


class LimitsKeeper:
    name = "csi limits"

    def __init__(self, *, drivers: CsiDrivers, objects: CsiObjects, clock: Clock) -> None:
        self._drivers = drivers
        self._objects = objects
        self._clock = clock
        self._refreshed: dict[str, float] = {}
        self._under_way: set[str] = set()

    async def run(self) -> None:
        async with TaskSet(self.name) as tasks:
            while True:
                now = self._clock.monotonic()
                names = set(self._drivers.names)
                if names:
                    await self._objects.known()
                self._refreshed = {name: self._refreshed.get(name, now) for name in names}
                for name in names - self._under_way:
                    driver = self._objects.driver(name)
                    period = driver.node_allocatable_update_period_seconds if driver is not None else None
                    if period and now - self._refreshed[name] >= period:
                        self._refreshed[name] = now
                        self._under_way.add(name)
                        tasks.spawn(self._refresh(name), name=f"limits of {name}")
                await self._clock.sleep(LIMITS_EVERY)

    async def _refresh(self, name: str) -> None:
        try:
            await self._drivers.refresh(name)
        except PykubeletError as error:
            logger.warning("limits of a driver not renewed", extra={"driver": name, "problem": str(error)})
        finally:
            self._under_way.discard(name)


STATS_SECONDS = 5.0
"""Stats of other volumes wait behind a driver: one that takes longer has none."""
STATS_SKIPPED = 20
"""How many measurements skip such a driver before it is called again."""


class CsiStats:
    def __init__(self, drivers: CsiDrivers, *, with_health: bool = False) -> None:
        """`with_health`: what drivers say about the condition of volumes counts."""
        self._drivers = drivers
        self._with_health = with_health
        self._skipped: dict[str, int] = {}
        """Drivers that did not answer in time, and how many measurements still skip them."""

    def driver_registered(self, name: str) -> None:
        self._skipped.pop(name, None)

    async def of(
        self, spec: VolumeSpec, record: VolumeRecord, target: Path, staging: Path | None
    ) -> VolumeUsage | None:
        """None when the driver has no stats. Those of a block volume are of the whole device."""
        found = await self._volume_stats(record, target, staging)
        if found is None:
            return None
        stats, knows_condition = found
        return VolumeUsage(
            name=spec.name,
            used_bytes=stats.used_bytes,
            capacity_bytes=stats.total_bytes,
            available_bytes=stats.available_bytes,
            inodes=stats.total_inodes,
            inodes_free=stats.available_inodes,
            inodes_used=stats.used_inodes,
            claim=spec.claim,
            abnormal=stats.abnormal if knows_condition else None,
            condition=stats.condition if knows_condition else "",
        )

    async def _volume_stats(
        self, record: VolumeRecord, target: Path, staging: Path | None
    ) -> tuple[CsiUsage, bool] | None:
        """What the driver says, and whether it says something about the volume's condition."""
        name = record.driver
        late = f"driver {name} has not answered NodeGetVolumeStats within {STATS_SECONDS:g} s"
        if left := self._skipped.pop(name, 0):
            self._skipped[name] = left - 1
            raise VolumeProblem(f"{late} and is asked again later")
        try:
            async with asyncio.timeout(STATS_SECONDS):
                able = await self._drivers.capabilities(name)
                if rules.STATS not in able:
                    return None
                found = await self._drivers.find(name).usage(record.handle, target, staging=staging)
                return found, self._with_health and rules.CONDITION in able
        except TimeoutError:
            self._skipped[name] = STATS_SKIPPED
            raise VolumeProblem(late) from None
