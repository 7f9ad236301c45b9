"""A whole agent with a DRA driver, a device plugin and CSI drivers that are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pykubelet.api.types import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ObjectMeta,
    Pod,
    PodResourceClaim,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceRequirements,
    ResourceResourceClaim,
)
from pykubelet.clients.plugins.port import AllocateResponse, DeviceRegistration, PluginInfo, TakeDevicePlugin
from pykubelet.cm.device_manager import DeviceManager
from pykubelet.cm.dra_manager import DraManager
from pykubelet.edges import PluginEdges
from pykubelet.kit.tasks import Service
from tests.builders import a_container
from tests.fakes.fake_csi import FakeCsiDriver
from tests.fakes.fake_devices import FakeDevicePlugin, a_device
from tests.fakes.fake_dra import FakeDraDriver
from tests.scenarios.cluster_node import ClusterHarness

GPU = "example.com/gpu"
SOCKET = Path("/d.sock")


class Nobody:
    name = "nobody"

    async def info(self, socket: Path) -> PluginInfo:
        raise AssertionError("nobody looks for sockets in these tests")

    async def notify(self, socket: Path, problem: str | None) -> None:
        raise AssertionError

    async def run(self) -> None:
        await asyncio.Event().wait()


@dataclass
class PluginNode:
    node: ClusterHarness
    driver: FakeDraDriver = field(default_factory=FakeDraDriver)
    plugin: FakeDevicePlugin = field(default_factory=lambda: FakeDevicePlugin([a_device("a"), a_device("b")]))

    def __post_init__(self) -> None:
        def registry(folder: Path, take: TakeDevicePlugin) -> Service:
            return Nobody()

        self.node.plugins = PluginEdges(
            registrations=Nobody(),
            csi=lambda socket, observe: FakeCsiDriver(self.node.mounts).connect(socket, observe),
            devices=lambda socket: self.plugin,
            read_allocate_response=lambda data: AllocateResponse(wire=data),
            dra=lambda socket, version, observe: self.driver.connect(socket, version, observe),
            device_registry=registry,
        )

    @property
    def claims(self) -> DraManager:
        assert self.node.node.cm.dra is not None
        return self.node.node.cm.dra

    @property
    def devices(self) -> DeviceManager:
        assert self.node.node.cm.devices is not None
        return self.node.node.cm.devices

    async def register(self) -> None:
        await asyncio.sleep(0)
        await self.claims.drivers.register("d", SOCKET, ("v1.DRAPlugin",))

    async def register_devices(self) -> None:
        await asyncio.sleep(0)
        await self.devices.take(DeviceRegistration(version="v1beta1", endpoint="gpu.sock", resource=GPU))
        await asyncio.sleep(0.1)

    def claiming(self, name: str = "web") -> Pod:
        """A pod with a claim of its own, allocated and reserved."""
        used = ResourceRequirements(claims=[ResourceClaim(name="c")])
        pod = self.node.bind(
            name,
            containers=[a_container(resources=used)],
            resource_claims=[PodResourceClaim(name="c", resource_claim_name=f"claim-{name}")],
        )
        found = [DeviceRequestAllocationResult(driver="d", pool="p", device="x", request="one")]
        self.node.api.add(
            ResourceResourceClaim(
                metadata=ObjectMeta(name=f"claim-{name}", namespace="default", uid=f"uid-claim-{name}"),
                status=ResourceClaimStatus(
                    allocation=AllocationResult(devices=DeviceAllocationResult(results=found)),
                    reserved_for=[ResourceClaimConsumerReference(resource="pods", name=name, uid=pod.metadata.uid)],
                ),
            )
        )
        return pod

    def explained(self, pod: Pod) -> str:
        return self.node.node.explainer.explain(pod).to_text()


@asynccontextmanager
async def a_plugin_node(folder: Path) -> AsyncIterator[PluginNode]:
    node = ClusterHarness(folder)
    plugins = PluginNode(node)
    await node.start()
    try:
        yield plugins
    finally:
        await node.kill()
