"""The sync loop: every change from the outside comes in here and wakes the pods it concerns.

Inputs are pod changes from the sources, and signals of the runtime and of probes (`reactions.py`). Handling one is
quick and never waits: the work is done by the pod workers. What to do about an update is decided in `worker.py`, what
to clean up in `housekeeping.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

from msgspec import Struct, field

from pykubelet.api.types import Pod, PodStatus
from pykubelet.cm.build import ContainerManager
from pykubelet.context import Context
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import utc
from pykubelet.model.lifecycle import mark_disrupted
from pykubelet.model.pod import (
    Operation,
    PodsChanged,
    PodUID,
    ProbeKind,
    ProbeOutcome,
    compute_qos,
    deletion_requested,
    is_mirror,
    is_terminal_phase,
    name_of,
    namespace_of,
    readable,
    uid_of,
)
from pykubelet.model.reasons import PREEMPTING, WARNING
from pykubelet.node.fresh_node import FreshNode
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.admission import Rejection, Verdict
from pykubelet.pods.preemption import CONDITION_MESSAGE, EVENT_MESSAGE
from pykubelet.pods.record import Room
from pykubelet.pods.table import PodTable
from pykubelet.recorder import Step
from pykubelet.signals import (
    ContainerDied,
    ContainerStarted,
    InspectionRecovered,
    PodSetChanged,
    PodUpdated,
    ProbeResultChanged,
)
from pykubelet.sources.mux import PodMux
from pykubelet.status.manager import StatusManager
from pykubelet.sync.evict import LEAST_PATIENCE, PATIENCE_FACTOR
from pykubelet.sync.worker import KillRequest, PodWorkers, UpdateKind

logger = logging.getLogger(__name__)


class _Broken(Struct):
    """A change of a pod that could not be handled, to be tried again."""

    op: Operation
    pod: Pod
    due: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=1.0, maximum=300.0))


ROOM_MAY_BE_FREE = {Operation.ADD: "pods_added", Operation.REMOVE: "pods_removed"}
"""Changes after which resizes that wait are judged again, with upstream's word for each."""


