"""From the facts about a pod to one answer: what is wrong, since when, what comes next, what a person can do.

Pure: walks the table in causes.py in its order and fills in its texts. A container shows one cause only; a cause
that is final ends the walk; notes and mere progress appear only when nothing is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pykubelet.explain.cause import Cause, State
from pykubelet.explain.causes import CAUSES
from pykubelet.explain.facts import PodFacts
from pykubelet.explain.find_container import step_words
from pykubelet.explain.findings import Finding, when
from pykubelet.explain.view import CauseView, Explanation, Moment
from pykubelet.model.pod import namespace_of
from pykubelet.recorder import LifeEntry, Outcome

NO_MORE = "Nothing: it is not started again, and the pod stays as it is until it is made anew."
RUNS_AGAIN = "It runs again; should it end once more, the agent starts it anew, later each time."
PASSING = frozenset({"took", "again", "then", "lived", "failures", "left", "tries", "when"})
"""Words that say something else at every look; a brief goes without them, or it would be news all the time."""
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
    told = False
    for cause in causes:
        if told and cause.state is State.STARTING:
            continue
        findings = cause.find(facts)
        for finding in findings:
            # Once the pod as a whole or a container has its cause, another for the same would only confuse.
            general = told and not finding.subject and cause.state in (State.STUCK, State.ENDING)
            if finding.subject in claimed or general:
                continue
            claimed.add(finding.subject)
            view = _view(facts, cause, finding)
            told = told or view.state is not State.NOTE
            yield view
        if cause.final and findings:
            return


def _view(facts: PodFacts, cause: Cause, finding: Finding) -> CauseView:
    namespace = namespace_of(facts.pod)
    name = facts.command_name if namespace in ("", "default") else f"-n {namespace} {facts.command_name}"
    words = _Words({"pod": facts.shown_name, "name": name, "when": when(finding.next_in), **finding.words})
    state, next_text = cause.state, words.fill(cause.next)
    if cause.state is State.RESTARTING and words.get("final"):
        state, next_text = State.FAILED, NO_MORE
    elif words.get("then") and cause.state is not State.NOTE:
        state, next_text = (State.NOTE if words["calm"] and facts.is_ready else state), RUNS_AGAIN
    return CauseView(
        id=cause.id,
        state=state,
        subject=finding.subject,
        chain=tuple(words.fill(line) for line in cause.chain),
        evidence=tuple(finding.evidence),
        since=finding.since,
        next=next_text,
        next_in=finding.next_in,
        advice=tuple(words.fill(line) for line in cause.advice),
        brief=_brief(cause, words),
    )


def _brief(cause: Cause, words: _Words) -> str:
    lines = [cause.brief] if cause.brief else [line for line in cause.chain if PASSING.isdisjoint(GAP.findall(line))]
    return PASSING_PARTS.sub("", "; ".join(words.fill(line) for line in lines or [cause.title]))


class _Words(dict[str, str]):
    """What texts are filled with; a word nobody gave shows as a question mark instead of failing the answer."""

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
    said = entry.message or ""
    return Moment(
        at=entry.at,
        offset=entry.at - begin,
        step=entry.step.value,
        subject=entry.subject,
        outcome=entry.outcome.value,
        words=step_words(entry.step, entry.subject),
        verdict=OUTCOMES[entry.outcome],
        reason=entry.reason,
        message=said,
        seconds=entry.seconds,
        repeats=entry.repeats,
        last_at=entry.last_at,
    )
