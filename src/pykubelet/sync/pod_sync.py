"""The three steps of a pod's life: sync, terminating, terminated. Each may be repeated after any failure.

The steps only order what the managers do; the decisions are in the plan, the status and the phases. Every
change this agent makes in the runtime is looked at right after it was made (`Pleg.inspect`), so nobody
waits for a relist to learn what we did ourselves.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from pykubelet.api.types import Pod, PodStatus
from pykubelet.clients.host.port import PodFolders
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import is_static, is_terminal_phase, readable, uid_of, uses_host_network
from pykubelet.model.problems import ContainerProblem, Problem, ResizeFailed
from pykubelet.model.reasons import ALL_CONTAINERS_RESTARTING, WARNING
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pods.record import Orphan, StatusChange
from pykubelet.pods.table import PodTable
from pykubelet.recorder import LifeRecorder, Step
from pykubelet.runtime.manager import SyncOutcome
from pykubelet.sync.steps import NetworkNotReady, SyncResult

logger = logging.getLogger(__name__)

RENEW_AFTER = 0.2
"""Seconds after a step of a start that its status is told, unless the start is done by then and tells it anyway."""


class PodRuntime(Protocol):
    async def sync_pod(
        self,
        pod: Pod,
        seen: PodRuntimeStatus,
        *,
        restart_all: bool = False,
        renew_status: Callable[[], Awaitable[None]] | None = None,
    ) -> SyncOutcome: ...

    def has_work(self, pod: Pod, seen: PodRuntimeStatus) -> bool: ...

    async def kill_pod(self, pod: Pod, seen: PodRuntimeStatus, grace: int | None) -> None: ...


class PodLook(Protocol):
    async def inspect(self, uid: str) -> PodRuntimeStatus:
        """Ask the runtime about one pod now and renew the cache."""
        ...


class StatusMaker(Protocol):
    def make(self, pod: Pod, seen: PodRuntimeStatus, *, terminal: bool) -> PodStatus: ...


class StatusWriter(Protocol):
    def set_status(self, pod: Pod, status: PodStatus) -> None: ...

    def terminate(self, pod: Pod, status: PodStatus) -> None:
        """The pod holds nothing any more: its last status may be sent and the object be deleted."""
        ...


class PodVolumes(Protocol):
    async def wait_mounted(self, pod: Pod) -> None: ...

    async def wait_unmounted(self, pod: Pod) -> None: ...


class PodProbes(Protocol):
    def add_pod(self, pod: Pod) -> None: ...

    def stop_for_termination(self, pod: Pod) -> None:
        """End liveness and startup probes; readiness goes on so that the pod is taken out of service."""
        ...

    def remove_pod(self, uid: str) -> None: ...


class PodResizes(Protocol):
    """What pods were promised, as opposed to what their specs ask for."""

    def allocated(self, pod: Pod) -> Pod:
        """The pod with what it was promised; every step works with that."""
        ...

    def review(self, pod: Pod, seen: PodRuntimeStatus) -> None:
        """Note whether a promised resize is in force by now."""
        ...

    def failed(self, pod: Pod, why: str) -> None: ...


class IdRanges(Protocol):
    def release(self, uid: str) -> None:
        """The pod's user namespace is used no more."""
        ...


class PodCgroups(Protocol):
    def is_missing(self, pod: Pod) -> bool:
        """Whether the pod should have a cgroup of its own and has none."""
        ...

    async def ensure(self, pod: Pod) -> None: ...

    async def remove(self, uid: str) -> None: ...


class PodClaims(Protocol):
    """Dynamic resources that pods claim."""

    async def prepare(self, pod: Pod, *, has_sandbox: bool) -> None: ...

    async def unprepare(self, uid: str) -> None: ...


class NoClaims:
    """Without an API server there is nobody who could allocate any; such pods are not admitted."""

    async def prepare(self, pod: Pod, *, has_sandbox: bool) -> None:
        return

    async def unprepare(self, uid: str) -> None:
        return


class Mirrors(Protocol):
    async def reconcile(self, pod: Pod) -> None: ...


class References(Protocol):
    """Secrets and config maps a pod needs, kept at hand while it lives."""

    def register(self, pod: Pod) -> None: ...

    def unregister(self, pod: Pod) -> None: ...


class Network(Protocol):
    def network_problem(self) -> str:
        """Why the pod network cannot be used; empty when it can."""
        ...


