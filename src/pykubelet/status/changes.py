"""Compares statuses, changes one without generating it anew, and merges one with what the API server has.

Covers which differences count, which moves of a container are illegal, the status of a pod whose end is certain, a
single probe outcome written into a status, and what is sent: conditions of others stay, and while containers could
still run, an end phase is held back, because controllers start a replacement the moment they read it, and then two
would run. All functions return new values; none changes what it was given.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence

import msgspec

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import (
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    QuantityValue,
    ResourceRequirements,
)
from pykubelet.kit.clock import utc
from pykubelet.model.lifecycle import could_restart_all
from pykubelet.model.pod import ProbeKey, ProbeKind, is_sidecar, is_static, is_terminal_phase, restarts_on_exit
from pykubelet.model.reasons import CONTAINER_CREATING, CONTAINERS_READY, POD_INITIALIZING, POD_READY
from pykubelet.status.conditions import (
    FAILED,
    OWNED,
    PENDING,
    POD_COMPLETED,
    POD_FAILED,
    SHARED,
    containers_ready_condition,
    ready_condition,
    transition_time,
)
from pykubelet.status.containers import bare_id, gone_at_end


def statuses_equal(a: PodStatus, b: PodStatus) -> bool:
    """Whether two statuses say the same in the fields this agent owns.

    Own conditions count by status, reason and message, not by their times; conditions and claim fields
    of others do not count; equal quantities may be spelt differently.
    """
    return _own_conditions(a) == _own_conditions(b) and _comparable(a) == _comparable(b)


def _own_conditions(status: PodStatus) -> dict[str, tuple[str, str, str]]:
    return {
        c.type or "": (c.status or "", c.reason or "", c.message or "")
        for c in status.conditions
        if c.type in OWNED or c.type in SHARED
    }


def _comparable(status: PodStatus) -> PodStatus:
    return msgspec.structs.replace(
        status,
        conditions=[],
        resource_claim_statuses=[],
        extended_resource_claim_status=None,
        node_allocatable_resource_claim_statuses=[],
        allocated_resources=_canonical(status.allocated_resources),
        resources=_canonical_requirements(status.resources),
        reason=status.reason or None,
        message=status.message or None,
        container_statuses=[_comparable_container(c) for c in status.container_statuses],
        init_container_statuses=[_comparable_container(c) for c in status.init_container_statuses],
        ephemeral_container_statuses=[_comparable_container(c) for c in status.ephemeral_container_statuses],
    )


def _comparable_container(status: ContainerStatus) -> ContainerStatus:
    return msgspec.structs.replace(
        status,
        allocated_resources=_canonical(status.allocated_resources),
        resources=_canonical_requirements(status.resources),
        state=status.state or ContainerState(),
        last_state=status.last_state or ContainerState(),
    )


def _canonical(values: dict[str, QuantityValue]) -> dict[str, QuantityValue]:
    return {name: Quantity.parse(value).nano_value() for name, value in values.items()}


def _canonical_requirements(resources: ResourceRequirements | None) -> ResourceRequirements:
    resources = resources or ResourceRequirements()
    return msgspec.structs.replace(
        resources, requests=_canonical(resources.requests), limits=_canonical(resources.limits)
    )


def check_transition(pod: Pod, old: PodStatus, new: PodStatus) -> str | None:
    """What is wrong with going from `old` to `new`; None if nothing is.

    A container that ended for good must not come back: it would be run twice in the eyes of the API.
    """
    if (pod.spec.restart_policy or "Always") == "Always" or could_restart_all(pod):
        return None
    return _illegal_return(pod, pod.spec.containers, old.container_statuses, new.container_statuses) or (
        _illegal_return(
            pod, pod.spec.init_containers, old.init_container_statuses, new.init_container_statuses, "init "
        )
    )


def _illegal_return(
    pod: Pod,
    containers: Sequence[Container],
    old: Iterable[ContainerStatus],
    new: Iterable[ContainerStatus],
    word: str = "",
) -> str | None:
    specs = {container.name: container for container in containers}
    after = {status.name: status for status in new}
    for before in old:
        ended = before.state.terminated if before.state is not None else None
        container, now = specs.get(before.name or ""), after.get(before.name)
        if ended is None or container is None or now is None:
            continue
        if (word and is_sidecar(container)) or restarts_on_exit(pod, container, ended.exit_code or 0):
            continue
        if ended.exit_code and pod.spec.restart_policy == "OnFailure":
            continue
        if now.state is None or now.state.terminated is None:
            return f"terminated {word}container {now.name} attempted illegal transition to non-terminated state"
    return None


def terminate_statuses(pod: Pod, status: PodStatus) -> PodStatus:
    """The last status of a pod that is finished: every container that may have run has ended.

    How they ended is not known, so it counts as failure. Static pods keep their phase.
    """
    regular, init = status.container_statuses, status.init_container_statuses
    if has_initialised(pod, status):
        regular = [_end(each) for each in regular]
    reached = _reached(init)
    phase = status.phase
    if not is_static(pod) and not is_terminal_phase(phase):
        phase = FAILED
    return msgspec.structs.replace(
        status,
        phase=phase,
        container_statuses=regular,
        init_container_statuses=[_end(each) for each in init[:reached]] + init[reached:],
    )


def has_initialised(pod: Pod, status: PodStatus) -> bool:
    """Whether the status shows that all init containers of the pod have run."""
    if not pod.spec.init_containers:
        return True
    if any(_was_begun(each) for each in status.container_statuses):
        return True
    if not status.init_container_statuses:
        return False
    last, container = status.init_container_statuses[-1], pod.spec.init_containers[-1]
    if last.name != container.name:
        return False
    state, before = last.state or ContainerState(), last.last_state or ContainerState()
    if is_sidecar(container):
        return state.running is not None and bool(last.started)
    return any(end is not None and not end.exit_code for end in (state.terminated, before.terminated))


def _reached(statuses: Sequence[ContainerStatus]) -> int:
    """How many init containers, from the first, may have run; the first one always may."""
    begun = [index for index, status in enumerate(statuses) if _was_begun(status)]
    return (begun[-1] if begun else 0) + 1


def _was_begun(status: ContainerStatus) -> bool:
    waiting = status.state is not None and status.state.waiting is not None
    return not waiting or (status.last_state is not None and status.last_state.terminated is not None)


def _end(status: ContainerStatus) -> ContainerStatus:
    if status.state is not None and status.state.terminated is not None:
        return status
    return msgspec.structs.replace(status, state=gone_at_end())


def with_container_ready(pod: Pod, status: PodStatus, container: str, ready: bool, now: float) -> PodStatus | None:
    """The status after a readiness outcome for the container with this bare id; None if it shows that already."""
    changed = _with_flags(status, container, ready=ready)
    if changed is None:
        return None
    known = [*changed.init_container_statuses, *changed.container_statuses]
    containers_ready = containers_ready_condition(pod, known, changed.phase or "")
    ready_now = ready_condition(pod, containers_ready, changed.conditions)
    for condition in (ready_now, containers_ready):
        condition.last_transition_time = transition_time(condition, status.conditions) or utc(now)
        condition.observed_generation = pod.metadata.generation
    replaced = {POD_READY: ready_now, CONTAINERS_READY: containers_ready}
    kept = [replaced.pop(c.type, c) if c.type else c for c in changed.conditions]
    return msgspec.structs.replace(changed, conditions=[*kept, *replaced.values()])


def with_container_started(status: PodStatus, container: str, started: bool) -> PodStatus | None:
    """The status after a startup outcome for the container with this bare id; None if it shows that already."""
    return _with_flags(status, container, started=started)


def with_reported(
    pod: Pod, status: PodStatus, before: PodStatus, probed: Collection[ProbeKey], now: float
) -> PodStatus:
    """The status with what was reported, before a restart of the agent, of containers that run on.

    `probed`: the probes whose own result counts by now. The start time stays, too, as long as one of them runs."""
    mine = {each.container_id for each in (*status.container_statuses, *status.init_container_statuses) if _runs(each)}
    for each in (*before.init_container_statuses, *before.container_statuses):
        if not each.container_id or each.container_id not in mine or not _runs(each):
            continue
        if before.start_time not in (None, status.start_time):
            status = msgspec.structs.replace(status, start_time=before.start_time)
        bare = bare_id(each.container_id)
        if each.started and (ProbeKind.STARTUP, bare) not in probed:
            status = with_container_started(status, bare, True) or status
        if each.ready and (ProbeKind.READINESS, bare) not in probed:
            status = with_container_ready(pod, status, bare, True, now) or status
    return status


def _runs(status: ContainerStatus) -> bool:
    return status.state is not None and status.state.running is not None


def _with_flags(status: PodStatus, container: str, **flags: bool) -> PodStatus | None:
    """None when the container is unknown or has these flags already."""
    regular, init = status.container_statuses, status.init_container_statuses
    for old in (*regular, *init):
        if bare_id(old.container_id) == container:
            new = msgspec.structs.replace(old, **flags)
            if new == old:
                return None
            return msgspec.structs.replace(
                status,
                container_statuses=[new if each is old else each for each in regular],
                init_container_statuses=[new if each is old else each for each in init],
            )
    return None


# --- what is sent to the API server ---------------------------------------------------------------


def ends_pod(there: PodStatus, own: PodStatus) -> bool:
    """Whether sending `own` would end the pod in the eyes of the API."""
    return is_terminal_phase(own.phase) and not is_terminal_phase(there.phase)


class Urgency(enum.IntEnum):
    """Which of many statuses is sent first: by what controllers wait for."""

    ENDS = 0
    """The pod ends, or nothing is left of it: it is to be replaced, and what it held is free."""
    TURNS = 1
    """The pod is ready, or is not any more, or is in another phase: traffic and rollouts follow."""
    TELLS = 2


def urgency(there: PodStatus, own: PodStatus) -> Urgency:
    """How urgent it is to send `own` where the API server has `there`."""
    if is_terminal_phase(own.phase):
        return Urgency.ENDS
    if own.phase != (there.phase or PENDING) or _is_ready(own) != _is_ready(there):
        return Urgency.TURNS
    return Urgency.TELLS


def _is_ready(status: PodStatus) -> bool:
    return any(c.type == POD_READY and c.status == "True" for c in status.conditions)


def only_begins(there: PodStatus, own: PodStatus) -> bool:
    """Whether `own` says no more than that the pod is here and its containers are being made."""
    if own.phase != PENDING or (there.phase or PENDING) != PENDING or own.reason or there.container_statuses:
        return False
    known = (*own.init_container_statuses, *own.container_statuses)
    return bool(known) and all(_is_being_made(each) for each in known)


def _is_being_made(status: ContainerStatus) -> bool:
    waiting = status.state.waiting if status.state is not None else None
    return waiting is not None and waiting.reason in (CONTAINER_CREATING, POD_INITIALIZING) and not waiting.message


def merged_status(there: PodStatus, own: PodStatus, *, could_run: bool) -> PodStatus:
    """The status to write. `there` is what the API server has, `could_run` that containers may not be gone yet."""
    ending = ends_pod(there, own)
    merged = msgspec.structs.replace(
        own,
        conditions=_conditions(there, own, with_shared=ending and not could_run),
        resource_claim_statuses=there.resource_claim_statuses,
        extended_resource_claim_status=there.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=there.node_allocatable_resource_claim_statuses,
        nominated_node_name=there.nominated_node_name,
    )
    if ending and could_run:
        merged.phase, merged.reason, merged.message = there.phase, there.reason, there.message
    if is_terminal_phase(merged.phase):
        merged.conditions = _not_ready_any_more(merged.conditions, merged.phase)
    return merged


def _conditions(there: PodStatus, own: PodStatus, *, with_shared: bool) -> list[PodCondition]:
    found = {c.type: c for c in there.conditions if c.type not in OWNED}
    found |= {c.type: c for c in own.conditions if c.type in OWNED}
    if with_shared:
        for condition in own.conditions:
            if condition.type in SHARED:
                kept = transition_time(condition, there.conditions) or condition.last_transition_time
                found[condition.type] = msgspec.structs.replace(condition, last_transition_time=kept)
    return list(found.values())


def _not_ready_any_more(conditions: Sequence[PodCondition], phase: str | None) -> list[PodCondition]:
    """Make the pod not ready: it ended, and the last probe result does not count."""
    reason = POD_FAILED if phase == FAILED else POD_COMPLETED
    return [
        msgspec.structs.replace(c, status="False", reason=reason, message=None)
        if c.type in (POD_READY, CONTAINERS_READY) and c.status == "True"
        else c
        for c in conditions
    ]
