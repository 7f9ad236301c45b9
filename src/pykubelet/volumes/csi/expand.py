"""Growing a volume that is in use: the node's part, after the control plane made the disk bigger.

The claim's status says how far it got, in upstream's words, so that any controller can follow. What the driver
refuses for good is written there and not tried again until somebody asks for another size.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import PersistentVolumeClaim, PersistentVolumeClaimStatus
from pykubelet.clients.plugins.port import CsiNode, CsiVolume
from pykubelet.model.errors import PluginError
from pykubelet.volumes.csi.objects import CsiObjects
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.spec import VolumeSpec

logger = logging.getLogger(__name__)

PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
WAITS_FOR_NODE = "FileSystemResizePending"
_FOR_GOOD = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "NOT_FOUND"})
IN_USE = "FAILED_PRECONDITION"


def storage_of(amounts: dict[str, str | int | float]) -> Quantity | None:
    value = amounts.get("storage")
    return Quantity.parse(value) if value is not None else None


def resize_status(claim: PersistentVolumeClaim) -> str:
    return claim.status.allocated_resource_statuses.get("storage", "")


def with_progress(claim: PersistentVolumeClaim, state: str) -> PersistentVolumeClaim:
    states = {**claim.status.allocated_resource_statuses, "storage": state}
    return _with_status(claim, msgspec.structs.replace(claim.status, allocated_resource_statuses=states))


def with_size(claim: PersistentVolumeClaim, size: str) -> PersistentVolumeClaim:
    states = {key: value for key, value in claim.status.allocated_resource_statuses.items() if key != "storage"}
    status = msgspec.structs.replace(
        claim.status,
        capacity={**claim.status.capacity, "storage": size},
        allocated_resource_statuses=states,
        conditions=[each for each in claim.status.conditions if each.type not in (WAITS_FOR_NODE, "Resizing")],
    )
    return _with_status(claim, status)


def _with_status(claim: PersistentVolumeClaim, status: PersistentVolumeClaimStatus) -> PersistentVolumeClaim:
    return msgspec.structs.replace(claim, status=status)


class Growth:
    def __init__(self, objects: CsiObjects) -> None:
        self._objects = objects

    async def grow(
        self, spec: VolumeSpec, driver: CsiNode, volume: CsiVolume, path: Path, staging: Path | None
    ) -> None:
        """Have the driver grow the volume if the claim is smaller than what lies behind it."""
        assert spec.claim is not None
        claim = await self._objects.claim(*spec.claim)
        behind = await self._objects.volume(spec.persistent)
        if claim is None or behind is None or spec.read_only:
            return
        have, want = storage_of(claim.status.capacity), storage_of(behind.spec.capacity)
        if have is None or want is None or have >= want:
            return
        if resize_status(claim) == INFEASIBLE:
            return
        size = str(behind.spec.capacity["storage"])
        claim = await self._objects.claim_status(claim, with_progress(claim, IN_PROGRESS))
        try:
            await driver.expand(volume, path, staging=staging, required_bytes=want.value())
        except PluginError as error:
            if error.code in _FOR_GOOD:
                await self._objects.claim_status(claim, with_progress(claim, INFEASIBLE))
            elif error.code == IN_USE:
                logger.info("volume is in use and grows later", extra={"volume": spec.persistent, "why": error.words})
                return
            raise VolumeProblem(f"cannot grow volume {spec.persistent} to {size}: {error}") from error
        await self._objects.claim_status(claim, with_size(claim, size))
        logger.info("volume has grown", extra={"volume": spec.persistent, "size": size})
