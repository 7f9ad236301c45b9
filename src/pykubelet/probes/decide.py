"""Decides whether to probe now and what the answers add up to. Pure: every branch is one table row.

Covers: which container the probe is about, waiting, gating by startup, initial delay, the end of probing, and
the thresholds. Does not cover: time, tasks, events (worker.py) or how a probe is carried out (executors.py).
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from pykubelet.api.types import ContainerStatus, Pod, PodStatus, Probe
from pykubelet.model.pod import (
    AnyContainer,
    ProbeKind,
    ProbeOutcome,
    deletion_requested,
    is_terminal_phase,
    restarts_on_exit,
)
from pykubelet.model.reasons import ALL_CONTAINERS_RESTARTING

INITIAL: Final = {
    ProbeKind.READINESS: ProbeOutcome.FAILURE,
    ProbeKind.LIVENESS: ProbeOutcome.SUCCESS,
    ProbeKind.STARTUP: ProbeOutcome.UNKNOWN,
}


class Act(enum.Enum):
    WAIT = "wait"
    """No probe until something changes, or until the time given."""
    PROBE = "probe"
    FAIL = "fail"
    """The container does not run: that is a failure without a probe."""
    FAIL_AND_END = "fail and end"
    PASS_AND_END = "pass and end"
    """The pod is being deleted: a last good result keeps its end quiet."""


class Step(Struct, frozen=True):
    act: Act
    delay: float = 0.0
    """With WAIT: seconds until a probe makes sense; 0 = when something changes."""


_WAIT: Final = Step(Act.WAIT)


def container_status(status: PodStatus, name: str) -> ContainerStatus | None:
    """The reported status of the container, once it has an id."""
    for reported in (*status.container_statuses, *status.init_container_statuses):
        if reported.name == name and reported.container_id:
            return reported
    return None


def next_step(
    *,
    kind: ProbeKind,
    probe: Probe,
    pod: Pod,
    container: AnyContainer,
    status: PodStatus,
    reported: ContainerStatus,
    on_hold: bool,
    now: float,
    seen_running: float = 0.0,
) -> Step:
    """What to do about a container whose id is known. `now` is wall time, `seen_running` the seconds that we know it
    to run: the clock may have been set back since its start."""
    if on_hold:
        return _WAIT
    state = reported.state
    if state is None or state.running is None:
        ended = state.terminated if state is not None else None
        if ended is None:
            # About to start: a liveness failure published now would kill it as soon as it runs.
            return Step(Act.FAIL) if kind is ProbeKind.READINESS else _WAIT
        return Step(Act.FAIL if _comes_back(pod, container, status, ended.exit_code or 0) else Act.FAIL_AND_END)
    if deletion_requested(pod) and kind is not ProbeKind.READINESS:
        return Step(Act.PASS_AND_END)
    if bool(reported.started) == (kind is ProbeKind.STARTUP):
        return _WAIT
    since = state.running.started_at
    ran = max(now - (since.timestamp() if since is not None else 0.0), seen_running)
    left = (probe.initial_delay_seconds or 0) - ran
    return Step(Act.WAIT, left) if left > 0 else Step(Act.PROBE)


def first_outcome(kind: ProbeKind, reported: ContainerStatus, *, sidecar: bool, older: bool) -> ProbeOutcome | None:
    """What counts before the first answer; None leaves what was reported before a restart of the agent standing.

    `older`: the container ran before the agent did; what was reported of it may not be known yet."""
    if kind is ProbeKind.LIVENESS:
        return INITIAL[kind]
    if kind is ProbeKind.STARTUP and reported.started and sidecar:
        # By a sidecar's result the plan knows that the pod is initialised.
        return ProbeOutcome.SUCCESS
    stands = reported.ready if kind is ProbeKind.READINESS else reported.started
    return None if stands or older else INITIAL[kind]


def ends_all(status: PodStatus) -> bool:
    return is_terminal_phase(status.phase)


class Tally:
    """Consecutive equal outcomes; an outcome counts once there are enough of it."""

    __slots__ = ("_enough", "_last", "run")

    def __init__(self, probe: Probe) -> None:
        self._enough = {
            ProbeOutcome.SUCCESS: probe.success_threshold or 1,
            ProbeOutcome.FAILURE: probe.failure_threshold or 3,
        }
        self._last: ProbeOutcome | None = None
        self.run = 0

    def add(self, outcome: ProbeOutcome) -> bool:
        """Whether the outcome is to be published."""
        self.run = self.run + 1 if outcome is self._last else 1
        self._last = outcome
        return self.run >= self._enough[outcome]

    def clear(self) -> None:
        self._last, self.run = None, 0


def holds_after(kind: ProbeKind, outcome: ProbeOutcome) -> bool:
    """Whether probing stops until there is a new container: it is to be replaced, or has started."""
    return kind is ProbeKind.STARTUP or (kind is ProbeKind.LIVENESS and outcome is ProbeOutcome.FAILURE)


def _comes_back(pod: Pod, container: AnyContainer, status: PodStatus, exit_code: int) -> bool:
    if restarts_on_exit(pod, container, exit_code):
        return True
    return any(c.type == ALL_CONTAINERS_RESTARTING and c.status == "True" for c in status.conditions)
