"""A device plugin in memory: says which devices it has, remembers what it was asked, fails or hangs as planned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from pykubelet.clients.plugins.port import AllocatedDevice, AllocateResponse, Device, DeviceOptions
from pykubelet.model.errors import PluginError


def a_device(name: str, *, healthy: bool = True, numa: tuple[int, ...] = ()) -> Device:
    return Device(id=name, healthy=healthy, numa=numa)


@dataclass
class FakeDevicePlugin:
    devices: list[Device] = field(default_factory=list)
    can: DeviceOptions = field(default_factory=DeviceOptions)
    likes: list[str] = field(default_factory=list)
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    fails: str = ""
    says_nothing: str = ""
    """The error of GetDevicePluginOptions."""
    hangs: bool = False
    closed: bool = False
    _lists: asyncio.Queue[list[Device] | None] = field(default_factory=asyncio.Queue)

    async def options(self) -> DeviceOptions:
        if self.says_nothing:
            raise PluginError(self.says_nothing, code="UNKNOWN", call="GetDevicePluginOptions", socket="/dev.sock")
        return self.can

    async def watch(self) -> AsyncGenerator[Sequence[Device], None]:
        yield list(self.devices)
        while (devices := await self._lists.get()) is not None:
            yield devices

    async def preferred(self, available: Sequence[str], must_have: Sequence[str], count: int) -> Sequence[str]:
        self.calls.append(("preferred", tuple(available)))
        return self.likes

    async def allocate(self, ids: Sequence[str]) -> AllocateResponse:
        self.calls.append(("allocate", tuple(ids)))
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise PluginError(self.fails, code="INTERNAL", call="Allocate", socket="/dev.sock")
        return AllocateResponse(
            envs={"GIVEN": ",".join(ids)},
            devices=tuple(
                AllocatedDevice(container_path=f"/dev/{i}", host_path="/dev/null", permissions="rw") for i in ids
            ),
            wire=",".join(ids).encode(),
        )

    async def pre_start(self, ids: Sequence[str]) -> None:
        self.calls.append(("pre_start", tuple(ids)))

    async def close(self) -> None:
        self.closed = True

    def notify(self, *devices: Device) -> None:
        self.devices = list(devices)
        self._lists.put_nowait(list(devices))

    def leave(self) -> None:
        self._lists.put_nowait(None)
