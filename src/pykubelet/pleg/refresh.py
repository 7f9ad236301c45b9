"""One pod's inspections: one at a time, shared by all who ask, compared with the one before.

A request is answered by an inspection that started after it was made. While one is under way, later
requests wait together for a single next one. Each inspection has a deadline and belongs to its pod
alone: one that hangs holds up nobody else. New facts go into the cache first, then events are told.
Does not cover: when to inspect (relist.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from msgspec import Struct

from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import CallTimedOut, CriError, PykubeletError, RuntimeDown
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pleg.cache import PodStatusCache
from pykubelet.pleg.diff import (
    NOTHING,
    ContainerChanged,
    Life,
    PodSync,
    RuntimeEvent,
    Sight,
    listed_lives,
    plan_events,
    sight_of,
)
from pykubelet.pleg.inspect import Inspection, Listing, RuntimeReader, inspect_pod

logger = logging.getLogger(__name__)

Answer = PodRuntimeStatus | CriError

_STOPPING = "the agent is stopping"


class PodRecord(Struct, frozen=True, kw_only=True):
    """The last look at one pod."""

    status: PodRuntimeStatus
    sight: Sight
    listed: Mapping[str, Life]
    """What the listing said, which the statuses read a moment later may contradict."""

    @property
    def observed_at(self) -> float:
        return self.status.observed_at

    def agrees_with(self, lives: Mapping[str, Life]) -> bool:
        """Whether a newer listing says what is known already."""
        if lives.keys() != self.listed.keys() and lives.keys() != self.sight.keys():
            return False
        for id, life in lives.items():
            seen = self.sight.get(id)
            if self.listed.get(id) is not life and (seen is None or seen.life is not life):
                return False
        return True

    def is_up(self, id: str) -> bool:
        seen = self.sight.get(id)
        return seen is not None and seen.life is Life.RUNNING


@dataclass(slots=True, eq=False)
class _Request:
    answer: asyncio.Future[Answer]
    asked: bool
    listing: Listing | None


@dataclass(slots=True, eq=False)
class _Slot:
    waiting: _Request | None


class PodInspections:
    """All inspections of all pods; outside `running` a refresh runs in the caller's own task.

    `begun` is told of each inspection that will see everything that happened before it, `inspected` of
    every one that ended, after its result is in the cache and its events are told.
    """

    def __init__(
        self,
        *,
        cri: RuntimeReader,
        cache: PodStatusCache,
        clock: Clock,
        deadline: float,
        tell: Callable[[RuntimeEvent], None],
        begun: Callable[[str], None],
        inspected: Callable[[str, Answer], None],
        taken: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._cri = cri
        self._cache = cache
        self._clock = clock
        self._deadline = deadline
        self._tell = tell
        self._begun = begun
        self._inspected = inspected
        self._taken = taken
        self._tasks: TaskSet | None = None
        self._slots: dict[str, _Slot] = {}
        self._failed: set[str] = set()
        self.records: dict[str, PodRecord] = {}
        self.pod_of: dict[str, str] = {}
        """Pod uid by the id of any sandbox or container that some inspection has seen."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TaskSet]:
        """Inspections get tasks of their own for the length of the block."""
        async with TaskSet("pleg") as tasks:
            self._tasks = tasks
            try:
                yield tasks
            finally:
                self._tasks = None
                self._give_up()

    async def refresh(self, uid: str, *, asked: bool = True) -> PodRuntimeStatus:
        """Inspect now, renew the cache, return the result; raises CriError when it cannot be read."""
        if self._tasks is None:
            answer = await self._inspect(uid, asked=asked, listing=None)
        else:
            # Shielded: others may wait for the same answer when this caller is cancelled.
            answer = await asyncio.shield(self.request(uid, asked=asked))
        if isinstance(answer, CriError):
            raise answer
        return answer

    def request(self, uid: str, *, asked: bool = False, listing: Listing | None = None) -> asyncio.Future[Answer]:
        """Have the pod inspected soon; the future never fails, an error is its result."""
        if self._tasks is None:
            raise RuntimeError(f"pod inspections are not running, cannot inspect {uid}")
        slot = self._slots.get(uid)
        if slot is not None and slot.waiting is not None:
            slot.waiting.asked = slot.waiting.asked or asked
            slot.waiting.listing = listing  # an older listing would not answer a request made after it
            return slot.waiting.answer
        request = _Request(asyncio.get_running_loop().create_future(), asked, listing)
        if slot is not None:
            slot.waiting = request
        else:
            slot = self._slots[uid] = _Slot(request)
            self._tasks.spawn(self._work(uid, slot), name=f"inspect {uid}")
        return request.answer

    async def _work(self, uid: str, slot: _Slot) -> None:
        while slot.waiting is not None:
            request, slot.waiting = slot.waiting, None
            answer: Answer = RuntimeDown(_STOPPING)
            try:
                answer = await self._inspect(uid, asked=request.asked, listing=request.listing)
            finally:
                if not request.answer.done():
                    request.answer.set_result(answer)
        self._slots.pop(uid, None)

    async def _inspect(self, uid: str, *, asked: bool, listing: Listing | None) -> Answer:
        started = self._clock.monotonic()
        old = self.records.get(uid)
        if listing is not None and old is not None and listing.started <= old.observed_at:
            listing = None  # something newer has been read since that listing
        if listing is None:
            self._begun(uid)
        try:
            found = await self._read(uid, started, old, listing)
        except CriError as error:
            self._failed.add(uid)
            self._cache.set_error(uid, error, observed_at=listing.started if listing else started)
            self._inspected(uid, error)
            return error
        self._taken(self._clock.monotonic() - started)
        self._take(uid, found, asked=asked)
        self._inspected(uid, found.status)
        return found.status

    async def _read(self, uid: str, started: float, old: PodRecord | None, listing: Listing | None) -> Inspection:
        before = old.status if old is not None else None
        try:
            async with asyncio.timeout(self._deadline):
                return await inspect_pod(self._cri, uid, started=started, before=before, listing=listing)
        except TimeoutError as error:
            raise CallTimedOut(f"inspecting the pod took longer than {self._deadline:g}s") from error
        except PykubeletError:
            raise
        except Exception as error:  # this pod's trouble, never the node's
            logger.exception("pod cannot be inspected", extra={"uid": uid})
            raise CriError(f"inspecting the pod failed: {error}") from error

    def _take(self, uid: str, found: Inspection, *, asked: bool) -> None:
        old = self.records.get(uid)
        if old is not None and old.observed_at > found.status.observed_at:
            return
        sight = sight_of(found.status)
        listed = listed_lives(found.listing.sandboxes, found.listing.containers).get(uid, {})
        self._index(uid, old, sight, listed)
        if sight or listed:
            self.records[uid] = PodRecord(status=found.status, sight=sight, listed=listed)
        else:
            self.records.pop(uid, None)
        # Strictly before the events: whoever hears one must find the status that belongs to it.
        self._cache.set(found.status)
        events = plan_events(uid, old.sight if old is not None else NOTHING, sight, asked=asked)
        told = [event for event in events if not isinstance(event, ContainerChanged)]
        if not told and uid in self._failed:
            told = [PodSync(pod_uid=uid)]
        self._failed.discard(uid)
        for event in told:
            self._tell(event)

    def _index(self, uid: str, old: PodRecord | None, sight: Sight, listed: Mapping[str, Life]) -> None:
        if old is not None:
            for id in (*old.sight, *old.listed):
                self.pod_of.pop(id, None)
        for id in (*sight, *listed):
            self.pod_of[id] = uid

    def _give_up(self) -> None:
        for slot in self._slots.values():
            if slot.waiting is not None and not slot.waiting.answer.done():
                slot.waiting.answer.set_result(RuntimeDown(_STOPPING))
        self._slots.clear()
