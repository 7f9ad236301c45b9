"""A storage driver whose calls are timed, under upstream's name, labels and buckets.

Every call to a driver goes through here: the drivers' list hands out nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pykubelet.clients.plugins.port import CsiNode, CsiNodeInfo, CsiUsage, CsiVolume
from pykubelet.kit.clock import Clock
from pykubelet.kit.go_text import grpc_code
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import PluginError

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

    def of(self, driver: CsiNode, name: str) -> CsiNode:
        return _TimedDriver(driver, name, self)

    @contextmanager
    def timing(self, driver: str, call: str) -> Iterator[None]:
        began, code = self._clock.monotonic(), "CANCELLED"
        try:
            yield
            code = "OK"
        except PluginError as error:
            code = error.code
            raise
        finally:
            # No driver stands in for a plugin of old here: nothing is migrated.
            self._taken.observe(self._clock.monotonic() - began, driver, f"{SERVICE}/{call}", grpc_code(code), "false")


class _TimedDriver:
    def __init__(self, driver: CsiNode, name: str, times: CsiTimes) -> None:
        self._driver, self._name, self._times = driver, name, times

    async def info(self) -> CsiNodeInfo:
        with self._times.timing(self._name, "NodeGetInfo"):
            return await self._driver.info()

    async def capabilities(self) -> frozenset[str]:
        with self._times.timing(self._name, "NodeGetCapabilities"):
            return await self._driver.capabilities()

    async def stage(self, volume: CsiVolume, staging: Path) -> None:
        with self._times.timing(self._name, "NodeStageVolume"):
            await self._driver.stage(volume, staging)

    async def unstage(self, volume_id: str, staging: Path) -> None:
        with self._times.timing(self._name, "NodeUnstageVolume"):
            await self._driver.unstage(volume_id, staging)

    async def publish(self, volume: CsiVolume, target: Path, *, staging: Path | None, read_only: bool) -> None:
        with self._times.timing(self._name, "NodePublishVolume"):
            await self._driver.publish(volume, target, staging=staging, read_only=read_only)

    async def unpublish(self, volume_id: str, target: Path) -> None:
        with self._times.timing(self._name, "NodeUnpublishVolume"):
            await self._driver.unpublish(volume_id, target)

    async def expand(self, volume: CsiVolume, path: Path, *, staging: Path | None, required_bytes: int) -> int:
        with self._times.timing(self._name, "NodeExpandVolume"):
            return await self._driver.expand(volume, path, staging=staging, required_bytes=required_bytes)

    async def usage(self, volume_id: str, path: Path, *, staging: Path | None) -> CsiUsage:
        with self._times.timing(self._name, "NodeGetVolumeStats"):
            return await self._driver.usage(volume_id, path, staging=staging)
