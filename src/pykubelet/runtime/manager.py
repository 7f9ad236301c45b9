"""Carry out a pod's plan on the runtime, step by step, and return what came of it.

The order of the steps is upstream's; what may overlap does: images are fetched while the sandbox is being made, and
a container waits for its own and for the starts before it, not for the images of those behind. Nothing is decided
here that `plan.py` could decide. A failing container never keeps its siblings from starting, except a regular init
container, whose successors must wait.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct, field

from pykubelet.api.types import Pod
from pykubelet.context import Context
from pykubelet.kit.tasks import Wakeup, beside
from pykubelet.model.errors import NotFound
from pykubelet.model.pod import (
    ContainerKind,
    find_container,
    is_sidecar,
    uid_of,
)
from pykubelet.model.problems import ContainerProblem, CreateFailed, Problem, ResizeFailed
from pykubelet.model.reasons import CREATE_POD_SANDBOX_ERROR, NORMAL
from pykubelet.model.runtime_status import ContainerState, PodRuntimeStatus
from pykubelet.pods.table import PodTable
from pykubelet.runtime.errors import StartError
from pykubelet.runtime.gc import ContainerRemover
from pykubelet.runtime.plan import ContainerKill, ContainerReset, PlanInputs, PodPlan, plan_pod
from pykubelet.runtime.resize import PodResizer, ResizeProblem
from pykubelet.runtime.start import ContainerStarter, SandboxInUse, SandboxStarter, starts
from pykubelet.runtime.stop import Stopper, Stopping

logger = logging.getLogger(__name__)


class SyncOutcome(Struct):
    """What one pass over a pod did and could not do."""

    acted: bool = False
    started: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Why containers did not start, or changed resources could not be put into force."""
    ended: bool = False
    """The plan was to end the pod: nothing runs and nothing is to be started."""


