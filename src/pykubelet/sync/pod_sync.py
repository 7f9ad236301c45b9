"""The three steps of a pod's life: sync, terminating, terminated. Each may be repeated after any failure.

The steps only order what the managers do; the decisions are in the plan, the status and the worker's state. Every
change this agent makes in the runtime is inspected right after it was made (`Pleg.inspect`), so no step waits for a
relist to learn what the agent did itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct

from pykubelet.api.types import Pod, PodStatus
from pykubelet.api_server import NoMirrors, NoRegistrations
from pykubelet.clients.host.port import PodFolders
from pykubelet.clients.kube.references import ReferenceWatcher
from pykubelet.cm.build import ContainerManager
from pykubelet.context import Context
from pykubelet.kit import tracing
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.model.pod import is_static, is_terminal_phase, readable, uid_of, uses_host_network
from pykubelet.model.problems import Problem, ResizeFailed
from pykubelet.model.reasons import ALL_CONTAINERS_RESTARTING, WARNING
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pleg.pleg import Pleg
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.admission import Rejection
from pykubelet.pods.mirrors import MirrorPods
from pykubelet.pods.record import Orphan, StatusChange
from pykubelet.probes.manager import ProbeManager
from pykubelet.recorder import Step
from pykubelet.runtime.manager import RuntimeManager
from pykubelet.sync.status_maker import PodStatusMaker
from pykubelet.volumes.errors import NodeIsFull
from pykubelet.volumes.manager import VolumeManager

logger = logging.getLogger(__name__)

VOLUME_LIMIT = "VolumeAttachmentLimitExceeded"
RENEW_AFTER = 0.2
"""Seconds until the status of a start that is still under way is reported; a quicker one reports it at its end."""


class NetworkNotReady(PykubeletError):
    """The pod needs the pod network and the runtime says that it is not there yet."""


class SyncResult(Struct, frozen=True, kw_only=True):
    """What came of one sync."""

    ended: bool = False
    """The pod reached a terminal phase by itself and should end."""
    change: StatusChange | None = None
    """What the last statuses of a pod that ends have to say."""
    problems: Sequence[Problem] = ()
    retry_at: float | None = None
    """Wall time at which the next sync is due: the end of all back-offs, a deadline, or now. None = after the ordinary
    retry if there are problems, else with the next resync."""


class PodEnvironment:
    """What a pod needs around its containers: made before anything runs, removed when nothing does."""

    def __init__(
        self,
        ctx: Context,
        *,
        folders: PodFolders,
        volumes: VolumeManager,
        cm: ContainerManager,
        mirrors: MirrorPods | NoMirrors,
        references: ReferenceWatcher | NoRegistrations,
    ) -> None:
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._folders = folders
        self._volumes = volumes
        self._cgroups = cm.cgroups
        self._user_namespaces = cm.user_namespaces
        self._dra = cm.dra
        """None without an API server, where no claim can be allocated; pods with claims are not admitted then."""
        self._mirrors = mirrors
        self._references = references

    def register(self, pod: Pod) -> None:
        """Watch the objects that the pod refers to."""
        self._references.register(pod)

    def lacks_cgroup(self, pod: Pod, observed: PodRuntimeStatus) -> bool:
        """Whether containers run outside the pod's cgroup, because the settings changed, and escape its limits."""
        return bool(observed.running()) and self._cgroups.is_missing(pod)

    async def prepare(self, pod: Pod, observed: PodRuntimeStatus) -> None:
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
            with self._recorder.step(uid, Step.VOLUMES, routine=True), tracing.span("Volumes/WaitForAttachAndMount"):
                await self._volumes.wait_mounted(pod)
        has_claims = pod.spec.resource_claims or pod.status.extended_resource_claim_status is not None
        if has_claims and self._dra is not None:
            with self._recorder.step(uid, Step.CLAIMS, routine=True):
                await self._dra.prepare(pod, has_sandbox=bool(observed.ready_sandboxes()))

    async def release_claims(self, uid: str) -> None:
        """No container runs any more."""
        if self._dra is not None:
            await self._dra.unprepare(uid)

    async def release(self, pod: Pod) -> None:
        with self._recorder.step(uid_of(pod), Step.CLEANUP):
            with tracing.span("Volumes/WaitForUnmount"):
                await self._volumes.wait_unmounted(pod)
            self._references.unregister(pod)
            await self._cgroups.remove(uid_of(pod))
            self._user_namespaces.release(uid_of(pod))


