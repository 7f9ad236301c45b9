"""One task per pod: takes the newest update, runs the step of the worker's state, decides when to run again.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from pykubelet.api.types import Pod, PodStatus
from pykubelet.context import Context
from pykubelet.kit import tracing
from pykubelet.kit.backoff import jittered
from pykubelet.kit.clock import Clock
from pykubelet.kit.log import current_pod
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet
from pykubelet.kit.tracing import Span
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.model.pod import (
    PodUID,
    deletion_requested,
    full_name,
    is_static,
    is_terminal_phase,
    pod_attributes,
    readable,
    uid_of,
)
from pykubelet.model.problems import ResizeFailed
from pykubelet.model.reasons import WARNING
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pleg.pleg import Pleg
from pykubelet.pods.record import Orphan, PodWorker, Room, WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.recorder import Step
from pykubelet.signals import PodFinished, PodRestarts, PodSetChanged
from pykubelet.sync.pod_sync import NetworkNotReady, PodSync, SyncResult

logger = logging.getLogger(__name__)

RETRY_AFTER_ERROR = 10.0
RETRY_NETWORK_NOT_READY = 1.0
RETRY_RUNTIME_DOWN = 0.1
RETRY_RUNTIME_DOWN_MOST = 5.0
DELETED = "deleted"
REPEAT_UNCHANGED = 1.0
"""Seconds at the least between passes that request another one soon and find the pod as they left it."""


class UpdateKind(enum.Enum):
    CREATE = "create"
    UPDATE = "update"
    KILL = "kill"


class KillRequest(Struct, frozen=True, kw_only=True):
    """Why and how fast the node ends a pod that its source still wants."""

    grace_override: int | None = None
    evicted: bool = False
    change_status: Callable[[PodStatus], None] | None = None
    done: asyncio.Future[None] | None = None
    """Completed when no container runs any more."""

    def complete(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


class PodWorkers:
    """All pod workers. Runs as a service; `update()` is its only entrance."""

    name = "pod-workers"

    def __init__(
        self,
        ctx: Context,
        *,
        table: PodTable,
        steps: PodSync,
        pleg: Pleg,
        chance: random.Random | None = None,
    ) -> None:
        self._table = table
        self._steps = steps
        self._pleg = pleg
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._sync_frequency = ctx.settings.config.sources.sync_frequency
        self._chance = chance or random.Random()
        self._queue = StaticQueue(table)
        self._measure = _Measures(ctx.metrics)
        self._tasks = TaskSet("pod workers")

    async def run(self) -> None:
        async with self._tasks:
            await asyncio.Event().wait()

    async def wait_listed(self) -> None:
        """Until it is known what runs; before that it is unknown which pods have ended."""
        await self._pleg.wait_listed()

    # --- entrance -------------------------------------------------------------------------------

    def update(self, kind: UpdateKind, pod: Pod, kill: KillRequest | None = None, *, after: Room | None = None) -> None:
        """Merge one more request for this pod into what its worker will do next.

        A kill without a request means that the pod's source has it no more. `after`: what a new pod waits for."""
        uid = uid_of(pod)
        worker = self._table.worker(uid)
        if worker is not None and worker.state is WorkerState.FINISHED and worker.pod is None:
            # Stopped as an orphan because it was rejected; now its source wants something: see it off in full.
            self._table.forget_worker(uid)
            worker = None
        if worker is None:
            worker = self._admit(pod, kind)
        elif worker.state is WorkerState.FINISHED:
            if kind is UpdateKind.CREATE:
                worker.restart_requested = True
                self._signals.publish(PodSetChanged())
            if kill is not None:
                kill.complete()
            return
        elif worker.is_ending and kind is UpdateKind.CREATE:
            # The same UID was written again (a static pod with a fixed UID): start anew when this life is over.
            worker.restart_requested = True
        worker.room = after or worker.room
        worker.updated = worker.updated or kind is UpdateKind.UPDATE
        if kind is not UpdateKind.KILL or worker.pod is None:
            worker.pod = pod
        if kind is UpdateKind.KILL:
            self._apply_kill(worker, kill)
        because = end_reason(worker.pod, kind, kill)
        if because:
            self._begin_end(worker, because, kill)
        worker.wake.set()

    def renew(self, pod: Pod) -> None:
        """Only the status changed in the pod's source: the next pass starts from it, and an end set there is an end."""
        worker = self._table.worker(uid_of(pod))
        if worker is None or worker.state is not WorkerState.SYNCING:
            return
        if is_terminal_phase(pod.status.phase):
            self.update(UpdateKind.UPDATE, pod)
        else:
            worker.pod = pod

    def kill_orphan(self, orphan: Orphan) -> None:
        """Stop a pod that no source wants and no worker knows."""
        if self._table.worker(orphan.uid) is not None:
            return
        name = f"{orphan.name}_{orphan.namespace}"
        worker = PodWorker(orphan.uid, name, None, started=True, deleted=True, grace=1, orphan=orphan)
        worker.move(WorkerState.TERMINATING, "only the runtime knows this pod")
        self._begin(worker, f"{orphan.namespace}/{orphan.name}")
        worker.wake.set()

    def sync_now(self, uid: str) -> None:
        """Something happened to the pod outside: run its step again."""
        worker = self._table.worker(uid)
        if worker is not None:
            worker.wake.set()

    def retry_now(self, uid: str) -> None:
        """What a failed sync waits for may have come; pods without trouble are left alone."""
        worker = self._table.worker(uid)
        if worker is not None and worker.last_error:
            worker.wake.set()

    def sync_all(self) -> None:
        """Run the step of every pod again, for instance because the runtime is back."""
        for worker in self._table.workers():
            worker.wake.set()

    def forget(self, uid: str) -> bool:
        """Drop a finished pod from memory; True when it was added again while it was ending and is to start anew."""
        worker = self._table.worker(uid)
        if worker is None or worker.state is not WorkerState.FINISHED:
            return False
        if worker.restart_requested:
            self._signals.publish(PodRestarts(worker.uid))
        self._table.forget_worker(uid)
        self._recorder.note(uid, Step.CLEANUP, reason="Forgotten")
        return worker.restart_requested

    # --- merging updates ------------------------------------------------------------------------

    def _admit(self, pod: Pod, kind: UpdateKind) -> PodWorker:
        worker = PodWorker(uid_of(pod), full_name(pod), pod)
        ended = is_terminal_phase(pod.status.phase) and not is_static(pod) and kind is not UpdateKind.KILL
        if ended and self._table.is_down(worker.uid):
            # It ended in an earlier life of this agent: only release what it may still hold.
            worker.started = True
            worker.deleted = deletion_requested(pod)
            worker.move(WorkerState.TERMINATED, "already ended when first seen")
        if is_static(pod):
            self._queue.add(worker)
        self._begin(worker, readable(pod))
        return worker

    def _begin(self, worker: PodWorker, pod_name: str) -> None:
        self._table.add_worker(worker)
        self._tasks.spawn(self._work(worker, pod_name), name=f"pod {pod_name}")

    def _apply_kill(self, worker: PodWorker, kill: KillRequest | None) -> None:
        if kill is None:
            worker.deleted = True
            return
        worker.evicted = worker.evicted or kill.evicted
        if kill.change_status is not None:
            worker.changes.append(kill.change_status)
        if not worker.is_active:
            kill.complete()
        elif kill.done is not None:
            worker.waiters.append(kill.done)

    def _begin_end(self, worker: PodWorker, because: str, kill: KillRequest | None) -> None:
        if because == DELETED:
            worker.deleted = True
        shorter = worker.shorten_grace(kill.grace_override if kill else None)
        if worker.state is WorkerState.SYNCING:
            worker.move(WorkerState.TERMINATING, because)
            worker.interrupt(self._clock.monotonic())
        elif worker.state is WorkerState.TERMINATING and shorter:
            worker.interrupt(self._clock.monotonic())

    # --- the worker's loop ----------------------------------------------------------------------

    async def _work(self, worker: PodWorker, pod_name: str) -> None:
        current_pod.set(pod_name)
        self._recorder.note(worker.uid, Step.SEEN)
        await worker.wake.wait()
        try:
            while worker.state is not WorkerState.FINISHED:
                try:
                    delay = await self._run_once(worker)
                except Exception as error:
                    delay = self._after_error(worker, error)
                worker.next_run = None if delay is None else self._clock.monotonic() + delay
                if delay is None or delay > 0:
                    await worker.wake.wait(at_most=delay)
            worker.next_run = worker.runtime_status = worker.hurried = None
        finally:
            worker.stopped()
            for uid in self._queue.leave(worker):
                self.sync_now(uid)
        self._signals.publish(PodFinished(worker.uid))

    async def _run_once(self, worker: PodWorker) -> float | None:
        """Run the step of the current state once; seconds until the next run, None to wait for a wake."""
        if not worker.started:
            if self._queue.is_first(worker):
                # Also when it is to end: an earlier life of this agent may have started it.
                worker.started = True
            elif worker.is_ending:
                worker.move(WorkerState.FINISHED, "ended before it ever started")
                return 0
            else:
                return None
        state = worker.state
        try:
            async with asyncio.timeout(None) as scope:
                worker.scope = scope
                result = await self._step(worker)
        except TimeoutError as error:
            if scope.expired():
                return 0  # interrupted by a change: run again at once with it
            return self._after_error(worker, error)
        except Exception as error:
            return self._after_error(worker, error)
        finally:
            worker.scope = None
            worker.last_sync = self._clock.monotonic()
        if result.problems:
            return self._after_problems(worker, result)
        worker.failures = 0
        worker.last_error = ""
        if worker.state is not state:
            return 0
        resync = jittered(self._sync_frequency, source=self._chance)
        return self._paced(worker, resync if result.retry_at is None else min(self._until(result.retry_at), resync))

    def _until(self, moment: float) -> float:
        return max(0.0, moment - self._clock.now())

    def _after_problems(self, worker: PodWorker, result: SyncResult) -> float:
        # A failed resize last: the problems of containers say more.
        text = "; ".join(map(str, sorted(result.problems, key=lambda each: isinstance(each, ResizeFailed))))
        if result.retry_at is None:
            return self._after_error(worker, PykubeletError(text))
        worker.last_error = text
        return self._paced(worker, min(self._until(result.retry_at), self._sync_frequency))

    def _paced(self, worker: PodWorker, delay: float) -> float:
        """A pass may request another one at once, but not again and again while nothing changes."""
        before, worker.hurried = worker.hurried, None
        if delay < REPEAT_UNCHANGED and worker.runtime_status is not None:
            worker.hurried = worker.runtime_status
            if before is not None and before.shows_the_same(worker.runtime_status):
                return REPEAT_UNCHANGED
        return delay

    def _after_error(self, worker: PodWorker, error: Exception) -> float:
        """This pod's trouble, never the node's: log it, keep it for `explain`, try again later."""
        worker.failures += 1
        text = str(error) or type(error).__name__
        is_new = text != worker.last_error
        worker.last_error = text
        self._recorder.fail(worker.uid, Step.SYNC, reason=type(error).__name__, message=text)
        logger.log(
            logging.WARNING if is_new else logging.DEBUG,
            "pod sync failed, will retry",
            extra={"phase": worker.state.value, "failures": worker.failures, "error": text},
            # A disk that is full or read-only says what is wrong by itself; only a bug needs to show where.
            exc_info=not isinstance(error, PykubeletError | OSError),
        )
        if isinstance(error, RuntimeDown):
            return min(RETRY_RUNTIME_DOWN_MOST, RETRY_RUNTIME_DOWN * 2.0 ** min(worker.failures - 1, 16))
        base = RETRY_NETWORK_NOT_READY if isinstance(error, NetworkNotReady) else RETRY_AFTER_ERROR
        return jittered(base, source=self._chance)

    async def _step(self, worker: PodWorker) -> SyncResult:
        """Do what the state requires."""
        if worker.orphan is not None:
            with self._measure.step("kill", self._clock):
                await self._steps.terminating_orphan(worker.orphan)
            worker.orphan = None
            if worker.pod is None:
                worker.move(WorkerState.FINISHED, "orphan stopped")
            else:  # its source has sent it meanwhile
                worker.move(WorkerState.TERMINATED, "nothing runs any more")
            return SyncResult()
        if worker.room is not None and worker.state is WorkerState.SYNCING:
            await self._wait_for_room(worker, worker.room)
        pod = worker.pod
        assert pod is not None
        status = worker.runtime_status = await self._fresh(pod, worker.last_sync)
        if worker.state is WorkerState.SYNCING:
            result = await self._sync(worker, pod, status)
            if result.ended and worker.state is WorkerState.SYNCING:
                worker.shorten_grace(None)
                if result.change is not None:
                    worker.changes.append(result.change)
                worker.move(WorkerState.TERMINATING, "reached its end")
            return result
        if worker.state is WorkerState.TERMINATING:
            with self._measure.step("kill", self._clock), pod_span("syncTerminatingPod", pod):
                await self._steps.terminating(pod, status, worker.grace or 1, worker.changes)
            worker.move(WorkerState.TERMINATED, "nothing runs any more")
            worker.stopped()
        elif worker.state is WorkerState.TERMINATED:
            with self._measure.step("terminated", self._clock), pod_span("syncTerminatedPod", pod):
                await self._steps.terminated(pod, status)
            worker.move(WorkerState.FINISHED, "everything given back")
        return SyncResult()

    async def _sync(self, worker: PodWorker, pod: Pod, status: PodRuntimeStatus) -> SyncResult:
        kind = self._begin_sync(worker)
        with self._measure.step(kind, self._clock), pod_span("syncPod", pod) as span:
            if span.recorded:
                span.set({"k8s.pod.update_type": "update" if worker.updated and kind == "sync" else kind})
            worker.updated = False
            result = await self._steps.sync(pod, status)
            if span.recorded and result.problems:
                span.fail("; ".join(map(str, result.problems)))
        return result

    def _begin_sync(self, worker: PodWorker) -> str:
        """What metrics call this sync; for the first one also how long the pod waited for it."""
        if worker.synced:
            return "sync"
        worker.synced = True
        life = self._recorder.life(worker.uid)
        first = next((entry.at for entry in life.entries if entry.step is Step.SEEN), None) if life else None
        if first is not None:
            self._measure.waited.observe(max(0.0, self._clock.now() - first))
        return "create"

    async def _fresh(self, pod: Pod, than: float) -> PodRuntimeStatus:
        try:
            return await self._pleg.status_newer_than(uid_of(pod), than)
        except RuntimeDown:
            raise  # every pod waits, none is to blame
        except PykubeletError as error:
            self._events.pod_event(pod, WARNING, "FailedSync", f"error determining status: {error}")
            raise

    async def _wait_for_room(self, worker: PodWorker, room: Room) -> None:
        with self._recorder.step(worker.uid, Step.ADMISSION, "room"):
            _, late = await asyncio.wait(room.stopped, timeout=room.patience)
        if late:
            logger.warning("pods that were to make room do not end in time", extra={"pods": len(late)})
        worker.room = None


