"""Decide what a pod needs from the runtime: which sandbox, what to kill, what to start.

`plan_pod` is pure: the same spec, runtime status and probe outcomes always give the same plan, and
`manager.py` carries it out step by step. Init containers and sidecars are judged in `plan_init.py`.
Does not cover back-off (a start may still be put off) nor how anything is killed or started.
"""

from __future__ import annotations

from pykubelet.api.types import Container, Pod
from pykubelet.model.container_keys import definition_changed
from pykubelet.model.lifecycle import any_regular_created, judge_sandbox, should_start
from pykubelet.model.pod import effective_restart_policy, restarts_all_on_exit
from pykubelet.model.results import ProbeKind
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.runtime.plan_init import plan_init_containers
from pykubelet.runtime.plan_resize import restarts_to_resize
from pykubelet.runtime.plan_values import (
    ContainerKill,
    ContainerReset,
    ContainerResize,
    Draft,
    KillReason,
    PlanInputs,
    PodPlan,
)

__all__ = ["ContainerKill", "ContainerReset", "ContainerResize", "KillReason", "PlanInputs", "PodPlan", "plan_pod"]


def plan_pod(inputs: PlanInputs) -> PodPlan:
    pod, runtime = inputs.pod, inputs.runtime
    verdict = judge_sandbox(pod, runtime)
    if inputs.restart_all:
        return PodPlan(
            kill_pod=verdict.needs_new,
            create_sandbox=verdict.needs_new,
            sandbox_id=verdict.sandbox_id,
            attempt=verdict.attempt,
            reset=_resets(pod, runtime),
        )
    if verdict.needs_new:
        return _plan_new_sandbox(pod, runtime, verdict.sandbox_id, verdict.attempt)

    draft = Draft(inputs)
    # Ephemeral containers are for looking at a pod, so they need not wait until it is initialised.
    ephemeral = tuple(c for c in pod.spec.ephemeral_containers if runtime.container(c.name or "") is None)
    if plan_init_containers(draft) and not draft.kill_pod:
        _plan_regular_containers(draft)
    return PodPlan(
        kill_pod=draft.kill_pod,
        sandbox_id=verdict.sandbox_id,
        attempt=verdict.attempt,
        kill=tuple(draft.kill),
        resize=tuple(draft.resize),
        start_ephemeral=ephemeral,
        start_init=tuple(draft.start_init),
        start_regular=tuple(draft.start_regular),
        stopped=tuple(draft.stopped),
    )


def _plan_new_sandbox(pod: Pod, runtime: PodRuntimeStatus, sandbox_id: str, attempt: int) -> PodPlan:
    """The sandbox is missing or unusable: end everything and begin again, unless the pod is done."""
    ending = PodPlan(kill_pod=True, sandbox_id=sandbox_id, attempt=attempt)
    # Without any container the pod never got going, so even a pod that never restarts gets another try.
    if pod.spec.restart_policy == "Never" and attempt > 0 and runtime.containers:
        return ending
    regular = tuple(c for c in pod.spec.containers if not _done_for_good(pod, c, runtime))
    if not regular and any_regular_created(pod, runtime):
        return ending
    first_init = tuple(pod.spec.init_containers[:1])
    return PodPlan(
        kill_pod=True,
        create_sandbox=True,
        sandbox_id=sandbox_id,
        attempt=attempt,
        start_init=first_init,
        start_regular=() if first_init else regular,
    )


def _done_for_good(pod: Pod, container: Container, runtime: PodRuntimeStatus) -> bool:
    if effective_restart_policy(pod, container) != "OnFailure":
        return False
    status = runtime.container(container.name or "")
    return status is not None and status.state is ContainerState.EXITED and status.exit_code == 0


def _plan_regular_containers(draft: Draft) -> None:
    pod, runtime = draft.inputs.pod, draft.inputs.runtime
    kept = 0
    for container in pod.spec.containers:
        status = runtime.container(container.name or "")
        if status is not None and status.state is ContainerState.RUNNING:
            kept += _plan_running(draft, container, status)
        else:
            _plan_stopped(draft, container, status)
    if not kept and not draft.start_regular:
        # Sidecars alone do not keep a pod alive.
        draft.kill_pod = True
        draft.start_init.clear()


def _plan_stopped(draft: Draft, container: Container, status: ContainerStatus | None) -> None:
    if status is not None:
        draft.stopped.append(status.id)
    if not should_start(draft.inputs.pod, container, draft.inputs.runtime):
        return
    draft.start_regular.append(container)
    if status is not None and status.state is ContainerState.UNKNOWN:
        # It may still run; two instances of one container must never exist.
        draft.add_kill(status, 'Container is in "unknown" state, try killing it before restart', KillReason.UNKNOWN)


def _plan_running(draft: Draft, container: Container, status: ContainerStatus) -> bool:
    """Whether the running container is kept as it is."""
    # Restart rules look at exit codes, and a running container has none: only the policies count here.
    restart = effective_restart_policy(draft.inputs.pod, container) != "Never"
    if definition_changed(container, status):
        restart = True
        message, reason = f"Container {container.name} definition changed", KillReason.CHANGED
    elif draft.failed(ProbeKind.LIVENESS, status):
        message, reason = f"Container {container.name} failed liveness probe", KillReason.LIVENESS
    elif draft.failed(ProbeKind.STARTUP, status):
        message, reason = f"Container {container.name} failed startup probe", KillReason.STARTUP
    elif restarts_to_resize(draft, container, status):
        draft.start_regular.append(container)
        return False
    else:
        return True
    if restart:
        message = f"{message}, will be restarted"
        draft.start_regular.append(container)
    draft.add_kill(status, message, reason)
    return False


def _resets(pod: Pod, runtime: PodRuntimeStatus) -> tuple[ContainerReset, ...]:
    """Everything to remove before all containers start over.

    The containers whose exit asked for it go last: as long as one is there the request is not forgotten,
    even if the agent is killed half-way.
    """
    init_sources, init_others = _split_by_source(pod.spec.init_containers, runtime)
    sources, others = _split_by_source(pod.spec.containers, runtime)
    return (*others, *init_others, *sources, *init_sources)


def _split_by_source(
    containers: list[Container], runtime: PodRuntimeStatus
) -> tuple[list[ContainerReset], list[ContainerReset]]:
    sources: list[ContainerReset] = []
    others: list[ContainerReset] = []
    for container in containers:
        for status in runtime.containers:
            if status.name != container.name:
                continue
            ended = status.state is ContainerState.EXITED
            asked = ended and restarts_all_on_exit(container, status.exit_code)
            entry = ContainerReset(id=status.id, name=status.name, kill=not ended)
            (sources if asked else others).append(entry)
    return sources, others