class PodSync:
    """Carries out the steps for every pod; holds no state of its own."""

    def __init__(
        self,
        *,
        runtime: PodRuntime,
        look: PodLook,
        maker: StatusMaker,
        statuses: StatusWriter,
        volumes: PodVolumes,
        probes: PodProbes,
        cgroups: PodCgroups,
        resizes: PodResizes,
        id_ranges: IdRanges,
        mirrors: Mirrors,
        references: References,
        network: Network,
        folders: PodFolders,
        table: PodTable,
        events: EventRecorder,
        recorder: LifeRecorder,
        clock: Clock,
        claims: PodClaims | None = None,
    ) -> None:
        self._claims = claims or NoClaims()
        self._runtime = runtime
        self._look = look
        self._maker = maker
        self._statuses = statuses
        self._volumes = volumes
        self._probes = probes
        self._cgroups = cgroups
        self._resizes = resizes
        self._id_ranges = id_ranges
        self._mirrors = mirrors
        self._references = references
        self._network = network
        self._folders = folders
        self._table = table
        self._events = events
        self._recorder = recorder
        self._clock = clock

    # --- sync -----------------------------------------------------------------------------------

    async def sync(self, pod: Pod, seen: PodRuntimeStatus) -> SyncResult:
        pod = self._resizes.allocated(pod)
        self._resizes.review(pod, seen)
        status = self._maker.make(pod, seen, terminal=False)
        self._statuses.set_status(pod, status)
        if is_terminal_phase(status.phase):
            return SyncResult(ended=True)
        why = "" if uses_host_network(pod) else self._network.network_problem()
        if why:
            text = f"network is not ready: {why}"
            self._events.pod_event(pod, WARNING, "NetworkNotReady", text)
            raise NetworkNotReady(text)
        self._references.register(pod)
        seen = await self._rehome(pod, seen)
        await self._prepare(pod, seen)
        self._probes.add_pod(pod)
        outcome = await self._runtime.sync_pod(
            pod, seen, restart_all=_restarts_all(status), renew_status=lambda: self._renew(pod)
        )
        self._remember(pod, outcome)
        for problem in outcome.problems:
            if isinstance(problem, ResizeFailed):
                self._resizes.failed(pod, problem.message)
        fresh = seen
        if outcome.acted:
            fresh = await self._look.inspect(uid_of(pod))
            self._resizes.review(pod, fresh)
            status = self._maker.make(pod, fresh, terminal=False)
            self._statuses.set_status(pod, status)
            if is_terminal_phase(status.phase):
                return SyncResult(ended=True)
        # An outcome of "the pod is to end" with a phase that says otherwise has nothing left to do either.
        more = outcome.acted and not outcome.ended and self._runtime.has_work(pod, fresh)
        # Containers that ended during this sync are in the status already and cause no further event: the next sync
        # must not wait until a sibling's problem is over.
        if more and (not outcome.problems or fresh.ended_since(seen)):
            return SyncResult(problems=outcome.problems, retry_at=self._clock.now())
        retry_at = _earliest(outcome.problems) if outcome.problems else _deadline(pod, status)
        return SyncResult(problems=outcome.problems, retry_at=retry_at)

    async def _renew(self, pod: Pod) -> None:
        """Tell how far a pod is whose start takes long: an image is pulled, a hook runs. Cancelled when it is quick."""
        await self._clock.sleep(RENEW_AFTER)
        try:
            fresh = await self._look.inspect(uid_of(pod))
        except PykubeletError as error:
            logger.info("status not renewed while a pod starts", extra={"pod": readable(pod), "problem": str(error)})
            return
        self._statuses.set_status(pod, self._maker.make(pod, fresh, terminal=False))

    async def _rehome(self, pod: Pod, seen: PodRuntimeStatus) -> PodRuntimeStatus:
        """Containers that run outside the pod's cgroup, because the settings changed, escape its limits: end them."""
        if not seen.running() or not self._cgroups.is_missing(pod):
            return seen
        logger.warning("pod runs without its cgroup; it is stopped and started again", extra={"pod": readable(pod)})
        await self._runtime.kill_pod(pod, seen, None)
        return await self._look.inspect(uid_of(pod))

    async def _prepare(self, pod: Pod, seen: PodRuntimeStatus) -> None:
        """What must be there before anything of the pod runs."""
        uid = uid_of(pod)
        try:
            with self._recorder.step(uid, Step.CGROUP, routine=True):
                await self._cgroups.ensure(pod)
        except (PykubeletError, OSError) as error:
            text = f"unable to ensure pod container exists: {error}"
            self._events.pod_event(pod, WARNING, "FailedCreatePodContainer", text)
            raise
        if is_static(pod):
            await self._mirrors.reconcile(pod)
        try:
            self._folders.make_pod(uid)
            self._folders.make_logs(pod)
        except OSError as error:
            self._events.pod_event(pod, WARNING, "Failed", f"error making pod data directories: {error}")
            raise
        if pod.spec.volumes:
            with self._recorder.step(uid, Step.VOLUMES, routine=True):
                await self._volumes.wait_mounted(pod)
        if pod.spec.resource_claims or pod.status.extended_resource_claim_status is not None:
            with self._recorder.step(uid, Step.CLAIMS, routine=True):
                await self._claims.prepare(pod, has_sandbox=bool(seen.ready_sandboxes()))

    def _remember(self, pod: Pod, outcome: SyncOutcome) -> None:
        """Keep why containers did not start; what did start has no reason any more."""
        uid = uid_of(pod)
        failed = {each.container: each for each in outcome.problems if isinstance(each, ContainerProblem)}
        for name, problem in failed.items():
            if name:
                self._table.start_failed(uid, problem)
        for name in outcome.started:
            if name not in failed:
                self._table.start_succeeded(uid, name)

    # --- terminating ----------------------------------------------------------------------------

    async def terminating(self, pod: Pod, seen: PodRuntimeStatus, grace: int, changes: list[StatusChange]) -> None:
        pod, uid = self._resizes.allocated(pod), uid_of(pod)
        self._statuses.set_status(pod, self._status(pod, seen, changes, terminal=False))
        self._probes.stop_for_termination(pod)
        await self._kill(pod, seen, grace)
        self._probes.remove_pod(uid)
        fresh = await self._look.inspect(uid)
        if left := fresh.running():
            raise PykubeletError(f"containers still run after the kill: {', '.join(c.name for c in left)}")
        await self._claims.unprepare(uid)
        self._statuses.set_status(pod, self._status(pod, fresh, changes, terminal=True))

    async def terminating_orphan(self, orphan: Orphan) -> None:
        """Stop a pod of which only the runtime knows anything, quickly: nobody waits for it to be polite."""
        seen = await self._look.inspect(orphan.uid)
        pod = Pod()
        pod.metadata.uid, pod.metadata.name, pod.metadata.namespace = orphan.uid, orphan.name, orphan.namespace
        await self._kill(pod, seen, 1)
        if (await self._look.inspect(orphan.uid)).running():
            raise PykubeletError(f"containers of orphaned pod {orphan.namespace}/{orphan.name} still run")

    async def _kill(self, pod: Pod, seen: PodRuntimeStatus, grace: int) -> None:
        try:
            await self._runtime.kill_pod(pod, seen, grace)
        except PykubeletError as error:
            if not isinstance(error, RuntimeDown):
                self._events.pod_event(pod, WARNING, "FailedKillPod", f"error killing pod: {error}")
            raise

    def _status(
        self, pod: Pod, seen: PodRuntimeStatus, changes: Sequence[StatusChange], *, terminal: bool
    ) -> PodStatus:
        status = self._maker.make(pod, seen, terminal=terminal)
        for change in changes:
            change(status)
        return status

    # --- terminated -----------------------------------------------------------------------------

    async def terminated(self, pod: Pod, seen: PodRuntimeStatus) -> None:
        pod = self._resizes.allocated(pod)
        status = self._maker.make(pod, seen, terminal=True)
        self._statuses.set_status(pod, status)
        with self._recorder.step(uid_of(pod), Step.CLEANUP):
            await self._volumes.wait_unmounted(pod)
            self._references.unregister(pod)
            await self._cgroups.remove(uid_of(pod))
            self._id_ranges.release(uid_of(pod))
        self._statuses.terminate(pod, status)


def _restarts_all(status: PodStatus) -> bool:
    return any(c.type == ALL_CONTAINERS_RESTARTING and c.status == "True" for c in status.conditions)


def _deadline(pod: Pod, status: PodStatus) -> float | None:
    """When the pod's active deadline is over; the status generator ends the pod then."""
    if pod.spec.active_deadline_seconds is None or status.start_time is None:
        return None
    return status.start_time.timestamp() + pod.spec.active_deadline_seconds


def _earliest(problems: Sequence[Problem]) -> float | None:
    """The first of the next tries; None when one of the problems has none."""
    times = [problem.retry_at for problem in problems if problem.retry_at is not None]
    return min(times) if len(times) == len(problems) else None
