"""Drivers of dynamic resources on a real socket, in both versions of their service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.clients.plugins.dra import GrpcDraDriver
from pykubelet.clients.plugins.port import ClaimedHealth, ClaimRef, Prepared, PreparedDevice
from pykubelet.model.errors import PluginError
from pykubelet.wire import dra_health_v1alpha1_pb2 as health_wire
from pykubelet.wire import dra_v1_pb2, dra_v1beta1_pb2
from tests.unit.clients.plugins.serving import serving, stream, unary

pytestmark = pytest.mark.real_loop

CLAIMS = [ClaimRef(namespace="n", name="one", uid="u1"), ClaimRef(namespace="n", name="two", uid="u2")]


@pytest.mark.parametrize("version, wire", [("v1", dra_v1_pb2), ("v1beta1", dra_v1beta1_pb2)])
async def test_claims_are_prepared_and_given_back(tmp_path: Path, version: str, wire: Any) -> None:
    asked: list[tuple[str, list[tuple[str, str, str]]]] = []

    def told(call: str, request: Any) -> None:
        asked.append((call, [(each.namespace, each.name, each.uid) for each in request.claims]))

    async def prepare(request: Any, context: Any) -> Any:
        told("prepare", request)
        device = wire.Device(pool_name="p", device_name="d", request_names=["r"], cdi_device_ids=["v/c=d"])
        if version == "v1":
            device.share_id = "s"
        good, bad = wire.NodePrepareResourceResponse(devices=[device]), wire.NodePrepareResourceResponse(error="no")
        return wire.NodePrepareResourcesResponse(claims={"u1": good, "u2": bad})

    async def unprepare(request: Any, context: Any) -> Any:
        told("unprepare", request)
        answers = {"u1": wire.NodeUnprepareResourceResponse(), "u2": wire.NodeUnprepareResourceResponse(error="busy")}
        return wire.NodeUnprepareResourcesResponse(claims=answers)

    methods = {
        "NodePrepareResources": unary(prepare, wire.NodePrepareResourcesRequest),
        "NodeUnprepareResources": unary(unprepare, wire.NodeUnprepareResourcesRequest),
    }
    socket = tmp_path / "d.sock"
    async with serving(socket, {f"{wire.DESCRIPTOR.package}.DRAPlugin": methods}):
        driver = GrpcDraDriver(socket, version)
        device = PreparedDevice(
            pool="p", device="d", requests=("r",), cdi_ids=("v/c=d",), share_id="s" if version == "v1" else ""
        )
        assert await driver.prepare(CLAIMS) == {"u1": Prepared(devices=(device,)), "u2": Prepared(error="no")}
        assert await driver.unprepare(CLAIMS) == {"u1": "", "u2": "busy"}
        await driver.close()
    names = [("n", "one", "u1"), ("n", "two", "u2")]
    assert asked == [("prepare", names), ("unprepare", names)]


async def test_health(tmp_path: Path) -> None:
    def one(name: str, state: Any, **fields: Any) -> health_wire.DeviceHealth:
        device = health_wire.DeviceIdentifier(pool_name="p", device_name=name)
        return health_wire.DeviceHealth(device=device, health=state, **fields)

    async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
        good = one("a", health_wire.HEALTHY, message="fine", health_check_timeout_seconds=7)
        yield health_wire.NodeWatchResourcesResponse(devices=[good, one("b", health_wire.UNHEALTHY)])
        yield health_wire.NodeWatchResourcesResponse(devices=[one("a", health_wire.UNKNOWN)])

    socket = tmp_path / "d.sock"
    methods = {"NodeWatchResources": stream(watch, health_wire.NodeWatchResourcesRequest)}
    async with serving(socket, {"v1alpha1.DRAResourceHealth": methods}):
        driver = GrpcDraDriver(socket, "v1")
        found = [list(each) async for each in driver.watch_health()]
        await driver.close()
    assert found == [
        [
            ClaimedHealth(pool="p", device="a", health="Healthy", stale_after=7.0, message="fine"),
            ClaimedHealth(pool="p", device="b", health="Unhealthy"),
        ],
        [ClaimedHealth(pool="p", device="a", health="Unknown")],
    ]


async def test_a_driver_that_tells_no_health_says_so_at_once(tmp_path: Path) -> None:
    socket = tmp_path / "d.sock"
    async with serving(socket, {"v1alpha1.Other": {}}):
        driver = GrpcDraDriver(socket, "v1")
        with pytest.raises(PluginError) as caught:
            async for _ in driver.watch_health():
                raise AssertionError
        await driver.close()
    assert (caught.value.code, caught.value.call) == ("UNIMPLEMENTED", "NodeWatchResources")


async def test_it_shows_whether_the_driver_listens(tmp_path: Path) -> None:
    socket, driver = tmp_path / "d.sock", GrpcDraDriver(tmp_path / "d.sock", "v1")
    news = driver.connected()
    async with asyncio.timeout(20):
        assert await anext(news) is False
        for _ in range(2):
            async with serving(socket, {"v1alpha1.Other": {}}):
                assert await anext(news) is True
            assert await anext(news) is False
        await driver.close()
        assert [each async for each in news] == []


async def test_all_calls_use_one_connection(tmp_path: Path) -> None:
    """Drivers count them."""
    wire, accepted, over = dra_v1_pb2, 0, asyncio.Event()

    async def prepare(request: Any, context: Any) -> Any:
        return wire.NodePrepareResourcesResponse()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        back, forth = await asyncio.open_unix_connection(tmp_path / "real.sock")
        await asyncio.gather(pump(reader, forth), pump(back, writer))
        for each in (forth, writer):
            await each.wait_closed()
        over.set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
        writer.close()

    methods = {"NodePrepareResources": unary(prepare, wire.NodePrepareResourcesRequest)}
    async with (
        serving(tmp_path / "real.sock", {f"{wire.DESCRIPTOR.package}.DRAPlugin": methods}),
        await asyncio.start_unix_server(accept, tmp_path / "d.sock"),
    ):
        driver = GrpcDraDriver(tmp_path / "d.sock", "v1")
        assert await anext(driver.connected()) is False
        for _ in range(3):
            assert await driver.prepare(CLAIMS) == {}
            with pytest.raises(PluginError):
                await anext(driver.watch_health())
        await driver.close()
        async with asyncio.timeout(20):
            await over.wait()
    assert accepted == 1
