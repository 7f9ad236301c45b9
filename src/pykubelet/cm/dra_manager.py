"""Dynamic resources: claims are prepared before the pod's first container and unprepared after its last.

A pod waits with the reason while a driver is away or refuses, and delays no other. Claims that several pods share are
prepared once and unprepared by the last of them; calls about one claim are serialized.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from pykubelet.api.types import Pod, ResourceHealth, ResourceResourceClaim, ResourceStatus
from pykubelet.clients.plugins.port import ClaimedHealth, ClaimRef, DraConnect
from pykubelet.cm import dra_health
from pykubelet.cm.dra_claims import (
    FILE,
    ClaimEntry,
    ClaimProblem,
    ClaimState,
    PodClaim,
    check_claim,
    claims_of,
    drivers_of,
    requests_of,
)
from pykubelet.cm.dra_drivers import ClaimObjects, DraDrivers, DraTimes
from pykubelet.cm.dra_health import DeviceHealthCache
from pykubelet.context import Context
from pykubelet.kit.sharing import KeyedLock
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import PluginError, PykubeletError
from pykubelet.model.pod import AnyContainer, all_containers, namespace_of, uid_of
from pykubelet.model.reasons import WARNING
from pykubelet.model.topology import ClaimedDevice, ClaimShare
from pykubelet.pods.table import PodTable
from pykubelet.recorder import Step
from pykubelet.signals import DeviceHealthChanged, DraDriverRegistered

logger = logging.getLogger(__name__)

FAILED_PREPARE = "FailedPrepareDynamicResources"


class DraManager:
    name = "dynamic resources"

    def __init__(
        self, ctx: Context, *, root: Path, connect: DraConnect, objects: ClaimObjects, table: PodTable
    ) -> None:
        self._recorder = ctx.recorder
        self._for_groups = ctx.settings.gates.enabled("DRAWorkloadResourceClaims")
        self._shows_messages = ctx.settings.gates.enabled("ResourceHealthStatusMessage")
        self._claims = ClaimState(root / FILE)
        self._objects = objects
        self._table = table
        self._events = ctx.events
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._times = DraTimes(clock=ctx.clock, metrics=ctx.metrics, claims=self._claims)
        self.drivers = DraDrivers(
            connect=connect,
            objects=objects,
            clock=ctx.clock,
            times=self._times,
            on_health=self._health_reported,
            on_registered=self._registered,
        )
        self._locks = KeyedLock()
        """By namespace and name of the claim."""
        self._health = DeviceHealthCache(root / dra_health.FILE, ctx.clock)

    def open(self) -> None:
        self._claims.load()
        self._health.load()

    async def run(self) -> None:
        async with self.drivers.tasks as tasks:
            tasks.spawn(self.drivers.wipe_at_start(), name="old slices")
            await self._health.run()

    def _registered(self) -> None:
        for pod in self._table.pods():
            if has_claims(pod):
                self._signals.publish(DraDriverRegistered(uid_of(pod)))

    # --- preparing ------------------------------------------------------------------------------

    async def prepare(self, pod: Pod, *, has_sandbox: bool = False) -> None:
        """Prepare all claims of the pod; raises with the reason, which is also an event.

        They were when its sandbox was made, so what runs in one is restarted even while a driver or the API server
        is away."""
        if not has_claims(pod):
            return
        try:
            if has_sandbox and self._holds_all(pod):
                return
            with self._times.operation("PrepareResources"):
                await self._prepare(pod)
        except PykubeletError as error:
            text = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
            self._events.pod_event(pod, WARNING, FAILED_PREPARE, text)
            raise ClaimProblem(text) from error

    def _holds_all(self, pod: Pod) -> bool:
        entries = [self._claims.get(namespace_of(pod), each.name) for each in claims_of(pod)]
        return all(entry is not None and uid_of(pod) in entry.pods for entry in entries)

    async def _prepare(self, pod: Pod) -> None:
        namespace, claims = namespace_of(pod), list(claims_of(pod))
        async with self._locks.acquire(*((namespace, each.name) for each in claims)):
            found = [await self._checked(pod, claim) for claim in claims]
            entries = [self._recorded(pod, each) for each in found]
            await self._claims.save()
            waiting = [entry for entry in entries if not entry.prepared]
            for driver in dict.fromkeys(name for entry in waiting for name in entry.drivers):
                with self._recorder.step(uid_of(pod), Step.CLAIMS, f"driver {driver}, NodePrepareResources"):
                    await self._call_prepare(driver, [entry for entry in waiting if driver in entry.drivers])
            for entry in waiting:
                entry.prepared = True
            if waiting:
                await self._claims.save()

    async def _checked(self, pod: Pod, claim: PodClaim) -> ResourceResourceClaim:
        """The claim, if the pod may use it and its drivers are registered. Nothing is recorded before: a pod that
        fails here can be deleted without asking a driver that perhaps never existed."""
        found = await self._objects.resource_claim(namespace_of(pod), claim.name)
        if found is None:
            raise ClaimProblem(f"fetch ResourceClaim {claim.name}: not found")
        check_claim(pod, claim, found, for_groups=self._for_groups)
        for driver in drivers_of(found):
            self.drivers.find(driver)
        return found

    def _recorded(self, pod: Pod, claim: ResourceResourceClaim) -> ClaimEntry:
        namespace, name, uid = namespace_of(pod), claim.metadata.name or "", claim.metadata.uid or ""
        entry = self._claims.get(namespace, name)
        if entry is not None and entry.ref.uid != uid:
            raise ClaimProblem(f"an older ResourceClaim {name} with UID {entry.ref.uid} is still being given back")
        if entry is None:
            entry = ClaimEntry(
                ClaimRef(namespace=namespace, name=name, uid=uid), drivers={each: [] for each in drivers_of(claim)}
            )
            self._claims.add(entry)
        entry.pods.add(uid_of(pod))
        return entry

    async def _call_prepare(self, driver: str, entries: Sequence[ClaimEntry]) -> None:
        try:
            answers = await self.drivers.find(driver).prepare([entry.ref for entry in entries])
        except PluginError as error:
            raise ClaimProblem(f"driver {driver}: NodePrepareResources: {error.words} ({error.code})") from error
        for entry in entries:
            answer = answers.get(entry.ref.uid)
            if answer is not None and answer.error:
                raise ClaimProblem(f"NodePrepareResources failed for ResourceClaim {entry.ref.name}: {answer.error}")
        missing = sum(1 for entry in entries if entry.ref.uid not in answers)
        if missing:
            raise ClaimProblem(f"NodePrepareResources skipped {missing} ResourceClaims")
        for entry in entries:
            entry.drivers[driver] = list(answers[entry.ref.uid].devices)

    # --- unpreparing ----------------------------------------------------------------------------

    async def unprepare(self, uid: str) -> None:
        """Unprepare the claims of a pod whose containers are gone. Raises with the reason; may be repeated."""
        claims = self._claims.of_pod(uid)
        if not claims:
            return
        try:
            with self._times.operation("UnprepareResources"):
                for namespace in dict.fromkeys(entry.ref.namespace for entry in claims):
                    await self._unprepare(uid, namespace, [e for e in claims if e.ref.namespace == namespace])
        except PykubeletError as error:
            raise ClaimProblem(f"unprepare dynamic resources: {error}") from error

    async def _unprepare(self, uid: str, namespace: str, claims: Sequence[ClaimEntry]) -> None:
        async with self._locks.acquire(*((namespace, entry.ref.name) for entry in claims)):
            last = [entry for entry in claims if entry.pods == {uid}]
            for entry in last:
                entry.prepared = False  # from the first call on that is so for some driver, also when a later one fails
            for driver in dict.fromkeys(name for entry in last for name in entry.drivers):
                with self._recorder.step(uid, Step.CLAIMS, f"driver {driver}, NodeUnprepareResources"):
                    await self._call_unprepare(driver, [entry for entry in last if driver in entry.drivers])
            for entry in claims:
                entry.pods.discard(uid)
                if not entry.pods:
                    self._claims.drop(entry)
            await self._claims.save()

    async def _call_unprepare(self, driver: str, entries: Sequence[ClaimEntry]) -> None:
        try:
            answers = await self.drivers.find(driver).unprepare([entry.ref for entry in entries])
        except PluginError as error:
            raise ClaimProblem(f"driver {driver}: NodeUnprepareResources: {error.words} ({error.code})") from error
        for entry in entries:
            if problem := answers.get(entry.ref.uid):
                raise ClaimProblem(f"NodeUnprepareResources failed for ResourceClaim {entry.ref.name}: {problem}")
        missing = sum(1 for entry in entries if entry.ref.uid not in answers)
        if missing:
            raise ClaimProblem(f"NodeUnprepareResources skipped {missing} ResourceClaims")

    async def sweep(self) -> None:
        """Unprepare claims of pods of which nothing can run any more. Failures are retried the next time."""
        may_run = self._table.could_have_running_containers
        gone = {uid for entry in self._claims for uid in entry.pods if not may_run(uid)}
        await gather_all(*(self._unprepare_gone(uid) for uid in gone))

    async def _unprepare_gone(self, uid: str) -> None:
        try:
            await self.unprepare(uid)
        except PykubeletError as error:
            logger.warning("claims of a pod that is gone not given back", extra={"uid": uid, "problem": str(error)})

    # --- what containers get --------------------------------------------------------------------

    def cdi_devices(self, pod: Pod, container: AnyContainer) -> list[str]:
        """CDI names of what the container requests. Raises for a claim that is not prepared."""
        found: dict[str, None] = {}
        for _, claim, request in requests_of(pod, container):
            entry = self._claims.get(namespace_of(pod), claim)
            if entry is None:
                raise ClaimProblem(f"ResourceClaim {claim} is not prepared")
            for _, device in entry.devices(request):
                found |= dict.fromkeys(device.cdi_ids)
        return list(found)

    # --- questions ------------------------------------------------------------------------------

    def has_prepared(self, uid: str) -> bool:
        """Whether anything was prepared for the pod and not unprepared yet."""
        return bool(self._claims.of_pod(uid))

    def claims_of(self, uid: str, container_name: str) -> list[ClaimShare]:
        pod = self._table.pod(uid)
        container = _container(pod, container_name) if pod is not None else None
        if pod is None or container is None:
            return []
        found = []
        for _, claim, request in requests_of(pod, container):
            entry = self._claims.get(namespace_of(pod), claim)
            if entry is not None:
                devices = tuple(
                    ClaimedDevice(
                        driver=driver,
                        pool=each.pool,
                        device=each.device,
                        cdi=each.cdi_ids,
                        share_id=each.share_id,
                    )
                    for driver, each in entry.devices(request)
                )
                found.append(ClaimShare(namespace=entry.ref.namespace, name=claim, devices=devices))
        return found

    def health_statuses(self, pod: Pod, container_name: str) -> list[ResourceStatus]:
        """For the container's status."""
        container = _container(pod, container_name) if pod.spec.resource_claims else None
        if container is None:
            return []
        found = []
        for name, claim, request in requests_of(pod, container):
            entry = self._claims.get(namespace_of(pod), claim)
            if entry is None or not name:
                continue
            devices: dict[str, ResourceHealth] = {}
            for driver, each in entry.devices(request):
                known = self._health.get(driver, each.pool, each.device)
                shown = each.cdi_ids[0] if each.cdi_ids else f"{driver}/{each.pool}/{each.device}"
                state = known.health if known is not None else "Unknown"
                message = known.message if known is not None and self._shows_messages else ""
                devices.setdefault(shown, ResourceHealth(resource_id=shown, health=state, message=message or None))
            if devices:
                title = f"claim:{name}/{request}" if request else f"claim:{name}"
                found.append(ResourceStatus(name=title, resources=list(devices.values())))
        return found

    def _health_reported(self, driver: str, devices: Sequence[ClaimedHealth] | None) -> None:
        for uid in self._users(driver, self._health.report(driver, devices)):
            self._signals.publish(DeviceHealthChanged(uid))

    def _users(self, driver: str, devices: set[tuple[str, str]]) -> set[str]:
        users: set[str] = set()
        for entry in self._claims:
            if any((each.pool, each.device) in devices for each in entry.drivers.get(driver, ())):
                users |= entry.pods
        return users


def has_claims(pod: Pod) -> bool:
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def _container(pod: Pod, name: str) -> AnyContainer | None:
    return next((each for _, each in all_containers(pod) if each.name == name), None)
