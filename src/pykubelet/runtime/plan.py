"""Decide what a pod needs from the runtime: which sandbox, what to kill, what to start, what to resize.

`plan_pod` is pure: the same spec, runtime status and probe outcomes always give the same plan, and `manager.py`
carries it out step by step. Does not cover back-off (a start may still be put off) nor how anything is killed or
started, nor whether a resize was admitted.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from pykubelet.api.types import Container, EphemeralContainer, Pod, ResourceRequirements
from pykubelet.model.container_keys import definition_changed
from pykubelet.model.lifecycle import any_regular_alive, any_regular_created, init_failed, judge_sandbox, should_start
from pykubelet.model.pod import (
    ProbeKey,
    ProbeKind,
    ProbeOutcome,
    effective_restart_policy,
    is_sidecar,
    restarts_all_on_exit,
)
from pykubelet.model.pod_resources import differing, effective_resources
from pykubelet.model.problems import KillCause
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus


class ContainerKill(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    message: str
    """Text of the Killing event."""
    cause: KillCause


class ContainerReset(Struct, frozen=True, kw_only=True):
    """A container to remove, logs kept, because all containers of the pod start over."""

    id: str
    name: str
    kill: bool
    """Not ended yet: kill it without grace before removing it."""


class ContainerResize(Struct, frozen=True, kw_only=True):
    """A running container whose cpu or memory is to be changed."""

    id: str
    name: str
    wanted: ResourceRequirements
    actuated: ResourceRequirements
    resources: tuple[str, ...]
    """Which of memory and cpu change, memory first: the order in which they are applied."""
    needs_restart: bool
    """The container's resize policy wants a restart; such a one is killed and started, not updated."""


class PodPlan(Struct, frozen=True, kw_only=True):
    """What to do, in the order of the fields."""

    kill_pod: bool = False
    """Kill every container and stop every sandbox first; without `create_sandbox` nothing follows."""
    create_sandbox: bool = False
    sandbox_id: str = ""
    """The sandbox to use, or the one that is replaced; '' when there is none."""
    attempt: int = 0
    kill: tuple[ContainerKill, ...] = ()
    reset: tuple[ContainerReset, ...] = ()
    resize: tuple[ContainerResize, ...] = ()
    """Running containers whose resources change; those that need a restart are also in kill and start."""
    start_ephemeral: tuple[EphemeralContainer, ...] = ()
    start_init: tuple[Container, ...] = ()
    start_regular: tuple[Container, ...] = ()
    stopped: tuple[str, ...] = ()
    """Ids of regular containers that no longer run; what was reserved for them may be released."""

    @property
    def is_idle(self) -> bool:
        """Nothing to do: the pod is as it should be."""
        return not (
            self.kill_pod
            or self.create_sandbox
            or self.kill
            or self.reset
            or self.resize
            or self.start_ephemeral
            or self.start_init
            or self.start_regular
        )


class PlanInputs(Struct, frozen=True, kw_only=True):
    pod: Pod
    """With the allocated resources, where they differ from the wanted ones."""
    runtime: PodRuntimeStatus
    probes: Mapping[ProbeKey, ProbeOutcome]
    restart_all: bool = False
    """The AllContainersRestarting condition is True."""
    actuated: Mapping[str, ResourceRequirements] | None = None
    """Resources last put into force, by container name; None = nothing is resized in place."""


class Draft(Struct):
    """A plan in the making, shared by the steps of one `plan_pod`."""

    inputs: PlanInputs
    kill_pod: bool = False
    kill: list[ContainerKill] = field(default_factory=list)
    resize: list[ContainerResize] = field(default_factory=list)
    start_init: list[Container] = field(default_factory=list)
    start_regular: list[Container] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def add_kill(self, status: ContainerStatus, message: str, cause: KillCause) -> None:
        self.kill.append(ContainerKill(id=status.id, name=status.name, message=message, cause=cause))

    def outcome(self, kind: ProbeKind, status: ContainerStatus) -> ProbeOutcome | None:
        return self.inputs.probes.get((kind, status.id))

    def failed(self, kind: ProbeKind, status: ContainerStatus) -> bool:
        return self.outcome(kind, status) is ProbeOutcome.FAILURE


# --- sandbox and regular containers ---------------------------------------------------------------


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
    # Ephemeral containers are for inspecting a pod, so they need not wait until it is initialised.
    ephemeral = tuple(c for c in pod.spec.ephemeral_containers if runtime.container(c.name) is None)
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
    status = runtime.container(container.name)
    return status is not None and status.state is ContainerState.EXITED and status.exit_code == 0


