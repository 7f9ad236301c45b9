"""An explanation as a value, as JSON and as plain text.

The JSON is what /explain serves and what the command reads back; the text is what people read. Pure; colours and
the width of a terminal are the command's business.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from pykubelet.explain.texts import clock_time, first_line, span


class State(enum.Enum):
    """What it means for the pod; the first of these that applies is the pod's state."""

    ENDING = "ending"
    FAILED = "failed"
    STUCK = "stuck"
    RESTARTING = "restarting"
    NOT_READY = "not ready"
    STARTING = "starting"
    NOTE = "note"
    """Worth knowing; the pod is well all the same."""


class CauseView(Struct, frozen=True, kw_only=True):
    id: str
    state: State
    subject: str
    chain: tuple[str, ...]
    evidence: tuple[str, ...]
    since: float | None
    next: str
    next_in: float | None
    advice: tuple[str, ...]
    brief: str = ""
    """In one sentence, without anything that changes while the trouble stays the same."""


class Moment(Struct, frozen=True, kw_only=True):
    """One line of the timeline."""

    at: float
    offset: float
    """Seconds after the first line."""
    step: str
    subject: str
    outcome: str
    words: str
    verdict: str
    reason: str
    message: str
    seconds: float | None
    repeats: int
    last_at: float


class Explanation(Struct, frozen=True, kw_only=True):
    pod: str
    state: str
    """healthy, done, starting, not ready, restarting, stuck, failed or ending."""
    healthy: bool
    summary: str
    causes: tuple[CauseView, ...]
    timeline: tuple[Moment, ...]
    at: float

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Explanation:
        return msgspec.convert(data, cls)

    def to_text(self, *, timeline: bool = True) -> str:
        return "\n".join(_lines(self, timeline)) + "\n"


def _lines(explanation: Explanation, timeline: bool) -> Iterator[str]:
    yield f"{explanation.pod}: {explanation.state}"
    yield f"  {explanation.summary}."
    for cause in explanation.causes:
        yield ""
        yield f"Why ({cause.id})"
        for depth, line in enumerate(cause.chain):
            yield f"  {'  ' * depth}{'└ ' if depth else ''}{line}"
        if cause.evidence:
            yield "  Last lines of its log:"
            yield from (f"    | {line}" for line in cause.evidence)
        if cause.since is not None:
            yield f"Since  {clock_time(cause.since)} ({span(explanation.at - cause.since)} ago)"
        yield f"Next   {cause.next}"
        for number, line in enumerate(cause.advice):
            yield f"{'You can' if number == 0 else '       '}  - {line}"
    if timeline and explanation.timeline:
        yield ""
        yield "Timeline"
        yield from (f"  {line}" for line in timeline_lines(explanation))


def timeline_lines(explanation: Explanation) -> Iterator[str]:
    for moment in explanation.timeline:
        text = moment.words
        if moment.verdict:
            text += f": {moment.verdict}"
        if moment.seconds is not None:
            text += f" after {span(moment.seconds)}" if moment.verdict == "failed" else f" in {span(moment.seconds)}"
        elif moment.outcome == "begun":
            text += f" for {span(explanation.at - moment.at)}"
        note = ": ".join(part for part in (moment.reason, first_line(moment.message, 120)) if part)
        if note:
            text += f" — {note}"
        if moment.repeats:
            text += f" (again {moment.repeats}×, last {clock_time(moment.last_at)})"
        yield f"{clock_time(moment.at)[:8]}  +{moment.offset:.2f} s  {text}"
