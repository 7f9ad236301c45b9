"""Node expansion: the node's part of growing a volume, after the controller has made the disk bigger.

Progress is in the claim's status, in upstream's words, so that any controller can follow it: the node waits until the
status says NodeResizePending, requests the size that the controller allocated, and on failure writes the driver's
message into a condition. An infeasible size is not retried until the user requests another one; a driver that cannot
expand a volume in use is asked again only after the volume was unstaged.
"""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeClaimStatus
from pykubelet.clients.plugins.port import CsiNode, CsiVolume
from pykubelet.kit.clock import Clock, utc
from pykubelet.model.errors import PluginError, PykubeletError
from pykubelet.model.events import EventRecorder
from pykubelet.model.reasons import NORMAL, WARNING
from pykubelet.volumes.csi import rules
from pykubelet.volumes.errors import GrowthProblem
from pykubelet.volumes.objects import CsiObjects
from pykubelet.volumes.plugins.plugin import SetUp

logger = logging.getLogger(__name__)

PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
ERROR = "NodeResizeError"
NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"
GREW, DID_NOT_GROW = "FileSystemResizeSuccessful", "FileSystemResizeFailed"
_CONDITIONS = frozenset({"FileSystemResizePending", "Resizing", "ControllerResizeError", ERROR})
_FOR_GOOD = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "NOT_FOUND"})
IN_USE = "FAILED_PRECONDITION"

Amounts = dict[str, str | int | float]
Key = tuple[str, str]
"""Driver and handle."""


class Wish(Struct, frozen=True):
    """What the driver is to be asked for now."""

    size: str
    told: bool
    """Whether the claim has that size already: another node was first, and there is nothing to write."""
    follows: bool = True
    """Whether the controller follows the claim's states; an old one does not."""

    @property
    def bytes(self) -> int:
        return Quantity.parse(self.size).value()


def storage_of(amounts: Amounts) -> Quantity | None:
    value = amounts.get("storage")
    return Quantity.parse(value) if value is not None else None


def resize_status(claim: PersistentVolumeClaim) -> str:
    return claim.status.allocated_resource_statuses.get("storage", "")


def wish_of(claim: PersistentVolumeClaim, behind: Amounts, here: Quantity | None) -> Wish | None:
    """What to ask the driver for; None when there is nothing to do, or it is not the node's turn.

    `behind` is the persistent volume's capacity, `here` the size the volume has on this node as far as is known.
    """
    have, want = storage_of(claim.status.capacity), storage_of(behind)
    if have is None or want is None or (have >= want and (here is None or here >= want)):
        return None
    state, allocated = resize_status(claim), storage_of(claim.status.allocated_resources)
    if not state and allocated is None:
        return Wish(str(behind["storage"]), told=have >= want, follows=False)
    size = str(claim.status.allocated_resources["storage"] if allocated is not None else behind["storage"])
    if not state and have >= Quantity.parse(size):
        shared = "ReadWriteMany" in claim.spec.access_modes and NOT_REQUIRED not in claim.metadata.annotations
        return Wish(size, told=True) if shared else None
    return Wish(size, told=False) if state in (PENDING, IN_PROGRESS) else None


def with_progress(claim: PersistentVolumeClaim, state: str) -> PersistentVolumeClaim:
    states = {**claim.status.allocated_resource_statuses, "storage": state}
    return _with_status(claim, msgspec.structs.replace(claim.status, allocated_resource_statuses=states))


def with_size(claim: PersistentVolumeClaim, size: str) -> PersistentVolumeClaim:
    states = {key: value for key, value in claim.status.allocated_resource_statuses.items() if key != "storage"}
    status = msgspec.structs.replace(
        claim.status,
        capacity={**claim.status.capacity, "storage": size},
        allocated_resource_statuses=states,
        conditions=[each for each in claim.status.conditions if each.type not in _CONDITIONS],
    )
    return _with_status(claim, status)


def with_error(claim: PersistentVolumeClaim, words: str, now: datetime) -> PersistentVolumeClaim:
    old = next((each for each in claim.status.conditions if each.type == ERROR), None)
    since = old.last_transition_time if old is not None and old.status == "True" else now
    made = PersistentVolumeClaimCondition(type=ERROR, status="True", message=words, last_transition_time=since)
    others = [each for each in claim.status.conditions if each.type != ERROR]
    return _with_status(claim, msgspec.structs.replace(claim.status, conditions=[*others, made]))