class SyncLoop:
    name = "sync-loop"

    def __init__(
        self,
        ctx: Context,
        *,
        sources: PodMux,
        table: PodTable,
        cm: ContainerManager,
        workers: PodWorkers,
        statuses: StatusManager,
        runtime_state: RuntimeState,
        fresh_node: FreshNode | None = None,
    ) -> None:
        """`fresh_node`: with an API server, where pods that only the Node's labels keep out wait for a newer Node."""
        self._sources = sources
        self._table = table
        self._admission = cm.admission
        self._allocation = cm.allocation
        self._workers = workers
        self._statuses = statuses
        self._runtime_state = runtime_state
        self._fresh_node = fresh_node
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._broken: dict[PodUID, _Broken] = {}
        self._preemptions = ctx.metrics.counter(
            "kubelet_preemptions",
            "Pods ended for critical ones, by the resource these were short of.",
            ("preemption_signal",),
        )

    async def run(self) -> None:
        await self._runtime_state.wait_up()
        await self._workers.wait_listed()
        while True:
            for change in await self._next_changes():
                self.handle(change)
            self._try_again()

    async def _next_changes(self) -> list[PodsChanged]:
        """What changed; nothing when a pod that broke is due first."""
        due = min((broken.due for broken in self._broken.values()), default=None)
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - self._clock.monotonic())):
                return await self._sources.next_changes()
        except TimeoutError:
            return []

    def handle(self, change: PodsChanged) -> None:
        """Apply what one source changed. Never waits."""
        self._pods_changed(change)
        self._sources.mark_ready(change.source)
        if change.op in ROOM_MAY_BE_FREE:
            self._allocation.retry(ROOM_MAY_BE_FREE[change.op])
        self._signals.publish(PodSetChanged())

    # --- the runtime ----------------------------------------------------------------------------

    def container_died(self, died: ContainerDied) -> None:
        """Wake the worker, which decides about a restart."""
        if not died.requested:
            self._workers.sync_now(died.uid)
        if not died.sandbox:
            self._recorder.note(died.uid, Step.EXIT, died.name)

    def container_started(self, started: ContainerStarted) -> None:
        if self._table.worker(started.uid) is None:
            self._signals.publish(PodSetChanged())  # an orphan, which housekeeping could not know before this event
        elif not started.requested:
            self._workers.sync_now(started.uid)

    def inspection_recovered(self, recovered: InspectionRecovered) -> None:
        self._workers.sync_now(recovered.uid)

    # --- pods -----------------------------------------------------------------------------------

    def _pods_changed(self, change: PodsChanged) -> None:
        for pod in sorted(change.pods, key=_age) if change.op is Operation.ADD else change.pods:
            self._apply(change.op, pod)
        if change.op is Operation.ADD:
            # Not before all are known: a resize must not be given what a pod further down holds already.
            for pod in change.pods:
                if not is_mirror(pod) and uid_of(pod) not in self._broken:
                    self._adopt_resize(pod)

    def _apply(self, op: Operation, pod: Pod, *, judged: bool = False) -> None:
        """One change of one pod. If that breaks, it is reported and tried again, and all others go on."""
        uid, broken = uid_of(pod), self._broken.get(uid_of(pod))
        if op is not Operation.REMOVE:
            if uid in self._table.undecided:
                # Never admitted. One that was deleted meanwhile has a worker that sees it off, and needs no second one.
                op = Operation.ADD if self._table.worker(uid) is None else Operation.UPDATE
            elif broken is not None and (broken.op is Operation.ADD or op is Operation.RECONCILE):
                op = broken.op  # a new status does not make up for it
        try:
            self._change(op, pod, judged=judged)
        except Exception as error:
            broken = broken or _Broken(op=op, pod=pod)
            broken.op, broken.pod, broken.due = op, pod, self._clock.monotonic() + broken.backoff.next()
            self._broken[uid] = broken
            if op is Operation.ADD and self._table.worker(uid) is None:
                self._table.undecided.add(uid)
            self._report_broken(uid, f"pod {op.value}", error)
            self._events.pod_event(pod, WARNING, "FailedSync", f"error handling the pod: {error}")
        else:
            self._broken.pop(uid, None)
            if not self._is_waiting(uid):
                self._table.undecided.discard(uid)

    def _adopt_resize(self, pod: Pod) -> None:
        try:
            self._allocation.added([pod])
        except Exception as error:
            self._report_broken(uid_of(pod), "resize", error)

    def _try_again(self) -> None:
        now = self._clock.monotonic()
        for broken in [each for each in self._broken.values() if each.due <= now]:
            self._apply(broken.op, broken.pod)
            if broken.op is Operation.ADD and not is_mirror(broken.pod) and uid_of(broken.pod) not in self._broken:
                self._adopt_resize(broken.pod)
            self._signals.publish(PodSetChanged())

    def _report_broken(self, uid: str, what: str, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self._recorder.fail(uid, Step.SYNC, reason=type(error).__name__, message=text)
        logger.error("an event about a pod cannot be handled", extra={"uid": uid, "event": what}, exc_info=error)

    def _change(self, op: Operation, pod: Pod, *, judged: bool) -> None:
        match op:
            case Operation.ADD:
                self._add(pod, judged=judged)
            case Operation.UPDATE | Operation.DELETE:
                old = self._table.pod(uid_of(pod))
                self._table.put(pod)
                self._allocation.updated(old, pod)
                self._update(pod)
                self._check_features(old, pod)
                self._signals.publish(PodUpdated(uid_of(pod)))
            case Operation.REMOVE:
                self._remove(pod)
            case Operation.RECONCILE:
                self._reconcile(pod)
            case _:
                assert_never(op)

    def judge_again(self, uid: PodUID) -> None:
        """The Node was read anew for a pod that its labels kept out."""
        pod = self._table.pod(uid)
        if pod is None or self._was_rejected(pod):
            self._table.undecided.discard(uid)  # its source has it no more, or it was refused for another reason
        else:
            self._apply(Operation.ADD, pod, judged=True)

    def _is_waiting(self, uid: PodUID) -> bool:
        """Whether the pod waits for the newest Node."""
        return self._fresh_node is not None and uid in self._fresh_node

    def _waits_for_node(self, uid: PodUID, rejection: Rejection, judged: bool) -> bool:
        if judged or self._fresh_node is None or not rejection.may_pass_on_fresh_node:
            return False
        self._fresh_node.add(uid)
        self._recorder.note(uid, Step.ADMISSION, reason=rejection.reason, message="waits for the newest Node")
        self._table.undecided.add(uid)  # neither started nor cleaned up until then
        return True

    def _add(self, pod: Pod, *, judged: bool) -> None:
        """`judged`: once already, by a Node that may have been old."""
        self._table.put(pod)
        if is_mirror(pod):
            self._update(pod)
            return
        uid = uid_of(pod)
        self._recorder.name_pod(uid, namespace_of(pod), name_of(pod))
        logger.info("pod added", extra={"pod": readable(pod), "uid": uid})
        worker = self._table.worker(uid)
        if (worker is None or not worker.is_ending) and not is_terminal_phase(pod.status.phase):
            # After a restart of the agent the pod is judged by what was allocated to it before.
            allocated = self._allocation.allocated(pod)
            verdict = self._admission.decide(allocated, self._active_pods(but=uid))
            if verdict.rejection is not None:
                if not self._waits_for_node(uid, verdict.rejection, judged):
                    self._reject(pod, verdict.rejection)
                return
            self._allocation.admitted(allocated)
            room = self._make_room(verdict)
            self._workers.update(UpdateKind.CREATE, pod, after=room)
            return
        self._workers.update(UpdateKind.CREATE, pod)

    def _check_features(self, old: Pod | None, pod: Pod) -> None:
        lacking = self._admission.lacking_for_change(old, pod) if old is not None else ()
        if lacking:
            text = f"Pod requires node features that are not available: {', '.join(lacking)}"
            self._events.pod_event(pod, WARNING, "FailedNodeDeclaredFeaturesCheck", text)

    def _update(self, pod: Pod) -> None:
        target = self._table.static_of(pod) if is_mirror(pod) else pod
        if target is None:
            return
        if self._is_waiting(uid_of(target)):
            return  # it is judged soon, as it is then
        # A rejected pod has no worker and needs none, until it is deleted: then one must release what it holds.
        if not self._was_rejected(target) or deletion_requested(target):
            self._workers.update(UpdateKind.UPDATE, target)

    def _remove(self, pod: Pod) -> None:
        self._table.remove(pod)
        if is_mirror(pod):
            self._update(pod)
            return
        logger.info("pod removed from its source", extra={"pod": readable(pod), "uid": uid_of(pod)})
        if self._sources.all_ready() and self._table.worker(uid_of(pod)) is not None:
            self._workers.update(UpdateKind.KILL, pod)

    def _reconcile(self, pod: Pod) -> None:
        old = self._table.pod(uid_of(pod))
        self._table.put(pod)
        self._allocation.reconciled(old, pod)
        target = self._table.static_of(pod) if is_mirror(pod) else pod
        if target is None:
            return
        if target.spec.readiness_gates:
            self._update(target)  # with the conditions it has now
        else:
            self._workers.renew(target)

    def _reject(self, pod: Pod, rejection: Rejection) -> None:
        self._events.pod_event(pod, WARNING, rejection.reason, rejection.message)
        self._recorder.fail(
            uid_of(pod), Step.ADMISSION, reason=rejection.reason, message=rejection.message, cause=rejection.problem
        )
        logger.warning(
            "pod rejected", extra={"pod": readable(pod), "reason": rejection.reason, "why": rejection.message}
        )
        before = self._statuses.status_of(pod)
        status = PodStatus(
            phase="Failed",
            reason=rejection.reason,
            message=rejection.status_message,
            qos_class=compute_qos(pod).value,
            start_time=before.start_time or utc(self._clock.now()),
            observed_generation=pod.metadata.generation,
        )
        self._statuses.set_status(pod, status)

    def _was_rejected(self, pod: Pod) -> bool:
        status = self._table.reported_status(uid_of(pod))
        return self._table.worker(uid_of(pod)) is None and status is not None and status.phase == "Failed"

    def _make_room(self, verdict: Verdict) -> Room | None:
        if not verdict.victims:
            return None
        grace = max(pod.spec.termination_grace_period_seconds or 0 for pod in verdict.victims)
        stopped = [self._preempt(victim, verdict.short_of) for victim in verdict.victims]
        return Room(stopped=stopped, patience=max(LEAST_PATIENCE, PATIENCE_FACTOR * grace))

    def preempt(self, victim: Pod, short_of: str) -> None:
        """End a pod for one that matters more and is short of a resource."""
        self._preempt(victim, short_of)

    def _preempt(self, victim: Pod, short_of: str) -> asyncio.Future[None]:
        """As `preempt`; done when nothing of the victim runs any more."""
        self._preemptions.inc(short_of)
        self._events.pod_event(victim, WARNING, PREEMPTING, EVENT_MESSAGE)

        def mark(status: PodStatus) -> None:
            if status.phase != "Succeeded":
                status.phase, status.reason, status.message = "Failed", PREEMPTING, EVENT_MESSAGE
            mark_disrupted(status, CONDITION_MESSAGE, at=self._clock.now())

        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._workers.update(UpdateKind.KILL, victim, KillRequest(evicted=True, change_status=mark, done=stopped))
        return stopped

    def _active_pods(self, *, but: str) -> list[Pod]:
        return [pod for pod in self._allocation.active_pods() if uid_of(pod) != but]

    # --- probes ---------------------------------------------------------------------------------

    def probe_result_changed(self, changed: ProbeResultChanged) -> None:
        pod = self._table.pod(changed.uid)
        if pod is None:
            return
        if changed.kind is not ProbeKind.LIVENESS:
            self._workers.sync_now(changed.uid)
            self._statuses.probe_changed(pod, changed.kind, changed.container_id, changed.outcome)
        elif changed.outcome is ProbeOutcome.FAILURE:
            self._workers.sync_now(changed.uid)


def _age(pod: Pod) -> float:
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created is not None else 0.0
