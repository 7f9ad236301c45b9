"""What managers see of plugins: how one introduces itself, and the failure of a call to one.

Plugins are programs of others that serve gRPC on a unix socket below our folders. Nothing they say is trusted:
every call has a deadline, and an answer is only as good as the checks of whoever asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """What a plugin says of itself on its registration socket."""

    type: str
    name: str
    endpoint: str
    """The socket that serves the plugin's own calls; empty means the registration socket itself."""
    versions: tuple[str, ...]


class Registrations(Protocol):
    """The registration service that plugins serve. Trouble is a PluginError."""

    async def info(self, socket: Path) -> PluginInfo: ...

    async def notify(self, socket: Path, problem: str | None) -> None:
        """Tell the plugin that it is registered, or why it is not."""
        ...
