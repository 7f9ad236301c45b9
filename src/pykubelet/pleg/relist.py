"""The pod lifecycle event generator: notices what happens in the runtime and tells it as events.

Hints from the runtime's event stream, a full relist and requests of workers all lead to the same thing,
an inspection of one pod whose result goes into the cache and, where it differs, becomes events. With a
stream the relist is only an audit; without one it is the source. Relisting compares, it never inspects:
a pod whose calls hang harms neither the relist nor the health nor other pods.
Does not cover: inspections themselves (refresh.py), streams (events.py), who reacts (sync/loop.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from pykubelet.api.times import format_duration
from pykubelet.clients.cri.port import EventSource
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.mailbox import Signal
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import CallTimedOut, CriError
from pykubelet.model.runtime_status import (
    ContainerEvent,
    ContainerRecord,
    EventKind,
    PodRuntimeStatus,
    SandboxRecord,
)
from pykubelet.pleg.cache import PodStatusCache
from pykubelet.pleg.diff import Life, RuntimeEvent, listed_lives
from pykubelet.pleg.events import EventFeed
from pykubelet.pleg.inspect import Listing, RuntimeReader, both
from pykubelet.pleg.refresh import Answer, PodInspections

logger = logging.getLogger(__name__)

NOT_DUE = float("inf")

# A stream may tell of an end before the runtime's answers show it: containerd's own learns of it at the same
# time as containerd's CRI part does. The pauses before each further look at a container that is said to run.
EXIT_PAUSES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
UNKNOWN_EXIT_PAUSE = 0.05


class PlegSettings(Struct, frozen=True, kw_only=True):
    relist_period: float = 1.0
    """Seconds between full listings while no event stream works."""
    audit_period: float = 15.0
    """Seconds between full listings while a stream works; finds what the stream missed."""
    list_deadline: float = 60.0
    """Seconds a full listing may take."""
    inspect_deadline: float = 60.0
    """Seconds the inspection of one pod may take."""
    unhealthy_after: float = 180.0
    """Seconds without any answer about pods before the runtime is reported as gone."""
    settle: float = 0.2
    """Seconds a hint of a start or removal waits: nearly all are our own doing, which is inspected anyway."""


@dataclass(slots=True, eq=False)
class _Want:
    """An inspection that is due later, and what it has to show."""

    at: float = NOT_DUE
    fresh: bool = False
    """Whether something was hinted at since the last inspection began."""
    ended: set[str] = field(default_factory=set)
    """Containers said to have ended; looked for until the runtime agrees."""
    looks: int = 0
    failures: Backoff = field(default_factory=lambda: Backoff(1.0, 30.0))


class PlegSnapshot(Struct, frozen=True, kw_only=True):
    source: str
    pods: int
    due: int
    last_relist: float | None
    healthy: bool


class Pleg:
    name = "pleg"

    def __init__(
        self,
        *,
        cri: RuntimeReader,
        cache: PodStatusCache,
        clock: Clock,
        sources: Sequence[EventSource] = (),
        settings: PlegSettings | None = None,
        metrics: Registry | None = None,
    ) -> None:
        self._cri = cri
        self._cache = cache
        self._clock = clock
        self._settings = settings or PlegSettings()
        self._listeners: list[Callable[[RuntimeEvent], None]] = []
        self._measure = _Measures(metrics or Registry())
        self._inspections = PodInspections(
            cri=cri,
            cache=cache,
            clock=clock,
            deadline=self._settings.inspect_deadline,
            tell=self._tell,
            begun=self._begun,
            inspected=self._inspected,
            taken=self._measure.inspection.observe,
        )
        self._feed = EventFeed(
            sources=sources, clock=clock, on_event=self.hint, on_change=self._stream_changed, metrics=metrics
        )
        self._wants: dict[str, _Want] = {}
        self._unknown: dict[str, tuple[float, EventKind]] = {}
        self._due_changed = Signal()
        self._asleep_until = NOT_DUE
        self._relist_changed = Signal()
        self._relist_at = NOT_DUE
        self._last_relist: float | None = None
        self._listed = asyncio.Event()
        self._last_answer: float | None = None
        self._failing = False

    def listen(self, listener: Callable[[RuntimeEvent], None]) -> None:
        """Call `listener` with each event, in order, after the cache has the status behind it."""
        self._listeners.append(listener)

    async def run(self) -> None:
        async with self._inspections.running() as tasks:
            tasks.spawn(self._run_due(), name="pleg hints")
            tasks.spawn(self._feed.run(), name="pleg events")
            await self._run_relists()

    async def refresh(self, uid: str, *, asked: bool = True) -> PodRuntimeStatus:
        """Inspect the pod now and renew its cache entry; raises CriError when it cannot be read.

        Workers call this after their own actions, and act on what they get. For anybody else `asked` is False, so
        that the worker is told of what was found. Concurrent callers share one inspection.
        """
        return await self._inspections.refresh(uid, asked=asked)

    async def status_newer_than(self, uid: str, observed_at: float) -> PodRuntimeStatus:
        """A status known to hold at or after `observed_at`, from the cache or else by inspecting now."""
        if self._cache.age_of(uid) >= observed_at:
            return self._cache.get(uid)
        return await self.refresh(uid)

    async def wait_listed(self) -> None:
        """Until everything in the runtime was listed once."""
        await self._listed.wait()

    def healthy(self) -> tuple[bool, str]:
        """Whether the runtime answers questions about pods, and if not what to tell."""
        if self._last_answer is None:
            return False, "pleg has yet to be successful"
        elapsed = self._clock.monotonic() - self._last_answer
        if elapsed <= self._settings.unhealthy_after:
            return True, ""
        threshold = format_duration(self._settings.unhealthy_after)
        return False, f"pleg was last seen active {format_duration(elapsed)} ago; threshold is {threshold}"

    def problems(self) -> list[str]:
        """What the Node's Ready condition says about us; nothing while we are well."""
        well, why = self.healthy()
        return [] if well else [f"PLEG is not healthy: {why}"]

    def snapshot(self) -> PlegSnapshot:
        return PlegSnapshot(
            source=self._feed.source,
            pods=len(self._inspections.records),
            due=len(self._wants),
            last_relist=self._last_relist,
            healthy=self.healthy()[0],
        )

    # Hints

    def hint(self, event: ContainerEvent) -> None:
        """Something may have happened: look at the pod soon, at once if something ended."""
        now = self._clock.monotonic()
        uid = event.pod_uid or self._inspections.pod_of.get(event.container_id, "")
        ended = event.kind is EventKind.STOPPED
        if not uid:
            if event.kind is EventKind.DELETED:
                self._unknown.pop(event.container_id, None)
            else:
                pause = UNKNOWN_EXIT_PAUSE if ended else self._settings.settle
                self._unknown[event.container_id] = (now + pause, event.kind)
                self._wake_at(now + pause)
            return
        want = self._wants.setdefault(uid, _Want())
        want.fresh = True
        if ended:
            want.ended.add(event.container_id)
            want.looks = 0
            self._look_at(want, now)
        else:
            self._look_at(want, now + self._settings.settle)

    def _look_at(self, want: _Want, at: float) -> None:
        want.at = min(want.at, at)
        self._wake_at(want.at)

    def _wake_at(self, at: float) -> None:
        if at < self._asleep_until:
            self._due_changed.set()

    async def _run_due(self) -> None:
        while True:
            now = self._clock.monotonic()
            for uid in [uid for uid, want in self._wants.items() if want.at <= now]:
                self._look(uid)
            for id in [id for id, (at, _) in self._unknown.items() if at <= now]:
                self._resolve(id)
            dues = [want.at for want in self._wants.values()] + [at for at, _ in self._unknown.values()]
            self._asleep_until = min(dues, default=NOT_DUE)
            left = self._asleep_until - self._clock.monotonic()
            await self._due_changed.wait(at_most=None if left == NOT_DUE else max(0.0, left))

    def _look(self, uid: str) -> None:
        want = self._wants[uid]
        if self._is_met(uid, want):
            del self._wants[uid]
            return
        want.at = NOT_DUE  # until the inspection says what is left to do
        self._inspections.request(uid)

    def _resolve(self, id: str) -> None:
        """A hint named something unknown: by now one of our own inspections knows it, or a relist must."""
        _, kind = self._unknown.pop(id)
        uid = self._inspections.pod_of.get(id)
        if uid is None:
            last = self._last_relist if self._last_relist is not None else -NOT_DUE
            self._relist_soon(max(self._clock.monotonic(), last + self._settings.relist_period))
        elif kind is EventKind.STOPPED:
            self.hint(ContainerEvent(container_id=id, kind=kind))

    def _is_met(self, uid: str, want: _Want) -> bool:
        record = self._inspections.records.get(uid)
        return not want.fresh and not (record is not None and any(map(record.is_up, want.ended)))

    def _begun(self, uid: str) -> None:
        want = self._wants.get(uid)
        if want is not None:
            want.fresh = False

    def _inspected(self, uid: str, answer: Answer) -> None:
        now = self._clock.monotonic()
        if isinstance(answer, CriError):
            want = self._wants.setdefault(uid, _Want())
            want.fresh = True
            want.at = NOT_DUE
            self._look_at(want, now + want.failures.next())
            logger.debug("pod could not be inspected", extra={"uid": uid, "problem": str(answer)})
            return
        self._last_answer = now
        found = self._wants.get(uid)
        if found is None:
            return
        if self._is_met(uid, found):
            del self._wants[uid]
        elif found.fresh:
            self._look_at(found, now)
        elif found.looks < len(EXIT_PAUSES):
            self._look_at(found, now + EXIT_PAUSES[found.looks])
            found.looks += 1
        else:
            del self._wants[uid]  # the runtime insists; the audit will notice if it changes its mind

    def _tell(self, event: RuntimeEvent) -> None:
        logger.debug("runtime event", extra={"event": type(event).__name__, "uid": event.pod_uid})
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # this pod's trouble, never the node's; the others hear of it all the same
                logger.exception("a runtime event cannot be handled", extra={"uid": event.pod_uid})

    # Relisting

    async def _run_relists(self) -> None:
        while True:
            self._relist_at = NOT_DUE
            done = await self._try_relist()
            often = not done or not self._feed.active
            period = self._settings.relist_period if often else self._settings.audit_period
            self._relist_at = min(self._relist_at, self._clock.monotonic() + period)
            while (left := self._relist_at - self._clock.monotonic()) > 0:
                await self._relist_changed.wait(at_most=left)

    def _relist_soon(self, at: float) -> None:
        if at < self._relist_at:
            self._relist_at = at
            self._relist_changed.set()

    def _stream_changed(self, active: bool) -> None:
        # A new stream does not tell what happened before it; a lost one leaves the work to the relist.
        now = self._clock.monotonic()
        self._relist_soon(now if active else now + self._settings.relist_period)

    async def _try_relist(self) -> bool:
        try:
            await self.relist()
        except CriError as error:
            level = logging.DEBUG if self._failing else logging.WARNING
            self._failing = True
            logger.log(level, "runtime cannot be listed, will be retried", extra={"problem": str(error)})
            return False
        if self._failing:
            self._failing = False
            logger.info("runtime can be listed again")
            self._retry_failed()
        return True

    def _retry_failed(self) -> None:
        """The runtime is back: pods need not wait for the end of pauses that it was to blame for."""
        now = self._clock.monotonic()
        for want in self._wants.values():
            if want.failures.failures:
                want.failures.reset()
                self._look_at(want, now)

    async def relist(self) -> None:
        """List everything once, and have the pods inspected that are not as they were."""
        started = self._clock.monotonic()
        sandboxes, containers = await self._list_all()
        now = self._clock.monotonic()
        self._measure.relisted(now - started, None if self._last_relist is None else started - self._last_relist)
        self._last_relist = started
        self._last_answer = now
        self._measure.last_seen.set(self._clock.now())
        found = listed_lives(sandboxes, containers)
        records = self._inspections.records
        changed = [
            uid
            for uid in found.keys() | records.keys()
            if (record := records.get(uid)) is None
            or (record.observed_at <= started and not record.agrees_with(found.get(uid, {})))
        ]
        up = {uid for uid, lives in found.items() if Life.RUNNING in lives.values()}
        self._cache.relisted(started, changed=changed, up=up)
        self._listed.set()
        for uid, listing in _listings(changed, started, sandboxes, containers).items():
            if (want := self._wants.get(uid)) is not None and want.failures.failures and want.at != NOT_DUE:
                continue  # it failed lately and has its own time to be tried again
            self._inspections.request(uid, listing=listing)

    async def _list_all(self) -> tuple[Sequence[SandboxRecord], Sequence[ContainerRecord]]:
        try:
            async with asyncio.timeout(self._settings.list_deadline):
                return await both(self._cri.list_pod_sandboxes(), self._cri.list_containers())
        except TimeoutError as error:
            raise CallTimedOut(f"listing all pods took longer than {self._settings.list_deadline:g}s") from error


