"""Actual state of world: what is mounted for each pod, whether it is still desired, and what went wrong with it.

One entry per volume. `state` says what may be on disk; with `wanted` and `stale` it determines `next_step`. Only
synchronous code changes entries. After a restart the mount table and the folders are the truth (reconstruct.py).
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.types import Pod
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.tracing import NO_SPAN, Span
from pykubelet.model.problems import VolumeFailed
from pykubelet.volumes.desired_state import ObjectKey, Use
from pykubelet.volumes.spec import VolumeSpec, qualified_plugin

FIRST_RETRY, LAST_RETRY = 0.5, 122.0
"""Seconds, doubled with each failure; upstream's."""
NO_OBJECTS: frozenset[ObjectKey] = frozenset()


class State(enum.Enum):
    ABSENT = "absent"
    """Nothing of it is on disk."""
    UNCERTAIN = "uncertain"
    """Something may be: set-up failed half-way, or it was found after a restart."""
    MOUNTED = "mounted"
    STAGED = "staged"
    """Unpublished from the pod but maybe still staged on the node: in use, but no pod waits for it."""


class Step(enum.Enum):
    MOUNT = "volume_mount"
    REFRESH = "volume_refresh"
    UNMOUNT = "volume_unmount"


class VolumeEntry(Struct, eq=False, kw_only=True):
    uid: str
    name: str
    """Its name in the pod; for one found after a restart, its folder."""
    state: State = State.ABSENT
    pod: Pod | None = None
    """The pod that uses it, as of its last sync; None when it is not desired."""
    use: Use | None = None
    spec: VolumeSpec | None = None
    """Once known; kept for tear-down when it is not desired any more."""
    objects: frozenset[ObjectKey] = NO_OBJECTS
    stale: bool = False
    """The source changed: set up again although it is mounted."""
    refreshed_at: float = 0.0
    failure: VolumeFailed | None = None
    """How the last operation failed."""
    waiting_for: str = ""
    """What the operation under way waits for."""
    awaits_attach: bool = False
    """The operation under way waits until the control plane has attached it."""
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RETRY, LAST_RETRY))
    next_try: float = 0.0
    begun_at: float | None = None
    """When the operation under way began; None when there is none."""
    scope: asyncio.Timeout | None = None
    """Around the part of an operation that may be interrupted when the pod goes."""
    begun_by: Span = NO_SPAN
    """What the next operation is a part of."""
    stuck: asyncio.Future[None] | None = None
    """A blocking call that did not return in time; the next operation waits for it."""

    def __str__(self) -> str:
        return f"{self.uid}/{self.name}"

    @property
    def is_desired(self) -> bool:
        return self.pod is not None

    @property
    def in_pod(self) -> bool:
        """Whether anything of it may be below the pod's folder."""
        return self.state in (State.UNCERTAIN, State.MOUNTED)

    def next_step(self) -> Step | None:
        if self.is_desired:
            if self.state is not State.MOUNTED:
                return Step.MOUNT
            return Step.REFRESH if self.stale else None
        return Step.UNMOUNT if self.state is not State.ABSENT else None

    @property
    def problem(self) -> str:
        return self.waiting_for or (self.failure.text if self.failure is not None else "")

    @property
    def failures(self) -> int:
        return self.backoff.failures

    def wait_for(self, what: str) -> None:
        """Show until the operation under way ends what it waits for."""
        self.waiting_for = what

    def failed(self, problem: VolumeFailed, now: float) -> float:
        """Returns the seconds until the next try."""
        delay = self.backoff.next()
        self.failure, self.waiting_for, self.next_try = problem, "", now + delay
        return delay

    def succeeded(self, state: State, now: float) -> None:
        self.state, self.refreshed_at = state, now
        self.failure, self.waiting_for = None, ""
        self.reset_backoff()

    def reset_backoff(self) -> None:
        """Something changed that may help: the next try is due now."""
        self.backoff.reset()
        self.next_try = 0.0

    def drop(self) -> None:
        """Remove the volume from the desired state; an operation that waits for the API server is interrupted."""
        self.pod = None
        self.stale = False
        self.failure, self.waiting_for = None, ""
        self.reset_backoff()
        if self.scope is not None:
            self.scope.reschedule(0)


def failure_of(entry: VolumeEntry, clock: Clock) -> VolumeFailed:
    """Why the volume is not as desired, with times of the wall clock."""
    known = entry.failure if entry.failure is not None and not entry.waiting_for else None
    since_boot = clock.now() - clock.monotonic()
    return replace(
        known or VolumeFailed(volume=entry.name, text=entry.waiting_for),
        attempts=entry.failures,
        since=None if entry.begun_at is None else since_boot + entry.begun_at,
        retry_at=None if entry.begun_at is not None else since_boot + entry.next_try,
    )


class PodVolumes(Struct, eq=False):
    uid: str
    entries: dict[str, VolumeEntry] = field(default_factory=dict)
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def unmounted(self) -> list[VolumeEntry]:
        return [entry for entry in self.entries.values() if entry.is_desired and entry.state is not State.MOUNTED]

    def leftover(self) -> list[VolumeEntry]:
        """In the pod although they are not desired."""
        return [entry for entry in self.entries.values() if not entry.is_desired and entry.in_pod]

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiters)

    def changed(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait_change(self, at_most: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait({waiter}, timeout=at_most)
        finally:
            waiter.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)


class VolumeTable:
    """The volumes of all pods, and which of them depend on an API object."""

    def __init__(self) -> None:
        self.pods: dict[str, PodVolumes] = {}
        self._by_object: dict[ObjectKey, set[VolumeEntry]] = {}

    def of(self, uid: str) -> PodVolumes:
        record = self.pods.get(uid)
        if record is None:
            record = self.pods[uid] = PodVolumes(uid)
        return record

    def entries(self) -> Iterator[VolumeEntry]:
        for record in self.pods.values():
            yield from record.entries.values()

    def depend_on(self, entry: VolumeEntry, objects: frozenset[ObjectKey]) -> None:
        if entry.objects == objects:
            return
        for key in entry.objects - objects:
            known = self._by_object[key]
            known.discard(entry)
            if not known:
                del self._by_object[key]
        for key in objects - entry.objects:
            self._by_object.setdefault(key, set()).add(entry)
        entry.objects = objects

    def dependents(self, key: ObjectKey) -> list[VolumeEntry]:
        return list(self._by_object.get(key, ()))

    def remove(self, entry: VolumeEntry) -> None:
        self.depend_on(entry, NO_OBJECTS)
        record = self.pods.get(entry.uid)
        if record is None:
            return
        record.entries.pop(entry.name, None)
        self.forget_empty(entry.uid)

    def forget_empty(self, uid: str) -> None:
        record = self.pods.get(uid)
        if record is not None and not record.entries and not record.is_waited_for:
            del self.pods[uid]

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Volumes by plugin: desired, and on disk."""
        desired: Counter[str] = Counter()
        actual: Counter[str] = Counter()
        for entry in self.entries():
            plugin = qualified_plugin(entry.spec) if entry.spec else "N/A"
            if entry.is_desired:
                desired[plugin] += 1
            if entry.state is not State.ABSENT:
                actual[plugin] += 1
        return desired, actual
