"""docs/troubleshooting.md, made from the causes: `python -m pykubelet.explain.document > docs/…`.

A test compares the file with this, so that the page and the node never differ.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from pykubelet.explain.cause import Cause
from pykubelet.explain.explain import CAUSES
from pykubelet.explain.view import State

HEAD = """# Troubleshooting

Ask the node: `pykubelet explain POD` says what is wrong with a pod, since when, what the agent will do next and when,
and what you can do about it, with a timeline of everything that happened to the pod. This page lists every answer it
can give; the word in brackets after `Why` is the heading here. Made from the table in `src/pykubelet/explain/` by
`python -m pykubelet.explain.document`.
"""

GROUPS = {
    State.STUCK: "Stuck: the pod cannot start or go on",
    State.RESTARTING: "Restarting: a container keeps ending",
    State.NOT_READY: "Running, but not ready",
    State.FAILED: "Failed: the pod will not run",
    State.ENDING: "Ending: the pod is being stopped",
    State.STARTING: "Starting: nothing is wrong",
    State.NOTE: "Notes about healthy pods",
}
PLACES = {
    "name": "POD",
    "place": "7th",
    "container": "CONTAINER",
    "kind": "container",
    "image": "IMAGE",
    "reason": "REASON",
    "when": "after a while",
    "text": "…",
    "problem": "…",
    "message": "…",
    "action": "what it does",
    "again": "was restarted N times",
    "then": "",
    "previous": "",
    "volume": "a volume",
    "object": "an object",
}


def shown(text: str) -> str:
    """A text of a cause with its gaps named."""
    filled = re.sub(r"\{(\w+)\}", lambda gap: PLACES.get(gap[1], gap[1].upper()), text)
    return " ".join(filled.split())


def lines() -> Iterator[str]:
    yield HEAD
    yield "| what you see | answers |"
    yield "|---|---|"
    for state, title in GROUPS.items():
        names = ", ".join(f"[{cause.id}](#{cause.id})" for cause in CAUSES if cause.state is state)
        yield f"| {title} | {names} |"
    for state, title in GROUPS.items():
        yield f"\n## {title}"
        for cause in CAUSES:
            if cause.state is state:
                yield from section(cause)


def section(cause: Cause) -> Iterator[str]:
    yield f"\n### {cause.id}\n"
    yield f"{cause.title}. Shown as: {cause.shown}.\n"
    for depth, line in enumerate(cause.chain):
        yield f"{'  ' * depth}- {shown(line)}"
    yield f"\n**What the agent does:** {shown(cause.next)}"
    if cause.advice:
        yield "\n**What you can do:**\n"
        yield from (f"- {shown(line)}" for line in cause.advice)


def troubleshooting() -> str:
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(troubleshooting())
