"""Node expansion: when the node acts, what it requests, and what claim and pod get to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import (
    ObjectMeta,
    PersistentVolumeClaim,
    PersistentVolumeClaimCondition,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    Volume,
    VolumeResourceRequirements,
)
from pykubelet.volumes.csi.expand import NOT_REQUIRED, ExpandRequest, expand_request
from pykubelet.volumes.manager import VolumeManager
from tests.unit.volumes.builders import CsiVolumeNode, pod_with

PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"


def a_claim(
    have: str, allocated: str = "", state: str = "", mode: str = "ReadWriteOnce", **annotations: str
) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(annotations=annotations),
        spec=PersistentVolumeClaimSpec(access_modes=[mode]),
        status=PersistentVolumeClaimStatus(
            capacity={"storage": have} if have else {},
            allocated_resources={"storage": allocated} if allocated else {},
            allocated_resource_statuses={"storage": state} if state else {},
        ),
    )


@pytest.mark.parametrize(
    ("claim", "behind", "here", "wanted"),
    [
        # nothing to do
        (a_claim(""), "2Gi", "1Gi", None),
        (a_claim("2Gi"), "2Gi", "2Gi", None),
        (a_claim("2Gi", "2Gi"), "2Gi", None, None),
        # an old controller does not track status: the capacity it set is requested
        (a_claim("1Gi"), "2Gi", "1Gi", ExpandRequest("2Gi", recorded=False, tracks_status=False)),
        (a_claim("2Gi"), "2Gi", "1Gi", ExpandRequest("2Gi", recorded=True, tracks_status=False)),
        # one of today says whose turn it is, and what it allocated
        (a_claim("1Gi", "2Gi"), "2Gi", "1Gi", None),
        (a_claim("1Gi", "2Gi", "ControllerResizeInProgress"), "2Gi", "1Gi", None),
        (a_claim("1Gi", "2Gi", "ControllerResizeInfeasible"), "2Gi", "1Gi", None),
        (a_claim("1Gi", "2Gi", INFEASIBLE), "2Gi", "1Gi", None),
        (a_claim("1Gi", "2Gi", PENDING), "2Gi", "1Gi", ExpandRequest("2Gi", recorded=False)),
        (a_claim("1Gi", "2Gi", IN_PROGRESS), "2Gi", "1Gi", ExpandRequest("2Gi", recorded=False)),
        (a_claim("1Gi", "1500Mi", PENDING), "2Gi", "1Gi", ExpandRequest("1500Mi", recorded=False)),
        # another node was first
        (a_claim("2Gi", "2Gi", mode="ReadWriteMany"), "2Gi", "1Gi", ExpandRequest("2Gi", recorded=True)),
        (a_claim("2Gi", "2Gi", mode="ReadWriteMany"), "2Gi", "2Gi", None),
        (a_claim("2Gi", "2Gi", mode="ReadWriteMany", **{NOT_REQUIRED: "true"}), "2Gi", "1Gi", None),
        (a_claim("2Gi", "2Gi"), "2Gi", "1Gi", None),
    ],
)
def test_what_is_requested(
    claim: PersistentVolumeClaim, behind: str, here: str | None, wanted: ExpandRequest | None
) -> None:
    size = Quantity.parse(here) if here is not None else None
    assert expand_request(claim, {"storage": behind}, size) == wanted


def grown(bed: CsiVolumeNode, *, state: str = PENDING, allocated: str = "2Gi", **fields: Any) -> Volume:
    """A claim of 1Gi whose disk has 2Gi by now."""
    volume = bed.volume(capacity={"storage": "2Gi"}, **fields)
    claim = bed.node.objects.claims["default", "data"]
    claim.spec.resources = VolumeResourceRequirements(requests={"storage": allocated})
    status = claim.status
    status.capacity, status.allocated_resources = {"storage": "1Gi"}, {"storage": allocated}
    status.allocated_resource_statuses = {"storage": state} if state else {}
    return volume


async def renew(bed: CsiVolumeNode, manager: VolumeManager, volume: Volume) -> None:
    """What a running pod's next syncs do."""
    await bed.node.clock.sleep(61)
    await manager.wait_mounted(pod_with(volume))
    await bed.node.clock.sleep(0.1)


def states(bed: CsiVolumeNode) -> list[str | None]:
    return [each.status.allocated_resource_statuses.get("storage") for each in bed.objects.written]


def conditions(bed: CsiVolumeNode) -> dict[str | None, str | None]:
    return {each.type: each.message for each in bed.node.objects.claims["default", "data"].status.conditions}