class RuntimeManager:
    def __init__(
        self,
        ctx: Context,
        *,
        sandboxes: SandboxStarter,
        containers: ContainerStarter,
        stopper: Stopper,
        remover: ContainerRemover,
        resizer: PodResizer,
        table: PodTable,
    ) -> None:
        self._sandboxes = sandboxes
        self._containers = containers
        self._stopper = stopper
        self._remover = remover
        self._resizer = resizer
        self._table = table
        self._events = ctx.events

    async def sync_pod(
        self,
        pod: Pod,
        observed: PodRuntimeStatus,
        *,
        restart_all: bool = False,
        renew_status: Callable[[], Awaitable[None]] | None = None,
    ) -> SyncOutcome:
        """`renew_status` is called after a step when others follow that may take long."""
        outcome = SyncOutcome()
        await self._carry_out(pod, observed, self._plan(pod, observed, restart_all), outcome, renew_status)
        self._remember(uid_of(pod), outcome)
        return outcome

    async def _carry_out(
        self,
        pod: Pod,
        observed: PodRuntimeStatus,
        plan: PodPlan,
        outcome: SyncOutcome,
        renew_status: Callable[[], Awaitable[None]] | None,
    ) -> None:
        if plan.is_idle and not self._resizer.is_due(pod, plan):
            return
        outcome.acted = True
        if plan.kill_pod:
            await self._end_old_life(pod, observed, plan)
            if not plan.create_sandbox:
                outcome.ended = True
                return
        else:
            for kill in plan.kill:
                await self._kill(pod, kill, observed)
            for reset in plan.reset:
                await self._reset(pod, reset, observed)
            if plan.reset:
                return
        await self._prune_init(pod, observed, plan)
        if not plan.create_sandbox:
            await self._resize(pod, plan, plan.sandbox_id, outcome)
            if not starts(plan):
                return
        stepped = Wakeup()
        async with beside() as begin:
            if renew_status is not None:
                begin(_each_time(stepped, renew_status))
            try:
                sandbox = await self._sandboxes.start(pod, observed, plan, begin, stepped)
            except StartError as error:
                outcome.problems.append(error.problem)
                return
            if plan.create_sandbox:
                await self._resize(pod, plan, sandbox.id, outcome)
            await self._start_all(pod, plan, sandbox, observed, outcome, stepped)

    def _remember(self, uid: str, outcome: SyncOutcome) -> None:
        """Keep why containers did not start; those that did have no reason any more."""
        failed = {each.container: each for each in outcome.problems if isinstance(each, ContainerProblem)}
        for name, problem in failed.items():
            if name:
                self._table.start_failed(uid, problem)
        for name in outcome.started:
            if name not in failed:
                self._table.start_succeeded(uid, name)

    def has_work(self, pod: Pod, observed: PodRuntimeStatus) -> bool:
        """Whether a pass over the pod in this state would do anything, perhaps find that it must wait."""
        return not self._plan(pod, observed, restart_all=False).is_idle

    def _plan(self, pod: Pod, observed: PodRuntimeStatus, restart_all: bool) -> PodPlan:
        actuated = self._resizer.begin(pod)
        return plan_pod(
            PlanInputs(
                pod=pod,
                runtime=observed,
                probes=self._table.probe_outcomes(uid_of(pod)),
                restart_all=restart_all,
                actuated=actuated,
            )
        )

    async def kill_pod(self, pod: Pod, observed: PodRuntimeStatus, grace: int | None) -> None:
        self._sandboxes.forget(uid_of(pod))
        await self._stopper.stop_pod(pod, observed, grace)

    async def _resize(self, pod: Pod, plan: PodPlan, sandbox_id: str, outcome: SyncOutcome) -> None:
        """A resize that fails is reported and tried again; it keeps no container from starting."""
        if self._resizer.is_due(pod, plan):
            try:
                await self._resizer.resize(pod, plan, sandbox_id)
            except ResizeProblem as error:
                outcome.problems.append(ResizeFailed(text=str(error)))

    # --- ending ---------------------------------------------------------------------------------

    async def _end_old_life(self, pod: Pod, observed: PodRuntimeStatus, plan: PodPlan) -> None:
        if plan.create_sandbox and observed.sandboxes:
            text = "Pod sandbox changed, it will be killed and re-created."
            self._events.pod_event(pod, NORMAL, "SandboxChanged", text)
        await self._stopper.stop_pod(pod, observed, None)
        if plan.create_sandbox:
            names = {c.name for c in pod.spec.init_containers}
            for status in observed.containers:
                if status.name in names:
                    await self._remover.remove(pod, status)

    async def _kill(self, pod: Pod, kill: ContainerKill, observed: PodRuntimeStatus) -> None:
        found = find_container(pod, kill.name)
        kind, container = found if found else (ContainerKind.REGULAR, None)
        status = next((c for c in observed.containers if c.id == kill.id), None)
        if status is None:
            return
        one = Stopping(status=status, container=container, kind=kind, message=kill.message, cause=kill.cause)
        await self._stopper.stop_container(pod, one)

    async def _reset(self, pod: Pod, reset: ContainerReset, observed: PodRuntimeStatus) -> None:
        status = next((c for c in observed.containers if c.id == reset.id), None)
        if status is None:
            return
        if reset.kill:
            found = find_container(pod, reset.name)
            kind, container = found if found else (ContainerKind.REGULAR, None)
            one = Stopping(status=status, container=container, kind=kind)
            await self._stopper.stop_container(pod, one, grace=0)
        await self._remover.remove(pod, status, keep_logs=True)

    async def _prune_init(self, pod: Pod, observed: PodRuntimeStatus, plan: PodPlan) -> None:
        """Before an init container runs again, keep only its newest dead one."""
        for container in plan.start_init:
            dead = [
                c
                for c in observed.containers
                if c.name == container.name and c.state in (ContainerState.EXITED, ContainerState.UNKNOWN)
            ]
            for status in dead[1:]:
                await self._remover.remove(pod, status)

    # --- containers -----------------------------------------------------------------------------

    async def _start_all(
        self,
        pod: Pod,
        plan: PodPlan,
        sandbox: SandboxInUse,
        observed: PodRuntimeStatus,
        outcome: SyncOutcome,
        stepped: Wakeup,
    ) -> None:
        for kind, container in starts(plan):
            if kind is not ContainerKind.EPHEMERAL:
                self._resizer.starting(pod, container)
            try:
                await self._containers.start(pod, kind, container, sandbox, observed)
            except StartError as error:
                outcome.problems.append(error.problem)
                if kind is ContainerKind.INIT and not is_sidecar(container):
                    return
            except NotFound as gone:
                # The sandbox vanished meanwhile; the next sync makes a new one.
                name = container.name
                outcome.problems.append(CreateFailed(container=name, reason=CREATE_POD_SANDBOX_ERROR, text=str(gone)))
                return
            else:
                outcome.started.append(container.name)
                stepped.set()


async def _each_time(signal: Wakeup, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await signal.wait()
        await work()
