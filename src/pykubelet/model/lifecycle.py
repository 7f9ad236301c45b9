"""How far a pod has come, judged from its spec and what the runtime reports together.

Used by both the plan (what to do next) and the status (what to report), so that the two never disagree. Pure; knows no
API status except where RestartAllContainers leaves its only trace there, and DisruptionTarget.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from pykubelet.api.types import Pod, PodCondition, PodStatus
from pykubelet.kit.clock import utc
from pykubelet.model.pod import (
    AnyContainer,
    deletion_requested,
    restarts_all_on_exit,
    restarts_on_exit,
    uses_host_network,
)
from pykubelet.model.reasons import ALL_CONTAINERS_RESTARTING, DISRUPTION_TARGET
from pykubelet.model.runtime_status import (
    ContainerState,
    ContainerStatus,
    NamespaceMode,
    PodRuntimeStatus,
    SandboxState,
)

RESTARTING_ALL_CONTAINERS: Final = "RestartingAllContainers"
"""Waiting and terminated reason of containers that were removed to start over."""


class SandboxVerdict(Struct, frozen=True, kw_only=True):
    """Whether the pod needs a new sandbox. `attempt` is that of the sandbox to use: the new or the old."""

    needs_new: bool
    attempt: int
    sandbox_id: str
    """The newest sandbox; '' when none exists or when the old one cannot serve as predecessor."""


def judge_sandbox(pod: Pod, runtime: PodRuntimeStatus) -> SandboxVerdict:
    if not runtime.sandboxes:
        return SandboxVerdict(needs_new=True, attempt=0, sandbox_id="")
    newest = runtime.sandboxes[0]
    wanted = NamespaceMode.NODE if uses_host_network(pod) else NamespaceMode.POD
    unusable = len(runtime.ready_sandboxes()) > 1 or newest.state is not SandboxState.READY
    if not unusable and newest.network_mode is not wanted:
        return SandboxVerdict(needs_new=True, attempt=newest.attempt + 1, sandbox_id="")
    if unusable or (wanted is NamespaceMode.POD and not newest.ips):
        return SandboxVerdict(needs_new=True, attempt=newest.attempt + 1, sandbox_id=newest.id)
    return SandboxVerdict(needs_new=False, attempt=newest.attempt, sandbox_id=newest.id)


def should_start(pod: Pod, container: AnyContainer, runtime: PodRuntimeStatus) -> bool:
    """Whether a container that is not running is to be started, for the first time or again."""
    if deletion_requested(pod):
        return False
    status = runtime.container(container.name)
    if status is None:
        return True
    if status.state is ContainerState.RUNNING:
        return False
    if status.state in (ContainerState.CREATED, ContainerState.UNKNOWN):
        return True
    return restarts_on_exit(pod, container, status.exit_code)


def any_regular_created(pod: Pod, runtime: PodRuntimeStatus) -> bool:
    """Whether some regular container was ever created, which means that initialisation had finished."""
    known = (ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED)
    return any(status.state in known for status in _regular(pod, runtime))


def any_regular_alive(pod: Pod, runtime: PodRuntimeStatus) -> bool:
    """Whether some regular container is created or running in the newest sandbox, which is initialised then.

    Exited ones do not count, nor those of the sandbox before: a reboot may have come between creating and starting.
    """
    newest = runtime.sandboxes[0].id if runtime.sandboxes else ""
    alive = (ContainerState.CREATED, ContainerState.RUNNING)
    return any(status.state in alive and status.sandbox_id == newest for status in _regular(pod, runtime))


def any_regular_in_active_sandbox(pod: Pod, runtime: PodRuntimeStatus) -> bool:
    """Whether the newest sandbox, being ready, holds a regular container in any state."""
    if not runtime.sandboxes or runtime.sandboxes[0].state is not SandboxState.READY:
        return False
    active = runtime.sandboxes[0].id
    names = {container.name for container in pod.spec.containers}
    return any(status.name in names and status.sandbox_id == active for status in runtime.containers)


def could_restart_all(pod: Pod) -> bool:
    """Whether any container has a rule that restarts every container of the pod."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(rule.action == "RestartAllContainers" for c in containers for rule in c.restart_policy_rules)


def wants_restart_all(pod: Pod, runtime: PodRuntimeStatus, previous: PodStatus) -> bool:
    """Whether a restart of all containers was begun (condition) or is requested by an exit code."""
    for condition in previous.conditions:
        if condition.type == ALL_CONTAINERS_RESTARTING and condition.status == "True":
            return True
    reported = {s.name: s for s in (*previous.init_container_statuses, *previous.container_statuses)}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        status = runtime.container(container.name)
        if status is None or status.state is not ContainerState.EXITED:
            continue
        if restarts_all_on_exit(container, status.exit_code):
            return True
        known = reported.get(container.name)
        ended = known.state.terminated if known is not None and known.state is not None else None
        if ended is not None and restarts_all_on_exit(container, ended.exit_code or 0):
            return True
    return False


def restart_all_cleaned_up(pod: Pod, runtime: PodRuntimeStatus) -> bool:
    """Whether no init or regular container is left in the runtime, so that starting over may begin."""
    names = {c.name for c in (*pod.spec.init_containers, *pod.spec.containers)}
    return not any(status.name in names for status in runtime.containers)


def init_failed(status: ContainerStatus) -> bool:
    """Whether a regular init container failed; an OOM kill counts with any exit code."""
    if status.reason == "OOMKilled" or status.state is ContainerState.UNKNOWN:
        return True
    return status.state is ContainerState.EXITED and status.exit_code != 0


def newest_exited(runtime: PodRuntimeStatus, name: str) -> ContainerStatus | None:
    """The last ended run of a container, from which its back-off is counted."""
    return next((s for s in runtime.runs_of(name) if s.state is ContainerState.EXITED), None)


def _regular(pod: Pod, runtime: PodRuntimeStatus) -> list[ContainerStatus]:
    found = (runtime.container(container.name) for container in pod.spec.containers)
    return [status for status in found if status is not None]


TERMINATION_BY_KUBELET: Final = "TerminationByKubelet"


def mark_disrupted(status: PodStatus, message: str, *, at: float) -> None:
    """Set DisruptionTarget; one that is there already is replaced but keeps its time. `at` is wall time."""
    before = next((each for each in status.conditions if each.type == DISRUPTION_TARGET), None)
    since = before.last_transition_time if before is not None and before.status == "True" else None
    condition = PodCondition(
        type=DISRUPTION_TARGET,
        status="True",
        reason=TERMINATION_BY_KUBELET,
        message=message,
        last_transition_time=since or utc(at),
    )
    status.conditions = [*[each for each in status.conditions if each.type != DISRUPTION_TARGET], condition]
