"""Drivers of dynamic resources over gRPC, in both versions of their service.

The two differ in name alone; v1 has a share id more. One connection for all calls and the stream of health, as drivers
expect it; it is made and made again without a call, which shows whether the driver is there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pykubelet.clients.plugins.connection import PluginConnection
from pykubelet.clients.plugins.port import ClaimedHealth, ClaimRef, Observe, Prepared, PreparedDevice, unobserved
from pykubelet.wire import dra_health_v1alpha1_pb2 as health_wire
from pykubelet.wire import dra_v1_pb2, dra_v1beta1_pb2

SECONDS = 45.0
HEALTH = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
_VERSIONS: Mapping[str, ModuleType] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
_STATES = {health_wire.HEALTHY: "Healthy", health_wire.UNHEALTHY: "Unhealthy"}


class GrpcDraDriver:
    def __init__(self, socket: Path, version: str, observe: Observe = unobserved) -> None:
        self._driver = PluginConnection(socket)
        self._observe = observe
        self._wire: Any = _VERSIONS[version]
        self._service = f"/{self._wire.DESCRIPTOR.package}.DRAPlugin"

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Prepared]:
        request = self._wire.NodePrepareResourcesRequest(claims=self._claims(claims))
        response = await self._call("NodePrepareResources", request, self._wire.NodePrepareResourcesResponse)
        return {uid: self._prepared(each) for uid, each in response.claims.items()}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        request = self._wire.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        response = await self._call("NodeUnprepareResources", request, self._wire.NodeUnprepareResourcesResponse)
        return {uid: each.error for uid, each in response.claims.items()}

    async def watch_health(self) -> AsyncGenerator[Sequence[ClaimedHealth], None]:
        request = health_wire.NodeWatchResourcesRequest()
        stream = self._driver.stream(HEALTH, request, health_wire.NodeWatchResourcesResponse)
        try:
            async for response in stream:
                yield [_health(each) for each in response.devices]
        finally:
            await stream.aclose()

    def connected(self) -> AsyncGenerator[bool, None]:
        return self._driver.ready()

    async def close(self) -> None:
        await self._driver.close()

    def _claims(self, claims: Sequence[ClaimRef]) -> list[Any]:
        return [self._wire.Claim(namespace=each.namespace, uid=each.uid, name=each.name) for each in claims]

    def _prepared(self, response: Any) -> Prepared:
        return Prepared(
            error=response.error,
            devices=tuple(
                PreparedDevice(
                    pool=each.pool_name,
                    device=each.device_name,
                    requests=tuple(each.request_names),
                    cdi_ids=tuple(each.cdi_device_ids),
                    share_id=getattr(each, "share_id", ""),
                )
                for each in response.devices
            ),
        )

    async def _call(self, name: str, request: Any, answer: Any) -> Any:
        with self._observe(name):
            return await self._driver.call(f"{self._service}/{name}", request, answer, seconds=SECONDS)


def _health(response: health_wire.DeviceHealth) -> ClaimedHealth:
    given = response.health_check_timeout_seconds
    return ClaimedHealth(
        pool=response.device.pool_name,
        device=response.device.device_name,
        health=_STATES.get(response.health, "Unknown"),
        stale_after=float(given) if given > 0 else 30.0,
        message=response.message,
    )