def pod_span(name: str, pod: Pod) -> Span:
    span = tracing.span(name)
    if span.recorded:
        span.set(pod_attributes(pod))
    return span


def end_reason(pod: Pod, kind: UpdateKind, kill: KillRequest | None) -> str:
    """Why the pod is to end; empty when it is not."""
    if deletion_requested(pod):
        return DELETED
    if is_terminal_phase(pod.status.phase) and not is_static(pod):
        return f"phase {pod.status.phase}"
    if kind is UpdateKind.KILL:
        return "evicted" if kill and kill.evicted else "no longer wanted"
    return ""


class StaticQueue:
    """Static pods of one name run one at a time, in the order they came."""

    def __init__(self, table: PodTable) -> None:
        self._table = table
        self._queues: dict[str, list[PodUID]] = {}

    def add(self, worker: PodWorker) -> None:
        self._queues.setdefault(worker.full_name, []).append(worker.uid)

    def is_first(self, worker: PodWorker) -> bool:
        """Whether no pod of the same name is before it; always so for a pod that never queued."""
        queue = self._queues.get(worker.full_name)
        if queue is None or worker.uid not in queue:
            return True
        for uid in queue:
            if uid == worker.uid:
                return True
            other = self._table.worker(uid)
            if other is not None and (other.started or not other.is_ending):
                return False
        return True

    def leave(self, worker: PodWorker) -> list[PodUID]:
        """The pod is done; returns those of its name that have yet to start."""
        queue = self._queues.get(worker.full_name)
        if queue is None or worker.uid not in queue:
            return []
        queue.remove(worker.uid)
        if not queue:
            del self._queues[worker.full_name]
        waiting = (self._table.worker(uid) for uid in queue)
        return [other.uid for other in waiting if other is not None and not other.started]


class _Measures:
    def __init__(self, metrics: Registry) -> None:
        self._taken = metrics.histogram(
            "kubelet_pod_worker_duration_seconds", "Steps of pod workers.", ("operation_type",)
        )
        self.waited = metrics.histogram(
            "kubelet_pod_worker_start_duration_seconds", "From the first sight of a pod to its first step."
        )

    @contextmanager
    def step(self, kind: str, clock: Clock) -> Iterator[None]:
        begun = clock.monotonic()
        try:
            yield
        finally:
            self._taken.observe(clock.monotonic() - begun, kind)
