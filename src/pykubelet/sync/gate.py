"""Small adapters between the sync loop and the managers: admission with the facts of the moment, and the
runtime's pods as housekeeping wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pykubelet.model.pod import PodUID
from pykubelet.model.runtime_status import ContainerState, PodRuntimeStatus, SandboxState
from pykubelet.pods.record import Orphan


class KnownStatuses(Protocol):
    def uids(self) -> tuple[str, ...]: ...

    def last_known(self, uid: str) -> PodRuntimeStatus: ...

    def is_down(self, uid: str) -> bool: ...


class RunningPods:
    """Pods that hold something in the runtime, from the newest looks at them."""

    def __init__(self, cache: KnownStatuses) -> None:
        self._cache = cache

    def running_pods(self) -> Sequence[Orphan]:
        found = []
        for uid in self._cache.uids():
            seen = self._cache.last_known(uid)
            ready = any(s.state is SandboxState.READY for s in seen.sandboxes)
            if ready or any(c.state is ContainerState.RUNNING for c in seen.containers):
                found.append(Orphan(uid=PodUID(uid), name=seen.name, namespace=seen.namespace))
        return found


class FreshStatuses(Protocol):
    async def status_newer_than(self, uid: str, observed_at: float) -> PodRuntimeStatus: ...

    async def wait_listed(self) -> None: ...


class WorkerStatuses:
    """What pod workers ask before each run; never waits for a relist."""

    def __init__(self, *, pleg: FreshStatuses, cache: KnownStatuses) -> None:
        self._pleg = pleg
        self._cache = cache

    async def fresh(self, uid: str, than: float) -> PodRuntimeStatus:
        return await self._pleg.status_newer_than(uid, than)

    def is_down(self, uid: str) -> bool:
        return self._cache.is_down(uid)

    async def listed(self) -> None:
        await self._pleg.wait_listed()
