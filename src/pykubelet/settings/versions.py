"""What the agent says it is: the Kubernetes release it stands for, and its own version.

Installers read `kubelet --version` and expect exactly `Kubernetes vX.Y.Z`, so that line carries nothing else.
Does not cover the version of the container runtime.
"""

from __future__ import annotations

import platform
import re

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
