"""Everything known about one pod at one moment, as one frozen value, and small questions about it.

The input of `explain`, filled by service.py. Pure. Does not judge; that is done by the finders of the causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from pykubelet.api.types import ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodStatus
from pykubelet.model.pod import (
    AnyContainer,
    ContainerKind,
    all_containers,
    deletion_requested,
    is_static,
    name_of,
    namespace_of,
)
from pykubelet.model.problems import ContainerProblem, VolumeFailed
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pods.record import PodWorker, WorkerState
from pykubelet.recorder import LifeEntry, Outcome, Step


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
    """One container of the spec and its status."""

    kind: ContainerKind
    spec: AnyContainer
    status: ContainerStatus | None
    """As the pod's status reports it."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def waiting(self) -> ContainerStateWaiting | None:
        return self.status.state.waiting if self.status is not None and self.status.state is not None else None

    @property
    def waiting_reason(self) -> str:
        return (self.waiting.reason if self.waiting is not None else "") or ""

    @property
    def waiting_message(self) -> str:
        return (self.waiting.message if self.waiting is not None else "") or ""

    @property
    def running_since(self) -> float | None:
        state = self.status.state if self.status is not None else None
        return seconds(state.running.started_at) if state is not None and state.running is not None else None

    @property
    def is_running(self) -> bool:
        return self.status is not None and self.status.state is not None and self.status.state.running is not None

    @property
    def ended(self) -> ContainerStateTerminated | None:
        """How it ended, if it is not running."""
        return self.status.state.terminated if self.status is not None and self.status.state is not None else None

    @property
    def last_end(self) -> ContainerStateTerminated | None:
        """How its newest finished run ended."""
        last = self.status.last_state if self.status is not None else None
        return self.ended or (last.terminated if last is not None else None)

    @property
    def restarts(self) -> int:
        return (self.status.restart_count if self.status is not None else 0) or 0


class PodFacts(Struct, frozen=True, kw_only=True):
    pod: Pod
    status: PodStatus
    life: Sequence[LifeEntry] = ()
    worker: PodWorker | None = None
    next_run_in: float | None = None
    """Seconds until the worker's next pass; None when it waits for something to happen."""
    failures: Mapping[str, ContainerProblem] = field(default_factory=dict)
    """Why containers could not be started when that was last tried, by name."""
    volume_problems: Sequence[VolumeFailed] = ()
    runtime: PodRuntimeStatus | None = None
    node: NodeFacts = field(default_factory=NodeFacts)
    unreadable: str = ""
    """Why the pod as the API server has it now cannot be read; what is known then is an older version, or its name."""
    grace: int | None = None
    """Seconds the containers get to stop, once the pod is ending."""
    now: float
    last_log: LastLog = no_log
    turn: Callable[[], int | None] = lambda: None
    """Which place the pod has among those that wait for the runtime; None when it does not wait."""
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
        ending = self.worker is not None and self.worker.state in (WorkerState.TERMINATING, WorkerState.TERMINATED)
        return ending or (deletion_requested(self.pod) and self.phase not in ("Succeeded", "Failed"))

    # --- containers -----------------------------------------------------------------------------

    def containers(self) -> Iterator[ContainerFacts]:
        status = self.status
        statuses = {
            ContainerKind.INIT: {each.name: each for each in status.init_container_statuses},
            ContainerKind.REGULAR: {each.name: each for each in status.container_statuses},
            ContainerKind.EPHEMERAL: {each.name: each for each in status.ephemeral_container_statuses},
        }
        for kind, spec in all_containers(self.pod):
            yield ContainerFacts(kind=kind, spec=spec, status=statuses[kind].get(spec.name))

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


def seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment is not None else None
