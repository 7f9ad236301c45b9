"""The phase of a pod and the conditions that this agent writes, with upstream's reasons and messages.

Pure. `own_conditions` makes them in upstream's order from container statuses already complete with ready and started;
`pod_phase` counts containers of the spec by what they mean for the phase, then takes the first matching row. Does not
cover conditions of others nor rules that look beyond one moment (never leave an end phase, deadlines): `generate.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from pykubelet.api.types import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
)
from pykubelet.model.lifecycle import (
    RESTARTING_ALL_CONTAINERS,
    could_restart_all,
    judge_sandbox,
    restart_all_cleaned_up,
    wants_restart_all,
)
from pykubelet.model.pod import is_sidecar, is_static, restarts_on_exit
from pykubelet.model.reasons import (
    ALL_CONTAINERS_RESTARTING,
    CONTAINERS_READY,
    DISRUPTION_TARGET,
    POD_INITIALIZED,
    POD_READY,
    POD_READY_TO_START,
    POD_SCHEDULED,
    RESIZE_IN_PROGRESS,
    RESIZE_PENDING,
)
from pykubelet.status.inputs import StatusInputs

PENDING = "Pending"
RUNNING = "Running"
SUCCEEDED = "Succeeded"
FAILED = "Failed"

UNKNOWN_STATUSES: Final = "UnknownContainerStatuses"
POD_COMPLETED: Final = "PodCompleted"
POD_FAILED: Final = "PodFailed"
NOT_READY: Final = "ContainersNotReady"
NOT_INITIALIZED: Final = "ContainersNotInitialized"
GATES_NOT_READY: Final = "ReadinessGatesNotReady"
RESTART_ALL_STARTED: Final = "RestartAllContainersStarted"

OWNED: Final = frozenset(
    {
        POD_SCHEDULED,
        POD_READY,
        POD_INITIALIZED,
        CONTAINERS_READY,
        RESIZE_IN_PROGRESS,
        RESIZE_PENDING,
        POD_READY_TO_START,
        ALL_CONTAINERS_RESTARTING,
    }
)
"""Condition types only this agent writes."""
SHARED: Final = frozenset({DISRUPTION_TARGET})
"""Condition types this agent writes now and then, as others do."""

_END_REASONS: Final = {FAILED: POD_FAILED, SUCCEEDED: POD_COMPLETED}


def find_condition(conditions: Iterable[PodCondition], kind: str) -> PodCondition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def own_conditions(inputs: StatusInputs, status: PodStatus) -> list[PodCondition]:
    """The conditions of a status whose phase and container statuses are set.

    Readiness gates are looked up among the conditions `status` has already, those of others.
    """
    pod, phase = inputs.pod, status.phase or ""
    known = [*status.init_container_statuses, *status.container_statuses]
    containers_ready = containers_ready_condition(pod, known, phase)
    made = []
    if inputs.shows_ready_to_start:
        has_sandbox = not judge_sandbox(pod, inputs.runtime).needs_new
        made.append(PodCondition(type=POD_READY_TO_START, status=_truth(has_sandbox)))
    made += [
        initialized_condition(pod, known, phase, was_initialised=_is_true(inputs.old, POD_INITIALIZED)),
        ready_condition(pod, containers_ready, status.conditions),
        containers_ready,
        PodCondition(type=POD_SCHEDULED, status="True"),
    ]
    if could_restart_all(pod):
        made.append(_restarting_condition(inputs, phase))
    for condition in made:
        condition.observed_generation = pod.metadata.generation
    return made


def containers_ready_condition(pod: Pod, statuses: Sequence[ContainerStatus], phase: str) -> PodCondition:
    if not statuses:
        return PodCondition(type=CONTAINERS_READY, status="False", reason=UNKNOWN_STATUSES)
    known = {status.name: status for status in statuses}
    unknown: list[str] = []
    unready: list[str] = []
    for container in (*filter(is_sidecar, pod.spec.init_containers), *pod.spec.containers):
        status = known.get(container.name)
        if status is None:
            unknown.append(container.name)
        elif not status.ready:
            unready.append(container.name)
    if phase == FAILED or (phase == SUCCEEDED and not unknown):
        return PodCondition(type=CONTAINERS_READY, status="False", reason=_END_REASONS[phase])
    if unknown or unready:
        message = _complaint(unknown, "unready", unready)
        return PodCondition(type=CONTAINERS_READY, status="False", reason=NOT_READY, message=message)
    return PodCondition(type=CONTAINERS_READY, status="True")


def ready_condition(pod: Pod, containers_ready: PodCondition, conditions: Iterable[PodCondition]) -> PodCondition:
    """Ready follows ContainersReady, and then waits for the pod's readiness gates."""
    if containers_ready.status != "True":
        return msgspec.structs.replace(containers_ready, type=POD_READY)
    present = {condition.type: condition for condition in conditions}
    complaints: list[str] = []
    for gate in pod.spec.readiness_gates:
        found = present.get(gate.condition_type)
        if found is None:
            complaints.append(f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist.')
        elif found.status != "True":
            complaints.append(
                f'the status of pod readiness gate "{gate.condition_type}" is not "True", but {found.status}'
            )
    if complaints:
        message = ", ".join(complaints)
        return PodCondition(type=POD_READY, status="False", reason=GATES_NOT_READY, message=message)
    return PodCondition(type=POD_READY, status="True")


def initialized_condition(
    pod: Pod, statuses: Sequence[ContainerStatus], phase: str, *, was_initialised: bool
) -> PodCondition:
    if not statuses and pod.spec.init_containers:
        return PodCondition(type=POD_INITIALIZED, status="False", reason=UNKNOWN_STATUSES)
    known = {status.name: status for status in statuses}
    unknown: list[str] = []
    incomplete: list[str] = []
    for container in pod.spec.init_containers:
        status = known.get(container.name)
        if status is None:
            unknown.append(container.name)
        elif not (status.started if is_sidecar(container) else status.ready):
            incomplete.append(container.name)
    if phase == SUCCEEDED and not unknown:
        return PodCondition(type=POD_INITIALIZED, status="True", reason=POD_COMPLETED)
    if _any_regular_started(pod, known) or not (unknown or incomplete) or was_initialised:
        # A pod is initialised once and for all, although sidecars or a restart of all run init again.
        return PodCondition(type=POD_INITIALIZED, status="True")
    message = _complaint(unknown, "incomplete", incomplete)
    return PodCondition(type=POD_INITIALIZED, status="False", reason=NOT_INITIALIZED, message=message)


def _restarting_condition(inputs: StatusInputs, phase: str) -> PodCondition:
    kind = ALL_CONTAINERS_RESTARTING
    if phase in _END_REASONS:
        return PodCondition(type=kind, status="False", reason=_END_REASONS[phase])
    wanted = wants_restart_all(inputs.pod, inputs.runtime, inputs.old)
    if not wanted or restart_all_cleaned_up(inputs.pod, inputs.runtime):
        return PodCondition(type=kind, status="False")
    message = "container exited with restart policy rule"
    return PodCondition(type=kind, status="True", reason=RESTART_ALL_STARTED, message=message)


def stamp_transitions(status: PodStatus, inputs: StatusInputs) -> None:
    """Date each own condition: the old time while its status is the same, else now."""
    for condition in status.conditions:
        if condition.type in (RESIZE_PENDING, RESIZE_IN_PROGRESS):
            continue  # dated where the resize is judged
        if condition.type not in OWNED and condition.type not in SHARED:
            continue
        condition.last_transition_time = transition_time(condition, inputs.old.conditions) or inputs.moment


def transition_time(condition: PodCondition, before: Iterable[PodCondition]) -> datetime | None:
    """When the condition got its status, as far as the conditions before show it."""
    old = find_condition(before, condition.type or "")
    return old.last_transition_time if old is not None and old.status == condition.status else None


def _any_regular_started(pod: Pod, known: dict[str | None, ContainerStatus]) -> bool:
    for container in pod.spec.containers:
        status = known.get(container.name)
        if status is not None and status.state is not None and (status.state.running or status.state.terminated):
            return True
    return False


def _complaint(unknown: list[str], word: str, others: list[str]) -> str:
    """Names in Go's print of a list: `containers with unready status: [a b]`."""
    parts = [("unknown", unknown), (word, others)]
    return ", ".join(f"containers with {kind} status: [{' '.join(names)}]" for kind, names in parts if names)


def _is_true(status: PodStatus, kind: str) -> bool:
    found = find_condition(status.conditions, kind)
    return found is not None and found.status == "True"


def _truth(value: bool) -> str:
    return "True" if value else "False"


# --- the phase ------------------------------------------------------------------------------------


class _Tally(Struct):
    init_pending: int = 0
    init_failed_for_good: int = 0
    sidecar_pending: int = 0
    unknown: int = 0
    running: int = 0
    waiting: int = 0
    stopped: int = 0
    stopped_for_good: int = 0
    succeeded: int = 0


def pod_phase(pod: Pod, statuses: Iterable[ContainerStatus], *, terminal: bool, initialised: bool) -> str:
    """`initialised`: the active sandbox holds a regular container, so sidecars may restart freely."""
    known = {status.name: status for status in statuses}
    tally = _Tally()
    for container in pod.spec.init_containers:
        count = _count_sidecar if is_sidecar(container) else _count_init
        count(tally, pod, container, known.get(container.name))
    for container in pod.spec.containers:
        _count_regular(tally, pod, container, known.get(container.name))
    return _first_match(tally, terminal=terminal and not is_static(pod), initialised=initialised)


def _first_match(tally: _Tally, *, terminal: bool, initialised: bool) -> str:
    if tally.init_failed_for_good:
        return FAILED
    if tally.init_pending or (tally.sidecar_pending and not initialised) or tally.waiting:
        return PENDING
    if tally.unknown or (not tally.running and not tally.stopped):
        return PENDING
    if tally.running:
        return RUNNING
    if not terminal and tally.stopped != tally.stopped_for_good:
        return RUNNING
    return SUCCEEDED if tally.stopped == tally.succeeded else FAILED


def _count_init(tally: _Tally, pod: Pod, container: Container, status: ContainerStatus | None) -> None:
    state = _state(status)
    ended = state.terminated or (_last_end(status) if state.waiting else None)
    if ended is None:
        tally.init_pending += 1
    elif ended.exit_code and not _restarts(pod, container, ended):
        tally.init_failed_for_good += 1


def _count_sidecar(tally: _Tally, pod: Pod, container: Container, status: ContainerStatus | None) -> None:
    state = _state(status)
    if status is None:
        tally.unknown += 1
    elif state.running:
        tally.running += 1
        tally.sidecar_pending += not status.started
    elif state.terminated or (state.waiting and _last_end(status)):
        pass  # a sidecar that ended says nothing about the pod
    elif state.waiting:
        tally.sidecar_pending += 1
        tally.waiting += 1
    else:
        tally.sidecar_pending += 1
        tally.unknown += 1


def _count_regular(tally: _Tally, pod: Pod, container: Container, status: ContainerStatus | None) -> None:
    state = _state(status)
    ended = state.terminated or (_last_end(status) if state.waiting else None)
    if state.running:
        tally.running += 1
    elif ended is not None:
        tally.stopped += 1
        tally.stopped_for_good += not _restarts(pod, container, ended)
        # Waiting after a success means that it is to run again: that one has not succeeded yet.
        tally.succeeded += state.terminated is not None and not ended.exit_code
    elif state.waiting:
        tally.waiting += 1
    else:
        tally.unknown += 1


def _restarts(pod: Pod, container: Container, ended: ContainerStateTerminated) -> bool:
    if ended.reason == RESTARTING_ALL_CONTAINERS:
        return True
    return restarts_on_exit(pod, container, ended.exit_code or 0)


def _state(status: ContainerStatus | None) -> ContainerState:
    return (status.state if status is not None else None) or ContainerState()


def _last_end(status: ContainerStatus | None) -> ContainerStateTerminated | None:
    return status.last_state.terminated if status is not None and status.last_state is not None else None
