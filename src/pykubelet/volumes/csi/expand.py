"""Node expansion: the node's part of growing a volume, after the controller has made the disk bigger.

Progress is in the claim's status, in upstream's message, so that any controller can follow it: the node waits until the
status says NodeResizePending, requests the size that the controller allocated, and on failure writes the driver's
message into a condition. An infeasible size is not retried until the user requests another one; a driver that cannot
expand a volume in use is requested again only after the volume was unstaged.
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
_INFEASIBLE_CODES = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "NOT_FOUND"})
IN_USE = "FAILED_PRECONDITION"

Amounts = dict[str, str | int | float]
Key = tuple[str, str]
"""Driver and handle."""


class ExpandRequest(Struct, frozen=True):
    """An expansion to request from the driver now."""

    size: str
    recorded: bool
    """Whether the claim's status has that size already, because another node was first."""
    tracks_status: bool = True
    """Whether the controller tracks progress in the claim's status; an old one does not."""

    @property
    def bytes(self) -> int:
        return Quantity.parse(self.size).value()


def storage_of(amounts: Amounts) -> Quantity | None:
    value = amounts.get("storage")
    return Quantity.parse(value) if value is not None else None


def resize_status(claim: PersistentVolumeClaim) -> str:
    return claim.status.allocated_resource_statuses.get("storage", "")


def expand_request(
    claim: PersistentVolumeClaim, volume_capacity: Amounts, node_size: Quantity | None
) -> ExpandRequest | None:
    """None when there is nothing to do, or the controller has not finished its part.

    `volume_capacity` is the persistent volume's, `node_size` the size on this node as far as it is known.
    """
    have, want = storage_of(claim.status.capacity), storage_of(volume_capacity)
    if have is None or want is None or (have >= want and (node_size is None or node_size >= want)):
        return None
    state, allocated = resize_status(claim), storage_of(claim.status.allocated_resources)
    if not state and allocated is None:
        return ExpandRequest(str(volume_capacity["storage"]), recorded=have >= want, tracks_status=False)
    size = str(claim.status.allocated_resources["storage"] if allocated is not None else volume_capacity["storage"])
    if not state and have >= Quantity.parse(size):
        shared = "ReadWriteMany" in claim.spec.access_modes and NOT_REQUIRED not in claim.metadata.annotations
        return ExpandRequest(size, recorded=True) if shared else None
    return ExpandRequest(size, recorded=False) if state in (PENDING, IN_PROGRESS) else None


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


def with_error(claim: PersistentVolumeClaim, message: str, now: datetime) -> PersistentVolumeClaim:
    old = next((each for each in claim.status.conditions if each.type == ERROR), None)
    since = old.last_transition_time if old is not None and old.status == "True" else now
    made = PersistentVolumeClaimCondition(type=ERROR, status="True", message=message, last_transition_time=since)
    others = [each for each in claim.status.conditions if each.type != ERROR]
    return _with_status(claim, msgspec.structs.replace(claim.status, conditions=[*others, made]))


def _with_status(claim: PersistentVolumeClaim, status: PersistentVolumeClaimStatus) -> PersistentVolumeClaim:
    return msgspec.structs.replace(claim, status=status)


class NodeExpander:
    def __init__(self, objects: CsiObjects, events: EventRecorder, clock: Clock) -> None:
        self._objects = objects
        self._events = events
        self._clock = clock
        self._node_sizes: dict[Key, Quantity | None] = {}
        """Size on this node: the claim's when it was first mounted, and what it was expanded to since."""
        self._not_while_used: set[Key] = set()
        self._reported_read_only: set[Key] = set()
        self._failed: set[Key] = set()
        """Failed, but may be retried."""

    def forget(self, key: Key) -> None:
        """Call when the volume was unstaged."""
        self._node_sizes.pop(key, None)
        self._not_while_used.discard(key)
        self._reported_read_only.discard(key)
        self._failed.discard(key)

    async def expand(
        self, task: SetUp, key: Key, client: CsiNode, volume: CsiVolume, path: Path, staging: Path | None
    ) -> None:
        """Expand the volume if the claim's status says that the node has to."""
        spec = task.spec
        assert spec.claim is not None
        claim = await self._objects.claim(*spec.claim)
        persistent = await self._objects.volume(spec.persistent)
        if claim is None or persistent is None or key in self._not_while_used:
            return
        node_size = self._node_sizes.setdefault(key, storage_of(claim.status.capacity))
        request = expand_request(claim, persistent.spec.capacity, node_size)
        if request is None:
            return
        if spec.read_only:
            if key not in self._reported_read_only:
                self._reported_read_only.add(key)
                self._report(task, claim, WARNING, DID_NOT_GROW, "failed", "requested read-only file system")
            return
        if not request.recorded and request.tracks_status:
            claim = await self._objects.claim_status(claim, with_progress(claim, IN_PROGRESS))
        try:
            await client.expand(volume, path, staging=staging, required_bytes=request.bytes)
        except PluginError as error:
            await self._refused(key, claim, request, error)
            if error.code == IN_USE:
                logger.info("volume is in use and grows later", extra={"volume": spec.persistent, "why": error.words})
                return
            raise GrowthProblem(f"cannot grow volume {spec.persistent} to {request.size}: {error}") from error
        self._node_sizes[key] = Quantity.parse(request.size)
        self._failed.discard(key)
        self._report(task, claim, NORMAL, GREW, "succeeded", task.pod.spec.node_name or "")
        if not request.recorded:
            await self._objects.claim_status(claim, with_size(claim, request.size))
        logger.info("volume has grown", extra={"volume": spec.persistent, "size": request.size})

    async def _refused(
        self, key: Key, claim: PersistentVolumeClaim, request: ExpandRequest, error: PluginError
    ) -> None:
        if error.code == IN_USE:
            self._not_while_used.add(key)
        if not rules.is_final(error.code) or not request.tracks_status:
            return
        # A size that failed must not block another one requested meanwhile: the controller starts over.
        requested = storage_of(claim.spec.resources.requests) if claim.spec.resources is not None else None
        is_changed = key in self._failed and requested is not None and requested != Quantity.parse(request.size)
        self._failed.add(key)
        message = f"failed to expand pvc with {error}"
        marked = with_error(claim, message, utc(self._clock.now()))
        if error.code in _INFEASIBLE_CODES or is_changed:
            marked = with_progress(marked, INFEASIBLE)
        try:
            await self._objects.claim_status(claim, marked)
        except PykubeletError as failure:  # the driver's error is the one to report
            logger.warning("expand error not written to the claim", extra={"problem": str(failure)})

    def _report(self, task: SetUp, claim: PersistentVolumeClaim, kind: str, reason: str, how: str, why: str) -> None:
        text = f'MountVolume.NodeExpandVolume {how} for volume "{task.spec.persistent}" {why}'
        self._events.pod_event(task.pod, kind, reason, text)
        self._events.claim_event(claim, kind, reason, text)
