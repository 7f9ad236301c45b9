"""The client of the registration service that every plugin serves on the socket it is found by."""

from __future__ import annotations

from pathlib import Path

from pykubelet.clients.plugins.connection import CONNECT_SECONDS, PluginConnection
from pykubelet.clients.plugins.port import PluginInfo
from pykubelet.wire import pluginregistration_pb2 as wire

SERVICE = "/pluginregistration.Registration"
INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0


class GrpcRegistrations:
    """A new connection for each call: a plugin is asked once in its life, and its socket may be replaced."""

    async def info(self, socket: Path) -> PluginInfo:
        async with PluginConnection(socket) as plugin:
            said = await plugin.call(
                f"{SERVICE}/GetInfo", wire.InfoRequest(), wire.PluginInfo, seconds=CONNECT_SECONDS + INFO_SECONDS
            )
        return PluginInfo(
            type=said.type, name=said.name, endpoint=said.endpoint, versions=tuple(said.supported_versions)
        )

    async def notify(self, socket: Path, problem: str | None) -> None:
        status = wire.RegistrationStatus(plugin_registered=problem is None, error=problem or "")
        async with PluginConnection(socket) as plugin:
            await plugin.call(
                f"{SERVICE}/NotifyRegistrationStatus", status, wire.RegistrationStatusResponse, seconds=NOTIFY_SECONDS
            )
