"""What a pod's worker does in each state, and how a step may end.

Carried out in `pod_sync.py`, called by `worker.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.model.errors import PykubeletError
from pykubelet.model.problems import Problem
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pods.record import Orphan, StatusChange


class NetworkNotReady(PykubeletError):
    """The pod needs the pod network and the runtime says that it is not there yet."""


class SyncResult(Struct, frozen=True, kw_only=True):
    """What came of one sync."""

    ended: bool = False
    """The pod reached a terminal phase by itself and should end."""
    problems: Sequence[Problem] = ()
    retry_at: float | None = None
    """Wall time at which the next sync is due: the end of all back-offs, a deadline, or now. None = after the ordinary
    retry if there are problems, else with the next resync."""


class PodSteps(Protocol):
    """What to do in each phase; every method may be repeated after a failure."""

    async def sync(self, pod: Pod, seen: PodRuntimeStatus) -> SyncResult:
        """Bring the pod to what its spec says."""
        ...

    async def terminating(self, pod: Pod, seen: PodRuntimeStatus, grace: int, changes: list[StatusChange]) -> None:
        """Stop everything; returns only when nothing runs."""
        ...

    async def terminating_orphan(self, orphan: Orphan) -> None: ...

    async def terminated(self, pod: Pod, seen: PodRuntimeStatus) -> None:
        """Give back what the pod held."""
        ...