def _with_status(claim: PersistentVolumeClaim, status: PersistentVolumeClaimStatus) -> PersistentVolumeClaim:
    return msgspec.structs.replace(claim, status=status)


class Growth:
    def __init__(self, objects: CsiObjects, events: EventRecorder, clock: Clock) -> None:
        self._objects = objects
        self._events = events
        self._clock = clock
        self._here: dict[Key, Quantity | None] = {}
        """Size on this node: the claim's when it came here, and what it grew to since."""
        self._not_while_used: set[Key] = set()
        self._told_read_only: set[Key] = set()
        self._failed: set[Key] = set()
        """Refused for this time, but not for good."""

    def forget(self, key: Key) -> None:
        """The volume is gone from the node."""
        self._here.pop(key, None)
        self._not_while_used.discard(key)
        self._told_read_only.discard(key)
        self._failed.discard(key)

    async def grow(
        self, task: SetUp, key: Key, driver: CsiNode, volume: CsiVolume, path: Path, staging: Path | None
    ) -> None:
        """Have the driver grow the volume if the claim says that it is the node's turn."""
        spec = task.spec
        assert spec.claim is not None
        claim = await self._objects.claim(*spec.claim)
        behind = await self._objects.volume(spec.persistent)
        if claim is None or behind is None or key in self._not_while_used:
            return
        here = self._here.setdefault(key, storage_of(claim.status.capacity))
        wish = wish_of(claim, behind.spec.capacity, here)
        if wish is None:
            return
        if spec.read_only:
            if key not in self._told_read_only:
                self._told_read_only.add(key)
                self._tell(task, claim, WARNING, DID_NOT_GROW, "failed", "requested read-only file system")
            return
        if not wish.told and wish.follows:
            claim = await self._objects.claim_status(claim, with_progress(claim, IN_PROGRESS))
        try:
            await driver.expand(volume, path, staging=staging, required_bytes=wish.bytes)
        except PluginError as error:
            await self._refused(key, claim, wish, error)
            if error.code == IN_USE:
                logger.info("volume is in use and grows later", extra={"volume": spec.persistent, "why": error.words})
                return
            raise GrowthProblem(f"cannot grow volume {spec.persistent} to {wish.size}: {error}") from error
        self._here[key] = Quantity.parse(wish.size)
        self._failed.discard(key)
        self._tell(task, claim, NORMAL, GREW, "succeeded", task.pod.spec.node_name or "")
        if not wish.told:
            await self._objects.claim_status(claim, with_size(claim, wish.size))
        logger.info("volume has grown", extra={"volume": spec.persistent, "size": wish.size})

    async def _refused(self, key: Key, claim: PersistentVolumeClaim, wish: Wish, error: PluginError) -> None:
        if error.code == IN_USE:
            self._not_while_used.add(key)
        if not rules.is_final(error.code) or not wish.follows:
            return
        # Who asks for another size meanwhile is not held up by one that failed: the controller starts anew.
        asked = storage_of(claim.spec.resources.requests) if claim.spec.resources is not None else None
        changed_mind = key in self._failed and asked is not None and asked != Quantity.parse(wish.size)
        self._failed.add(key)
        words = f"failed to expand pvc with {error}"
        marked = with_error(claim, words, utc(self._clock.now()))
        if error.code in _FOR_GOOD or changed_mind:
            marked = with_progress(marked, INFEASIBLE)
        try:
            await self._objects.claim_status(claim, marked)
        except PykubeletError as trouble:  # what the driver said is the better reason to show
            logger.warning("claim not told why its volume did not grow", extra={"problem": str(trouble)})

    def _tell(self, task: SetUp, claim: PersistentVolumeClaim, kind: str, reason: str, how: str, why: str) -> None:
        text = f'MountVolume.NodeExpandVolume {how} for volume "{task.spec.persistent}" {why}'
        self._events.pod_event(task.pod, kind, reason, text)
        self._events.claim_event(claim, kind, reason, text)
