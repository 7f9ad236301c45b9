"""One connection to a plugin on a real socket: whatever it does, the caller hears a PluginError and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.clients.plugins.connection import PluginConnection
from pykubelet.model.errors import PluginError
from pykubelet.wire import deviceplugin_pb2 as wire
from tests.unit.clients.plugins.serving import serving, stream, unary

pytestmark = pytest.mark.real_loop

NONSENSE = b"\xff\xff\xff\xff"
OPTIONS, LISTS = "/s/Options", "/s/Lists"


async def test_an_answer_that_cannot_be_read_is_an_error_of_the_plugin(tmp_path: Path) -> None:
    async def nonsense(request: Any, context: Any) -> bytes:
        return NONSENSE

    socket = tmp_path / "p.sock"
    async with serving(socket, {"s": {"Options": unary(nonsense, wire.Empty)}}), PluginConnection(socket) as plugin:
        with pytest.raises(PluginError) as caught:
            await plugin.call(OPTIONS, wire.Empty(), wire.DevicePluginOptions, seconds=5)
    assert str(caught.value) == f"Options at {socket}: its answer cannot be read (INTERNAL)"


async def test_nonsense_in_a_stream_is_an_error_of_the_plugin(tmp_path: Path) -> None:
    async def lists(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield wire.ListAndWatchResponse().SerializeToString()
        yield NONSENSE

    socket = tmp_path / "p.sock"
    seen = 0
    async with serving(socket, {"s": {"Lists": stream(lists, wire.Empty)}}), PluginConnection(socket) as plugin:
        with pytest.raises(PluginError) as caught:
            async for _ in plugin.stream(LISTS, wire.Empty(), wire.ListAndWatchResponse):
                seen += 1
    assert (seen, caught.value.words) == (1, "its answer cannot be read")


async def test_closing_the_connection_fails_calls_under_way_and_cancels_nobody(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def hangs(request: Any, context: Any) -> wire.Empty:
        began.set()
        await asyncio.Event().wait()
        return wire.Empty()

    async def lists(request: Any, context: Any) -> AsyncIterator[wire.Empty]:
        yield wire.Empty()
        await asyncio.Event().wait()

    socket = tmp_path / "p.sock"
    heard: list[str] = []

    async def ask() -> None:
        with pytest.raises(PluginError) as caught:
            await plugin.call(OPTIONS, wire.Empty(), wire.Empty, seconds=30)
        heard.append(str(caught.value))

    async def follow() -> None:
        with pytest.raises(PluginError) as caught:
            async for _ in plugin.stream(LISTS, wire.Empty(), wire.Empty):
                pass
        heard.append(str(caught.value))

    async with serving(socket, {"s": {"Options": unary(hangs, wire.Empty), "Lists": stream(lists, wire.Empty)}}):
        plugin = PluginConnection(socket)
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask()), group.create_task(follow())]
            await began.wait()
            await asyncio.sleep(0.05)
            await plugin.close()
        assert not any(each.cancelled() for each in asking)
    assert sorted(heard) == [
        f"Lists at {socket}: the connection is closed (CANCELLED)",
        f"Options at {socket}: the connection is closed (CANCELLED)",
    ]


async def test_a_cancelled_caller_is_cancelled(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def hangs(request: Any, context: Any) -> wire.Empty:
        began.set()
        await asyncio.Event().wait()
        return wire.Empty()

    socket = tmp_path / "p.sock"
    async with serving(socket, {"s": {"Options": unary(hangs, wire.Empty)}}), PluginConnection(socket) as plugin:
        asking = asyncio.create_task(plugin.call(OPTIONS, wire.Empty(), wire.Empty, seconds=30))
        await began.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
