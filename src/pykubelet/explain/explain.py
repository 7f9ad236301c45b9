"""From the facts about a pod to one answer: what is wrong, since when, what comes next, what a person can do.

Pure: walks the causes in their order, the order of precedence, and fills in their texts. A container shows one cause
only; a cause that is final ends the walk; notes and mere progress appear only when nothing is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pykubelet.explain import container_causes as containers
from pykubelet.explain import image_causes as images
from pykubelet.explain import pod_causes as pods
from pykubelet.explain.cause import Cause, Finding
from pykubelet.explain.facts import PodFacts
from pykubelet.explain.steps import step_text
from pykubelet.explain.texts import when
from pykubelet.explain.view import CauseView, Explanation, Moment, State
from pykubelet.model.pod import namespace_of
from pykubelet.recorder import LifeEntry, Outcome

CAUSES: Final[tuple[Cause, ...]] = (
    # the node, and the pod's end
    *(pods.runtime_down, pods.unreadable),
    *(pods.stopping_hook, pods.stopping_container, pods.stopping_volumes, pods.stopping_failed, pods.stopping),
    # never admitted, or ended by the node
    *(pods.node_short, pods.not_admitted, pods.evicted_measured, pods.evicted, pods.deadline, pods.unreadable_change),
    # before containers
    *(pods.network_not_ready, pods.cgroup_failed),
    *(pods.object_missing, pods.mount_stuck, pods.mount_failing),
    *(pods.sandbox_network, pods.sandbox_failed),
    *(images.registry_denied, images.image_missing, images.registry_unreachable, images.image_disk),
    *(images.image_other, images.image_never, images.image_name, images.image_signature, images.image_slow),
    # containers
    *(containers.config_missing, containers.config_error, containers.command_missing, containers.create_failed),
    *(containers.hook_failed, containers.hook_hangs),
    *(containers.restarted_by_hand, containers.out_of_memory, containers.probe_kills),
    *(containers.init_failed, containers.failed_for_good, containers.crash_loop),
    # running, not ready
    *(containers.probe_startup, containers.probe_readiness, containers.probe_liveness),
    *(containers.readiness_gate, containers.memory_child),
    # what is left when nothing above has an answer, and pods that are merely on their way
    *(pods.sync_failing, pods.host_hangs, pods.same_name_ending, pods.waits_for_turn),
    *(images.image_pulling, containers.init_running, containers.starting),
)
NO_MORE = "Nothing: it is not started again, and the pod stays as it is until it is made anew."
RUNS_AGAIN = "It runs again; should it end once more, the agent starts it anew, later each time."
PASSING = frozenset({"took", "again", "then", "lived", "failures", "left", "tries", "when", "place"})
"""Values that change from one explanation to the next; a brief goes without them, or it would always be new."""
PASSING_PARTS = re.compile(r'\s*"?\b(?=\w*\d)[0-9a-f]{12,}\b"?')
"""Ids of sandboxes and containers in other programs' texts: new at every try."""
GAP = re.compile(r"\{(\w+)\}")
OUTCOMES = {Outcome.BEGUN: "under way", Outcome.DONE: "done", Outcome.FAILED: "failed", Outcome.NOTED: ""}


def explain(facts: PodFacts, causes: Sequence[Cause] = CAUSES) -> Explanation:
    found = list(_matches(facts, causes))
    troubles = [view for view in found if view.state is not State.NOTE]
    state = _state(facts, troubles)
    return Explanation(
        pod=facts.shown_name,
        state=state,
        healthy=not troubles,
        summary=_summary(facts, state, found),
        causes=tuple(found),
        timeline=tuple(_moment(entry, facts.life[0].at) for entry in facts.life),
        at=facts.now,
    )


def _matches(facts: PodFacts, causes: Sequence[Cause]) -> Iterator[CauseView]:
    claimed: set[str] = set()
    in_trouble = False
    for cause in causes:
        if in_trouble and cause.state is State.STARTING:
            continue
        findings = cause.find(facts)
        for finding in findings:
            # Once the pod as a whole or a container has its cause, another for the same would only confuse.
            general = in_trouble and not finding.subject and cause.state in (State.STUCK, State.ENDING)
            if finding.subject in claimed or general:
                continue
            claimed.add(finding.subject)
            view = _view(facts, cause, finding)
            in_trouble = in_trouble or view.state is not State.NOTE
            yield view
        if cause.final and findings:
            return


def _view(facts: PodFacts, cause: Cause, finding: Finding) -> CauseView:
    namespace = namespace_of(facts.pod)
    name = facts.command_name if namespace in ("", "default") else f"-n {namespace} {facts.command_name}"
    values = _Values({"pod": facts.shown_name, "name": name, "when": when(finding.next_in), **finding.values})
    state, next_text = cause.state, values.fill(cause.next)
    if cause.state is State.RESTARTING and not finding.restarts:
        state, next_text = State.FAILED, NO_MORE
    elif finding.runs and cause.state is not State.NOTE:
        state, next_text = (State.NOTE if finding.calm and facts.is_ready else state), RUNS_AGAIN
    return CauseView(
        id=cause.id,
        state=state,
        subject=finding.subject,
        chain=tuple(values.fill(line) for line in cause.chain),
        evidence=tuple(finding.evidence),
        since=finding.since,
        next=next_text,
        next_in=finding.next_in,
        advice=tuple(values.fill(line) for line in cause.advice),
        brief=_brief(cause, values),
    )


def _brief(cause: Cause, values: _Values) -> str:
    lines = [cause.brief] if cause.brief else [line for line in cause.chain if PASSING.isdisjoint(GAP.findall(line))]
    return PASSING_PARTS.sub("", "; ".join(values.fill(line) for line in lines or [cause.title]))


class _Values(dict[str, str]):
    """What texts are filled with; a missing value shows as a question mark instead of failing the answer."""

    def __missing__(self, key: str) -> str:
        return "?"

    def fill(self, text: str) -> str:
        return " ".join(text.format_map(self).split())


def _state(facts: PodFacts, troubles: Sequence[CauseView]) -> str:
    for state in State:
        if any(view.state is state for view in troubles):
            return state.value
    if facts.phase == "Succeeded":
        return "done"
    return "failed" if facts.phase == "Failed" else "healthy"


def _summary(facts: PodFacts, state: str, found: Sequence[CauseView]) -> str:
    """One line that says it all; also good for a condition's message or an event."""
    if found:
        text = "; ".join(line.rstrip(".") for line in found[0].chain[:2])
        return text[:1].upper() + text[1:]
    if state == "done":
        return "It has done its work; every container ended well"
    if state == "failed":
        return facts.status.message or facts.status.reason or "It has failed"
    return "Every container runs and is ready"


def _moment(entry: LifeEntry, begin: float) -> Moment:
    return Moment(
        at=entry.at,
        offset=entry.at - begin,
        step=entry.step.value,
        subject=entry.subject,
        outcome=entry.outcome.value,
        words=step_text(entry.step, entry.subject),
        verdict=OUTCOMES[entry.outcome],
        reason=entry.reason,
        message=entry.message or "",
        seconds=entry.seconds,
        repeats=entry.repeats,
        last_at=entry.last_at,
    )
