"""What a pod's worker does in each state, and how a step may end.

Carried out in `pod_sync.py`, called by `worker.py`.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.model.errors import PykubeletError
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pods.record import Orphan, StatusChange


class NetworkNotReady(PykubeletError):
    """The pod needs the pod network and the runtime says that it is not there yet."""


class RetryAt(PykubeletError):
    """The step could not finish for a known reason that ends at a known time (back-off)."""

    def __init__(self, delay: float, message: str) -> None:
        super().__init__(message)
        self.delay = delay


class SyncVerdict(Struct, frozen=True, kw_only=True):
    ended: bool = False
    """The pod reached a terminal phase by itself and should end."""
    again_in: float | None = None
    """Something is due in so many seconds (a deadline), earlier than the ordinary resync."""


class PodSteps(Protocol):
    """What to do in each phase; every method may be repeated after a failure."""

    async def sync(self, pod: Pod, seen: PodRuntimeStatus) -> SyncVerdict:
        """Bring the pod to what its spec says."""
        ...

    async def terminating(self, pod: Pod, seen: PodRuntimeStatus, grace: int, changes: list[StatusChange]) -> None:
        """Stop everything; returns only when nothing runs."""
        ...

    async def terminating_orphan(self, orphan: Orphan) -> None: ...

    async def terminated(self, pod: Pod, seen: PodRuntimeStatus) -> None:
        """Give back what the pod held."""
        ...
