"""Storage drivers that registered on this node, and who may be called.

The handler of the plugin manager for type CSIPlugin: checks the version, asks the driver who it is, has the node
tell the API server, and from then on gives out the driver by name. Whether a driver answers is seen by calling it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from pykubelet.clients.plugins.port import CsiConnect, CsiNode, CsiNodeInfo
from pykubelet.model.errors import PykubeletError
from pykubelet.volumes.csi.asked import AskedDriver
from pykubelet.volumes.csi.timed import CsiTimes
from pykubelet.volumes.problems import VolumeProblem

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
