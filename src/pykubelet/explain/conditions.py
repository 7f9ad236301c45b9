"""The cause of a pod that is not ready, in its own conditions and events.

A pod that is not ready has upstream's complaint as the message of its Ready and ContainersReady conditions
(`containers with unready status: [app]`); behind it comes the cause in one sentence. Each cause is published once as
an event, too. Only sentences that stay the same while the trouble does are used: a status is sent when it changes.
Pods that are merely starting, that end or that have failed for good keep upstream's texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pykubelet.api.types import ContainerStatus, Pod, PodCondition, PodStatus
from pykubelet.context import Context
from pykubelet.explain.service import Explainer
from pykubelet.explain.view import CauseView, State
from pykubelet.kit.limits import Once
from pykubelet.model.pod import deletion_requested, uid_of
from pykubelet.model.reasons import CONTAINERS_READY, POD_READY, WARNING
from pykubelet.recorder import LifeEntry, Outcome

EXPLAINED: Final = "Explained"
NOT_READY: Final = "ContainersNotReady"
"""The reason of conditions that say which containers are not ready; closed readiness gates have another."""
REPORTED_STATES: Final = (State.STUCK, State.RESTARTING, State.NOT_READY)
ON_THE_WAY: Final = (None, "", "ContainerCreating", "PodInitializing")
MOST_CAUSES = 3
LONGEST = 1000
"""Letters of an explanation in a condition; upstream allows 32768, people read less."""
REMEMBERED = 2000


class WhyNotReady:
    """Called with each status before it is reported (status/manager.py)."""

    def __init__(self, ctx: Context, explainer: Explainer) -> None:
        self._explainer = explainer
        self._recorder = ctx.recorder
        self._events = ctx.events
        self._published: Once[tuple[str, str, str]] = Once(REMEMBERED)

    def __call__(self, pod: Pod, status: PodStatus) -> PodStatus:
        if deletion_requested(pod) or not any(_complains(condition) for condition in status.conditions):
            return status
        life = self._recorder.life(uid_of(pod))
        if not has_trouble(status, life.entries if life is not None else ()):
            return status
        causes = [view for view in self._explainer.explain_status(pod, status).causes if view.state in REPORTED_STATES]
        if not causes:
            return status
        for view in causes:
            self._publish(pod, view)
        why = "; ".join(dict.fromkeys(view.brief for view in causes[:MOST_CAUSES]))[:LONGEST]
        return msgspec.structs.replace(
            status, conditions=[_with_why(each, why) if _complains(each) else each for each in status.conditions]
        )

    def _publish(self, pod: Pod, view: CauseView) -> None:
        if self._published.is_new((uid_of(pod), view.id, view.subject)):
            self._events.pod_event(pod, WARNING, EXPLAINED, event_text(view))


def event_text(view: CauseView) -> str:
    text = f"{view.brief[:1].upper()}{view.brief[1:]} ({view.id})"
    return f"{text}. You can: {view.advice[0]}" if view.advice else text


def has_trouble(status: PodStatus, life: Sequence[LifeEntry]) -> bool:
    """Whether anything went wrong at all: pods on their way are many, and explaining each step of theirs costs."""
    containers = (*status.init_container_statuses, *status.container_statuses)
    return any(_went_wrong(each) for each in containers) or any(entry.outcome is Outcome.FAILED for entry in life)


def _went_wrong(status: ContainerStatus) -> bool:
    state, before = status.state, status.last_state
    if state is not None and state.waiting is not None and state.waiting.reason not in ON_THE_WAY:
        return True
    ends = [each.terminated for each in (state, before) if each is not None and each.terminated is not None]
    return any((end.exit_code or 0) != 0 for end in ends)


def _complains(condition: PodCondition) -> bool:
    return condition.type in (POD_READY, CONTAINERS_READY) and condition.reason == NOT_READY and bool(condition.message)


def _with_why(condition: PodCondition, why: str) -> PodCondition:
    return msgspec.structs.replace(condition, message=f"{condition.message}: {why}")