class PodSync:
    """Carries out the steps for every pod; holds no state of its own."""

    def __init__(
        self,
        ctx: Context,
        *,
        runtime: RuntimeManager,
        runtime_state: RuntimeState,
        pleg: Pleg,
        statuses: PodStatusMaker,
        probes: ProbeManager,
        cm: ContainerManager,
        environment: PodEnvironment,
    ) -> None:
        self._runtime = runtime
        self._runtime_state = runtime_state
        self._pleg = pleg
        self._statuses = statuses
        self._probes = probes
        self._allocation = cm.allocation
        self._environment = environment
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._clock = ctx.clock

    # --- sync -----------------------------------------------------------------------------------

    async def sync(self, pod: Pod, observed: PodRuntimeStatus) -> SyncResult:
        """Bring the pod to what its spec says."""
        pod = self._allocation.allocated(pod)
        self._allocation.review(pod, observed)
        status = self._statuses.report(pod, observed)
        if is_terminal_phase(status.phase):
            return SyncResult(ended=True)
        why = "" if uses_host_network(pod) else self._runtime_state.network_problem()
        if why:
            text = f"network is not ready: {why}"
            self._events.pod_event(pod, WARNING, "NetworkNotReady", text)
            raise NetworkNotReady(text)
        self._environment.register(pod)
        if self._environment.lacks_cgroup(pod, observed):
            observed = await self._stop_for_cgroup(pod, observed)
        try:
            await self._environment.prepare(pod, observed)
        except NodeIsFull as error:
            return self._reject(pod, str(error))
        self._probes.add_pod(pod)
        outcome = await self._runtime.sync_pod(
            pod, observed, restart_all=_restarts_all(status), renew_status=lambda: self._renew(pod)
        )
        for problem in outcome.problems:
            if isinstance(problem, ResizeFailed):
                self._allocation.failed(pod, problem.message)
        fresh = observed
        if outcome.acted:
            fresh = await self._pleg.inspect(uid_of(pod))
            self._allocation.review(pod, fresh)
            status = self._statuses.report(pod, fresh)
            if is_terminal_phase(status.phase):
                return SyncResult(ended=True)
        # An outcome of "the pod is to end" with a phase that says otherwise has nothing left to do either.
        more = outcome.acted and not outcome.ended and self._runtime.has_work(pod, fresh)
        # Containers that ended during this sync are in the status already and cause no further event: the next sync
        # must not wait until a sibling's problem is over.
        if more and (not outcome.problems or fresh.ended_since(observed)):
            return SyncResult(problems=outcome.problems, retry_at=self._clock.now())
        now = self._clock.now()
        retry_at = _earliest(outcome.problems, now) if outcome.problems else _deadline(pod, status)
        return SyncResult(problems=outcome.problems, retry_at=retry_at)

    def _reject(self, pod: Pod, why: str) -> SyncResult:
        """End a pod that was admitted but finds no room for its volumes, so that it is made anew elsewhere."""
        rejection = Rejection(reason=VOLUME_LIMIT, message=why)
        self._events.pod_event(pod, WARNING, rejection.reason, why)
        self._recorder.fail(uid_of(pod), Step.ADMISSION, reason=rejection.reason, message=why, cause=rejection.problem)
        logger.warning("pod rejected", extra={"pod": readable(pod), "reason": rejection.reason, "why": why})

        def mark(status: PodStatus) -> None:
            status.phase, status.reason, status.message = "Failed", rejection.reason, rejection.status_message

        return SyncResult(ended=True, change=mark)

    async def _renew(self, pod: Pod) -> None:
        """Report how far a pod is whose start takes long: an image is pulled, a hook runs. Cancelled when it ends."""
        await self._clock.sleep(RENEW_AFTER)
        try:
            fresh = await self._pleg.inspect(uid_of(pod))
        except PykubeletError as error:
            logger.info("status not renewed while a pod starts", extra={"pod": readable(pod), "problem": str(error)})
            return
        self._statuses.report(pod, fresh)

    async def _stop_for_cgroup(self, pod: Pod, observed: PodRuntimeStatus) -> PodRuntimeStatus:
        logger.warning("pod runs without its cgroup; it is stopped and started again", extra={"pod": readable(pod)})
        await self._runtime.kill_pod(pod, observed, None)
        return await self._pleg.inspect(uid_of(pod))

    # --- terminating ----------------------------------------------------------------------------

    async def terminating(self, pod: Pod, observed: PodRuntimeStatus, grace: int, changes: list[StatusChange]) -> None:
        """Stop everything; returns only when nothing runs."""
        pod, uid = self._allocation.allocated(pod), uid_of(pod)
        self._statuses.report(pod, observed, changes=changes)
        self._probes.stop_for_termination(pod)
        await self._kill(pod, observed, grace)
        self._probes.remove_pod(uid)
        fresh = await self._pleg.inspect(uid)
        if left := fresh.running():
            raise PykubeletError(f"containers still run after the kill: {', '.join(c.name for c in left)}")
        await self._environment.release_claims(uid)
        self._statuses.report(pod, fresh, changes=changes, terminal=True)

    async def terminating_orphan(self, orphan: Orphan) -> None:
        """Stop a pod that only the runtime knows, with the shortest grace period."""
        observed = await self._pleg.inspect(orphan.uid)
        pod = Pod()
        pod.metadata.uid, pod.metadata.name, pod.metadata.namespace = orphan.uid, orphan.name, orphan.namespace
        await self._kill(pod, observed, 1)
        if (await self._pleg.inspect(orphan.uid)).running():
            raise PykubeletError(f"containers of orphaned pod {orphan.namespace}/{orphan.name} still run")

    async def _kill(self, pod: Pod, observed: PodRuntimeStatus, grace: int) -> None:
        try:
            await self._runtime.kill_pod(pod, observed, grace)
        except PykubeletError as error:
            if not isinstance(error, RuntimeDown):
                self._events.pod_event(pod, WARNING, "FailedKillPod", f"error killing pod: {error}")
            raise

    # --- terminated -----------------------------------------------------------------------------

    async def terminated(self, pod: Pod, observed: PodRuntimeStatus) -> None:
        """Release what the pod held, and report its last status."""
        pod = self._allocation.allocated(pod)
        status = self._statuses.report(pod, observed, terminal=True)
        await self._environment.release(pod)
        self._statuses.finish(pod, status)


def _restarts_all(status: PodStatus) -> bool:
    return any(c.type == ALL_CONTAINERS_RESTARTING and c.status == "True" for c in status.conditions)


def _deadline(pod: Pod, status: PodStatus) -> float | None:
    """When the pod's active deadline is over; the status generator ends the pod then."""
    if pod.spec.active_deadline_seconds is None or status.start_time is None:
        return None
    return status.start_time.timestamp() + pod.spec.active_deadline_seconds


def _earliest(problems: Sequence[Problem], now: float) -> float | None:
    """The first of the next tries; None when one of the problems has none."""
    times = [max(each.retry_at, now + each.shown_for) for each in problems if each.retry_at is not None]
    return min(times) if len(times) == len(problems) else None
