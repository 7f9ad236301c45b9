"""One task per pod: takes the newest update, runs the step of the pod's phase, decides when to run again.

`PodWorkers` is the registry. Updates are merged, never queued; a kill is never overwritten and its grace
period only shrinks; trouble with one pod is retried with that pod's own delay and touches no other. The
steps themselves (what a sync does) are in `pod_sync.py`; when a pod's worker may be forgotten is decided
by `housekeeping.py`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.backoff import jittered
from pykubelet.kit.clock import Clock
from pykubelet.kit.log import current_pod
from pykubelet.kit.mailbox import Signal
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.model.events import EventSink
from pykubelet.model.life import LifeRecorder, Step
from pykubelet.model.pod import (
    PodUID,
    deletion_requested,
    full_name,
    is_static,
    is_terminal_phase,
    readable,
    uid_of,
)
from pykubelet.model.reasons import WARNING
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.sync.phases import Phase, PodPhases, PodState
from pykubelet.sync.static_turns import StaticTurns
from pykubelet.sync.steps import NetworkNotReady, Orphan, PodSteps, RetryAt, StatusChange, StatusSource

logger = logging.getLogger(__name__)

RETRY_AFTER_ERROR = 10.0
RETRY_NETWORK_NOT_READY = 1.0
RETRY_RUNTIME_DOWN = 0.1
RETRY_RUNTIME_DOWN_MOST = 5.0
REPEAT_UNCHANGED = 1.0
"""Seconds at the least between passes that ask for another one soon and find the pod as they left it."""


class UpdateKind(enum.Enum):
    CREATE = "create"
    UPDATE = "update"
    SYNC = "sync"
    KILL = "kill"


class KillRequest(Struct, frozen=True, kw_only=True):
    """Why and how fast the node ends a pod that its source still wants."""

    grace_override: int | None = None
    evicted: bool = False
    change_status: Callable[[PodStatus], None] | None = None
    done: asyncio.Future[None] | None = None
    """Completed when no container runs any more."""


class Room(Struct, frozen=True, kw_only=True):
    """What pods that are ended for another one hold: it starts when they are stopped, or cannot be in their time."""

    stopped: Sequence[asyncio.Future[None]]
    patience: float


class _Worker(Struct):
    state: PodState
    orphan: Orphan | None = None
    wake: Signal = field(default_factory=Signal)
    room: Room | None = None
    changes: list[StatusChange] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    last_sync: float = -1.0
    seen: PodRuntimeStatus | None = None
    """What the pass in flight, or the last one, started from."""
    hurried: PodRuntimeStatus | None = None
    """What the last pass started from if it asked for another one soon."""
    failures: int = 0
    scope: asyncio.Timeout | None = None
    """Around the step in flight; expiring it cancels the step and nothing else."""
    next_run: float | None = None
    last_error: str = ""

    def interrupt(self, now: float) -> None:
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(now)


class WorkerSnapshot(Struct, frozen=True, kw_only=True):
    uid: str
    pod: str
    phase: str
    failures: int
    last_error: str
    next_run_in: float | None
    story: tuple[str, ...]


class PodWorkers:
    """All pod workers. Runs as a service; `update()` is its only entrance."""

    name = "pod-workers"

    def __init__(
        self,
        *,
        phases: PodPhases,
        steps: PodSteps,
        statuses: StatusSource,
        events: EventSink,
        recorder: LifeRecorder,
        clock: Clock,
        sync_frequency: float,
        chance: random.Random | None = None,
    ) -> None:
        self._phases = phases
        self._steps = steps
        self._statuses = statuses
        self._events = events
        self._recorder = recorder
        self._clock = clock
        self._sync_frequency = sync_frequency
        self._chance = chance or random.Random()
        self._workers: dict[PodUID, _Worker] = {}
        self._turns = StaticTurns(phases)
        self._restarts: set[PodUID] = set()
        self._tasks = TaskSet("pod workers")
        self.on_finished: Callable[[PodUID], None] = lambda uid: None
        """Told when a worker is done with its pod, so that housekeeping need not poll for it."""
        self.on_restart: Callable[[PodUID], None] = lambda uid: None
        """Told when a pod whose life is over will get another one under the same UID."""

    async def run(self) -> None:
        async with self._tasks:
            await asyncio.Event().wait()

    async def wait_listed(self) -> None:
        """Until it is known what runs; before that nobody can tell which pods have ended."""
        await self._statuses.listed()

    # --- entrance -------------------------------------------------------------------------------

    def update(self, kind: UpdateKind, pod: Pod, kill: KillRequest | None = None, *, after: Room | None = None) -> None:
        """Merge one more wish for this pod into what its worker will do next.

        A kill without a request means that the pod's source has it no more. `after`: what a new pod waits for."""
        uid = uid_of(pod)
        state = self._phases.get(uid)
        if state is not None and state.phase is Phase.FINISHED and state.pod is None:
            # Stopped as an orphan because it was refused; now its source wants something: see it off in full.
            self._phases.forget(uid)
            state = None
        if state is None:
            state = self._admit(pod, kind)
        elif state.phase is Phase.FINISHED:
            if kind is UpdateKind.CREATE:
                state.restart_requested = True
                self.on_finished(uid)
            _complete(kill)
            return
        elif state.is_ending and kind is UpdateKind.CREATE:
            # The same UID was written again (a static pod with a fixed UID): start anew when this life is over.
            state.restart_requested = True
        worker = self._workers[uid]
        worker.room = after or worker.room
        if kind is not UpdateKind.KILL or state.pod is None:
            state.pod = pod
        self._maybe_end(worker, kind, kill)
        worker.wake.set()

    def renew(self, pod: Pod) -> None:
        """Only the status changed in the pod's source: the next pass starts from it, and an end set there is an end."""
        state = self._phases.get(uid_of(pod))
        if state is None or state.phase is not Phase.SYNCING or uid_of(pod) not in self._workers:
            return
        if is_terminal_phase(pod.status.phase):
            self.update(UpdateKind.UPDATE, pod)
        else:
            state.pod = pod

    def kill_orphan(self, orphan: Orphan) -> None:
        """Stop a pod that no source wants and no worker knows."""
        if self._phases.get(orphan.uid) is not None:
            return
        state = PodState(orphan.uid, f"{orphan.name}_{orphan.namespace}", None, started=True, deleted=True, grace=1)
        state.move(Phase.TERMINATING, "only the runtime knows this pod")
        worker = _Worker(state, orphan=orphan)
        self._begin(worker, f"{orphan.namespace}/{orphan.name}")
        worker.wake.set()

    def sync_now(self, uid: str) -> None:
        """Something happened to the pod outside; look at it again."""
        worker = self._workers.get(PodUID(uid))
        if worker is not None:
            worker.wake.set()

    def retry_now(self, uid: str) -> None:
        """What a failed sync waits for may have come; pods without trouble are left alone."""
        worker = self._workers.get(PodUID(uid))
        if worker is not None and worker.last_error:
            worker.wake.set()

    def sync_all(self) -> None:
        """Look at every pod again, for instance because the runtime is back."""
        for worker in self._workers.values():
            worker.wake.set()

    def forget(self, uid: str) -> None:
        """Drop a finished pod from memory."""
        state = self._phases.get(uid)
        if state is not None and state.phase is Phase.FINISHED:
            if state.restart_requested:
                self._restarts.add(state.uid)
                self.on_restart(state.uid)
            self._phases.forget(uid)
            self._recorder.note(uid, Step.CLEANUP, reason="Forgotten")

    def take_restarts(self) -> set[PodUID]:
        """Forgotten pods that were added again while their old life was ending."""
        taken, self._restarts = self._restarts, set()
        return taken

    def snapshot(self) -> Mapping[str, WorkerSnapshot]:
        now = self._clock.monotonic()
        return {
            worker.state.uid: WorkerSnapshot(
                uid=worker.state.uid,
                pod=worker.state.full_name,
                phase=worker.state.phase.value,
                failures=worker.failures,
                last_error=worker.last_error,
                next_run_in=None if worker.next_run is None else max(0.0, worker.next_run - now),
                story=tuple(f"{phase.value}: {because}" for phase, because in worker.state.story),
            )
            for worker in self._workers.values()
        }

    # --- merging updates ------------------------------------------------------------------------

    def _admit(self, pod: Pod, kind: UpdateKind) -> PodState:
        state = PodState(uid_of(pod), full_name(pod), pod)
        worker = _Worker(state)
        ended = is_terminal_phase(pod.status.phase) and not is_static(pod) and kind is not UpdateKind.KILL
        if ended and self._statuses.is_down(state.uid):
            # It ended in an earlier life of this agent: only give back what it may still hold.
            state.started = True
            state.deleted = deletion_requested(pod)
            state.move(Phase.TERMINATED, "already ended when first seen")
        if is_static(pod):
            self._turns.queue(state)
        self._begin(worker, readable(pod))
        return state

    def _begin(self, worker: _Worker, pod_name: str) -> None:
        self._phases.add(worker.state)
        self._workers[worker.state.uid] = worker
        self._tasks.spawn(self._work(worker, pod_name), name=f"pod {pod_name}")

    def _maybe_end(self, worker: _Worker, kind: UpdateKind, kill: KillRequest | None) -> None:
        state = worker.state
        pod = state.pod
        assert pod is not None
        because = ""
        if deletion_requested(pod):
            state.deleted = True
            because = "deleted"
        elif is_terminal_phase(pod.status.phase) and not is_static(pod):
            because = f"phase {pod.status.phase}"
        elif kind is UpdateKind.KILL:
            because = "evicted" if kill and kill.evicted else "no longer wanted"
        if kind is UpdateKind.KILL:
            state.evicted = state.evicted or bool(kill and kill.evicted)
            state.deleted = state.deleted or kill is None
            if kill is not None:
                if kill.change_status is not None:
                    worker.changes.append(kill.change_status)
                if kill.done is not None:
                    if state.phase in (Phase.TERMINATED, Phase.FINISHED):
                        _complete(kill)
                    else:
                        worker.waiters.append(kill.done)
        if not because:
            return
        shorter = state.shorten_grace(kill.grace_override if kill else None)
        if state.phase is Phase.SYNCING:
            state.move(Phase.TERMINATING, because)
            worker.interrupt(self._clock.monotonic())
        elif state.phase is Phase.TERMINATING and shorter:
            worker.interrupt(self._clock.monotonic())

    # --- the worker's loop ----------------------------------------------------------------------

    async def _work(self, worker: _Worker, pod_name: str) -> None:
        current_pod.set(pod_name)
        state = worker.state
        self._recorder.note(state.uid, Step.SEEN)
        await worker.wake.wait()
        try:
            while state.phase is not Phase.FINISHED:
                try:
                    delay = await self._run_once(worker)
                except Exception as error:
                    delay = self._after_error(worker, error)
                worker.next_run = None if delay is None else self._clock.monotonic() + delay
                if delay is None or delay > 0:
                    await worker.wake.wait(at_most=delay)
        finally:
            for waiter in worker.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._workers.pop(state.uid, None)
            for uid in self._turns.leave(state):
                self.sync_now(uid)
        try:
            self.on_finished(state.uid)
        except Exception as error:  # this pod's trouble, never the node's; housekeeping comes by anyway
            logger.exception("the end of a pod cannot be handled")
            self._recorder.fail(state.uid, Step.CLEANUP, reason=type(error).__name__, message=str(error))

    async def _run_once(self, worker: _Worker) -> float | None:
        """Run the step of the current phase once; seconds until the next run, None to wait for news."""
        state = worker.state
        if not state.started:
            if self._turns.has_turn(state):
                # Also when it is to end: an earlier life of this agent may have started it.
                state.started = True
            elif state.is_ending:
                state.move(Phase.FINISHED, "ended before it ever started")
                return 0
            else:
                return None
        phase = state.phase
        try:
            async with asyncio.timeout(None) as scope:
                worker.scope = scope
                due = await self._step(worker)
        except TimeoutError as error:
            if scope.expired():
                return 0  # interrupted by news: run again at once with it
            return self._after_error(worker, error)
        except RetryAt as wait:
            worker.last_error = str(wait)
            return self._paced(worker, min(max(0.0, wait.delay), self._sync_frequency))
        except Exception as error:
            return self._after_error(worker, error)
        finally:
            worker.scope = None
            worker.last_sync = self._clock.monotonic()
        worker.failures = 0
        worker.last_error = ""
        if state.phase is not phase:
            return 0
        resync = jittered(self._sync_frequency, source=self._chance)
        return self._paced(worker, resync if due is None else min(due, resync))

    def _paced(self, worker: _Worker, delay: float) -> float:
        """A pass may ask for another one at once, but not again and again while nothing changes."""
        before, worker.hurried = worker.hurried, None
        if delay < REPEAT_UNCHANGED and worker.seen is not None:
            worker.hurried = worker.seen
            if before is not None and before.shows_the_same(worker.seen):
                return REPEAT_UNCHANGED
        return delay

    def _after_error(self, worker: _Worker, error: Exception) -> float:
        """This pod's trouble, never the node's: say it, keep it for `explain`, try again later."""
        worker.failures += 1
        text = str(error) or type(error).__name__
        news = text != worker.last_error
        worker.last_error = text
        self._recorder.fail(worker.state.uid, Step.SYNC, reason=type(error).__name__, message=text)
        logger.log(
            logging.WARNING if news else logging.DEBUG,
            "pod sync failed, will retry",
            extra={"phase": worker.state.phase.value, "failures": worker.failures, "error": text},
            exc_info=not isinstance(error, PykubeletError),
        )
        if isinstance(error, RuntimeDown):
            return min(RETRY_RUNTIME_DOWN_MOST, RETRY_RUNTIME_DOWN * 2.0 ** min(worker.failures - 1, 16))
        base = RETRY_NETWORK_NOT_READY if isinstance(error, NetworkNotReady) else RETRY_AFTER_ERROR
        return jittered(base, source=self._chance)

    async def _step(self, worker: _Worker) -> float | None:
        """Do what the phase asks for; seconds until something is due, if it knows."""
        state = worker.state
        if worker.orphan is not None:
            await self._steps.terminating_orphan(worker.orphan)
            worker.orphan = None
            if state.pod is None:
                state.move(Phase.FINISHED, "orphan stopped")
            else:  # its source spoke up meanwhile
                state.move(Phase.TERMINATED, "nothing runs any more")
            return None
        if worker.room is not None and state.phase is Phase.SYNCING:
            await self._wait_for_room(worker, worker.room)
        pod = state.pod
        assert pod is not None
        seen = worker.seen = await self._fresh(pod, worker.last_sync)
        if state.phase is Phase.SYNCING:
            verdict = await self._steps.sync(pod, seen)
            if verdict.ended and state.phase is Phase.SYNCING:
                state.shorten_grace(None)
                state.move(Phase.TERMINATING, "reached its end")
            return verdict.again_in
        if state.phase is Phase.TERMINATING:
            await self._steps.terminating(pod, seen, state.grace or 1, worker.changes)
            state.move(Phase.TERMINATED, "nothing runs any more")
            for waiter in worker.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        elif state.phase is Phase.TERMINATED:
            await self._steps.terminated(pod, seen)
            state.move(Phase.FINISHED, "everything given back")
        return None

    async def _fresh(self, pod: Pod, than: float) -> PodRuntimeStatus:
        try:
            return await self._statuses.fresh(uid_of(pod), than)
        except RuntimeDown:
            raise  # every pod waits, none is to blame
        except PykubeletError as error:
            self._events.pod_event(pod, WARNING, "FailedSync", f"error determining status: {error}")
            raise

    async def _wait_for_room(self, worker: _Worker, room: Room) -> None:
        with self._recorder.step(worker.state.uid, Step.ADMISSION, "room"):
            _, late = await asyncio.wait(room.stopped, timeout=room.patience)
        if late:
            logger.warning("pods that were to make room do not end in time", extra={"pods": len(late)})
        worker.room = None


def _complete(kill: KillRequest | None) -> None:
    if kill is not None and kill.done is not None and not kill.done.done():
        kill.done.set_result(None)
