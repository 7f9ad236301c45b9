"""A storage driver whose calls are watched: something is done around each, told by its name in the protocol."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from pykubelet.clients.plugins.port import CsiNode, CsiNodeInfo, CsiUsage, CsiVolume

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
