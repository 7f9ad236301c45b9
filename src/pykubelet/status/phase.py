"""The phase of a pod, from the statuses of its containers.

Counts containers by what they mean for the phase, then takes the first matching row. Only containers
of the spec count. Rules that look beyond one moment (never leave an end phase, deadlines) are in
`generate.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pykubelet.api.types import Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod
from pykubelet.model.lifecycle import RESTARTING_ALL_CONTAINERS
from pykubelet.model.pod import is_sidecar, is_static, restarts_on_exit

PENDING = "Pending"
RUNNING = "Running"
SUCCEEDED = "Succeeded"
FAILED = "Failed"


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
