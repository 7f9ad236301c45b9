"""Device plugins over real sockets, both ways."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pykubelet.clients.plugins.connection import PluginConnection
from pykubelet.clients.plugins.devices import SOCKET, DeviceRegistry, GrpcDevicePlugin, read_allocate_response
from pykubelet.clients.plugins.port import (
    AllocatedDevice,
    AllocatedMount,
    Device,
    DeviceOptions,
    DeviceRegistration,
)
from pykubelet.kit.tasks import running
from pykubelet.model.errors import PluginError, PykubeletError
from pykubelet.wire import deviceplugin_pb2 as wire
from tests.unit.clients.plugins.serving import serving, stream, unary

pytestmark = pytest.mark.real_loop

REGISTER = "/v1beta1.Registration/Register"


class Plugin:
    """What a plugin author writes."""

    def __init__(self) -> None:
        self.requested: list[Any] = []
        self.lists: asyncio.Queue[wire.ListAndWatchResponse | None] = asyncio.Queue()

    async def options(self, request: Any, context: Any) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def watch(self, request: Any, context: Any) -> AsyncIterator[wire.ListAndWatchResponse]:
        while (said := await self.lists.get()) is not None:
            yield said

    async def preferred(self, request: Any, context: Any) -> wire.PreferredAllocationResponse:
        self.requested.append(request)
        wanted = wire.ContainerPreferredAllocationResponse(deviceIDs=["b"])
        return wire.PreferredAllocationResponse(container_responses=[wanted])

    async def allocate(self, request: Any, context: Any) -> wire.AllocateResponse:
        self.requested.append(request)
        given = wire.ContainerAllocateResponse(
            envs={"GPU": "b"},
            mounts=[wire.Mount(container_path="/lib", host_path="/usr/lib", read_only=True)],
            devices=[wire.DeviceSpec(container_path="/dev/gpu", host_path="/dev/null", permissions="rw")],
            annotations={"k": "v"},
            cdi_devices=[wire.CDIDevice(name="vendor/gpu=b")],
        )
        return wire.AllocateResponse(container_responses=[given])

    async def pre_start(self, request: Any, context: Any) -> wire.PreStartContainerResponse:
        await context.abort(grpc.StatusCode.INTERNAL, "cannot reset it")
        return wire.PreStartContainerResponse()

    @asynccontextmanager
    async def at(self, socket: Path) -> AsyncIterator[GrpcDevicePlugin]:
        methods = {
            "GetDevicePluginOptions": unary(self.options, wire.Empty),
            "ListAndWatch": stream(self.watch, wire.Empty),
            "GetPreferredAllocation": unary(self.preferred, wire.PreferredAllocationRequest),
            "Allocate": unary(self.allocate, wire.AllocateRequest),
            "PreStartContainer": unary(self.pre_start, wire.PreStartContainerRequest),
        }
        async with serving(socket, {"v1beta1.DevicePlugin": methods}):
            client = GrpcDevicePlugin(socket)
            try:
                yield client
            finally:
                await client.close()


async def test_a_plugin_is_asked_in_its_own_words(tmp_path: Path) -> None:
    plugin = Plugin()
    async with plugin.at(tmp_path / "p.sock") as client:
        assert await client.options() == DeviceOptions(pre_start=True, prefers=True)
        assert await client.preferred(["a", "b"], ["a"], 1) == ["b"]
        handed = await client.allocate(["b"])
        assert (handed.envs, handed.annotations, handed.cdi_devices) == ({"GPU": "b"}, {"k": "v"}, ("vendor/gpu=b",))
        assert handed.mounts == (AllocatedMount(container_path="/lib", host_path="/usr/lib", read_only=True),)
        assert handed.devices == (AllocatedDevice(container_path="/dev/gpu", host_path="/dev/null", permissions="rw"),)
        assert read_allocate_response(handed.wire) == handed
        with pytest.raises(PluginError, match="cannot reset it"):
            await client.pre_start(["b"])
    (wish,), (given,) = (each.container_requests for each in plugin.requested)
    assert (list(wish.available_deviceIDs), list(wish.must_include_deviceIDs), wish.allocation_size) == (
        ["a", "b"],
        ["a"],
        1,
    )
    assert list(given.devices_ids) == ["b"]


async def test_lists_of_devices_come_until_the_plugin_ends_them(tmp_path: Path) -> None:
    plugin = Plugin()
    placed = wire.TopologyInfo(nodes=[wire.NUMANode(ID=1), wire.NUMANode(ID=0)])
    plugin.lists.put_nowait(
        wire.ListAndWatchResponse(
            devices=[wire.Device(ID="a", health="Healthy", topology=placed), wire.Device(ID="b", health="Odd")]
        )
    )
    plugin.lists.put_nowait(wire.ListAndWatchResponse())
    plugin.lists.put_nowait(None)
    async with plugin.at(tmp_path / "p.sock") as client:
        found = [list(each) async for each in client.watch()]
    assert found == [[Device(id="a", healthy=True, numa=(0, 1)), Device(id="b", healthy=False)], []]


async def test_a_plugin_that_dies_ends_its_list_with_an_error(tmp_path: Path) -> None:
    plugin = Plugin()
    plugin.lists.put_nowait(wire.ListAndWatchResponse())
    heard = asyncio.Event()

    async def follow(client: GrpcDevicePlugin) -> None:
        async for _ in client.watch():
            heard.set()

    async with asyncio.TaskGroup() as group:
        async with plugin.at(tmp_path / "p.sock") as client:
            following = group.create_task(follow_to_the_end(follow(client)))
            await heard.wait()
        assert isinstance(await following, PluginError)


async def follow_to_the_end(work: Any) -> BaseException | None:
    try:
        await work
    except PluginError as error:
        return error
    return None


async def test_plugins_register_at_our_socket(tmp_path: Path) -> None:
    folder, taken = tmp_path / "device-plugins", list[DeviceRegistration]()
    folder.mkdir()
    (folder / "note").write_text("stays")
    (folder / "DEPRECATION").touch()  # of an older kubelet; plugins that see it do not register
    with sockets.socket(sockets.AF_UNIX) as old:
        old.bind(str(folder / "old.sock"))

    async def take(wish: DeviceRegistration) -> None:
        if wish.resource == "cpu":
            raise PykubeletError('the ResourceName "cpu" is invalid')
        taken.append(wish)

    async with running(DeviceRegistry(folder, take)):
        for _ in range(3000):
            if (folder / SOCKET).exists():
                break
            await asyncio.sleep(0.01)
        assert sorted(each.name for each in folder.iterdir()) == [SOCKET, "note"]
        async with PluginConnection(folder / SOCKET) as agent:
            options = wire.DevicePluginOptions(pre_start_required=True)
            for wish in (
                wire.RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name="x.y/a", options=options),
                wire.RegisterRequest(version="v1beta1", endpoint="b.sock", resource_name="x.y/b"),
            ):
                await agent.call(REGISTER, wish, wire.Empty, seconds=10)
            with pytest.raises(PluginError) as caught:
                bad = wire.RegisterRequest(version="v1beta1", endpoint="c.sock", resource_name="cpu")
                await agent.call(REGISTER, bad, wire.Empty, seconds=10)
    assert (caught.value.code, caught.value.words) == ("INVALID_ARGUMENT", 'the ResourceName "cpu" is invalid')
    assert [(each.resource, each.endpoint) for each in taken] == [
        ("x.y/a", "a.sock"),
        ("x.y/b", "b.sock"),
    ]
    assert not (folder / SOCKET).exists()


async def test_a_socket_that_cannot_be_made_leaves_the_agent_alive(tmp_path: Path) -> None:
    """A path that is too long for a socket: no plugin can register, everything else goes on."""
    folder = tmp_path / ("long" * 30)

    async def take(wish: DeviceRegistration) -> None:
        raise AssertionError

    async with running(DeviceRegistry(folder, take)):
        await asyncio.sleep(0.2)
    assert not (folder / SOCKET).exists()
