"""Services and RuntimeClasses of the cluster, watched from the moment the first pod needs them.

A node that runs only static pods never reads them. Which variables a container gets from services is decided in
runtime/spec/env.py; the overhead of a RuntimeClass is written into the pod by the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from pykubelet.api.types import Pod, RuntimeClass, Service
from pykubelet.clients.kube.port import KubeClient
from pykubelet.model.errors import ApiError, ApiNotFound, PykubeletError

SERVICES_WITHIN = 10.0
RUNTIME_CLASSES_WITHIN = 5.0

T_co = TypeVar("T_co", covariant=True)


class RuntimeClassMissing(PykubeletError):
    """A pod names a RuntimeClass that does not exist."""


class Reflection(Protocol[T_co]):
    """A reflector of all objects of one kind."""

    async def run(self) -> None: ...

    async def wait_synced(self, within: float | None = None) -> bool: ...

    def all(self) -> Sequence[T_co]: ...

    def get(self, name: str, namespace: str = "") -> T_co | None: ...


class ServiceLister:
    name = "services"

    def __init__(self, live: Reflection[Service]) -> None:
        self._live = live
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        await self._wanted.wait()
        await self._live.run()

    async def services(self, namespace: str) -> Sequence[Service] | None:
        """All services of a namespace; None when they could not be read in time."""
        self._wanted.set()
        if not await self._live.wait_synced(SERVICES_WITHIN):
            return None
        return [each for each in self._live.all() if each.metadata.namespace == namespace]


class RuntimeClasses:
    name = "runtime-classes"

    def __init__(self, live: Reflection[RuntimeClass], *, client: KubeClient) -> None:
        self._live = live
        self._client = client
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        await self._wanted.wait()
        await self._live.run()

    async def handler_for(self, pod: Pod) -> str:
        """Return the runtime handler for the pod; empty is the runtime's default."""
        name = pod.spec.runtime_class_name
        if not name:
            return ""
        return (await self.find(name)).handler or ""

    def handler_now(self, pod: Pod) -> str | None:
        """Return the handler as far as it is known here; after `handler_for` it is."""
        name = pod.spec.runtime_class_name
        if not name:
            return ""
        found = self._live.get(name)
        return (found.handler or "") if found is not None else None

    async def find(self, name: str) -> RuntimeClass:
        self._wanted.set()
        await self._live.wait_synced(RUNTIME_CLASSES_WITHIN)
        found = self._live.get(name)
        if found is not None:
            return found
        try:
            # Perhaps it was just created and the watch has not shown it yet.
            return await self._client.get(RuntimeClass, name)
        except ApiNotFound as error:
            raise RuntimeClassMissing(f'RuntimeClass "{name}" not found') from error
        except ApiError as error:
            raise PykubeletError(f"failed to lookup RuntimeClass {name}: {error}") from error
