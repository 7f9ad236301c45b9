"""Everything that is known about one pod at one moment, as one frozen value, and small questions about it.

The input of `explain`; whoever has the parts (service.py) fills it, tests write it down. Pure: nothing here waits,
reads or asks. Does not judge; that is done by the finders behind the table in causes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct, field

from pykubelet.api.types import ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodStatus
from pykubelet.model.life import LifeEntry, Outcome, Step
from pykubelet.model.pod import (
    AnyContainer,
    ContainerKind,
    all_containers,
    deletion_requested,
    is_static,
    name_of,
    namespace_of,
)
from pykubelet.model.runtime_status import PodRuntimeStatus


class WorkerView(Protocol):
    """What the pod's worker says about itself (sync/worker.py)."""

    @property
    def phase(self) -> str: ...

    @property
    def failures(self) -> int: ...

    @property
    def last_error(self) -> str: ...

    @property
    def next_run_in(self) -> float | None: ...

    @property
    def story(self) -> tuple[str, ...]: ...


class EventView(Protocol):
    """One event of the pod (events/broadcaster.py)."""

    @property
    def kind(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def field_path(self) -> str: ...

    @property
    def first(self) -> float: ...

    @property
    def last(self) -> float: ...

    @property
    def count(self) -> int: ...


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The node around the pod."""

    runtime_up: bool = True
    runtime_problem: str = ""
    network_problem: str = ""
    """Why the pod network cannot be used; empty when it can."""


LastLog = Callable[[str, bool], Sequence[str]]
"""(container, previous run) to the last lines of its log, oldest first; empty when there are none."""


def no_log(container: str, previous: bool) -> Sequence[str]:
    return ()


class ContainerFacts(Struct, frozen=True, kw_only=True):
    """One container of the spec beside what is told about it."""

    kind: ContainerKind
    spec: AnyContainer
    told: ContainerStatus | None

    @property
    def name(self) -> str:
        return self.spec.name or ""

    @property
    def waiting(self) -> ContainerStateWaiting | None:
        return self.told.state.waiting if self.told is not None and self.told.state is not None else None

    @property
    def waiting_reason(self) -> str:
        return (self.waiting.reason if self.waiting is not None else "") or ""

    @property
    def waiting_message(self) -> str:
        return (self.waiting.message if self.waiting is not None else "") or ""

    @property
    def running_since(self) -> float | None:
        state = self.told.state if self.told is not None else None
        return seconds(state.running.started_at) if state is not None and state.running is not None else None

    @property
    def is_running(self) -> bool:
        return self.told is not None and self.told.state is not None and self.told.state.running is not None

    @property
    def ended(self) -> ContainerStateTerminated | None:
        """How it ended, if it is not running."""
        return self.told.state.terminated if self.told is not None and self.told.state is not None else None

    @property
    def last_end(self) -> ContainerStateTerminated | None:
        """How its newest finished run ended."""
        last = self.told.last_state if self.told is not None else None
        return self.ended or (last.terminated if last is not None else None)

    @property
    def restarts(self) -> int:
        return (self.told.restart_count if self.told is not None else 0) or 0


class PodFacts(Struct, frozen=True, kw_only=True):
    pod: Pod
    status: PodStatus
    life: Sequence[LifeEntry] = ()
    worker: WorkerView | None = None
    volume_problems: Sequence[str] = ()
    events: Sequence[EventView] = ()
    seen: PodRuntimeStatus | None = None
    node: NodeFacts = field(default_factory=NodeFacts)
    unreadable: str = ""
    """Why the pod as the API server has it now cannot be read; what is known then is an older version, or its name."""
    grace: int | None = None
    """Seconds the containers get to stop, once the pod is ending."""
    now: float
    last_log: LastLog = no_log
    hanging: Sequence[tuple[str, float]] = ()
    """Calls to the host on behalf of the pod that are past their deadline, and for how many seconds they hang."""

    # --- the pod --------------------------------------------------------------------------------

    @property
    def shown_name(self) -> str:
        return f"{namespace_of(self.pod)}/{self.command_name}"

    @property
    def command_name(self) -> str:
        """What a person types: a static pod without the node's name at its end."""
        name, node = name_of(self.pod), self.pod.spec.node_name
        return name.removesuffix(f"-{node}") if node and is_static(self.pod) else name

    @property
    def phase(self) -> str:
        return self.status.phase or "Pending"

    @property
    def is_ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)

    @property
    def is_ending(self) -> bool:
        ending = self.worker is not None and self.worker.phase in ("terminating", "terminated")
        return ending or (deletion_requested(self.pod) and self.phase not in ("Succeeded", "Failed"))

    # --- containers -----------------------------------------------------------------------------

    def containers(self) -> Iterator[ContainerFacts]:
        status = self.status
        told = {
            ContainerKind.INIT: {each.name: each for each in status.init_container_statuses},
            ContainerKind.REGULAR: {each.name: each for each in status.container_statuses},
            ContainerKind.EPHEMERAL: {each.name: each for each in status.ephemeral_container_statuses},
        }
        for kind, spec in all_containers(self.pod):
            yield ContainerFacts(kind=kind, spec=spec, told=told[kind].get(spec.name))

    # --- life -----------------------------------------------------------------------------------

    def newest(self, step: Step, subject: str | None = None) -> LifeEntry | None:
        """The newest entry of that step; `subject` None = about anything."""
        return next(
            (e for e in reversed(self.life) if e.step is step and (subject is None or e.subject == subject)), None
        )

    def under_way(self, step: Step, subject: str | None = None) -> LifeEntry | None:
        """The newest entry of that step if it has begun and not ended."""
        entry = self.newest(step, subject)
        return entry if entry is not None and entry.outcome is Outcome.BEGUN else None

    def failing(self, step: Step, subject: str | None = None) -> LifeEntry | None:
        """The newest entry of that step if it failed."""
        entry = self.newest(step, subject)
        return entry if entry is not None and entry.outcome is Outcome.FAILED else None

    def failing_since(self, step: Step, subject: str | None = None) -> float | None:
        """When the unbroken row of failures of that step began."""
        since: float | None = None
        for entry in reversed(self.life):
            if entry.step is not step or (subject is not None and entry.subject != subject):
                continue
            if entry.outcome is not Outcome.FAILED:
                break
            since = entry.at
        return since

    def event(self, *reasons: str, container: str = "") -> EventView | None:
        """The newest event with one of these reasons, of that container if one is named."""
        for event in reversed(self.events):
            if event.reason in reasons and (not container or f"{{{container}}}" in event.field_path):
                return event
        return None

    @property
    def next_run_in(self) -> float | None:
        return self.worker.next_run_in if self.worker is not None else None


def seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment is not None else None
