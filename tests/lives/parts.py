"""The runtime and the API server of a life: the fakes, telling the model what happens, and slow when asked to be."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pykubelet.clients.kube.port import Change, K, PatchBody, UnreadableChange
from pykubelet.hollow.cri_values import MemoryContainer
from pykubelet.wire import cri_pb2
from tests.fakes.fake_cri import FakeCri
from tests.fakes.fake_kube import FakeKube
from tests.lives.model import Model


class WatchedCri(FakeCri):
    """The fake runtime, telling the model what happens in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model: Model | None = None
        self._killing = False

    async def run_pod_sandbox(self, config: cri_pb2.PodSandboxConfig, runtime_handler: str = "") -> str:
        made = await super().run_pod_sandbox(config, runtime_handler)
        if self.model is not None:
            self.model.sandbox_made(self.sandboxes[made], list(self.sandboxes.values()))
        return made

    async def create_container(
        self, sandbox_id: str, config: cri_pb2.ContainerConfig, sandbox_config: cri_pb2.PodSandboxConfig
    ) -> str:
        made = await super().create_container(sandbox_id, config, sandbox_config)
        if self.model is not None:
            self.model.created(self.containers[made])
        return made

    def _begin(self, container: MemoryContainer) -> None:
        super()._begin(container)
        if self.model is not None:
            self.model.started(container)

    def _signal(self, container: MemoryContainer) -> None:
        if not container.signalled and self.model is not None:
            self.model.signalled(container)
        super()._signal(container)

    def _kill(self, container: MemoryContainer) -> None:
        self._killing = True
        super()._kill(container)
        self._killing = False

    def _end(self, container: MemoryContainer, code: int, reason: str) -> None:
        super()._end(container, code, reason)
        if self.model is not None:
            self.model.ended(container, killed=self._killing)


class LaggingKube(FakeKube):
    """The fake API server at the end of a slow wire."""

    lag = 0.0

    async def _travel(self) -> None:
        if self.lag:
            await self._clock.sleep(self.lag)

    async def get(self, kind: type[K], name: str, namespace: str = "", **more: Any) -> K:
        await self._travel()
        found = await super().get(kind, name, namespace, **more)
        await self._travel()
        return found

    async def patch(self, kind: type[K], name: str, body: PatchBody, **more: Any) -> K:
        await self._travel()
        found = await super().patch(kind, name, body, **more)
        await self._travel()
        return found

    async def watch(
        self, kind: type[K], namespace: str = "", **more: Any
    ) -> AsyncGenerator[Change[K] | UnreadableChange, None]:
        async with aclosing(super().watch(kind, namespace, **more)) as changes:
            async for change in changes:
                await self._travel()
                yield change
