"""Short ways to write down what is known about a pod."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from pykubelet.api.times import parse_duration
from pykubelet.api.types import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
)
from pykubelet.explain.explain import explain
from pykubelet.explain.facts import PodFacts
from pykubelet.explain.view import CauseView, Explanation
from pykubelet.model.pod import uid_of
from pykubelet.model.problems import ContainerProblem, CrashLoop, CreateFailed
from pykubelet.pods.record import PodWorker, WorkerState
from pykubelet.recorder import LifeEntry, Outcome, Step
from tests.builders import NOW, a_container, a_pod, at


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    state: WorkerState = WorkerState.SYNCING
    failures: int = 0
    last_error: str = ""
    next_run_in: float | None = None


def entry(
    step: Step, subject: str = "", outcome: Outcome = Outcome.DONE, *, ago: float = 5.0, **more: Any
) -> LifeEntry:
    made = LifeEntry(at=NOW - ago, step=step, subject=subject, outcome=outcome, **more)
    made.last_at = more.get("last_at", made.at)
    return made


def failed(step: Step, subject: str = "", message: str = "", **more: Any) -> LifeEntry:
    return entry(step, subject, Outcome.FAILED, message=message, **more)


def begun(step: Step, subject: str = "", *, ago: float = 5.0) -> LifeEntry:
    return entry(step, subject, Outcome.BEGUN, ago=ago)


def waiting(reason: str, message: str = "", name: str = "app", **more: Any) -> ContainerStatus:
    state = ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))
    return ContainerStatus(name=name, image="busybox:1", image_id="", ready=False, state=state, **more)


def ended(code: int = 1, *, ago: float = 12.0, lived: float = 3.0, **more: Any) -> ContainerStateTerminated:
    finished = NOW - ago
    return ContainerStateTerminated(exit_code=code, started_at=at(finished - lived), finished_at=at(finished), **more)


def crashed(
    end: ContainerStateTerminated, *, delay: str = "40s", name: str = "app", restarts: int = 3
) -> ContainerStatus:
    """Waiting in back-off after that end."""
    text = f"back-off {delay} restarting failed container={name} pod=web_default(uid-web)"
    return waiting("CrashLoopBackOff", text, name, last_state=ContainerState(terminated=end), restart_count=restarts)


def running(
    name: str = "app", *, ago: float = 100.0, ready: bool = True, started: bool = True, **more: Any
) -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning(started_at=at(NOW - ago)))
    return ContainerStatus(name=name, image="busybox:1", image_id="", ready=ready, started=started, state=state, **more)


def failures_of(statuses: Sequence[ContainerStatus]) -> dict[str, ContainerProblem]:
    """The problems with which those containers wait."""
    found: dict[str, ContainerProblem] = {}
    for status in statuses:
        waits = status.state.waiting if status.state is not None else None
        end = status.last_state.terminated if status.last_state is not None else None
        if waits is None:
            continue
        name, reason, text = status.name or "", waits.reason or "", waits.message or ""
        if reason == "CrashLoopBackOff" and end is not None and end.finished_at is not None:
            delay = parse_duration(text.split()[1])
            due = end.finished_at.timestamp() + delay
            found[name] = CrashLoop(container=name, pod="web_default(uid-web)", delay=delay, retry_at=due)
        else:
            found[name] = CreateFailed(container=name, reason=reason, text=text)
    return found


def facts(
    *statuses: ContainerStatus,
    pod: Pod | None = None,
    containers: Sequence[Container] | None = None,
    phase: str = "Pending",
    ready: bool = False,
    reason: str | None = None,
    message: str | None = None,
    init: Sequence[ContainerStatus] = (),
    worker: Worker | None = None,
    **more: Any,
) -> PodFacts:
    """Facts about pod `web`; every container of the spec is called `app` unless said otherwise."""
    pod = pod or a_pod(containers=containers or [a_container()])
    conditions = [PodCondition(type="Ready", status="True" if ready else "False")]
    if ready:
        conditions.append(PodCondition(type="ContainersReady", status="True"))
    status = PodStatus(
        phase=phase,
        reason=reason,
        message=message,
        start_time=at(NOW - 60),
        conditions=conditions,
        container_statuses=list(statuses),
        init_container_statuses=list(init),
    )
    known = PodFacts(pod=pod, status=status, failures=failures_of((*statuses, *init)), now=NOW)
    if worker is not None:
        made = PodWorker(uid_of(pod), "web_default", pod, worker.state)
        made.failures, made.last_error = worker.failures, worker.last_error
        known = replace(known, worker=made, next_run_in=worker.next_run_in)
    return replace(known, **more)


def only(about: PodFacts) -> CauseView:
    """The one cause that is found."""
    found = explain(about)
    assert len(found.causes) == 1, [view.id for view in found.causes]
    return found.causes[0]


def explained(about: PodFacts) -> Explanation:
    return explain(about)
