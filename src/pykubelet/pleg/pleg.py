"""The pod lifecycle event generator: notices what happens in the runtime and publishes it as signals.

Hints from the runtime's event stream, a full relist and requests of workers all lead to the same thing, an inspection
of one pod whose result goes into its record and, where it differs, becomes signals. With a stream the relist is only
an audit; without one it is the source. Relisting compares, it never inspects.

One pod has one inspection at a time. A request is answered by an inspection that started after it was made; while one
is under way, later requests wait together for a single next one. Each has a deadline and belongs to its pod alone: a
pod whose calls hang harms neither the relist nor the health nor other pods.
Does not cover: how a pod is read (inspect.py), streams (events.py), who reacts (reactions.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct, field

from pykubelet.api.times import format_duration
from pykubelet.clients.cri.port import CriClient, EventSource
from pykubelet.context import Context
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet, Wakeup, both
from pykubelet.model.errors import CallTimedOut, CriError, PykubeletError, RuntimeDown
from pykubelet.model.runtime_status import (
    ContainerEvent,
    ContainerRecord,
    ContainerState,
    EventKind,
    Life,
    PodRuntimeStatus,
    SandboxRecord,
)
from pykubelet.pleg.diff import agrees, listed_lives, lives, plan_signals
from pykubelet.pleg.events import EventFeed
from pykubelet.pleg.inspect import Inspection, Listing, inspect_pod
from pykubelet.pods.record import ObservedRuntime
from pykubelet.pods.table import PodTable
from pykubelet.signals import InspectionRecovered, PodSignal

logger = logging.getLogger(__name__)

Answer = PodRuntimeStatus | CriError

NOT_DUE = float("inf")
STOPPING = "the agent is stopping"

# A stream may tell of an end before the runtime's answers show it: containerd's own learns of it at the same
# time as containerd's CRI part does. The pauses before each further inspection of a container that is said to run.
EXIT_PAUSES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
UNKNOWN_EXIT_PAUSE = 0.05
UNKNOWN_START_PAUSE = 3.0
"""Seconds before the start of something unknown costs a relist. On a busy machine our own starts take that long to be
inspected, and a relist in the middle would have every pod inspected that is being started."""


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


class _Due(Struct, eq=False):
    """An inspection that is due later, and what it has to show."""

    at: float = NOT_DUE
    hinted: bool = False
    """Whether a hint came since the last inspection began."""
    ended: set[str] = field(default_factory=set)
    """Containers said to have ended; inspected until the runtime agrees."""
    repeats: int = 0
    failures: Backoff = field(default_factory=lambda: Backoff(1.0, 30.0))


class _Request(Struct, eq=False):
    answer: asyncio.Future[Answer]
    requested: bool
    listing: Listing | None


class _Inspector(Struct, eq=False):
    """The task that inspects one pod, with the request it takes next."""

    waiting: _Request | None


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
        ctx: Context,
        cri: CriClient,
        table: PodTable,
        source: EventSource | None = None,
        settings: PlegSettings | None = None,
    ) -> None:
        self._cri = cri
        self._table = table
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._settings = settings or PlegSettings()
        self._measure = _Measures(ctx.metrics)
        self._feed = EventFeed(
            # Events are used unless the gate, which is off by default, is set to false.
            source=None if ctx.settings.gates.switched_off("EventedPLEG") else source,
            clock=ctx.clock,
            on_event=self.hint,
            on_change=self._stream_changed,
            metrics=ctx.metrics,
        )
        self._tasks: TaskSet | None = None
        self._inspectors: dict[str, _Inspector] = {}
        self._failed: set[str] = set()
        self._pod_of: dict[str, str] = {}
        """Pod uid by the id of any sandbox or container that an inspection has shown."""
        self._due: dict[str, _Due] = {}
        self._unknown: dict[str, tuple[float, EventKind]] = {}
        self._due_changed = Wakeup()
        self._asleep_until = NOT_DUE
        self._relist_changed = Wakeup()
        self._relist_at = NOT_DUE
        self._last_relist: float | None = None
        self._listed = asyncio.Event()
        self._last_answer: float | None = None
        self._failing = False

    async def run(self) -> None:
        async with self.inspecting() as tasks:
            tasks.spawn(self._run_due(), name="pleg hints")
            tasks.spawn(self._feed.run(), name="pleg events")
            await self._run_relists()

    @asynccontextmanager
    async def inspecting(self) -> AsyncIterator[TaskSet]:
        """Inspections get tasks of their own for the length of the block."""
        async with TaskSet("pleg") as tasks:
            self._tasks = tasks
            try:
                yield tasks
            finally:
                self._tasks = None
                for inspector in self._inspectors.values():
                    if inspector.waiting is not None and not inspector.waiting.answer.done():
                        inspector.waiting.answer.set_result(RuntimeDown(STOPPING))
                self._inspectors.clear()

    # --- what others ask ------------------------------------------------------------------------

    async def inspect(self, uid: str, *, requested: bool = True) -> PodRuntimeStatus:
        """Inspect the pod now and renew its record; raises CriError when it cannot be read.

        Workers call this after their own actions, and act on what they get. For all others `requested` is False, so
        that the worker is woken by what was found. Concurrent callers share one inspection.
        """
        if self._tasks is None:
            answer = await self._inspect(uid, requested=requested, listing=None)
        else:
            # Shielded: others may wait for the same answer when this caller is cancelled.
            answer = await asyncio.shield(self.request(uid, requested=requested))
        if isinstance(answer, CriError):
            raise answer
        return answer

    async def status_newer_than(self, uid: str, observed_at: float) -> PodRuntimeStatus:
        """A status known to hold at or after `observed_at`, from the record or else by inspecting now."""
        if self._table.observed_at(uid) < observed_at:
            return await self.inspect(uid)
        observed = self._table.observed(uid)
        if observed is not None and observed.error is not None:
            raise observed.error
        return self._table.runtime_status(uid)

    async def wait_listed(self) -> None:
        """Until everything in the runtime was listed once."""
        await self._listed.wait()

    def healthy(self) -> tuple[bool, str]:
        """Whether the runtime answers questions about pods, and if not what to report."""
        if self._last_answer is None:
            return False, "pleg has yet to be successful"
        elapsed = self._clock.monotonic() - self._last_answer
        if elapsed <= self._settings.unhealthy_after:
            return True, ""
        threshold = format_duration(self._settings.unhealthy_after)
        return False, f"pleg was last seen active {format_duration(elapsed)} ago; threshold is {threshold}"

    @property
    def has_answered(self) -> bool:
        """Whether the runtime ever answered a question about pods."""
        return self._last_answer is not None

    def problems(self) -> list[str]:
        """What the Node's Ready condition says about PLEG; nothing while it is healthy."""
        healthy, why = self.healthy()
        return [] if healthy else [f"PLEG is not healthy: {why}"]

    def snapshot(self) -> PlegSnapshot:
        return PlegSnapshot(
            source=self._feed.source,
            pods=len(self._known()),
            due=len(self._due),
            last_relist=self._last_relist,
            healthy=self.healthy()[0],
        )

    # --- hints ----------------------------------------------------------------------------------

    def hint(self, event: ContainerEvent) -> None:
        """Something may have happened: inspect the pod soon, at once if something ended."""
        now = self._clock.monotonic()
        uid = event.pod_uid or self._pod_of.get(event.container_id, "")
        ended = event.kind is EventKind.STOPPED
        if not uid:
            if event.kind is EventKind.DELETED:
                self._unknown.pop(event.container_id, None)
            else:
                pause = UNKNOWN_EXIT_PAUSE if ended else UNKNOWN_START_PAUSE
                self._unknown[event.container_id] = (now + pause, event.kind)
                self._wake_at(now + pause)
            return
        due = self._due.setdefault(uid, _Due())
        due.hinted = True
        if ended:
            due.ended.add(event.container_id)
            due.repeats = 0
            self._inspect_at(due, now)
        else:
            self._inspect_at(due, now + self._settings.settle)

    def _inspect_at(self, due: _Due, at: float) -> None:
        due.at = min(due.at, at)
        self._wake_at(due.at)

    def _wake_at(self, at: float) -> None:
        if at < self._asleep_until:
            self._due_changed.set()

    async def _run_due(self) -> None:
        while True:
            now = self._clock.monotonic()
            for uid in [uid for uid, due in self._due.items() if due.at <= now]:
                self._inspect_due(uid)
            for id in [id for id, (at, _) in self._unknown.items() if at <= now]:
                self._resolve(id)
            times = [due.at for due in self._due.values()] + [at for at, _ in self._unknown.values()]
            self._asleep_until = min(times, default=NOT_DUE)
            left = self._asleep_until - self._clock.monotonic()
            await self._due_changed.wait(at_most=None if left == NOT_DUE else max(0.0, left))

    def _inspect_due(self, uid: str) -> None:
        due = self._due[uid]
        if self._is_met(uid, due):
            del self._due[uid]
            return
        due.at = NOT_DUE  # until the inspection says what is left to do
        self.request(uid)

    def _resolve(self, id: str) -> None:
        """A hint named something unknown: by now one of our own inspections knows it, or a relist must."""
        _, kind = self._unknown.pop(id)
        uid = self._pod_of.get(id)
        if uid is None:
            last = self._last_relist if self._last_relist is not None else -NOT_DUE
            self._relist_soon(max(self._clock.monotonic(), last + self._settings.relist_period))
        elif kind is EventKind.STOPPED:
            self.hint(ContainerEvent(container_id=id, kind=kind))

    def _is_met(self, uid: str, due: _Due) -> bool:
        """Whether an inspection has shown what the hints were about."""
        if due.hinted:
            return False
        known = lives(self._table.runtime_status(uid)) if due.ended else {}
        return not any(id in known and known[id].life is Life.RUNNING for id in due.ended)

    # --- inspections ----------------------------------------------------------------------------

    def request(self, uid: str, *, requested: bool = False, listing: Listing | None = None) -> asyncio.Future[Answer]:
        """Have the pod inspected soon; the future never fails, an error is its result."""
        if self._tasks is None:
            raise RuntimeError(f"pod inspections are not running, cannot inspect {uid}")
        inspector = self._inspectors.get(uid)
        if inspector is not None and inspector.waiting is not None:
            inspector.waiting.requested = inspector.waiting.requested or requested
            inspector.waiting.listing = listing  # an older listing would not answer a request made after it
            return inspector.waiting.answer
        request = _Request(asyncio.get_running_loop().create_future(), requested, listing)
        if inspector is not None:
            inspector.waiting = request
        else:
            inspector = self._inspectors[uid] = _Inspector(request)
            self._tasks.spawn(self._serve(uid, inspector), name=f"inspect {uid}")
        return request.answer

    async def _serve(self, uid: str, inspector: _Inspector) -> None:
        while inspector.waiting is not None:
            request, inspector.waiting = inspector.waiting, None
            answer: Answer = RuntimeDown(STOPPING)
            try:
                answer = await self._inspect(uid, requested=request.requested, listing=request.listing)
            finally:
                if not request.answer.done():
                    request.answer.set_result(answer)
        self._inspectors.pop(uid, None)

    async def _inspect(self, uid: str, *, requested: bool, listing: Listing | None) -> Answer:
        started = self._clock.monotonic()
        known = self._known_of(uid)
        if listing is not None and known is not None and listing.started <= known.status.observed_at:
            listing = None  # something newer has been read since that listing
        if listing is None and uid in self._due:
            self._due[uid].hinted = False  # this inspection sees everything that happened before it
        try:
            found = await self._read(uid, started, known.status if known is not None else None, listing)
        except CriError as error:
            self._failed.add(uid)
            self._table.observe_failure(uid, error, started=listing.started if listing else started)
            self._retry_later(uid, error)
            return error
        self._measure.inspection.observe(self._clock.monotonic() - started)
        self._take(found, requested=requested)
        self._last_answer = self._clock.monotonic()
        self._repeat_if_unmet(uid)
        return found.status

    async def _read(
        self, uid: str, started: float, before: PodRuntimeStatus | None, listing: Listing | None
    ) -> Inspection:
        deadline = self._settings.inspect_deadline
        try:
            async with asyncio.timeout(deadline):
                return await inspect_pod(self._cri, uid, started=started, before=before, listing=listing)
        except TimeoutError as error:
            raise CallTimedOut(f"inspecting the pod took longer than {deadline:g}s") from error
        except PykubeletError:
            raise
        except Exception as error:  # this pod's trouble, never the node's
            logger.exception("pod cannot be inspected", extra={"uid": uid})
            raise CriError(f"inspecting the pod failed: {error}") from error

    def _take(self, found: Inspection, *, requested: bool) -> None:
        """Put the result into the pod's record, then publish what is different."""
        uid, known = found.status.uid, self._known_of(found.status.uid)
        old, new = lives(known.status) if known is not None else {}, lives(found.status)
        gone = [*old, *known.listed] if known is not None else []
        listed = listed_lives(found.listing.sandboxes, found.listing.containers).get(uid, {})
        # Strictly before the signals: their handlers must find the status that belongs to them.
        if not self._table.observe(found.status, listed):
            return
        for id in gone:
            self._pod_of.pop(id, None)
        for id in (*new, *listed):
            self._pod_of[id] = uid
        signals: list[PodSignal] = [*plan_signals(uid, old, new, requested=requested)]
        if not signals and uid in self._failed:
            signals = [InspectionRecovered(uid)]
        self._failed.discard(uid)
        for signal in signals:
            logger.debug("runtime event", extra={"event": type(signal).__name__, "uid": uid})
            self._signals.publish(signal)

    def _retry_later(self, uid: str, error: CriError) -> None:
        due = self._due.setdefault(uid, _Due())
        due.hinted = True
        due.at = NOT_DUE
        self._inspect_at(due, self._clock.monotonic() + due.failures.next())
        logger.debug("pod could not be inspected", extra={"uid": uid, "problem": str(error)})

    def _repeat_if_unmet(self, uid: str) -> None:
        due, now = self._due.get(uid), self._clock.monotonic()
        if due is None:
            return
        if self._is_met(uid, due):
            del self._due[uid]
        elif due.hinted:
            self._inspect_at(due, now)
        elif due.repeats < len(EXIT_PAUSES):
            self._inspect_at(due, now + EXIT_PAUSES[due.repeats])
            due.repeats += 1
        else:
            del self._due[uid]  # the runtime insists; the audit will notice if it changes its mind

    def _known_of(self, uid: str) -> ObservedRuntime | None:
        """The pod's last inspection, if that showed anything."""
        observed = self._table.observed(uid)
        return observed if observed is not None and not observed.shows_nothing else None

    def _known(self) -> dict[str, ObservedRuntime]:
        return {r.uid: r.runtime for r in self._table if r.runtime is not None and not r.runtime.shows_nothing}

    # --- relisting ------------------------------------------------------------------------------

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
        for due in self._due.values():
            if due.failures.failures:
                due.failures.reset()
                self._inspect_at(due, now)

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
        changed = [
            uid for uid in found.keys() | self._known().keys() if self._differs(uid, found.get(uid, {}), started)
        ]
        up = {uid for uid, states in found.items() if Life.RUNNING in states.values()}
        running = {each.pod_uid for each in containers if each.state is ContainerState.RUNNING}
        self._table.relisted(started, changed=changed, up=up, running=running, named=found)
        self._listed.set()
        for uid, listing in _listings(changed, started, sandboxes, containers).items():
            if (due := self._due.get(uid)) is not None and due.failures.failures and due.at != NOT_DUE:
                continue  # it failed lately and has its own time to be tried again
            self.request(uid, listing=listing)

    def _differs(self, uid: str, listed: Mapping[str, Life], started: float) -> bool:
        """Whether the pod must be inspected; not for a listing older than its last inspection, even an empty one."""
        last = self._table.observed(uid)
        if last is None:
            return True
        return last.status.observed_at <= started and not agrees(last.status, last.listed, listed)

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
