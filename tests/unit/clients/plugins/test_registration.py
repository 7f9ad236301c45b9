"""The registration client against a real gRPC server on a unix socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pykubelet.clients.plugins.connection import GrpcRegistrations
from pykubelet.clients.plugins.port import PluginInfo
from pykubelet.model.errors import PluginError
from pykubelet.wire import pluginregistration_pb2 as wire
from tests.unit.clients.plugins.serving import serving, unary

pytestmark = pytest.mark.real_loop


@asynccontextmanager
async def a_plugin(socket: Path, told: list[tuple[bool, str]], *, broken: bool = False) -> AsyncIterator[None]:
    async def info(request: wire.InfoRequest, context: Any) -> wire.PluginInfo:
        if broken:
            await context.abort(grpc.StatusCode.INTERNAL, "no idea who I am")
        return wire.PluginInfo(type="CSIPlugin", name="a.b", endpoint="/e.sock", supported_versions=["1.0.0", "2.0"])

    async def notify(request: wire.RegistrationStatus, context: Any) -> wire.RegistrationStatusResponse:
        told.append((request.plugin_registered, request.error))
        return wire.RegistrationStatusResponse()

    methods = {"GetInfo": unary(info, wire.InfoRequest)}
    methods["NotifyRegistrationStatus"] = unary(notify, wire.RegistrationStatus)
    async with serving(socket, {"pluginregistration.Registration": methods}):
        yield


async def test_a_plugin_introduces_itself_and_is_told(tmp_path: Path) -> None:
    told: list[tuple[bool, str]] = []
    socket = tmp_path / "r.sock"
    client = GrpcRegistrations()
    async with a_plugin(socket, told):
        assert await client.info(socket) == PluginInfo(
            type="CSIPlugin", name="a.b", endpoint="/e.sock", versions=("1.0.0", "2.0")
        )
        await client.notify(socket, None)
        await client.notify(socket, "too old")
    assert told == [(True, ""), (False, "too old")]


async def test_a_failure_names_the_call_the_socket_and_the_words(tmp_path: Path) -> None:
    socket = tmp_path / "r.sock"
    async with a_plugin(socket, [], broken=True):
        with pytest.raises(PluginError) as caught:
            await GrpcRegistrations().info(socket)
    assert str(caught.value) == f"GetInfo at {socket}: no idea who I am (INTERNAL)"
    assert (caught.value.code, caught.value.call) == ("INTERNAL", "GetInfo")


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        await GrpcRegistrations().info(tmp_path / "none.sock")
    assert caught.value.code == "UNAVAILABLE"
