"""Probe workers: ask one container's probe on its period and publish changes of result.

A worker holds no task while it waits: a timer or news about the pod makes it look, and only a probe under way is
a task. So a probe that has nothing to do (not started, on hold) costs nothing, and a container that becomes
ready to be probed is probed at once, not at the next tick. Ticks keep their grid: a slow probe drops the ticks it
covers. The rules are in decide.py, the asking in executors.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, assert_never

from msgspec import Struct

from pykubelet.api.types import ContainerStatus, Pod, PodStatus, Probe
from pykubelet.kit.clock import Clock
from pykubelet.kit.log import current_pod
from pykubelet.model.events import EventSink
from pykubelet.model.pod import AnyContainer, ContainerKind, PodUID, readable, uid_of
from pykubelet.model.reasons import WARNING
from pykubelet.model.results import ProbeKind, ProbeOutcome, ProbeResults
from pykubelet.probes.decide import Act, Tally, container_status, ends_all, first_outcome, holds_after, next_step
from pykubelet.probes.executors import Answer, ProbeErrored, ProbeExecutor, Saw, Target
from pykubelet.probes.metrics import ProbeMetrics
from pykubelet.recorder import LifeRecorder
from pykubelet.recorder import Step as LifeStep

logger = logging.getLogger(__name__)

UNHEALTHY = "Unhealthy"
PROBE_WARNING = "ProbeWarning"
OUTPUT_RECORDED = 1024
"""Characters of a probe's output kept in the record of the pod's life."""


class ToldStatuses(Protocol):
    def get(self, uid: str) -> PodStatus | None: ...


class ProbeTools(Struct, frozen=True, kw_only=True):
    """What all workers share."""

    executor: ProbeExecutor
    statuses: ToldStatuses
    results: ProbeResults
    events: EventSink
    recorder: LifeRecorder
    metrics: ProbeMetrics
    clock: Clock
    agent_started: float
    """Wall time at which the agent started."""
    recalls: bool = True
    """What was told of containers before a restart of the agent stands until their probes answer."""
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    spread: Callable[[], float] = random.random
    """A number from 0 to 1 that spreads the first probes after a restart of the agent."""


class WorkerSnapshot(Struct, frozen=True, kw_only=True):
    container: str
    kind: str
    container_id: str
    on_hold: bool
    asking: bool
    ended: bool
    last: str
    """What the last probe saw; empty before the first."""


class ProbeWorker:
    __slots__ = (
        "_asking",
        "_container",
        "_container_id",
        "_container_kind",
        "_ended",
        "_last",
        "_next",
        "_noted",
        "_on_hold",
        "_probe",
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
        self._asking: asyncio.Task[None] | None = None

    @property
    def period(self) -> float:
        return float(self._probe.period_seconds or 10)

    def look(self) -> None:
        """Something changed, or time passed: decide anew. Never waits."""
        if self._asking is not None or self._ended:
            return
        # Timers and tasks made from here on inherit it; the caller may have been about another pod.
        current_pod.set(readable(self.pod))
        self._disarm()
        try:
            self._decide()
        except Exception as error:  # a bug in one probe must not end probing
            logger.exception("probe broke", extra={"probe": self.kind.value, "pod": readable(self.pod)})
            self._tools.recorder.fail(self._uid, LifeStep.PROBE, self._subject, reason="errored", message=str(error))
            self._wait(self.period)

    def _decide(self) -> None:
        status = self._tools.statuses.get(uid_of(self.pod))
        if status is None:
            return self._wait(self.period)
        if ends_all(status):
            return self._end()
        told = container_status(status, self._container.name or "")
        if told is None:
            return self._wait(self.period)
        self._adopt(told)
        step = next_step(
            kind=self.kind,
            probe=self._probe,
            pod=self.pod,
            container=self._container,
            status=status,
            told=told,
            on_hold=self._on_hold,
            now=self._tools.clock.now(),
        )
        match step.act:
            case Act.WAIT:
                # The period is only a safety net: whatever ends the waiting is told through look().
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
                self._tick(status, told)
            case _:
                assert_never(step.act)

    def stop(self) -> None:
        """No more probes; one under way is given up, and its result forgotten."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        self._end()
        self._tools.metrics.forget(self.kind, self.pod, self._container)

    def snapshot(self) -> WorkerSnapshot:
        return WorkerSnapshot(
            container=self._container.name or "",
            kind=self.kind.value,
            container_id=self._container_id,
            on_hold=self._on_hold,
            asking=self._asking is not None,
            ended=self._ended,
            last=self._last,
        )

    # --- time -------------------------------------------------------------------------------------

    def _tick(self, status: PodStatus, told: ContainerStatus) -> None:
        """Ask if the tick is due, else wait for it."""
        now = self._tools.clock.monotonic()
        if self._next is None:
            self._next = now + self._first_delay(told)
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
        self._asking = self._tools.spawn(self._ask(target), name)

    def _first_delay(self, told: ContainerStatus) -> float:
        """Containers found at a start of the agent get their first probe at a random moment of the first period.

        Containers that start while the agent runs come one after the other anyway and are probed at once.
        """
        age = self._tools.clock.now() - self._tools.agent_started
        return self._tools.spread() * self.period if age < self.period and self._is_older(told) else 0.0

    def _wait(self, seconds: float) -> None:
        self._next = None
        self._arm(seconds)

    def _sleep(self) -> None:
        """Only news can bring this container back."""
        self._next = None

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, *, forget: bool = True) -> None:
        self._disarm()
        self._ended = True
        if forget and self._container_id:
            self._tools.results.remove(self._container_id, self.kind)

    # --- results ----------------------------------------------------------------------------------

    def _adopt(self, told: ContainerStatus) -> None:
        """A container with another id is another container: nothing known about the old one counts for it."""
        container_id = (told.container_id or "").rpartition("//")[2]
        sidecar = self._container_kind is ContainerKind.INIT
        if container_id == self._container_id:
            if sidecar and self.kind is ProbeKind.STARTUP and told.started and not self._has_result():
                self._publish(ProbeOutcome.SUCCESS)  # what was told before a restart of the agent came in late
            return
        if self._container_id:
            self._tools.results.remove(self._container_id, self.kind)
        self._container_id = container_id
        self._on_hold = False
        self._next = None
        self._noted = ""
        self._tally.clear()
        older = self._tools.recalls and self._is_older(told)
        outcome = first_outcome(self.kind, told, sidecar=sidecar, older=older)
        if outcome is not None:
            self._publish(outcome)

    def _has_result(self) -> bool:
        return self._tools.results.get(self.kind, self._container_id) is not None

    def _is_older(self, told: ContainerStatus) -> bool:
        """Whether the container ran before the agent did."""
        running = told.state.running if told.state is not None else None
        since = running.started_at if running is not None else None
        return since is not None and since.timestamp() < self._tools.agent_started

    def _publish(self, outcome: ProbeOutcome) -> None:
        self._tools.results.set(self.kind, self._container_id, uid_of(self.pod), outcome)

    async def _ask(self, target: Target) -> None:
        begun = self._tools.clock.monotonic()
        try:
            answer = await self._tools.executor.ask(self._probe, target)
            if self._asking is asyncio.current_task():  # else it was stopped meanwhile
                self._count(answer, target.container_id, self._tools.clock.monotonic() - begun)
        except ProbeErrored as error:
            self._errored(error)
        except Exception as error:  # a bug in one probe must not end probing
            logger.exception("probe broke", extra={"probe": self.kind.value, "pod": readable(self.pod)})
            self._errored(ProbeErrored(f"{type(error).__name__}: {error}"))
        if self._asking is asyncio.current_task():
            self._asking = None
            self.look()

    def _count(self, answer: Answer, container_id: str, seconds: float) -> None:
        outcome = ProbeOutcome.FAILURE if answer.saw is Saw.FAILURE else ProbeOutcome.SUCCESS
        self._last = answer.saw.value
        self._tools.metrics.count(self.kind, self.pod, self._container, outcome, seconds)
        if answer.saw is Saw.WARNING:
            self._tell(PROBE_WARNING, f"{self.kind.title} probe warning: {answer.output}")
        elif answer.saw is Saw.FAILURE:
            self._tell(UNHEALTHY, f"{self.kind.title} probe failed: {answer.output}")
        published = self._tally.add(outcome)
        self._record(answer, outcome, published)
        if not published:
            return
        if holds_after(self.kind, outcome):
            # Before telling anybody: whoever hears of it may make this worker look again.
            self._on_hold = True
            self._tally.clear()
        self._tools.results.set(self.kind, container_id, uid_of(self.pod), outcome)

    def _errored(self, error: ProbeErrored) -> None:
        self._last = f"errored: {error}"
        text = f"{self.kind.title} probe errored and resulted in {error.state} state: {error}"
        self._tell(UNHEALTHY, text)
        self._tools.recorder.fail(self._uid, LifeStep.PROBE, self._subject, reason="errored", message=str(error))

    def _record(self, answer: Answer, outcome: ProbeOutcome, published: bool) -> None:
        """Into the pod's life: each change, and failures by how often they repeat; not every success."""
        changes = published and self._tools.results.get(self.kind, self._container_id) is not outcome
        output = answer.output[:OUTPUT_RECORDED]
        if outcome is ProbeOutcome.FAILURE:
            # Outputs that differ each time (dates, numbers) would push everything else out of the record.
            if changes or self._tally.run == 1:
                self._noted = output
            self._tools.recorder.fail(self._uid, LifeStep.PROBE, self._subject, reason="failed", message=self._noted)
        elif changes:
            self._tools.recorder.note(self._uid, LifeStep.PROBE, self._subject, reason="passed", message=output)

    @property
    def _uid(self) -> PodUID:
        return uid_of(self.pod)

    @property
    def _subject(self) -> str:
        return f"{self._container.name}/{self.kind.value}"

    def _tell(self, reason: str, message: str) -> None:
        path = self._container_kind.field_path(self._container.name or "")
        self._tools.events.pod_event(self.pod, WARNING, reason, message, field_path=path)
