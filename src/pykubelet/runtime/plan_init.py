"""Decide about init containers and sidecars (init containers that are restarted for ever).

The walk goes from the last init container to the first: finished ones may have been removed from the
runtime, so the last one that left a trace says how far initialisation has come. The table is in
docs/states.md; every row has a test.
"""

from __future__ import annotations

from pykubelet.api.types import Container
from pykubelet.model.container_keys import definition_changed
from pykubelet.model.lifecycle import any_regular_alive, init_failed, should_start
from pykubelet.model.pod import effective_restart_policy, is_sidecar
from pykubelet.model.results import ProbeKind, ProbeOutcome
from pykubelet.model.runtime_status import ContainerState, ContainerStatus
from pykubelet.runtime.plan_resize import restarts_to_resize
from pykubelet.runtime.plan_values import Draft, KillReason


def plan_init_containers(draft: Draft) -> bool:
    """Add what init containers and sidecars need to the draft; True when the pod is initialised."""
    pod, runtime = draft.inputs.pod, draft.inputs.runtime
    containers = pod.spec.init_containers
    if not containers:
        return True
    initialised = any_regular_alive(pod, runtime)
    # True from the first container with a trace on: everything before it had its turn already.
    passed = initialised
    for index in range(len(containers) - 1, -1, -1):
        container = containers[index]
        status = runtime.container(container.name or "")
        if status is None:
            if passed and is_sidecar(container):
                draft.start_init.append(container)
            continue
        if passed and not is_sidecar(container):
            continue
        judge = _judge_sidecar if is_sidecar(container) else _judge_regular
        finished = judge(draft, container, status)
        if draft.kill_pod:
            draft.start_init.clear()
            return False
        if finished and index == len(containers) - 1:
            initialised = True
        elif finished and not passed:
            draft.start_init.append(containers[index + 1])
        passed = True
    if not passed:
        draft.start_init.append(containers[0])
    # Collected backwards; they start in the order of the spec.
    order = {container.name: index for index, container in enumerate(containers)}
    draft.start_init.sort(key=lambda container: order[container.name])
    return initialised


def _judge_regular(draft: Draft, container: Container, status: ContainerStatus) -> bool:
    """One init container that runs to its end; True when it did so successfully."""
    if status.state is ContainerState.RUNNING:
        restarts_to_resize(draft, container, status)
        return False
    if status.state is ContainerState.CREATED:
        # Creating and starting are one step of ours, so its start must have failed.
        draft.start_init.append(container)
        return False
    if not init_failed(status):
        return True
    pod = draft.inputs.pod
    if status.state is ContainerState.UNKNOWN:
        # No exit code, so no restart rule applies; only the policies count.
        again = effective_restart_policy(pod, container) != "Never"
    else:
        again = should_start(pod, container, draft.inputs.runtime)
    if not again:
        draft.kill_pod = True
        return False
    if status.state is ContainerState.UNKNOWN:
        _kill_unknown(draft, status)
    draft.start_init.append(container)
    return False


def _judge_sidecar(draft: Draft, container: Container, status: ContainerStatus) -> bool:
    """One sidecar; True when it has started, so that the container after it may."""
    if status.state is not ContainerState.RUNNING:
        if status.state is ContainerState.UNKNOWN:
            _kill_unknown(draft, status)
        draft.start_init.append(container)
        return False
    if container.startup_probe is not None:
        outcome = draft.outcome(ProbeKind.STARTUP, status)
        if outcome is ProbeOutcome.FAILURE:
            _replace(draft, container, status, "failed startup probe", KillReason.STARTUP)
        if outcome is not ProbeOutcome.SUCCESS:
            return False
    if definition_changed(container, status):
        _replace(draft, container, status, "definition changed", KillReason.CHANGED)
    elif container.liveness_probe is not None and draft.failed(ProbeKind.LIVENESS, status):
        _replace(draft, container, status, "failed liveness probe", KillReason.LIVENESS)
    elif restarts_to_resize(draft, container, status):
        draft.start_init.append(container)
    return True


def _replace(draft: Draft, container: Container, status: ContainerStatus, why: str, reason: KillReason) -> None:
    draft.add_kill(status, f"Init container {container.name} {why}", reason)
    draft.start_init.append(container)


def _kill_unknown(draft: Draft, status: ContainerStatus) -> None:
    message = 'Init container is in "unknown" state, try killing it before restart'
    draft.add_kill(status, message, KillReason.UNKNOWN)
