"""RuntimeClass objects: which handler of the runtime a pod wants.

They are watched from the moment the first pod names one. The overhead of a class is written into the pod by the API
server when the pod is created, so nothing is to be looked up for it here.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from pykubelet.api.types import Pod, RuntimeClass
from pykubelet.clients.kube.port import KubeClient
from pykubelet.model.errors import ApiError, ApiNotFound, PykubeletError

FIRST_READ_WITHIN = 5.0


class RuntimeClassMissing(PykubeletError):
    """A pod names a RuntimeClass that is not there."""


class LiveRuntimeClasses(Protocol):
    """A reflector of all runtime classes."""

    async def run(self) -> None: ...

    async def wait_synced(self, within: float | None = None) -> bool: ...

    def get(self, name: str, namespace: str = "") -> RuntimeClass | None: ...


class RuntimeClasses:
    name = "runtime-classes"

    def __init__(self, *, live: LiveRuntimeClasses, client: KubeClient) -> None:
        self._live = live
        self._client = client
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        await self._wanted.wait()
        await self._live.run()

    async def handler_for(self, pod: Pod) -> str:
        """The runtime handler for the pod; empty is the runtime's default."""
        name = pod.spec.runtime_class_name
        if not name:
            return ""
        return (await self.find(name)).handler or ""

    def handler_now(self, pod: Pod) -> str | None:
        """As far as it is known here; once `handler_for` answered, it is."""
        name = pod.spec.runtime_class_name
        if not name:
            return ""
        found = self._live.get(name)
        return (found.handler or "") if found is not None else None

    async def find(self, name: str) -> RuntimeClass:
        self._wanted.set()
        await self._live.wait_synced(FIRST_READ_WITHIN)
        found = self._live.get(name)
        if found is not None:
            return found
        try:
            # Made a moment ago perhaps, and the watch has not shown it yet.
            return await self._client.get(RuntimeClass, name)
        except ApiNotFound as error:
            raise RuntimeClassMissing(f'RuntimeClass "{name}" not found') from error
        except ApiError as error:
            raise PykubeletError(f"failed to lookup RuntimeClass {name}: {error}") from error
