"""What the agent was told and what it is: /configz, /flagz, /statusz, and /explain about a single pod.

Does not cover: where the values come from; each is a function handed in.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pykubelet.api.codec import encode_json
from pykubelet.kit.clock import Clock, utc
from pykubelet.server.calls import Answer, Call, Refused, Reply

WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees "
    "and is for debugging purposes only."
)
EXPLAIN_LIMIT = 4 * 1024 * 1024

Explain = Callable[[str, str], Any]
"""(namespace, pod name) to something JSON can hold; None for a pod this node does not know."""


class ConfigRoutes:
    def __init__(
        self,
        *,
        configz: Callable[[], Mapping[str, Any]],
        flags: Callable[[], Mapping[str, str]],
        explain: Explain | None,
        version: str,
        started: float,
        paths: Callable[[], list[str]],
        clock: Clock,
    ) -> None:
        """`started` is the agent's start in unix seconds; `paths` lists what the server offers."""
        self._configz = configz
        self._flags = flags
        self._explain = explain
        self._version = version
        self._started = started
        self._paths = paths
        self._clock = clock

    async def configz(self, call: Call) -> Reply:
        return Answer.json(encode_json({"kubeletconfig": dict(self._configz())}) + b"\n")

    async def flagz(self, call: Call) -> Reply:
        lines = [f"{name}={value}" for name, value in sorted(self._flags().items())]
        return Answer.text("\n".join(["", "kubelet flagz", WARNING, "", *lines, ""]))

    async def statusz(self, call: Call) -> Reply:
        up = max(0, int(self._clock.now() - self._started))
        lines = [
            "",
            "kubelet statusz",
            WARNING,
            "",
            f"Started: {utc(self._started):%a %b %d %H:%M:%S UTC %Y}",
            f"Up: {up // 3600} hr {up % 3600 // 60:02} min {up % 60:02} sec",
            f"Python version: {platform.python_version()}",
            f"Binary version: {self._version}",
            f"Paths: {' '.join(self._paths())}",
            "",
        ]
        return Answer.text("\n".join(lines))

    async def explain(self, call: Call) -> Reply:
        if self._explain is None:
            raise Refused(404, "404 page not found\n")
        namespace, name = call.params["namespace"], call.params["pod"]
        found = self._explain(namespace, name)
        if found is None:
            raise Refused(404, f"this node knows no pod {namespace}/{name}\n")
        return Answer.json(msgspec.json.encode(found, enc_hook=str) + b"\n")
