"""The node service of a storage driver over gRPC, in our own terms.

A new connection for each call: calls are rare, and a driver that was restarted is then reached at once. No call
takes longer than two minutes. Secrets go into the request and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message

from pykubelet.clients.plugins.connection import PluginConnection
from pykubelet.clients.plugins.port import CsiNodeInfo, CsiUsage, CsiVolume, Observe, unobserved
from pykubelet.wire import csi_pb2 as wire

A = TypeVar("A", bound=Message)

SECONDS = 120.0
SERVICE = "/csi.v1.Node"


class GrpcCsiNode:
    def __init__(self, socket: Path, observe: Observe = unobserved) -> None:
        self._socket = socket
        self._observe = observe

    async def info(self) -> CsiNodeInfo:
        response = await self._call("NodeGetInfo", wire.NodeGetInfoRequest(), wire.NodeGetInfoResponse)
        topology = dict(response.accessible_topology.segments) if response.HasField("accessible_topology") else None
        return CsiNodeInfo(node_id=response.node_id, max_volumes=response.max_volumes_per_node, topology=topology)

    async def capabilities(self) -> frozenset[str]:
        response = await self._call(
            "NodeGetCapabilities", wire.NodeGetCapabilitiesRequest(), wire.NodeGetCapabilitiesResponse
        )
        names = wire.NodeServiceCapability.RPC.Type
        # A number this list does not know is a capability from a later version of the protocol: no use to us.
        known = set(names.values())
        return frozenset(names.Name(each.rpc.type) for each in response.capabilities if each.rpc.type in known)

    async def stage(self, volume: CsiVolume, staging: Path) -> None:
        request = wire.NodeStageVolumeRequest(
            volume_id=volume.volume_id,
            publish_context=volume.publish_context,
            staging_target_path=str(staging),
            volume_capability=capability_of(volume),
            secrets=volume.secrets,
            volume_context=volume.volume_context,
        )
        await self._call("NodeStageVolume", request, wire.NodeStageVolumeResponse)

    async def unstage(self, volume_id: str, staging: Path) -> None:
        request = wire.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=str(staging))
        await self._call("NodeUnstageVolume", request, wire.NodeUnstageVolumeResponse)

    async def publish(self, volume: CsiVolume, target: Path, *, staging: Path | None, read_only: bool) -> None:
        request = wire.NodePublishVolumeRequest(
            volume_id=volume.volume_id,
            publish_context=volume.publish_context,
            staging_target_path=str(staging) if staging else "",
            target_path=str(target),
            volume_capability=capability_of(volume),
            readonly=read_only,
            secrets=volume.secrets,
            volume_context=volume.volume_context,
        )
        await self._call("NodePublishVolume", request, wire.NodePublishVolumeResponse)

    async def unpublish(self, volume_id: str, target: Path) -> None:
        request = wire.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=str(target))
        await self._call("NodeUnpublishVolume", request, wire.NodeUnpublishVolumeResponse)

    async def expand(self, volume: CsiVolume, path: Path, *, staging: Path | None, required_bytes: int) -> int:
        request = wire.NodeExpandVolumeRequest(
            volume_id=volume.volume_id,
            volume_path=str(path),
            capacity_range=wire.CapacityRange(required_bytes=required_bytes),
            staging_target_path=str(staging) if staging else "",
            volume_capability=capability_of(volume),
            secrets=volume.secrets,
        )
        response = await self._call("NodeExpandVolume", request, wire.NodeExpandVolumeResponse)
        return response.capacity_bytes

    async def usage(self, volume_id: str, path: Path, *, staging: Path | None) -> CsiUsage:
        request = wire.NodeGetVolumeStatsRequest(
            volume_id=volume_id, volume_path=str(path), staging_target_path=str(staging) if staging else ""
        )
        response = await self._call("NodeGetVolumeStats", request, wire.NodeGetVolumeStatsResponse)
        amounts = {each.unit: each for each in response.usage}
        size = amounts.get(wire.VolumeUsage.BYTES, wire.VolumeUsage())
        inodes = amounts.get(wire.VolumeUsage.INODES, wire.VolumeUsage())
        condition = response.volume_condition
        return CsiUsage(
            used_bytes=size.used,
            total_bytes=size.total,
            available_bytes=size.available,
            used_inodes=inodes.used,
            total_inodes=inodes.total,
            available_inodes=inodes.available,
            abnormal=condition.abnormal,
            condition=condition.message,
        )

    async def _call(self, name: str, request: Message, answer: type[A]) -> A:
        with self._observe(name):
            async with PluginConnection(self._socket) as driver:
                return await driver.call(f"{SERVICE}/{name}", request, answer, seconds=SECONDS)


def capability_of(volume: CsiVolume) -> wire.VolumeCapability:
    mode = wire.VolumeCapability.AccessMode(mode=volume.access_mode)
    if volume.block:
        return wire.VolumeCapability(block=wire.VolumeCapability.BlockVolume(), access_mode=mode)
    mount = wire.VolumeCapability.MountVolume(
        fs_type=volume.fs_type, mount_flags=volume.mount_flags, volume_mount_group=volume.mount_group
    )
    return wire.VolumeCapability(mount=mount, access_mode=mode)
