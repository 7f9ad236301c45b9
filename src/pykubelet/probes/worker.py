"""Probe workers: run one container's probe on its period and publish changes of its result.

A worker holds no task while it waits: a timer or a change of the pod makes it check, and only a probe under way is
a task. So a probe that has nothing to do (not started, on hold) costs nothing, and a container that becomes
ready to be probed is probed at once, not at the next tick. Ticks keep their grid: a slow probe drops the ticks it
covers. The rules are in decide.py, the probing itself in executors.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, assert_never

from msgspec import Struct

from pykubelet.api.types import ContainerStatus, Pod, PodStatus, Probe
from pykubelet.context import Context
from pykubelet.kit.log import current_pod
from pykubelet.kit.metrics import Counter, Histogram
from pykubelet.model.pod import (
    AnyContainer,
    ContainerKind,
    PodUID,
    ProbeKey,
    ProbeKind,
    ProbeOutcome,
    name_of,
    namespace_of,
    readable,
    uid_of,
)
from pykubelet.model.reasons import WARNING
from pykubelet.pods.table import PodTable
from pykubelet.probes.decide import Act, Tally, container_status, ends_all, first_outcome, holds_after, next_step
from pykubelet.probes.executors import Answer, ProbeErrored, ProbeExecutor, Result, Target
from pykubelet.recorder import Step as LifeStep
from pykubelet.signals import ProbeResultChanged

logger = logging.getLogger(__name__)

UNHEALTHY = "Unhealthy"
PROBE_WARNING = "ProbeWarning"
OUTPUT_RECORDED = 1024
"""Characters of a probe's output kept in the record of the pod's life."""
RESULT_LABELS: Final = {
    ProbeOutcome.SUCCESS: "successful",
    ProbeOutcome.FAILURE: "failed",
    ProbeOutcome.UNKNOWN: "unknown",
}


class _Counter(Counter):
    def forget(self, *labels: str) -> None:
        self._values.pop(labels, None)


class _Histogram(Histogram):
    def forget(self, *labels: str) -> None:
        self._values.pop(labels, None)


class ProbeMetrics:
    """Counts probe results and durations for the page /metrics/probes.

    That page is separate from /metrics, so these instruments are in no registry: `expose` renders them. Series of a
    probe disappear with its worker, else every pod that ever ran would stay on the page.
    """

    def __init__(self) -> None:
        self.total = _Counter(
            "prober_probe_total",
            "Liveness, readiness and startup probes of containers, by what they found.",
            ("probe_type", "result", "container", "pod", "namespace", "pod_uid"),
        )
        self.duration = _Histogram(
            "prober_probe_duration_seconds",
            "Seconds until a probe had its answer.",
            ("probe_type", "container", "pod", "namespace"),
        )

    def count(self, kind: ProbeKind, pod: Pod, container: AnyContainer, outcome: ProbeOutcome, seconds: float) -> None:
        name, pod_name, namespace = container.name, name_of(pod), namespace_of(pod)
        self.total.inc(kind.title, RESULT_LABELS[outcome], name, pod_name, namespace, uid_of(pod))
        if outcome is not ProbeOutcome.FAILURE:  # as upstream: failures often only measure the timeout
            self.duration.observe(seconds, kind.title, name, pod_name, namespace)

    def forget(self, kind: ProbeKind, pod: Pod, container: AnyContainer) -> None:
        name, pod_name, namespace = container.name, name_of(pod), namespace_of(pod)
        for label in RESULT_LABELS.values():
            self.total.forget(kind.title, label, name, pod_name, namespace, uid_of(pod))
        self.duration.forget(kind.title, name, pod_name, namespace)

    def expose(self) -> str:
        return "\n".join([*self.duration.render(), *self.total.render()]) + "\n"


class ProbeTools(Struct, frozen=True, kw_only=True):
    """What all workers share."""

    ctx: Context
    executor: ProbeExecutor
    table: PodTable
    metrics: ProbeMetrics
    agent_started: float
    """Wall time at which the agent started."""
    keep_reported: bool
    """Whether what was reported of containers before a restart of the agent stands until their probes answer."""
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    spread: Callable[[], float] = random.random
    """A number from 0 to 1 that spreads the first probes after a restart of the agent."""


class WorkerSnapshot(Struct, frozen=True, kw_only=True):
    container: str
    kind: str
    container_id: str
    on_hold: bool
    probing: bool
    ended: bool
    last: str
    """The last result; empty before the first."""


class ProbeWorker:
    __slots__ = (
        "_container",
        "_container_id",
        "_container_kind",
        "_ended",
        "_last",
        "_next",
        "_noted",
        "_on_hold",
        "_probe",
        "_probing",
        "_ran_at",
        "_tally",
        "_timer",
        "_tools",
        "kind",
        "pod",
    )

    def __init__(
        self,
        *,
        tools: ProbeTools,
        pod: Pod,
        container: AnyContainer,
        container_kind: ContainerKind,
        kind: ProbeKind,
        probe: Probe,
    ) -> None:
        self.pod = pod
        self.kind = kind
        self._tools = tools
        self._container = container
        self._container_kind = container_kind
        self._probe = probe
        self._container_id = ""
        self._on_hold = False
        self._ended = False
        self._tally = Tally(probe)
        self._last = ""
        self._noted = ""
        self._timer: asyncio.TimerHandle | None = None
        self._next: float | None = None
        """Loop time of the next tick; None while the container is not one to be probed."""
        self._ran_at: float | None = None
        """Loop time at which this container was first seen running."""
        self._probing: asyncio.Task[None] | None = None

    @property
    def period(self) -> float:
        return float(self._probe.period_seconds or 10)

    def check(self) -> None:
        """Decide anew, because something changed or time passed. Never waits."""
        if self._probing is not None or self._ended:
            return
        # Timers and tasks made from here on inherit it; the caller may have been about another pod.
        current_pod.set(readable(self.pod))
        self._disarm()
        try:
            self._decide()
        except Exception as error:  # a bug in one probe must not end probing
            logger.exception("probe broke", extra={"probe": self.kind.value, "pod": readable(self.pod)})
            self._tools.ctx.recorder.fail(
                self._uid, LifeStep.PROBE, self._subject, reason="errored", message=str(error)
            )
            self._wait(self.period)

    def _decide(self) -> None:
        status = self._tools.table.reported_status(uid_of(self.pod))
        if status is None:
            return self._wait(self.period)
        if ends_all(status):
            return self._end()
        reported = container_status(status, self._container.name)
        if reported is None:
            return self._wait(self.period)
        self._adopt(reported)
        step = next_step(
            kind=self.kind,
            probe=self._probe,
            pod=self.pod,
            container=self._container,
            status=status,
            reported=reported,
            on_hold=self._on_hold,
            now=self._tools.ctx.clock.now(),
            seen_running=self._seen_running(reported),
        )
        match step.act:
            case Act.WAIT:
                # The period is only a safety net: a change that ends the waiting calls check().
                self._wait(step.delay or self.period)
            case Act.FAIL:
                self._publish(ProbeOutcome.FAILURE)
                self._wait(self.period)
            case Act.FAIL_AND_END:
                self._publish(ProbeOutcome.FAILURE)
                self._sleep()
            case Act.PASS_AND_END:
                self._publish(ProbeOutcome.SUCCESS)
                self._end(forget=False)
            case Act.PROBE:
                self._tick(status, reported)
            case _:
                assert_never(step.act)

    def stop(self) -> None:
        """No more probes; one under way is given up, and its result forgotten."""
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None
        self._end()
        self._tools.metrics.forget(self.kind, self.pod, self._container)

    def snapshot(self) -> WorkerSnapshot:
        return WorkerSnapshot(
            container=self._container.name,
            kind=self.kind.value,
            container_id=self._container_id,
            on_hold=self._on_hold,
            probing=self._probing is not None,
            ended=self._ended,
            last=self._last,
        )

    # --- time -------------------------------------------------------------------------------------

    def _tick(self, status: PodStatus, reported: ContainerStatus) -> None:
        """Probe if the tick is due, else wait for it."""
        now = self._tools.ctx.clock.monotonic()
        if self._next is None:
            self._next = now + self._first_delay(reported)
        if now < self._next:
            self._arm(self._next - now)
            return
        # Ticks that passed meanwhile are dropped, but the grid stays.
        self._next += self.period * (1 + int((now - self._next) / self.period))
        target = Target(
            pod=self.pod,
            container=self._container,
            container_id=self._container_id,
            pod_ip=status.pod_ip or "",
        )
        name = f"{self.kind.value} probe of {self._container.name} in {readable(self.pod)}"
        self._probing = self._tools.spawn(self._probe_once(target), name)

    def _first_delay(self, reported: ContainerStatus) -> float:
        """Containers found at a start of the agent get their first probe at a random moment of the first period.

        Containers that start while the agent runs come one after the other anyway and are probed at once.
        """
        age = self._tools.ctx.clock.now() - self._tools.agent_started
        return self._tools.spread() * self.period if age < self.period and self._is_older(reported) else 0.0

    def _wait(self, seconds: float) -> None:
        self._next = None
        self._arm(seconds)

    def _sleep(self) -> None:
        """Wait for a change: only that can bring this container back."""
        self._next = None

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.check)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, *, forget: bool = True) -> None:
        self._disarm()
        self._ended = True
        if forget and self._container_id:
            self._tools.table.forget_probe_outcome(self._uid, self._key)

    # --- results ----------------------------------------------------------------------------------

    def _seen_running(self, reported: ContainerStatus) -> float:
        if reported.state is None or reported.state.running is None:
            return 0.0
        now = self._tools.ctx.clock.monotonic()
        if self._ran_at is None:
            self._ran_at = now
        return now - self._ran_at

    def _adopt(self, reported: ContainerStatus) -> None:
        """A container with another id is another container: nothing known about the old one counts for it."""
        container_id = (reported.container_id or "").rpartition("//")[2]
        sidecar = self._container_kind is ContainerKind.INIT
        if container_id == self._container_id:
            if sidecar and self.kind is ProbeKind.STARTUP and reported.started and not self._has_result():
                self._publish(ProbeOutcome.SUCCESS)  # what was reported before a restart of the agent came in late
            return
        if self._container_id:
            self._tools.table.forget_probe_outcome(self._uid, self._key)
        self._container_id = container_id
        self._on_hold = False
        self._next = None
        self._ran_at = None
        self._noted = ""
        self._tally.clear()
        older = self._tools.keep_reported and self._is_older(reported)
        outcome = first_outcome(self.kind, reported, sidecar=sidecar, older=older)
        if outcome is not None:
            self._publish(outcome)

    def _has_result(self) -> bool:
        return self._key in self._tools.table.probe_outcomes(self._uid)

    def _is_older(self, reported: ContainerStatus) -> bool:
        """Whether the container ran before the agent did."""
        running = reported.state.running if reported.state is not None else None
        since = running.started_at if running is not None else None
        return since is not None and since.timestamp() < self._tools.agent_started

    def _publish(self, outcome: ProbeOutcome) -> None:
        self._set_outcome(self._container_id, outcome)

    def _set_outcome(self, container_id: str, outcome: ProbeOutcome) -> None:
        if self._tools.table.set_probe_outcome(self._uid, (self.kind, container_id), outcome):
            self._tools.ctx.signals.publish(
                ProbeResultChanged(self._uid, kind=self.kind, container_id=container_id, outcome=outcome)
            )

    @property
    def _key(self) -> ProbeKey:
        return (self.kind, self._container_id)

    async def _probe_once(self, target: Target) -> None:
        begun = self._tools.ctx.clock.monotonic()
        try:
            answer = await self._tools.executor.probe(self._probe, target)
            if self._probing is asyncio.current_task():  # else it was stopped meanwhile
                self._count(answer, target.container_id, self._tools.ctx.clock.monotonic() - begun)
        except ProbeErrored as error:
            self._errored(error)
        except Exception as error:  # a bug in one probe must not end probing
            logger.exception("probe broke", extra={"probe": self.kind.value, "pod": readable(self.pod)})
            self._errored(ProbeErrored(f"{type(error).__name__}: {error}"))
        if self._probing is asyncio.current_task():
            self._probing = None
            self.check()

    def _count(self, answer: Answer, container_id: str, seconds: float) -> None:
        outcome = ProbeOutcome.FAILURE if answer.result is Result.FAILURE else ProbeOutcome.SUCCESS
        self._last = answer.result.value
        self._tools.metrics.count(self.kind, self.pod, self._container, outcome, seconds)
        if answer.result is Result.WARNING:
            self._record_event(PROBE_WARNING, f"{self.kind.title} probe warning: {answer.output}")
        elif answer.result is Result.FAILURE:
            self._record_event(UNHEALTHY, f"{self.kind.title} probe failed: {answer.output}")
        published = self._tally.add(outcome)
        self._record(answer, outcome, published)
        if not published:
            return
        if holds_after(self.kind, outcome):
            # Before the result is published: its subscribers may make this worker check again.
            self._on_hold = True
            self._tally.clear()
        self._set_outcome(container_id, outcome)

    def _errored(self, error: ProbeErrored) -> None:
        self._last = f"errored: {error}"
        text = f"{self.kind.title} probe errored and resulted in {error.state} state: {error}"
        self._record_event(UNHEALTHY, text)
        self._record_failure("errored", str(error))

    def _record(self, answer: Answer, outcome: ProbeOutcome, published: bool) -> None:
        """Into the pod's life: each change, and failures by how often they repeat; not every success."""
        changes = published and self._tools.table.probe_outcomes(self._uid).get(self._key) is not outcome
        output = answer.output[:OUTPUT_RECORDED]
        if outcome is ProbeOutcome.FAILURE:
            # Outputs that differ each time (dates, numbers) would push everything else out of the record.
            if changes or self._tally.run == 1:
                self._noted = output
            self._tools.ctx.recorder.fail(
                self._uid, LifeStep.PROBE, self._subject, reason="failed", message=self._noted
            )
        elif changes:
            self._tools.ctx.recorder.note(self._uid, LifeStep.PROBE, self._subject, reason="passed", message=output)

    def _record_failure(self, reason: str, message: str) -> None:
        self._tools.ctx.recorder.fail(self._uid, LifeStep.PROBE, self._subject, reason=reason, message=message)

    @property
    def _uid(self) -> PodUID:
        return uid_of(self.pod)

    @property
    def _subject(self) -> str:
        return f"{self._container.name}/{self.kind.value}"

    def _record_event(self, reason: str, message: str) -> None:
        path = self._container_kind.field_path(self._container.name)
        self._tools.ctx.events.pod_event(self.pod, WARNING, reason, message, field_path=path)