async def test_growing(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = grown(bed)
    kinds = ("FileSystemResizePending", "Resizing", "NodeResizeError", "ControllerResizeError", "Own")
    bed.node.objects.claims["default", "data"].status.conditions = [
        PersistentVolumeClaimCondition(type=kind, status="True") for kind in kinds
    ]
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume, node_name="here"))
    assert bed.driver.grown == {"h-data": 2 << 30}
    assert states(bed) == [IN_PROGRESS, None]
    assert bed.objects.written[-1].status.capacity == {"storage": "2Gi"}
    assert conditions(bed) == {"Own": None}, "what stood in the way is past"
    text = 'MountVolume.NodeExpandVolume succeeded for volume "pv-data" here'
    assert bed.node.events.pods == [("FileSystemResizeSuccessful", text)]
    assert bed.node.events.claims == [("data", "FileSystemResizeSuccessful", text)]


async def test_what_the_controller_allocated_is_asked_for_when_it_is_the_nodes_turn(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = grown(bed, state="", allocated="1500Mi")
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume))
        assert bed.driver.grown == {} and bed.objects.written == []
        bed.node.objects.claims["default", "data"].status.allocated_resource_statuses = {"storage": PENDING}
        await renew(bed, manager, volume)
    assert bed.driver.grown == {"h-data": 1500 << 20}
    assert bed.objects.written[-1].status.capacity == {"storage": "1500Mi"}


async def test_a_shared_volume_grows_on_every_node(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = bed.volume(capacity={"storage": "1Gi"})
    claim = bed.node.objects.claims["default", "data"]
    claim.spec.access_modes = ["ReadWriteMany"]
    claim.status.capacity, claim.status.allocated_resources = {"storage": "1Gi"}, {"storage": "1Gi"}
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume))
        bed.node.objects.volumes["pv-data"].spec.capacity = {"storage": "2Gi"}
        claim.status.capacity, claim.status.allocated_resources = {"storage": "2Gi"}, {"storage": "2Gi"}
        await renew(bed, manager, volume)
        assert bed.driver.grown == {"h-data": 2 << 30} and bed.objects.written == []
        await renew(bed, manager, volume)
        assert bed.driver.order().count("expand h-data") == 1


async def test_growing_that_can_never_be_is_not_tried_again(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = grown(bed)
    bed.driver.plans = [("expand", "OUT_OF_RANGE", False)]
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume))
        assert bed.driver.order().count("expand h-data") == 1
    assert states(bed) == [IN_PROGRESS, INFEASIBLE]
    assert "as planned" in (conditions(bed)["NodeResizeError"] or "")
    ((reason, text),) = bed.node.events.pods
    assert reason == "FailedMount"
    assert text.startswith('MountVolume.Setup failed while expanding volume for volume "pv-data" : cannot grow volume')


async def test_a_running_pod_is_told_that_its_volume_did_not_grow(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = grown(bed, state="")
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume))
        bed.node.objects.claims["default", "data"].status.allocated_resource_statuses = {"storage": PENDING}
        bed.driver.plans = [("expand", "INTERNAL", False), ("expand", "UNAVAILABLE", False)]
        await renew(bed, manager, volume)
        ((reason, text),) = bed.node.events.pods
        assert reason == "VolumeResizeFailed"
        assert text.startswith('NodeExpandVolume.NodeExpandVolume failed for volume "pv-data" : cannot grow volume')
        assert (conditions(bed)["NodeResizeError"] or "").startswith("failed to expand pvc with ")
        assert states(bed)[-1] == IN_PROGRESS
        await bed.node.clock.sleep(5)
    assert bed.driver.grown == {"h-data": 2 << 30}
    assert conditions(bed) == {}, "it grew in the end"


async def test_who_asks_for_another_size_is_not_held_up_by_the_one_that_failed(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = grown(bed)
    bed.driver.plans = [("expand", "INTERNAL", False)] * 2
    requests = bed.node.objects.claims["default", "data"].spec.resources
    assert requests is not None
    async with bed.life() as manager:
        requests.requests = {"storage": "1200Mi"}
        await manager.wait_mounted(pod_with(volume))
    assert bed.driver.order().count("expand h-data") == 2
    assert states(bed)[-1] == INFEASIBLE


async def test_what_cannot_grow_in_use_is_not_asked_again_before_it_was_gone(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = grown(bed)
    bed.driver.plans = [("expand", "FAILED_PRECONDITION", False)]
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume))
        for _ in range(3):
            await renew(bed, manager, volume)
        assert bed.driver.order().count("expand h-data") == 1
        assert "as planned" in (conditions(bed)["NodeResizeError"] or "")
        await manager.wait_unmounted(pod_with(volume))
        await bed.node.clock.sleep(0.1)
        await manager.wait_mounted(pod_with(volume))
        assert bed.driver.grown == {"h-data": 2 << 30}


async def test_a_read_only_volume_does_not_grow_and_that_is_told_once(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = grown(bed, read_only=True)
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume))
        await renew(bed, manager, volume)
    text = 'MountVolume.NodeExpandVolume failed for volume "pv-data" requested read-only file system'
    assert bed.node.events.claims == [("data", "FileSystemResizeFailed", text)]
    assert bed.driver.grown == {} and bed.objects.written == []
