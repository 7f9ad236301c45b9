"""A storage driver for tests, a program of its own: folders, loop devices with XFS, and raw block devices.

    python -m tests.bed.csi_driver --name NAME --socket SOCKET --registry FOLDER --data FOLDER --log FILE

Volumes live in the data folder and survive the program. Every call is written to the log as one JSON line before and
after it was carried out, so that a test can judge order and repetition even when the driver was killed in between.
The handle says the kind: `folder-*`, `loop-*` (a filesystem), `block-*`; all else is a folder.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pykubelet.wire import csi_pb2 as wire
from pykubelet.wire import pluginregistration_pb2 as registration

MIB = 1 << 20
SMALLEST = 320 * MIB
"""XFS wants no less."""
NODE_CALLS = "STAGE_UNSTAGE_VOLUME GET_VOLUME_STATS EXPAND_VOLUME"
CODE = grpc.StatusCode
_SERVES_CONTROLLER = wire.PluginCapability(service=wire.PluginCapability.Service(type="CONTROLLER_SERVICE"))


class Refused(Exception):
    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code = code


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(CODE.INTERNAL, f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def mount_source(path: Path) -> str | None:
    """What is mounted exactly here; None when nothing is."""
    found = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == str(path):
            found = fields[fields.index("-") + 2]
    return found


class Disks:
    """Volumes as files and folders."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def image(self, volume: str) -> Path:
        return self._data / f"{volume}.img"

    def folder(self, volume: str) -> Path:
        return self._data / f"{volume}.folder"

    def is_disk(self, volume: str) -> bool:
        return volume.startswith(("loop-", "block-")) or self.image(volume).exists()

    def make(self, volume: str, size: int = SMALLEST) -> None:
        if not self.is_disk(volume):
            self.folder(volume).mkdir(parents=True, exist_ok=True)
        elif not self.image(volume).exists():
            with self.image(volume).open("wb") as file:
                file.truncate(max(size, SMALLEST))

    def delete(self, volume: str) -> None:
        self.image(volume).unlink(missing_ok=True)
        shutil.rmtree(self.folder(volume), ignore_errors=True)

    def attached(self, volume: str) -> str:
        """The loop device of the volume; empty when it has none."""
        listed = run("losetup", "--noheadings", "--output", "NAME", "--associated", str(self.image(volume)))
        return listed.splitlines()[0].strip() if listed else ""

    def attach(self, volume: str) -> str:
        return self.attached(volume) or run("losetup", "--find", "--show", str(self.image(volume)))

    def detach(self, volume: str) -> None:
        if device := self.attached(volume):
            run("losetup", "--detach", device)

    def format_if_blank(self, device: str) -> None:
        if subprocess.run(["blkid", "-p", device], capture_output=True, check=False).returncode == 2:
            run("mkfs.xfs", "-q", device)


