"""The node service of a storage driver on a real socket: what is asked for arrives, what is answered is understood."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pykubelet.clients.plugins.csi import GrpcCsiNode
from pykubelet.clients.plugins.port import CsiNodeInfo, CsiUsage, CsiVolume
from pykubelet.model.errors import PluginError
from pykubelet.wire import csi_pb2 as wire
from tests.unit.clients.plugins.serving import serving, unary

pytestmark = pytest.mark.real_loop

VOLUME = CsiVolume(
    volume_id="h",
    access_mode="SINGLE_NODE_WRITER",
    fs_type="ext4",
    mount_flags=("noatime",),
    mount_group="7",
    publish_context={"device": "/dev/x"},
    volume_context={"size": "1"},
    secrets={"key": "s"},
)
STAGING, TARGET = Path("/staging"), Path("/target")


class Driver:
    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.requested: list[Any] = []

    @asynccontextmanager
    async def at(self, socket: Path) -> AsyncIterator[GrpcCsiNode]:
        methods = {}
        for name in ("NodeGetInfo", "NodeGetCapabilities", "NodeStageVolume", "NodeUnstageVolume"):
            methods[name] = unary(self.answering(name), getattr(wire, f"{name}Request"))
        for name in ("NodePublishVolume", "NodeUnpublishVolume", "NodeExpandVolume", "NodeGetVolumeStats"):
            methods[name] = unary(self.answering(name), getattr(wire, f"{name}Request"))
        async with serving(socket, {"csi.v1.Node": methods}):
            yield GrpcCsiNode(socket)

    def answering(self, name: str) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            self.requested.append(request)
            said = self.answers.get(name, getattr(wire, f"{name}Response")())
            if isinstance(said, grpc.StatusCode):
                await context.abort(said, "not now")
            return said

        return answer


async def test_who_the_driver_is_and_what_it_can_do(tmp_path: Path) -> None:
    rpc = wire.NodeServiceCapability.RPC
    known = wire.NodeServiceCapability(rpc=rpc(type=rpc.STAGE_UNSTAGE_VOLUME))
    later = wire.NodeServiceCapability.FromString(b"\x0a\x02\x08\x63")  # of a protocol to come
    driver = Driver(
        NodeGetInfo=wire.NodeGetInfoResponse(
            node_id="n", max_volumes_per_node=5, accessible_topology=wire.Topology(segments={"zone": "z"})
        ),
        NodeGetCapabilities=wire.NodeGetCapabilitiesResponse(capabilities=[known, later]),
    )
    async with driver.at(tmp_path / "c.sock") as client:
        assert await client.info() == CsiNodeInfo(node_id="n", max_volumes=5, topology={"zone": "z"})
        assert await client.capabilities() == {"STAGE_UNSTAGE_VOLUME"}
        driver.answers["NodeGetInfo"] = wire.NodeGetInfoResponse(node_id="n")
        assert (await client.info()).topology is None


async def test_a_volume_is_described_in_every_call(tmp_path: Path) -> None:
    driver = Driver(NodeExpandVolume=wire.NodeExpandVolumeResponse(capacity_bytes=9))
    async with driver.at(tmp_path / "c.sock") as client:
        await client.stage(VOLUME, STAGING)
        await client.publish(VOLUME, TARGET, staging=STAGING, read_only=True)
        assert await client.expand(VOLUME, TARGET, staging=None, required_bytes=8) == 9
        await client.unpublish("h", TARGET)
        await client.unstage("h", STAGING)
    mode = wire.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
    mount = wire.VolumeCapability.MountVolume(fs_type="ext4", mount_flags=["noatime"], volume_mount_group="7")
    able = wire.VolumeCapability(mount=mount, access_mode=mode)
    assert driver.requested == [
        wire.NodeStageVolumeRequest(
            volume_id="h",
            publish_context={"device": "/dev/x"},
            staging_target_path="/staging",
            volume_capability=able,
            secrets={"key": "s"},
            volume_context={"size": "1"},
        ),
        wire.NodePublishVolumeRequest(
            volume_id="h",
            publish_context={"device": "/dev/x"},
            staging_target_path="/staging",
            target_path="/target",
            volume_capability=able,
            readonly=True,
            secrets={"key": "s"},
            volume_context={"size": "1"},
        ),
        wire.NodeExpandVolumeRequest(
            volume_id="h",
            volume_path="/target",
            capacity_range=wire.CapacityRange(required_bytes=8),
            volume_capability=able,
            secrets={"key": "s"},
        ),
        wire.NodeUnpublishVolumeRequest(volume_id="h", target_path="/target"),
        wire.NodeUnstageVolumeRequest(volume_id="h", staging_target_path="/staging"),
    ]


async def test_a_block_volume(tmp_path: Path) -> None:
    driver = Driver()
    async with driver.at(tmp_path / "c.sock") as client:
        disk = CsiVolume(volume_id="h", access_mode="MULTI_NODE_READER_ONLY", block=True)
        await client.publish(disk, TARGET, staging=None, read_only=False)
    able = driver.requested[0].volume_capability
    assert (able.WhichOneof("access_type"), driver.requested[0].staging_target_path) == ("block", "")


async def test_figures(tmp_path: Path) -> None:
    use = wire.VolumeUsage
    said = wire.NodeGetVolumeStatsResponse(
        usage=[
            use(unit=use.BYTES, used=1, total=3, available=2),
            use(unit=use.INODES, used=4, total=9, available=5),
        ],
        volume_condition=wire.VolumeCondition(abnormal=True, message="it rattles"),
    )
    async with Driver(NodeGetVolumeStats=said).at(tmp_path / "c.sock") as client:
        assert await client.usage("h", TARGET, staging=STAGING) == CsiUsage(
            used_bytes=1,
            total_bytes=3,
            available_bytes=2,
            used_inodes=4,
            total_inodes=9,
            available_inodes=5,
            abnormal=True,
            condition="it rattles",
        )


async def test_a_refusal_has_its_code_and_no_secret(tmp_path: Path) -> None:
    socket = tmp_path / "c.sock"
    async with Driver(NodeStageVolume=grpc.StatusCode.ABORTED).at(socket) as client:
        with pytest.raises(PluginError) as caught:
            await client.stage(VOLUME, STAGING)
    assert str(caught.value) == f"NodeStageVolume at {socket}: not now (ABORTED)"


async def test_a_driver_that_was_restarted_is_reached_at_once(tmp_path: Path) -> None:
    first, second = Driver(), Driver(NodeGetInfo=wire.NodeGetInfoResponse(node_id="new"))
    async with first.at(tmp_path / "c.sock") as client:
        await client.info()
    with pytest.raises(PluginError) as caught:
        await client.info()
    assert caught.value.code == "UNAVAILABLE"
    async with second.at(tmp_path / "c.sock"):
        assert (await client.info()).node_id == "new"
