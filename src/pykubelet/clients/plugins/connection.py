"""The connection to a plugin's socket, and the registration service that every plugin serves.

Every call has a deadline and fails with a PluginError that names the plugin's socket and the call, so that the reader
of an event or of `explain` knows which plugin failed. Does not cover what the calls mean: each kind of plugin has its
own client beside this file.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from pykubelet.clients.grpc_connection import GrpcConnection, target_of
from pykubelet.clients.plugins.port import PluginInfo
from pykubelet.model.errors import PluginError
from pykubelet.wire import pluginregistration_pb2 as wire

A = TypeVar("A", bound=Message)

CONNECT_SECONDS = 10.0
"""Time for a plugin's socket to accept."""


class PluginConnection:
    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._grpc = GrpcConnection(target_of(str(socket)), self._failure)

    async def __aenter__(self) -> PluginConnection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._grpc.close()

    async def call(self, path: str, request: Message, answer: type[A], *, seconds: float) -> A:
        return await self._grpc.call(path, request, answer, timeout=seconds)

    def stream(self, path: str, request: Message, answer: type[A]) -> AsyncGenerator[A, None]:
        """Answers as they come, without a deadline. Leaving the generator cancels the call."""
        return self._grpc.stream(path, request, answer)

    def ready(self) -> AsyncGenerator[bool, None]:
        """Whether the plugin accepts, at first and at each change; connects all the time."""
        return self._grpc.ready()

    def _failure(self, path: str, code: grpc.StatusCode | None, details: str) -> PluginError:
        name = code.name if code is not None else "CANCELLED"
        text = (details or "no reason given") if code is not None else "the connection is closed"
        return PluginError(text, code=name, call=path.rpartition("/")[2], socket=str(self.socket))


SERVICE = "/pluginregistration.Registration"
INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0


class GrpcRegistrations:
    """A new connection for each call: a plugin registers once in its life, and its socket may be replaced."""

    async def info(self, socket: Path) -> PluginInfo:
        async with PluginConnection(socket) as plugin:
            response = await plugin.call(
                f"{SERVICE}/GetInfo", wire.InfoRequest(), wire.PluginInfo, seconds=CONNECT_SECONDS + INFO_SECONDS
            )
        return PluginInfo(
            type=response.type,
            name=response.name,
            endpoint=response.endpoint,
            versions=tuple(response.supported_versions),
        )

    async def notify(self, socket: Path, problem: str | None) -> None:
        status = wire.RegistrationStatus(plugin_registered=problem is None, error=problem or "")
        async with PluginConnection(socket) as plugin:
            await plugin.call(
                f"{SERVICE}/NotifyRegistrationStatus", status, wire.RegistrationStatusResponse, seconds=NOTIFY_SECONDS
            )
