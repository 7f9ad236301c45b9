"""All settings of the agent in one value, with the release it stands for and the environment variables it reads.

Made by load.py. Installers read `kubelet --version` and expect exactly `Kubernetes vX.Y.Z`, so that line carries
nothing else. Does not cover: where the values came from, acting on the environment.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from pykubelet.settings.decode import encode_config
from pykubelet.settings.gates import Gates
from pykubelet.settings.node_flags import IPAddress, NodeFlags, node_name
from pykubelet.settings.schema import API_VERSION, KIND, KubeletConfig

KUBERNETES_VERSION = "v1.36.4"
PYKUBELET_VERSION = "0.1.0"

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def version_text() -> str:
    """The answer to --version."""
    return f"Kubernetes {KUBERNETES_VERSION}"


def raw_version_text() -> str:
    """The answer to --version=raw: every part named, then our own version on a line of its own."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    machine = platform.machine()
    parts = {
        "Major": major,
        "Minor": minor,
        "GitVersion": KUBERNETES_VERSION,
        "GitCommit": "",
        "GitTreeState": "",
        "BuildDate": "",
        "GoVersion": "",
        "Compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "Platform": f"linux/{_MACHINES.get(machine, machine)}",
    }
    inside = ", ".join(f'{name}:"{value}"' for name, value in parts.items())
    return f"version.Info{{{inside}}}\npykubelet {PYKUBELET_VERSION}"


def is_same_release(text: str) -> bool:
    """Whether --version=TEXT names this release, possibly with a build suffix such as v1.36.4+lab."""
    return re.fullmatch(re.escape(KUBERNETES_VERSION) + r"([-+][0-9A-Za-z.+-]{1,100})?", text) is not None


MICROSECOND = 1e-6


class EnvironmentSettings(Struct, frozen=True, kw_only=True):
    """What the process was started with."""

    notify_socket: str = ""
    """NOTIFY_SOCKET: where systemd takes notifications."""
    watchdog_timeout: float | None = None
    """WATCHDOG_USEC in seconds: systemd ends a process that is silent for longer."""


def read_environment(environ: Mapping[str, str], *, process_id: int) -> tuple[EnvironmentSettings, list[str]]:
    """The settings and every problem."""
    problems = []
    timeout: float | None = None
    text = environ.get("WATCHDOG_USEC", "")
    # WATCHDOG_PID set for another process means that the watchdog is not ours.
    meant = environ.get("WATCHDOG_PID", "") in ("", str(process_id))
    if text and meant:
        if text.isascii() and text.isdigit() and len(text) <= 18:
            timeout = int(text) * MICROSECOND
            if timeout <= 1:
                problems.append(f"WATCHDOG_USEC: {text} must be more than one second")
        else:
            problems.append(f"WATCHDOG_USEC: {text[:40]!r} is not a number of microseconds")
    settings = EnvironmentSettings(
        notify_socket=environ.get("NOTIFY_SOCKET", ""),
        watchdog_timeout=timeout,
    )
    return settings, problems


class Settings(Struct, frozen=True, kw_only=True):
    """All settings. Managers read the group they need: `settings.config.images`."""

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
        """The configuration in its wire form, as a file of its kind."""
        return {"kind": KIND, "apiVersion": API_VERSION, **encode_config(self.config)}