def _listings(
    uids: Iterable[str], started: float, sandboxes: Iterable[SandboxRecord], containers: Iterable[ContainerRecord]
) -> dict[str, Listing]:
    """The part of a full listing that is about each of some pods."""
    boxes: dict[str, list[SandboxRecord]] = {uid: [] for uid in uids}
    held: dict[str, list[ContainerRecord]] = {uid: [] for uid in boxes}
    for sandbox in sandboxes:
        if sandbox.pod_uid in boxes:
            boxes[sandbox.pod_uid].append(sandbox)
    for container in containers:
        if container.pod_uid in held:
            held[container.pod_uid].append(container)
    return {uid: Listing(started=started, sandboxes=tuple(boxes[uid]), containers=tuple(held[uid])) for uid in boxes}


class _Measures:
    def __init__(self, metrics: Registry) -> None:
        self._duration = metrics.histogram(
            "kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG."
        )
        self._interval = metrics.histogram(
            "kubelet_pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG."
        )
        self.inspection = metrics.histogram(
            "kubelet_pleg_pod_relist_duration_seconds", "Duration in seconds for looking at one pod in PLEG."
        )
        self.last_seen = metrics.gauge(
            "kubelet_pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active."
        )

    def relisted(self, seconds: float, since_last: float | None) -> None:
        self._duration.observe(seconds)
        if since_last is not None:
            self._interval.observe(since_last)
