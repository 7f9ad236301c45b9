"""A device plugin in memory: says which devices it has, remembers what it was asked, fails or hangs as planned.

Passes the contract of a real one (tests/contracts/test_devices_contract.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from pykubelet.clients.plugins.port import AllocatedDevice, AllocateResponse, Device, DeviceOptions
from pykubelet.model.errors import PluginError

SOCKET = "/dev.sock"


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
    crashed: bool = False
    _lists: asyncio.Queue[list[Device] | None] = field(default_factory=asyncio.Queue)

    async def options(self) -> DeviceOptions:
        self._reach("GetDevicePluginOptions")
        if self.says_nothing:
            raise PluginError(self.says_nothing, code="UNKNOWN", call="GetDevicePluginOptions", socket=SOCKET)
        return self.can

    async def watch(self) -> AsyncGenerator[Sequence[Device], None]:
        self._reach("ListAndWatch")
        yield list(self.devices)
        while (devices := await self._lists.get()) is not None:
            yield devices
        self._reach("ListAndWatch")

    async def preferred(self, available: Sequence[str], must_have: Sequence[str], count: int) -> Sequence[str]:
        self._reach("GetPreferredAllocation")
        self.calls.append(("preferred", tuple(available)))
        return self.likes

    async def allocate(self, ids: Sequence[str]) -> AllocateResponse:
        self._reach("Allocate")
        self.calls.append(("allocate", tuple(ids)))
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise PluginError(self.fails, code="INTERNAL", call="Allocate", socket=SOCKET)
        healthy = {each.id for each in self.devices if each.healthy}
        if unknown := [each for each in ids if each not in healthy]:
            raise PluginError(f"no healthy device {unknown[0]}", code="UNKNOWN", call="Allocate", socket=SOCKET)
        return AllocateResponse(
            envs={"GIVEN": ",".join(ids)},
            devices=tuple(
                AllocatedDevice(container_path=f"/dev/{i}", host_path="/dev/null", permissions="rw") for i in ids
            ),
            wire=",".join(ids).encode(),
        )

    async def pre_start(self, ids: Sequence[str]) -> None:
        self._reach("PreStartContainer")
        self.calls.append(("pre_start", tuple(ids)))

    async def close(self) -> None:
        self.closed = True
        self._lists.put_nowait(None)

    # --- what the test does ---------------------------------------------------------------------

    def notify(self, *devices: Device) -> None:
        self.devices = list(devices)
        self._lists.put_nowait(list(devices))

    def leave(self) -> None:
        """The plugin ends its list of devices in order."""
        self._lists.put_nowait(None)

    def crash(self) -> None:
        """The plugin is gone."""
        self.crashed = True
        self._lists.put_nowait(None)

    def _reach(self, call: str) -> None:
        if self.closed:
            raise PluginError("the connection is closed", code="CANCELLED", call=call, socket=SOCKET)
        if self.crashed:
            raise PluginError("connection refused", code="UNAVAILABLE", call=call, socket=SOCKET)
