"""The one object that holds everything the agent was told at its start.

Made by load.py, taken apart by app.py: each manager is handed only the group it needs.
Does not cover where the values came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pykubelet.settings.decode import encode_config
from pykubelet.settings.environment import EnvironmentSettings
from pykubelet.settings.gates import Gates
from pykubelet.settings.node_flags import IPAddress, NodeFlags, node_name
from pykubelet.settings.schema import KubeletConfig
from pykubelet.settings.versions import KUBERNETES_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the agent was told. Managers get the group they need: `settings.config.images`."""

    config: KubeletConfig = field(default_factory=KubeletConfig)
    flags: NodeFlags = field(default_factory=NodeFlags)
    gates: Gates = field(default_factory=lambda: Gates({}))
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    node_ips: tuple[IPAddress, ...] = ()
    """The usable addresses of --node-ip."""
    kubernetes_version: str = KUBERNETES_VERSION
    """What the node reports as its kubelet version."""

    def node_name(self, hostname: str) -> str:
        """The name of the Node object on a machine of this host name."""
        return node_name(hostname_override=self.flags.hostname_override, hostname=hostname)

    def configz(self) -> dict[str, Any]:
        """The configuration in its wire form."""
        return encode_config(self.config)
