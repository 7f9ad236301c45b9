"""Carry out a pod's plan on the runtime, step by step, and say what came of it.

The order of the steps is upstream's; what may overlap does: images are fetched while the sandbox is being made, and
a container waits for its own and for the starts before it, not for the images of those behind. Nothing is decided
here that `plan.py` could decide. A failing container never keeps its siblings from starting, except a regular init
container, whose successors must wait.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.clients.cri.port import CriClient
from pykubelet.kit.mailbox import Signal
from pykubelet.kit.tasks import Beginner, beside, gather_all
from pykubelet.model.errors import CriError, NotFound, PykubeletError, RuntimeDown
from pykubelet.model.events import EventSink
from pykubelet.model.pod import (
    AnyContainer,
    ContainerKind,
    deletion_requested,
    find_container,
    is_sidecar,
    uid_of,
    uses_host_network,
)
from pykubelet.model.problems import ContainerProblem, CreateFailed, KillCause, Problem, ResizeFailed, SandboxFailed
from pykubelet.model.reasons import CREATE_POD_SANDBOX_ERROR, NORMAL, WARNING
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.pods.table import PodTable
from pykubelet.recorder import LifeRecorder, Step
from pykubelet.runtime.errors import ConfigProblem, StartError
from pykubelet.runtime.plan import ContainerKill, ContainerReset, KillReason, PlanInputs, PodPlan, plan_pod
from pykubelet.runtime.resize import ResizeProblem
from pykubelet.runtime.start import ContainerStarter, SandboxInUse, SpecBuilder
from pykubelet.runtime.stop import Stopper, Stopping
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

CAUSES = {KillReason.LIVENESS: KillCause.LIVENESS, KillReason.STARTUP: KillCause.STARTUP}


class ContainerRemover(Protocol):
    async def remove(self, pod: Pod, status: ContainerStatus, *, keep_logs: bool = False) -> None:
        """Remove a dead container with its log files and link."""
        ...


class RuntimeHandlers(Protocol):
    async def handler_for(self, pod: Pod) -> str:
        """The runtime handler of the pod's RuntimeClass; '' for the default one."""
        ...

    def handler_now(self, pod: Pod) -> str | None:
        """The same as far as it is known without asking anybody; None when it is not."""
        ...


class Resizer(Protocol):
    def begin(self, pod: Pod) -> Mapping[str, ResourceRequirements]:
        """What is in force for the pod's containers, by name."""
        ...

    def is_due(self, pod: Pod, plan: PodPlan) -> bool: ...

    async def resize(self, pod: Pod, plan: PodPlan, sandbox_id: str) -> None:
        """Put the resources of the spec into force for the pod and what runs of it. Raises ResizeProblem."""
        ...

    def starting(self, pod: Pod, container: AnyContainer) -> None:
        """The container is about to be started with what the spec says."""
        ...


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
        *,
        cri: CriClient,
        starter: ContainerStarter,
        stopper: Stopper,
        remover: ContainerRemover,
        specs: SpecBuilder,
        handlers: RuntimeHandlers,
        resizer: Resizer,
        table: PodTable,
        events: EventSink,
        recorder: LifeRecorder,
    ) -> None:
        self._cri = cri
        self._starter = starter
        self._stopper = stopper
        self._remover = remover
        self._specs = specs
        self._handlers = handlers
        self._resizer = resizer
        self._table = table
        self._events = events
        self._recorder = recorder
        self._without_sandbox: set[str] = set()
        """Pods whose sandbox could not be made when it was last tried."""

    async def sync_pod(
        self,
        pod: Pod,
        seen: PodRuntimeStatus,
        *,
        restart_all: bool = False,
        renew_status: Callable[[], Awaitable[None]] | None = None,
    ) -> SyncOutcome:
        """`renew_status` is called after a step when others follow that may take long."""
        outcome = SyncOutcome()
        await self._carry_out(pod, seen, self._plan(pod, seen, restart_all), outcome, renew_status)
        self._remember(uid_of(pod), outcome)
        return outcome

    async def _carry_out(
        self,
        pod: Pod,
        seen: PodRuntimeStatus,
        plan: PodPlan,
        outcome: SyncOutcome,
        renew_status: Callable[[], Awaitable[None]] | None,
    ) -> None:
        if plan.is_idle and not self._resizer.is_due(pod, plan):
            return
        outcome.acted = True
        if plan.kill_pod:
            await self._end_old_life(pod, seen, plan)
            if not plan.create_sandbox:
                outcome.ended = True
                return
        else:
            for kill in plan.kill:
                await self._kill(pod, kill, seen)
            for reset in plan.reset:
                await self._reset(pod, reset, seen)
            if plan.reset:
                return
        await self._prune_init(pod, seen, plan)
        if not plan.create_sandbox:
            await self._resize(pod, plan, plan.sandbox_id, outcome)
            if not _starts(plan):
                return
        stepped = Signal()
        async with beside() as begin:
            if renew_status is not None:
                begin(_each_time(stepped, renew_status))
            try:
                sandbox = await self._sandbox(pod, seen, plan, begin, stepped)
            except StartError as error:
                outcome.problems.append(error.problem)
                return
            if plan.create_sandbox:
                await self._resize(pod, plan, sandbox.id, outcome)
            await self._start_all(pod, plan, sandbox, seen, outcome, stepped)

    def _remember(self, uid: str, outcome: SyncOutcome) -> None:
        """Keep why containers did not start; those that did have no reason any more."""
        failed = {each.container: each for each in outcome.problems if isinstance(each, ContainerProblem)}
        for name, problem in failed.items():
            if name:
                self._table.start_failed(uid, problem)
        for name in outcome.started:
            if name not in failed:
                self._table.start_succeeded(uid, name)

    def has_work(self, pod: Pod, seen: PodRuntimeStatus) -> bool:
        """Whether a pass over the pod in this state would do anything, perhaps find that it must wait."""
        return not self._plan(pod, seen, restart_all=False).is_idle

    def _plan(self, pod: Pod, seen: PodRuntimeStatus, restart_all: bool) -> PodPlan:
        actuated = self._resizer.begin(pod)
        return plan_pod(
            PlanInputs(
                pod=pod,
                runtime=seen,
                probes=self._table.probe_outcomes(uid_of(pod)),
                restart_all=restart_all,
                actuated=actuated,
            )
        )

    async def kill_pod(self, pod: Pod, seen: PodRuntimeStatus, grace: int | None) -> None:
        self._without_sandbox.discard(uid_of(pod))
        await self._stopper.stop_pod(pod, seen, grace)

    async def _resize(self, pod: Pod, plan: PodPlan, sandbox_id: str, outcome: SyncOutcome) -> None:
        """A resize that fails is told and tried again; it keeps no container from starting."""
        if self._resizer.is_due(pod, plan):
            try:
                await self._resizer.resize(pod, plan, sandbox_id)
            except ResizeProblem as error:
                outcome.problems.append(ResizeFailed(text=str(error)))

    # --- ending ---------------------------------------------------------------------------------

    async def _end_old_life(self, pod: Pod, seen: PodRuntimeStatus, plan: PodPlan) -> None:
        if plan.create_sandbox and seen.sandboxes:
            text = "Pod sandbox changed, it will be killed and re-created."
            self._events.pod_event(pod, NORMAL, "SandboxChanged", text)
        await self._stopper.stop_pod(pod, seen, None)
        if plan.create_sandbox:
            names = {c.name for c in pod.spec.init_containers}
            for status in seen.containers:
                if status.name in names:
                    await self._remover.remove(pod, status)

    async def _kill(self, pod: Pod, kill: ContainerKill, seen: PodRuntimeStatus) -> None:
        found = find_container(pod, kill.name)
        kind, container = found if found else (ContainerKind.REGULAR, None)
        status = next((c for c in seen.containers if c.id == kill.id), None)
        if status is None:
            return
        cause = CAUSES.get(kill.reason, KillCause.OTHER)
        one = Stopping(status=status, container=container, kind=kind, message=kill.message, cause=cause)
        await self._stopper.stop_container(pod, one)

    async def _reset(self, pod: Pod, reset: ContainerReset, seen: PodRuntimeStatus) -> None:
        status = next((c for c in seen.containers if c.id == reset.id), None)
        if status is None:
            return
        if reset.kill:
            found = find_container(pod, reset.name)
            kind, container = found if found else (ContainerKind.REGULAR, None)
            one = Stopping(status=status, container=container, kind=kind)
            await self._stopper.stop_container(pod, one, grace=0)
        await self._remover.remove(pod, status, keep_logs=True)

    async def _prune_init(self, pod: Pod, seen: PodRuntimeStatus, plan: PodPlan) -> None:
        """Before an init container runs again, keep only its newest dead one."""
        for container in plan.start_init:
            dead = [
                c
                for c in seen.containers
                if c.name == container.name and c.state in (ContainerState.EXITED, ContainerState.UNKNOWN)
            ]
            for status in dead[1:]:
                await self._remover.remove(pod, status)

    # --- sandbox --------------------------------------------------------------------------------

    async def _sandbox(
        self, pod: Pod, seen: PodRuntimeStatus, plan: PodPlan, begin: Beginner, stepped: Signal
    ) -> SandboxInUse:
        try:
            config = await self._specs.sandbox(pod, plan.attempt)
        except ConfigProblem as error:
            raise self._sandbox_failed(pod, error) from error
        if not plan.create_sandbox:
            await self._find_volume_images(pod, config)
            return SandboxInUse(id=plan.sandbox_id, config=config, ips=seen.ips)
        # The runtime prepares the network while we look for the images: neither needs the other, and no container
        # waits for the image of one behind it. One that ran before may be in back-off, which is judged when its turn
        # comes. Without a sandbox all this is given up, so it is not begun with every try.
        uid = uid_of(pod)
        images = {
            container.name or "": begin(self._starter.find_image(pod, kind, container, config))
            for kind, container in _starts(plan)
            if seen.container(container.name or "") is None and uid not in self._without_sandbox
        }
        self._without_sandbox.add(uid)
        made: list[tuple[str, tuple[str, ...]]] = []

        async def make() -> None:
            made.append(await self._make_sandbox(pod, config))
            self._without_sandbox.discard(uid)
            stepped.set()

        await gather_all(make(), self._find_volume_images(pod, config))
        (sandbox_id, ips), *_ = made
        return SandboxInUse(id=sandbox_id, config=config, ips=ips, images=images)

    async def _find_volume_images(self, pod: Pod, config: cri_pb2.PodSandboxConfig) -> None:
        if all(volume.image is None for volume in pod.spec.volumes):
            return
        try:
            handler = await self._handlers.handler_for(pod)
        except PykubeletError as error:
            raise self._sandbox_failed(pod, error) from error
        await self._starter.find_volume_images(pod, config, handler)

    async def _make_sandbox(self, pod: Pod, config: cri_pb2.PodSandboxConfig) -> tuple[str, tuple[str, ...]]:
        with self._recorder.step(uid_of(pod), Step.SANDBOX):
            try:
                handler = await self._handlers.handler_for(pod)
                sandbox_id = await self._cri.run_pod_sandbox(config, handler)
            except RuntimeDown:
                raise
            except PykubeletError as error:
                raise self._sandbox_failed(pod, error) from error
            if uses_host_network(pod):
                return sandbox_id, ()
            try:
                status = await self._cri.pod_sandbox_status(sandbox_id)
            except CriError as error:
                text = f"Unable to get pod sandbox status: {error}"
                self._events.pod_event(pod, WARNING, "FailedPodSandBoxStatus", text)
                raise
            return sandbox_id, status.ips

    def _sandbox_failed(self, pod: Pod, error: PykubeletError) -> StartError:
        problem = SandboxFailed(text=str(error))
        if not deletion_requested(pod):
            self._events.pod_event(pod, WARNING, "FailedCreatePodSandBox", problem.message)
        return StartError(problem)

    # --- containers -----------------------------------------------------------------------------

    async def _start_all(
        self,
        pod: Pod,
        plan: PodPlan,
        sandbox: SandboxInUse,
        seen: PodRuntimeStatus,
        outcome: SyncOutcome,
        stepped: Signal,
    ) -> None:
        for kind, container in _starts(plan):
            if kind is not ContainerKind.EPHEMERAL:
                self._resizer.starting(pod, container)
            try:
                await self._starter.start(pod, kind, container, sandbox, seen)
            except StartError as error:
                outcome.problems.append(error.problem)
                if kind is ContainerKind.INIT and not is_sidecar(container):
                    return
            except NotFound as gone:
                # The sandbox vanished under us; the next look at the pod makes a new one.
                name = container.name or ""
                outcome.problems.append(CreateFailed(container=name, reason=CREATE_POD_SANDBOX_ERROR, text=str(gone)))
                return
            else:
                outcome.started.append(container.name or "")
                stepped.set()


async def _each_time(signal: Signal, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await signal.wait()
        await work()


def _starts(plan: PodPlan) -> Sequence[tuple[ContainerKind, AnyContainer]]:
    """Containers in the order they start."""
    return [
        *((ContainerKind.EPHEMERAL, c) for c in plan.start_ephemeral),
        *((ContainerKind.INIT, c) for c in plan.start_init),
        *((ContainerKind.REGULAR, c) for c in plan.start_regular),
    ]
