"""CSI drivers registered on this node: registration, instrumented calls, volume limits and volume stats.

`CsiDrivers` is the plugin manager's handler for type CSIPlugin: it checks the version, asks NodeGetInfo, updates the
CSINode and from then on returns the driver by name. Every call is timed under upstream's metric. `LimitsKeeper`
refreshes the volume limits as often as the CSIDriver says; `CsiStats` asks for NodeGetVolumeStats with a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from pykubelet.clients.plugins.port import CsiConnect, CsiNode, CsiNodeInfo, CsiUsage, CsiVolume
from pykubelet.kit.clock import Clock
from pykubelet.kit.go_text import grpc_code
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import PluginError, PykubeletError
from pykubelet.volumes.csi import rules
from pykubelet.volumes.csi.records import VolumeRecord
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import CsiObjects
from pykubelet.volumes.spec import VolumeSpec
from pykubelet.volumes.usage import VolumeUsage

logger = logging.getLogger(__name__)

Version = tuple[int, int, int]
HIGHEST_MAJOR = 1


class DriverRefused(PykubeletError):
    """Why a storage driver is not taken."""


class NodeDrivers(Protocol):
    """Who tells the API server which drivers this node has."""

    async def add_driver(self, name: str, info: CsiNodeInfo) -> None: ...

    async def remove_driver(self, name: str) -> None: ...


class _Driver(Struct):
    endpoint: Path
    version: Version
    capabilities: frozenset[str] | None = None
    """Asked once in a registration: a driver that changes is restarted, and registers again."""


class CsiDrivers:
    def __init__(self, *, connect: CsiConnect, node: NodeDrivers, times: CsiTimes) -> None:
        self._connect = connect
        self._node = node
        self._times = times
        self._drivers: dict[str, _Driver] = {}
        self.on_registered: Callable[[str], None] = lambda name: None
        """Told when volumes of a driver may be tried again."""

    @property
    def names(self) -> list[str]:
        return sorted(self._drivers)

    def find(self, name: str, *, migrated: bool = False) -> CsiNode:
        """The driver; `migrated` when it stands in for a kind of volume that was once built in."""
        driver = self._drivers.get(name)
        if driver is None:
            raise VolumeProblem(f"driver name {name} not found in the list of registered CSI drivers")
        return self._at(driver.endpoint, name, migrated=migrated)

    def _at(self, endpoint: Path, name: str, *, migrated: bool = False) -> CsiNode:
        return self._times.of(self._connect(endpoint), name, migrated=migrated)

    async def capabilities(self, name: str, asked: CsiNode | None = None) -> frozenset[str]:
        """What the driver can do; `asked` is the driver, for who wants to hear that it is being asked."""
        now = self.find(name)
        driver = self._drivers[name]
        if driver.capabilities is None:
            driver.capabilities = await (asked or now).capabilities()
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
        info = await self._at(endpoint, name).info()
        if not info.node_id:
            raise DriverRefused(f"driver {name} did not say this node's id (NodeGetInfo)")
        await self._node.add_driver(name, info)
        self._drivers[name] = _Driver(endpoint, version)
        self.on_registered(name)

    async def deregister(self, name: str, endpoint: Path) -> None:
        known = self._drivers.get(name)
        if known is None or known.endpoint != endpoint:
            return  # a newer one took over its name
        del self._drivers[name]
        try:
            await self._node.remove_driver(name)
        except PykubeletError as error:
            # A driver that is updated comes back within seconds and is told anew.
            logger.warning("driver not taken off the node's list", extra={"driver": name, "problem": str(error)})

    async def refresh(self, name: str) -> None:
        """Ask the driver again for its limits and tell the API server."""
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


def announced(driver: CsiNode, name: str, say: Callable[[str], None]) -> CsiNode:
    """A driver that tells before each call whom it waits for, so that a person can see it."""

    def around(call: str) -> AbstractContextManager[None]:
        say(f"driver {name} has not answered {call}")
        return nullcontext()

    return AskedDriver(driver, around)


Around = Callable[[str], AbstractContextManager[None]]


class AskedDriver:
    def __init__(self, driver: CsiNode, around: Around) -> None:
        self._driver = driver
        self._around = around

    async def info(self) -> CsiNodeInfo:
        with self._around("NodeGetInfo"):
            return await self._driver.info()

    async def capabilities(self) -> frozenset[str]:
        with self._around("NodeGetCapabilities"):
            return await self._driver.capabilities()

    async def stage(self, volume: CsiVolume, staging: Path) -> None:
        with self._around("NodeStageVolume"):
            await self._driver.stage(volume, staging)

    async def unstage(self, volume_id: str, staging: Path) -> None:
        with self._around("NodeUnstageVolume"):
            await self._driver.unstage(volume_id, staging)

    async def publish(self, volume: CsiVolume, target: Path, *, staging: Path | None, read_only: bool) -> None:
        with self._around("NodePublishVolume"):
            await self._driver.publish(volume, target, staging=staging, read_only=read_only)

    async def unpublish(self, volume_id: str, target: Path) -> None:
        with self._around("NodeUnpublishVolume"):
            await self._driver.unpublish(volume_id, target)

    async def expand(self, volume: CsiVolume, path: Path, *, staging: Path | None, required_bytes: int) -> int:
        with self._around("NodeExpandVolume"):
            return await self._driver.expand(volume, path, staging=staging, required_bytes=required_bytes)

    async def usage(self, volume_id: str, path: Path, *, staging: Path | None) -> CsiUsage:
        with self._around("NodeGetVolumeStats"):
            return await self._driver.usage(volume_id, path, staging=staging)


BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)
SERVICE = "/csi.v1.Node"


class CsiTimes:
    def __init__(self, *, clock: Clock, metrics: Registry) -> None:
        self._clock = clock
        self._taken = metrics.histogram(
            "csi_operations_seconds",
            "How long storage drivers took to answer, by the status they answered with.",
            ("driver_name", "method_name", "grpc_status_code", "migrated"),
            BUCKETS,
        )

    def of(self, driver: CsiNode, name: str, *, migrated: bool = False) -> CsiNode:
        return AskedDriver(driver, lambda call: self.timing(name, call, migrated=migrated))

    @contextmanager
    def timing(self, driver: str, call: str, *, migrated: bool = False) -> Iterator[None]:
        began, code = self._clock.monotonic(), "CANCELLED"
        try:
            yield
            code = "OK"
        except PluginError as error:
            code = error.code
            raise
        finally:
            took, stands_in = self._clock.monotonic() - began, "true" if migrated else "false"
            self._taken.observe(took, driver, f"{SERVICE}/{call}", grpc_code(code), stands_in)


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


STATS_SECONDS = 5.0
"""Others wait for their figures behind a driver: one that takes longer has none."""
STATS_SKIPPED = 20
"""How often such a driver is passed over before it is asked again."""


class CsiStats:
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
        late = f"driver {name} has not answered NodeGetVolumeStats within {STATS_SECONDS:g} s"
        if left := self._passed_over.pop(name, 0):
            self._passed_over[name] = left - 1
            raise VolumeProblem(f"{late} and is asked again later")
        try:
            async with asyncio.timeout(STATS_SECONDS):
                if rules.STATS not in await self._drivers.capabilities(name):
                    return None
                return await self._drivers.find(name).usage(record.handle, target, staging=staging)
        except TimeoutError:
            self._passed_over[name] = STATS_SKIPPED
            raise VolumeProblem(late) from None
