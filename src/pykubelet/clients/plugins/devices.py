"""Device plugins over gRPC, both ways: the socket they register at, and the calls they serve.

The registration socket is made anew at each start, as plugins watch for that and register again. A plugin that is
registered has one connection for as long as it lives.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pykubelet.clients.plugins.connection import PluginConnection
from pykubelet.clients.plugins.port import (
    AllocatedDevice,
    AllocatedMount,
    AllocateResponse,
    Device,
    DeviceOptions,
    DeviceRegistration,
    TakeDevicePlugin,
)
from pykubelet.kit.tasks import finish
from pykubelet.model.errors import PykubeletError
from pykubelet.wire import deviceplugin_pb2 as wire

logger = logging.getLogger(__name__)

SERVICE = "/v1beta1.DevicePlugin"
HEALTHY = "Healthy"
ANSWER_SECONDS = 10.0
ALLOCATE_SECONDS = 60.0
"""Upstream waits without end."""
PRE_START_SECONDS = 30.0
STOP_WITHIN = 2.0
SOCKET = "kubelet.sock"


class GrpcDevicePlugin:
    def __init__(self, socket: Path) -> None:
        self._connection = PluginConnection(socket)

    async def close(self) -> None:
        await self._connection.close()

    async def options(self) -> DeviceOptions:
        path = f"{SERVICE}/GetDevicePluginOptions"
        return options_of(
            await self._connection.call(path, wire.Empty(), wire.DevicePluginOptions, seconds=ANSWER_SECONDS)
        )

    async def watch(self) -> AsyncGenerator[Sequence[Device], None]:
        stream = self._connection.stream(f"{SERVICE}/ListAndWatch", wire.Empty(), wire.ListAndWatchResponse)
        try:
            async for response in stream:
                yield [
                    Device(
                        id=each.ID,
                        healthy=each.health == HEALTHY,
                        numa=tuple(sorted({node.ID for node in each.topology.nodes})),
                    )
                    for each in response.devices
                ]
        finally:
            await stream.aclose()

    async def preferred(self, available: Sequence[str], must_have: Sequence[str], count: int) -> Sequence[str]:
        request = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_have, allocation_size=count
        )
        response = await self._connection.call(
            f"{SERVICE}/GetPreferredAllocation",
            wire.PreferredAllocationRequest(container_requests=[request]),
            wire.PreferredAllocationResponse,
            seconds=ANSWER_SECONDS,
        )
        return list(response.container_responses[0].deviceIDs) if response.container_responses else []

    async def allocate(self, ids: Sequence[str]) -> AllocateResponse:
        request = wire.ContainerAllocateRequest(devices_ids=ids)
        response = await self._connection.call(
            f"{SERVICE}/Allocate",
            wire.AllocateRequest(container_requests=[request]),
            wire.AllocateResponse,
            seconds=ALLOCATE_SECONDS,
        )
        return (
            allocate_response_of(response.container_responses[0])
            if response.container_responses
            else AllocateResponse()
        )

    async def pre_start(self, ids: Sequence[str]) -> None:
        await self._connection.call(
            f"{SERVICE}/PreStartContainer",
            wire.PreStartContainerRequest(devices_ids=ids),
            wire.PreStartContainerResponse,
            seconds=PRE_START_SECONDS,
        )


def options_of(response: wire.DevicePluginOptions) -> DeviceOptions:
    return DeviceOptions(pre_start=response.pre_start_required, prefers=response.get_preferred_allocation_available)


def allocate_response_of(response: wire.ContainerAllocateResponse) -> AllocateResponse:
    return AllocateResponse(
        envs=dict(response.envs),
        mounts=tuple(
            AllocatedMount(container_path=each.container_path, host_path=each.host_path, read_only=each.read_only)
            for each in response.mounts
        ),
        devices=tuple(
            AllocatedDevice(container_path=each.container_path, host_path=each.host_path, permissions=each.permissions)
            for each in response.devices
        ),
        annotations=dict(response.annotations),
        cdi_devices=tuple(each.name for each in response.cdi_devices),
        wire=response.SerializeToString(),
    )


def read_allocate_response(data: bytes) -> AllocateResponse:
    return allocate_response_of(wire.ContainerAllocateResponse.FromString(data))


class DeviceRegistry:
    """The socket at which device plugins register. A service."""

    name = "device registry"

    def __init__(self, folder: Path, take: TakeDevicePlugin) -> None:
        self._folder = folder
        self._take = take

    async def run(self) -> None:
        server = grpc.aio.server()
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=wire.RegisterRequest.FromString,
            response_serializer=wire.Empty.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})]
        )
        try:
            self._prepare()
            server.add_insecure_port(f"unix://{self._folder / SOCKET}")
        except (OSError, RuntimeError) as error:
            logger.error("no device plugin can register", extra={"folder": str(self._folder), "problem": str(error)})
            await asyncio.Event().wait()
        await server.start()
        try:
            await server.wait_for_termination()
        finally:
            try:
                await finish(server.stop(None), within=STOP_WITHIN)
            finally:
                (self._folder / SOCKET).unlink(missing_ok=True)

    def _prepare(self) -> None:
        """Sockets of an earlier life are removed: plugins then register again."""
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        # A file of older kubelets: plugins that find it do not register.
        (self._folder / "DEPRECATION").unlink(missing_ok=True)
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    os.unlink(entry.path)

    async def _register(self, request: wire.RegisterRequest, context: Any) -> wire.Empty:
        registration = DeviceRegistration(
            version=request.version,
            endpoint=request.endpoint,
            resource=request.resource_name,
        )
        try:
            await self._take(registration)
        except PykubeletError as error:
            logger.warning("device plugin refused", extra={"resource": registration.resource, "problem": str(error)})
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return wire.Empty()