class NodeService:
    def __init__(self, disks: Disks, node_id: str, inline: Path) -> None:
        self._disks = disks
        self._node_id = node_id
        self._inline = inline

    def get_info(self, request: wire.NodeGetInfoRequest) -> wire.NodeGetInfoResponse:
        return wire.NodeGetInfoResponse(
            node_id=self._node_id,
            max_volumes_per_node=50,
            accessible_topology=wire.Topology(segments={"bed.example.com/zone": "z1"}),
        )

    def get_capabilities(self, request: wire.NodeGetCapabilitiesRequest) -> wire.NodeGetCapabilitiesResponse:
        rpc = wire.NodeServiceCapability.RPC
        kinds = [rpc.Type.Value(name) for name in NODE_CALLS.split()]
        return wire.NodeGetCapabilitiesResponse(
            capabilities=[wire.NodeServiceCapability(rpc=rpc(type=kind)) for kind in kinds]
        )

    def stage(self, request: wire.NodeStageVolumeRequest) -> wire.NodeStageVolumeResponse:
        need(request.volume_id, "volume_id")
        need(request.staging_target_path, "staging_target_path")
        need(request.HasField("volume_capability"), "volume_capability")
        volume, staging = request.volume_id, Path(request.staging_target_path)
        self._disks.make(volume)
        if self._disks.is_disk(volume):
            device = self._disks.attach(volume)
            if not request.volume_capability.HasField("block") and mount_source(staging) is None:
                self._disks.format_if_blank(device)
                run("mount", "-t", "xfs", "-o", "nouuid", device, str(staging))
        elif mount_source(staging) is None:
            run("mount", "--bind", str(self._disks.folder(volume)), str(staging))
        return wire.NodeStageVolumeResponse()

    def unstage(self, request: wire.NodeUnstageVolumeRequest) -> wire.NodeUnstageVolumeResponse:
        need(request.volume_id, "volume_id")
        need(request.staging_target_path, "staging_target_path")
        staging = Path(request.staging_target_path)
        while mount_source(staging) is not None:
            run("umount", str(staging))
        self._disks.detach(request.volume_id)
        return wire.NodeUnstageVolumeResponse()

    def publish(self, request: wire.NodePublishVolumeRequest) -> wire.NodePublishVolumeResponse:
        need(request.volume_id, "volume_id")
        need(request.target_path, "target_path")
        need(request.HasField("volume_capability"), "volume_capability")
        volume, target = request.volume_id, Path(request.target_path)
        if mount_source(target) is not None:
            return wire.NodePublishVolumeResponse()
        if request.volume_capability.HasField("block"):
            device = self._disks.attached(volume)
            if not device:
                raise Refused(CODE.FAILED_PRECONDITION, f"{volume} is not staged")
            target.touch()
            run("mount", "--bind", device, str(target))
            return wire.NodePublishVolumeResponse()
        source = Path(request.staging_target_path) if request.staging_target_path else self._inline_folder(request)
        if request.staging_target_path and mount_source(source) is None:
            raise Refused(CODE.FAILED_PRECONDITION, f"{volume} is not staged at {source}")
        target.mkdir(exist_ok=True)
        run("mount", "--bind", str(source), str(target))
        if request.readonly:
            run("mount", "-o", "remount,bind,ro", str(target))
        return wire.NodePublishVolumeResponse()

    def _inline_folder(self, request: wire.NodePublishVolumeRequest) -> Path:
        folder = self._inline / request.volume_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "context.json").write_text(json.dumps(dict(request.volume_context)))
        return folder

    def unpublish(self, request: wire.NodeUnpublishVolumeRequest) -> wire.NodeUnpublishVolumeResponse:
        need(request.volume_id, "volume_id")
        need(request.target_path, "target_path")
        target = Path(request.target_path)
        while mount_source(target) is not None:
            run("umount", str(target))
        if target.is_dir():
            target.rmdir()
        else:
            target.unlink(missing_ok=True)
        shutil.rmtree(self._inline / request.volume_id, ignore_errors=True)
        return wire.NodeUnpublishVolumeResponse()

    def expand(self, request: wire.NodeExpandVolumeRequest) -> wire.NodeExpandVolumeResponse:
        need(request.volume_id, "volume_id")
        need(request.volume_path, "volume_path")
        path, size = Path(request.volume_path), request.capacity_range.required_bytes
        if mount_source(path) is None:
            raise Refused(CODE.NOT_FOUND, f"nothing is published at {path}")
        if self._disks.is_disk(request.volume_id):
            image = self._disks.image(request.volume_id)
            if image.stat().st_size < size:
                os.truncate(image, size)
            run("losetup", "--set-capacity", self._disks.attached(request.volume_id))
            if path.is_dir():
                run("xfs_growfs", str(path))
        return wire.NodeExpandVolumeResponse(capacity_bytes=size)

    def stats(self, request: wire.NodeGetVolumeStatsRequest) -> wire.NodeGetVolumeStatsResponse:
        need(request.volume_id, "volume_id")
        need(request.volume_path, "volume_path")
        if not os.path.exists(request.volume_path) or mount_source(Path(request.volume_path)) is None:
            raise Refused(CODE.NOT_FOUND, f"nothing is published at {request.volume_path}")
        found = os.statvfs(request.volume_path)
        size = wire.VolumeUsage(
            unit=wire.VolumeUsage.BYTES,
            total=found.f_blocks * found.f_frsize,
            available=found.f_bavail * found.f_frsize,
            used=(found.f_blocks - found.f_bfree) * found.f_frsize,
        )
        inodes = wire.VolumeUsage(
            unit=wire.VolumeUsage.INODES,
            total=found.f_files,
            available=found.f_ffree,
            used=found.f_files - found.f_ffree,
        )
        return wire.NodeGetVolumeStatsResponse(usage=[size, inodes])


class ControllerService:
    """Making and deleting volumes, for the checker of drivers; the tests of the agent make their own."""

    def __init__(self, disks: Disks, data: Path) -> None:
        self._disks = disks
        self._made = data / "made.json"

    def get_capabilities(
        self, request: wire.ControllerGetCapabilitiesRequest
    ) -> wire.ControllerGetCapabilitiesResponse:
        rpc = wire.ControllerServiceCapability.RPC
        return wire.ControllerGetCapabilitiesResponse(
            capabilities=[wire.ControllerServiceCapability(rpc=rpc(type="CREATE_DELETE_VOLUME"))]
        )

    def create(self, request: wire.CreateVolumeRequest) -> wire.CreateVolumeResponse:
        need(request.name, "name")
        need(request.volume_capabilities, "volume_capabilities")
        size = request.capacity_range.required_bytes
        made = self._sizes()
        handle = f"folder-{hashlib.sha256(request.name.encode()).hexdigest()[:16]}"
        if made.setdefault(handle, size) != size:
            raise Refused(CODE.ALREADY_EXISTS, f"{request.name} exists with another size")
        self._made.write_text(json.dumps(made))
        self._disks.make(handle)
        return wire.CreateVolumeResponse(volume=wire.Volume(volume_id=handle, capacity_bytes=size))

    def delete(self, request: wire.DeleteVolumeRequest) -> wire.DeleteVolumeResponse:
        need(request.volume_id, "volume_id")
        made = self._sizes()
        made.pop(request.volume_id, None)
        self._made.write_text(json.dumps(made))
        self._disks.delete(request.volume_id)
        return wire.DeleteVolumeResponse()

    def validate(self, request: wire.ValidateVolumeCapabilitiesRequest) -> wire.ValidateVolumeCapabilitiesResponse:
        need(request.volume_id, "volume_id")
        need(request.volume_capabilities, "volume_capabilities")
        if request.volume_id not in self._sizes():
            raise Refused(CODE.NOT_FOUND, f"{request.volume_id} does not exist")
        confirmed = wire.ValidateVolumeCapabilitiesResponse.Confirmed(volume_capabilities=request.volume_capabilities)
        return wire.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    def _sizes(self) -> dict[str, int]:
        return dict(json.loads(self._made.read_text())) if self._made.exists() else {}


def need(value: Any, field: str) -> None:
    if not value:
        raise Refused(CODE.INVALID_ARGUMENT, f"{field} is missing")


class CallLog:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, call: str, state: str, request: Any) -> None:
        volume = getattr(request, "volume_id", "")
        target = getattr(request, "target_path", "") or getattr(request, "volume_path", "")
        line = {"at": time.time(), "call": call, "state": state, "volume": volume, "target": target}
        os.write(self._file, (json.dumps(line) + "\n").encode())


Method = Callable[[Any], Any]


class Driver:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._log = CallLog(options.log)
        self._hangs: str = options.hang
        self._turn = asyncio.Lock()

    def handler(self, name: str, request_type: Any, work: Method) -> grpc.RpcMethodHandler[Any, Any]:
        async def serve(request: Any, context: Any) -> Any:
            self._log.write(name, "begun", request)
            try:
                async with self._turn:
                    if name == self._hangs:
                        await asyncio.Event().wait()
                    answer = await asyncio.to_thread(work, request)
            except Refused as error:
                self._log.write(name, f"refused: {error}", request)
                await context.abort(error.code, str(error))
            self._log.write(name, "done", request)
            return answer

        return grpc.unary_unary_rpc_method_handler(
            serve, request_deserializer=request_type.FromString, response_serializer=serialized
        )

    def node_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        data: Path = self._options.data
        node = NodeService(Disks(data), self._options.node_id, data / "inline")
        table: list[tuple[str, Method]] = [
            ("NodeGetInfo", node.get_info),
            ("NodeGetCapabilities", node.get_capabilities),
            ("NodeStageVolume", node.stage),
            ("NodeUnstageVolume", node.unstage),
            ("NodePublishVolume", node.publish),
            ("NodeUnpublishVolume", node.unpublish),
            ("NodeExpandVolume", node.expand),
            ("NodeGetVolumeStats", node.stats),
        ]
        return {name: self.handler(name, getattr(wire, f"{name}Request"), work) for name, work in table}

    def controller_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        data: Path = self._options.data
        controller = ControllerService(Disks(data), data)
        table: list[tuple[str, Method]] = [
            ("ControllerGetCapabilities", controller.get_capabilities),
            ("CreateVolume", controller.create),
            ("DeleteVolume", controller.delete),
            ("ValidateVolumeCapabilities", controller.validate),
        ]
        return {name: self.handler(name, getattr(wire, f"{name}Request"), work) for name, work in table}

    def identity_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        name = self._options.name
        info = wire.GetPluginInfoResponse(name=name, vendor_version="1")
        table: list[tuple[str, Any]] = [
            ("GetPluginInfo", info),
            ("GetPluginCapabilities", wire.GetPluginCapabilitiesResponse(capabilities=[_SERVES_CONTROLLER])),
            ("Probe", wire.ProbeResponse()),
        ]
        return {
            call: self.handler(call, getattr(wire, f"{call}Request"), lambda request, answer=answer: answer)
            for call, answer in table
        }

    def registration_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        info = registration.PluginInfo(
            type="CSIPlugin",
            name=self._options.name,
            endpoint=str(self._options.socket),
            supported_versions=["1.0.0"],
        )

        def told(request: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
            print(f"registered={request.plugin_registered} {request.error}", flush=True)
            return registration.RegistrationStatusResponse()

        return {
            "GetInfo": self.handler("GetInfo", registration.InfoRequest, lambda request: info),
            "NotifyRegistrationStatus": self.handler("NotifyRegistrationStatus", registration.RegistrationStatus, told),
        }

    async def serve(self) -> None:
        options = self._options
        options.data.mkdir(parents=True, exist_ok=True)
        socket: Path = options.socket
        socket.parent.mkdir(parents=True, exist_ok=True)
        own = grpc.aio.server()
        own.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler("csi.v1.Node", self.node_methods()),
                grpc.method_handlers_generic_handler("csi.v1.Controller", self.controller_methods()),
                grpc.method_handlers_generic_handler("csi.v1.Identity", self.identity_methods()),
            ]
        )
        await listening(own, socket)
        if options.registry is not None:
            registrar = grpc.aio.server()
            service = grpc.method_handlers_generic_handler(
                "pluginregistration.Registration", self.registration_methods()
            )
            registrar.add_generic_rpc_handlers([service])
            await listening(registrar, options.registry / f"{options.name}-reg.sock")
        print("serving", flush=True)
        await own.wait_for_termination()


async def listening(server: grpc.aio.Server, socket: Path) -> None:
    socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix://{socket}")
    start: Awaitable[None] = server.start()
    await start


def serialized(answer: Any) -> bytes:
    text: bytes = answer.SerializeToString()
    return text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="bed.example.com")
    parser.add_argument("--node-id", default="bed-node")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--registry", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--hang", default="", help="a call that is never answered")
    asyncio.run(Driver(parser.parse_args()).serve())


if __name__ == "__main__":
    main()