def _plan_regular_containers(draft: Draft) -> None:
    pod, runtime = draft.inputs.pod, draft.inputs.runtime
    kept = 0
    for container in pod.spec.containers:
        status = runtime.container(container.name)
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
        draft.add_kill(status, 'Container is in "unknown" state, try killing it before restart', KillCause.UNKNOWN)


def _plan_running(draft: Draft, container: Container, status: ContainerStatus) -> bool:
    """Whether the running container is kept as it is."""
    # Restart rules are about exit codes, and a running container has none: only the policies count here.
    restart = effective_restart_policy(draft.inputs.pod, container) != "Never"
    if definition_changed(container, status):
        restart = True
        message, cause = f"Container {container.name} definition changed", KillCause.CHANGED
    elif draft.failed(ProbeKind.LIVENESS, status):
        message, cause = f"Container {container.name} failed liveness probe", KillCause.LIVENESS
    elif draft.failed(ProbeKind.STARTUP, status):
        message, cause = f"Container {container.name} failed startup probe", KillCause.STARTUP
    elif restarts_to_resize(draft, container, status):
        draft.start_regular.append(container)
        return False
    else:
        return True
    if restart:
        message = f"{message}, will be restarted"
        draft.start_regular.append(container)
    draft.add_kill(status, message, cause)
    return False


def _resets(pod: Pod, runtime: PodRuntimeStatus) -> tuple[ContainerReset, ...]:
    """Everything to remove before all containers start over.

    The containers whose exit caused it go last: as long as one is there the request is not forgotten,
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
            caused = ended and restarts_all_on_exit(container, status.exit_code)
            entry = ContainerReset(id=status.id, name=status.name, kill=not ended)
            (sources if caused else others).append(entry)
    return sources, others


# --- init containers and sidecars -----------------------------------------------------------------
# The walk goes from the last init container to the first: finished ones may have been removed from the runtime, so the
# last one that left a trace says how far initialisation has come. The table is in docs/states.md; every row has a test.


def plan_init_containers(draft: Draft) -> bool:
    """Add what init containers and sidecars need to the draft; True when the pod is initialised."""
    pod, runtime = draft.inputs.pod, draft.inputs.runtime
    containers = pod.spec.init_containers
    if not containers:
        return True
    initialised = any_regular_alive(pod, runtime)
    # True from the first container with a trace on: everything before it has been started already.
    passed = initialised
    for index in range(len(containers) - 1, -1, -1):
        container = containers[index]
        status = runtime.container(container.name)
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
            _replace(draft, container, status, "failed startup probe", KillCause.STARTUP)
        if outcome is not ProbeOutcome.SUCCESS:
            return False
    if definition_changed(container, status):
        _replace(draft, container, status, "definition changed", KillCause.CHANGED)
    elif container.liveness_probe is not None and draft.failed(ProbeKind.LIVENESS, status):
        _replace(draft, container, status, "failed liveness probe", KillCause.LIVENESS)
    elif restarts_to_resize(draft, container, status):
        draft.start_init.append(container)
    return True


def _replace(draft: Draft, container: Container, status: ContainerStatus, why: str, cause: KillCause) -> None:
    draft.add_kill(status, f"Init container {container.name} {why}", cause)
    draft.start_init.append(container)


def _kill_unknown(draft: Draft, status: ContainerStatus) -> None:
    message = 'Init container is in "unknown" state, try killing it before restart'
    draft.add_kill(status, message, KillCause.UNKNOWN)


# --- resizes --------------------------------------------------------------------------------------


def restarts_to_resize(draft: Draft, container: Container, status: ContainerStatus) -> bool:
    """Note a wanted resize in the draft. True, with a kill noted, when it takes a restart."""
    resize = judge_resize(container, status, draft)
    if resize is None:
        return False
    draft.resize.append(resize)
    if resize.needs_restart:
        draft.add_kill(status, f"Container {container.name} resize requires restart", KillCause.RESIZE)
    return resize.needs_restart


def judge_resize(container: Container, status: ContainerStatus, draft: Draft) -> ContainerResize | None:
    """The change a running container needs, if any."""
    if draft.inputs.actuated is None or status.state is not ContainerState.RUNNING:
        return None
    actuated = draft.inputs.actuated.get(container.name)
    if actuated is None:
        # No record of what was put into force: a guess could restart a healthy container.
        return None
    wanted = effective_resources(draft.inputs.pod.spec.resources, container)
    changed = differing(wanted, actuated)
    if not changed:
        return None
    policies = {policy.resource_name: policy.restart_policy for policy in container.resize_policy}
    return ContainerResize(
        id=status.id,
        name=status.name,
        wanted=wanted,
        actuated=actuated,
        resources=changed,
        needs_restart=any(policies.get(name) == "RestartContainer" for name in changed),
    )
