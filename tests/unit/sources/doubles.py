"""Stand-ins for what the sources talk to, and manifests to feed them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pykubelet.api.types import Pod
from pykubelet.clients.http.port import Fetched
from pykubelet.model.pod import Source, name_of
from pykubelet.sources.manifests import file_loader
from pykubelet.sources.watch import FileEvent
from tests.builders import a_decoded_pod

MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  containers:
  - name: main
    image: {image}
"""


def manifest(name: str, image: str = "busybox:1") -> str:
    return MANIFEST.format(name=name, image=image)


def a_delivered_pod(name: str, *, uid: str = "", image: str = "i", **metadata: Any) -> Pod:
    """A pod as a source delivers it, before the mux annotates it; `metadata` in wire names."""
    return a_decoded_pod(name, uid=uid, metadata=metadata, containers=[{"name": "c", "image": image}])


class FileLoader:
    """Reads manifests as the agent does; `names` are the files in the order they were read."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._load = file_loader("node")

    def load(self, data: bytes, origin: str) -> Pod:
        self.names.append(Path(origin).name)
        return self._load(data, origin)


class DeliveredSets:
    """Keeps every delivered set, as sorted pod names in `names`."""

    def __init__(self) -> None:
        self.sets: list[tuple[Source, tuple[Pod, ...]]] = []

    def deliver(self, source: Source, pods: Sequence[Pod]) -> None:
        self.sets.append((source, tuple(pods)))

    @property
    def names(self) -> list[list[str]]:
        return [[name_of(pod) for pod in pods] for _, pods in self.sets]


class ScriptedWatch:
    """A watch that reports the events the test gives; `opened` and `closed` count."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.refuse: OSError | None = None
        self._notified: list[FileEvent] = []
        self._filled = asyncio.Event()

    def open(self, _path: Path) -> ScriptedWatch:
        if self.refuse is not None:
            raise self.refuse
        self.opened += 1
        return self

    def notify(self, *events: FileEvent) -> None:
        self._notified.extend(events)
        self._filled.set()

    async def wait(self, at_most: float | None) -> list[FileEvent]:
        try:
            async with asyncio.timeout(at_most):
                await self._filled.wait()
        except TimeoutError:
            return []
        told, self._notified = self._notified, []
        self._filled.clear()
        return told

    def close(self) -> None:
        self.closed += 1


class ScriptedFetch:
    """Answers in turn; the last answer is given for ever. An exception is raised."""

    def __init__(self, *answers: Fetched | Exception) -> None:
        self.answers = list(answers)
        self.requested: list[tuple[str, dict[str, str], float, int]] = []

    async def __call__(self, url: str, headers: Mapping[str, str], *, timeout: float, max_bytes: int) -> Fetched:
        self.requested.append((url, dict(headers), timeout, max_bytes))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer
