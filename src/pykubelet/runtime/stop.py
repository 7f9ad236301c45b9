"""Stopping: one container, all containers of a pod in their order, and the sandboxes after them.

Grace periods are counted once and shared: a preStop hook and the wait for one's turn use up the same
seconds that the runtime would give the process. Already gone is success, so every call may be repeated: a
grace that was shortened cancels the stop in flight and requests another with fewer seconds, and what was stopping
goes on stopping. Hooks live beside the call that waits for them, because giving up on a command ends its
process in the runtime; each container's hook runs once for one stop, however often that is tried. Which pods
stop and why is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

from msgspec import Struct

from pykubelet.api.types import LifecycleHandler, Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.context import Context
from pykubelet.kit.tasks import TaskSet, gather_all
from pykubelet.model.errors import RuntimeDown
from pykubelet.model.pod import AnyContainer, ContainerKind, all_containers, sidecars, uid_of
from pykubelet.model.problems import KillCause
from pykubelet.model.reasons import NORMAL, WARNING
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.recorder import Step
from pykubelet.runtime.hooks import LifecycleHooks
from pykubelet.runtime.pacing import Pacer, Rank

logger = logging.getLogger(__name__)

MINIMUM_GRACE = 2
"""Seconds every container gets at the least, however little of the pod's grace is left."""

ROUNDING = 0.001
"""A hook that took its two seconds took two whole seconds, also when the clock rounds down."""

HOOK_COUNTS = 60.0
"""Seconds after a stop gave up for which its hook counts for the next try; later it is another stop."""

STOPPABLE = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


class Stopping(Struct, frozen=True, kw_only=True):
    """One container that is to stop, and what is known about how."""

    status: ContainerStatus
    container: AnyContainer | None
    """None when the pod's spec no longer has it."""
    kind: ContainerKind = ContainerKind.REGULAR
    message: str = ""
    cause: KillCause = KillCause.OTHER


class StopOrder:
    """Sidecars wait for the regular containers, then stop one after another in reverse order."""

    def __init__(self, pod: Pod, stopping: Sequence[Stopping]) -> None:
        self._gone = {one.status.name: asyncio.Event() for one in stopping}
        names = [c.name for c in sidecars(pod)]
        regular = [name for name in self._gone if name not in names]
        self._before: dict[str, list[str]] = {
            name: regular + [later for later in names[index + 1 :] if later in self._gone]
            for index, name in enumerate(names)
        }

    async def wait_turn(self, name: str) -> None:
        for other in self._before.get(name, ()):
            await self._gone[other].wait()

    def is_gone(self, name: str) -> None:
        self._gone[name].set()


def grace_for(pod: Pod, container: AnyContainer | None, cause: KillCause) -> int:
    """Seconds a container may take to stop unless overridden."""
    if pod.metadata.deletion_grace_period_seconds is not None:
        return pod.metadata.deletion_grace_period_seconds
    grace = pod.spec.termination_grace_period_seconds
    if container is not None and cause in (KillCause.LIVENESS, KillCause.STARTUP):
        probe = container.liveness_probe if cause is KillCause.LIVENESS else container.startup_probe
        if probe is not None and probe.termination_grace_period_seconds is not None:
            grace = probe.termination_grace_period_seconds
    return MINIMUM_GRACE if grace is None else grace


class _BegunHook(Struct):
    """A preStop hook that was begun: it may run, or be over."""

    pod_uid: str
    task: asyncio.Task[None] | None = None
    problem: Exception | None = None
    reported: bool = False
    given_up_at: float = math.inf
    """When a stop last gave up on the container, which runs on; never while one is under way."""

    @property
    def was_unheard(self) -> bool:
        """The runtime was away, so the container never knew of it."""
        return self.problem is not None and isinstance(self.problem.__cause__, RuntimeDown)


class Stopper:
    """Runs as a service, which is where the hooks live."""

    name = "pre-stop-hooks"

    def __init__(self, ctx: Context, cri: CriClient, hooks: LifecycleHooks, pacer: Pacer) -> None:
        self._cri = cri
        self.pacer = pacer
        self.hooks = hooks
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._clock = ctx.clock
        self._tasks = TaskSet("preStop hooks")
        self._begun: dict[str, _BegunHook] = {}
        """By container; until the container is gone."""

    async def run(self) -> None:
        async with self._tasks:
            await asyncio.Event().wait()

    async def stop_pod(self, pod: Pod, observed: PodRuntimeStatus, grace: int | None) -> None:
        """Stop every container of the pod, then every sandbox. Returns when the runtime has all of them down."""
        specs = {container.name: (kind, container) for kind, container in all_containers(pod)}
        stopping = []
        for status in observed.containers:
            if status.state in STOPPABLE:
                kind, container = specs.get(status.name, (ContainerKind.REGULAR, None))
                one = Stopping(status=status, container=container, kind=kind, cause=KillCause.POD_ENDS)
                stopping.append(one)
        order = StopOrder(pod, stopping) if sidecars(pod) else None
        problem: Exception | None = None
        try:
            await gather_all(*(self.stop_container(pod, one, grace=grace, order=order) for one in stopping))
        except RuntimeDown:
            raise  # containers may be ending in their grace; stopping the sandbox would cut it off
        except Exception as error:
            problem = error  # one that resists is killed with its sandbox
        await self.stop_sandboxes(uid_of(pod), observed)
        for id, hook in list(self._begun.items()):
            if hook.pod_uid == uid_of(pod):
                self._forget_hook(id)
        if problem is not None:
            raise problem

    async def stop_sandboxes(self, uid: str, observed: PodRuntimeStatus) -> None:
        await gather_all(*(self._stop_sandbox(uid, sandbox.id) for sandbox in observed.sandboxes))

    async def _stop_sandbox(self, uid: str, sandbox_id: str) -> None:
        async with self.pacer.turn(uid, Rank.STOP):
            with self._recorder.step(uid, Step.KILL, "sandbox"):
                await self._cri.stop_pod_sandbox(sandbox_id)

    async def stop_container(
        self, pod: Pod, one: Stopping, *, grace: int | None = None, order: StopOrder | None = None
    ) -> None:
        """Stop one container within its grace: hook, turn, signal, kill."""
        name = one.status.name
        left = float(grace_for(pod, one.container, one.cause) if grace is None else grace)
        message = one.message or f"Stopping container {name}"
        self._events.pod_event(pod, NORMAL, "Killing", message, field_path=one.kind.field_path(name))
        with self._recorder.step(uid_of(pod), Step.KILL, name) as entry:
            entry.message, entry.cause = message, one.cause
            try:
                left -= await self._pre_stop(pod, one, left)
                if order is not None and left > 0:
                    left -= await self._wait_turn(order, name, left)
                await self._cri.stop_container(one.status.id, max(MINIMUM_GRACE, int(left)))
            finally:
                if order is not None:
                    order.is_gone(name)
                if (hook := self._begun.get(one.status.id)) is not None:
                    hook.given_up_at = self._clock.monotonic()
        self._forget_hook(one.status.id)

    async def _pre_stop(self, pod: Pod, one: Stopping, grace: float) -> int:
        """Wait for the preStop hook, begun now or earlier, within the grace; the whole seconds it took."""
        container = one.container
        lifecycle = container.lifecycle if container is not None else None
        if container is None or lifecycle is None or lifecycle.pre_stop is None or grace <= 0:
            return 0
        begun = self._clock.monotonic()
        hook = self._begun.get(one.status.id)
        if hook is None or hook.was_unheard or self._is_old(hook):
            hook = self._begin_hook(pod, container, one.status.id, lifecycle.pre_stop)
        assert hook.task is not None
        hook.given_up_at = math.inf
        _, waits = await asyncio.wait({hook.task}, timeout=grace)
        problem = hook.problem
        if waits:
            problem = TimeoutError(f"preStop hook did not finish within the {grace:g}s of grace")
        if problem is not None and not hook.reported:
            hook.reported = True
            path = one.kind.field_path(one.status.name)
            self._events.pod_event(pod, WARNING, "FailedPreStopHook", "PreStopHook failed", field_path=path)
            self._recorder.fail(
                uid_of(pod), Step.HOOK, one.status.name, reason="FailedPreStopHook", message=str(problem)
            )
            logger.warning("preStop hook failed", extra={"container": one.status.name, "error": str(problem)})
        return int(self._clock.monotonic() - begun + ROUNDING)

    def _is_old(self, hook: _BegunHook) -> bool:
        """Whether it ran for a stop that was not tried again: the container lived on and ends anew."""
        over = hook.task is not None and hook.task.done()
        return over and self._clock.monotonic() - hook.given_up_at > HOOK_COUNTS

    def _begin_hook(
        self, pod: Pod, container: AnyContainer, container_id: str, handler: LifecycleHandler
    ) -> _BegunHook:
        hook = _BegunHook(uid_of(pod))

        async def run() -> None:
            try:
                await self.hooks.run(pod, container, container_id, handler)
            except Exception as error:  # a hook's trouble never keeps its container alive
                hook.problem = error

        hook.task = self._tasks.spawn(run(), name=f"preStop hook of {container.name} {container_id[:12]}")
        self._begun[container_id] = hook
        return hook

    def _forget_hook(self, container_id: str) -> None:
        """Cancel the hook: its container is gone."""
        hook = self._begun.pop(container_id, None)
        if hook is not None and hook.task is not None:
            hook.task.cancel()

    async def _wait_turn(self, order: StopOrder, name: str, at_most: float) -> int:
        """Wait until others are gone; the whole seconds that took, so that no second of what is left is cut short."""
        begun = self._clock.monotonic()
        try:
            async with asyncio.timeout(at_most):
                await order.wait_turn(name)
        except TimeoutError:
            logger.info("grace is used up, stopping out of turn", extra={"container": name})
        return int(self._clock.monotonic() - begun + ROUNDING)
