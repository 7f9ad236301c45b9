"""A cause: one way a pod can be stuck, restarting or ending. Its finder and its texts stand together.

A cause is a finder under `@Cause(...)`, which says what is wrong (from the symptom down to the root), what the agent
does next and what a person can do. The command, the node's server and docs/troubleshooting.md show these texts. The
causes are in pod_causes.py, image_causes.py and container_causes.py; explain.py has their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.explain.facts import ContainerFacts, PodFacts
from pykubelet.explain.texts import first_line
from pykubelet.explain.view import State
from pykubelet.model.pod import ContainerKind
from pykubelet.recorder import Step


class Finding(Struct, frozen=True, kw_only=True):
    """The facts of one trouble, with which the cause's texts are filled."""

    subject: str = ""
    """Container or volume it is about; empty for the whole pod."""
    values: Mapping[str, str] = field(default_factory=dict)
    """For the gaps of the texts."""
    since: float | None = None
    next_in: float | None = None
    """Seconds until the agent acts again by itself; None = it waits for something to happen."""
    evidence: Sequence[str] = ()
    """Lines of others: a log, a probe's output."""
    runs: bool = False
    """The container that ended runs again."""
    calm: bool = False
    """It has been running for so long that its last end is a mere note."""
    restarts: bool = True
    """Whether the agent starts it again, or would."""


Finder = Callable[[PodFacts], Sequence[Finding]]


class Cause(Struct, frozen=True, kw_only=True):
    """The texts of a cause; as a decorator it takes the finder below it."""

    id: str
    title: str
    state: State
    chain: tuple[str, ...]
    """What is wrong, symptom first; each line is explained by the next."""
    next: str
    advice: tuple[str, ...]
    shown: str
    """What `get pods` shows for it."""
    brief: str = ""
    """One sentence for conditions and events. Without one it is made of the lines of the chain that stay the same from
    one explanation to the next."""
    final: bool = False
    """The causes after it do not matter once it is found."""
    find: Finder = lambda facts: ()

    def __call__(self, find: Finder) -> Cause:
        return replace(self, find=find)


KINDS = {
    ContainerKind.INIT: "init container",
    ContainerKind.REGULAR: "container",
    ContainerKind.EPHEMERAL: "ephemeral container",
}


def container_finding(
    container: ContainerFacts,
    values: Mapping[str, str],
    *,
    since: float | None,
    next_in: float | None,
    evidence: Sequence[str] = (),
) -> Finding:
    known = {"container": container.name, "kind": KINDS[container.kind], "restarts": str(container.restarts)}
    return Finding(subject=container.name, values={**known, **values}, since=since, next_in=next_in, evidence=evidence)


def waiting_findings(facts: PodFacts, *wanted: str) -> list[Finding]:
    """Containers that wait with one of the reasons."""
    found = []
    for container in facts.containers():
        if container.waiting_reason not in wanted:
            continue
        values = {
            "image": container.spec.image or "",
            "text": first_line(container.waiting_message),
            "reason": container.waiting_reason,
        }
        since = facts.failing_since(Step.CREATE, container.name) or facts.failing_since(Step.START, container.name)
        found.append(container_finding(container, values, since=since, next_in=facts.next_run_in))
    return found
