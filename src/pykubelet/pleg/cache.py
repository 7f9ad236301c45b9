"""The newest known runtime status of every pod, and how new it is.

PLEG writes, workers read. A status is as new as the moment its listing was started. A full relist that
found a pod unchanged makes its status that much newer, and says that unknown pods have nothing in the
runtime; a pod that the relist found changed has to be inspected before it counts as newer.
Does not cover: how statuses are obtained (inspect.py) and when (relist.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import PodRuntimeStatus

NEVER = float("-inf")


class _Entry(Struct):
    status: PodRuntimeStatus
    error: CriError | None
    at: float
    """When the listing behind the status, or the attempt that failed, was started."""


class PodStatusCache:
    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._stale: dict[str, float] = {}
        """Pods that a relist found changed, with the time it was started; they wait for an inspection."""
        self._global = NEVER
        self._listed_up: frozenset[str] = frozenset()

    @property
    def global_time(self) -> float:
        """When the last full relist was started; minus infinity before the first one ended."""
        return self._global

    def get(self, uid: str) -> PodRuntimeStatus:
        """The newest status; raises the error of the last inspection if that failed."""
        entry = self._entries.get(uid)
        if entry is None:
            return self._empty(uid)
        if entry.error is not None:
            raise entry.error
        return entry.status

    def last_known(self, uid: str) -> PodRuntimeStatus:
        """The newest status that could be read, whatever happened since."""
        entry = self._entries.get(uid)
        return entry.status if entry is not None else self._empty(uid)

    def is_down(self, uid: str) -> bool:
        """Whether nothing of the pod runs, as far as anybody looked; before the first listing nobody did."""
        entry = self._entries.get(uid)
        if entry is not None and entry.error is None and uid not in self._stale:
            return not (entry.status.running() or entry.status.ready_sandboxes())
        return self._global != NEVER and uid not in self._listed_up

    def age_of(self, uid: str) -> float:
        """The monotonic time at which the pod was last known to be as the cache says."""
        entry = self._entries.get(uid)
        known = entry.at if entry is not None else NEVER
        return known if uid in self._stale else max(known, self._global)

    def uids(self) -> tuple[str, ...]:
        """Pods of which the runtime knows, or lately knew, something."""
        return tuple(self._entries)

    def set(self, status: PodRuntimeStatus) -> None:
        """Store an inspection's result; one that is older than what is there changes nothing."""
        entry = self._entries.get(status.uid)
        if entry is not None and entry.at > status.observed_at:
            return
        self._entries[status.uid] = _Entry(status, None, status.observed_at)
        self._inspected(status.uid, status.observed_at)

    def set_error(self, uid: str, error: CriError, *, observed_at: float) -> None:
        """Note that an inspection failed; the last good status stays readable with `last_known`."""
        entry = self._entries.get(uid)
        if entry is not None and entry.at > observed_at:
            return
        self._entries[uid] = _Entry(self.last_known(uid), error, observed_at)
        self._inspected(uid, observed_at)

    def delete(self, uid: str) -> None:
        """Forget the pod; from now on it is one the runtime does not know."""
        self._entries.pop(uid, None)
        self._stale.pop(uid, None)

    def relisted(self, started: float, *, changed: Iterable[str], up: Collection[str] = ()) -> None:
        """A full listing that was started at `started` has ended; `changed` pods are yet to be inspected.

        `up`: pods of which it shows a container or a sandbox that runs."""
        self._listed_up = frozenset(up)
        self._global = max(self._global, started)
        self._stale.update((uid, started) for uid in changed)
        for uid, entry in list(self._entries.items()):
            if entry.at <= started and uid not in self._stale and _is_empty(entry.status):
                del self._entries[uid]  # the listing says the same about it as about any unknown pod

    def _empty(self, uid: str) -> PodRuntimeStatus:
        return PodRuntimeStatus(uid=uid, observed_at=self._global)

    def _inspected(self, uid: str, at: float) -> None:
        # An inspection begun before the relist may not have seen what the relist saw.
        if at >= self._stale.get(uid, NEVER):
            self._stale.pop(uid, None)


def _is_empty(status: PodRuntimeStatus) -> bool:
    return not status.sandboxes and not status.containers
