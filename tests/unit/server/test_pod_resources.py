"""The podresources service: what it says of pods and the machine, over a real socket; its limit; its troubles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pykubelet.api.types import Pod
from pykubelet.cm.container_resources import AssignedResources
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.topology import (
    ClaimedDevice,
    ClaimShare,
    DeviceShare,
    MemoryShare,
)
from pykubelet.server.local_grpc import BURST
from pykubelet.server.pod_resources import PodResources, PodResourcesServer
from pykubelet.wire import podresources_v1_pb2 as v1
from pykubelet.wire import podresources_v1alpha1_pb2 as v1alpha1
from tests.builders import a_container, a_pod
from tests.grpc_services import Stub

GPU = DeviceShare(resource="example.com/gpu", ids=("g0", "g1"), numa=(1,))
PLAIN = DeviceShare(resource="example.com/nic", ids=("n0",))
MEMORY = MemoryShare(kind="memory", size=4096, numa=(0, 1))
CLAIM = ClaimShare(
    namespace="default",
    name="claim",
    devices=(ClaimedDevice(driver="d", pool="p", device="dev", cdi=("v/c=1",), share_id="s"),),
)


class Holders:
    """Container `main` of the pod `uid-a` holds something of each kind."""

    def _of(self, uid: str, container: str, held: Any) -> Any:
        return held if (uid, container) == ("uid-a", "main") else ()

    def cpus_of(self, uid: str, container: str) -> Collection[int]:
        return self._of(uid, container, {3, 2})

    def allocatable_cpus(self) -> Collection[int]:
        return {3, 1, 2}

    def memory_of(self, uid: str, container: str) -> Sequence[MemoryShare]:
        return self._of(uid, container, [MEMORY])

    def allocatable_memory(self) -> Sequence[MemoryShare]:
        return [MEMORY]

    def devices_of(self, uid: str, container: str) -> Sequence[DeviceShare]:
        return self._of(uid, container, [GPU, PLAIN])

    def allocatable_devices(self) -> Sequence[DeviceShare]:
        return [GPU]

    def claims_of(self, uid: str, container: str) -> Sequence[ClaimShare]:
        return self._of(uid, container, [CLAIM])


def pods() -> list[Pod]:
    sidecar = a_container("helper", restart_policy="Always")
    first = a_pod("a", uid="uid-a", containers=[a_container("main")], init=[sidecar, a_container("init")])
    return [first, a_pod("b", uid="uid-b", containers=[a_container("main")])]


class Managers:
    """Resource managers without a static policy."""

    def cpus_of(self, uid: str, container: str) -> Collection[int]:
        return ()

    def allocatable_cpus(self) -> Collection[int]:
        return ()

    def memory_of(self, uid: str, container: str) -> Sequence[MemoryShare]:
        return ()

    def allocatable_memory(self) -> Sequence[MemoryShare]:
        return ()


def nothing() -> AssignedResources:
    return AssignedResources(Managers(), None, None)


@asynccontextmanager
async def served(folder: Path, metrics: Registry | None = None) -> AsyncIterator[grpc.aio.Channel]:
    socket = folder / "pod-resources" / "kubelet.sock"
    socket.parent.mkdir()
    socket.write_text("left by an agent that was killed")
    server = PodResourcesServer(
        socket=socket,
        resources=PodResources(active=pods, known=pods, assigned=Holders()),
        clock=SystemClock(),
        metrics=metrics or Registry(),
    )
    async with running(server), grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        yield channel
    assert not socket.exists()


@pytest.mark.real_loop
async def test_a_client_hears_who_holds_what(tmp_path: Path) -> None:
    metrics = Registry()
    async with served(tmp_path, metrics) as channel:
        stub = Stub(channel, v1, "PodResourcesLister")
        listed = await stub.List(v1.ListPodResourcesRequest(), wait_for_ready=True)
        first, second = listed.pod_resources
        assert (first.namespace, first.name, [c.name for c in first.containers]) == ("default", "a", ["helper", "main"])
        helper, main = first.containers
        assert helper == v1.ContainerResources(name="helper")
        assert list(main.cpu_ids) == [2, 3]
        assert [(d.resource_name, list(d.device_ids), [n.ID for n in d.topology.nodes]) for d in main.devices] == [
            ("example.com/gpu", ["g0"], [1]),
            ("example.com/gpu", ["g1"], [1]),
            ("example.com/nic", ["n0"], []),
        ]
        assert not main.devices[2].HasField("topology")
        assert [(m.memory_type, m.size, [n.ID for n in m.topology.nodes]) for m in main.memory] == [
            ("memory", 4096, [0, 1])
        ]
        (claim,) = main.dynamic_resources
        assert (claim.claim_namespace, claim.claim_name) == ("default", "claim")
        (device,) = claim.claim_resources
        assert (device.driver_name, device.pool_name, device.device_name, device.share_id) == ("d", "p", "dev", "s")
        assert [each.name for each in device.cdi_devices] == ["v/c=1"]
        assert second.containers[0] == v1.ContainerResources(name="main")

        got = await stub.Get(v1.GetPodResourcesRequest(pod_name="a", pod_namespace="default"))
        assert got.pod_resources == first
        machine = await stub.GetAllocatableResources(v1.AllocatableResourcesRequest())
        assert (list(machine.cpu_ids), len(machine.devices), machine.memory[0].size) == ([1, 2, 3], 2, 4096)
        old = await Stub(channel, v1alpha1, "PodResourcesLister").List(v1alpha1.ListPodResourcesRequest())
        assert [d.resource_name for d in old.pod_resources[0].containers[0].devices] == [
            "example.com/gpu",
            "example.com/nic",
        ]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Get(v1.GetPodResourcesRequest(pod_name="x", pod_namespace="y"))
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.UNKNOWN,
            "pod x in namespace y not found",
        )
    text = metrics.expose()
    assert 'kubelet_pod_resources_endpoint_requests_total{server_api_version="v1"} 4' in text
    assert 'kubelet_pod_resources_endpoint_requests_total{server_api_version="v1alpha1"} 1' in text
    assert 'kubelet_pod_resources_endpoint_errors_get{server_api_version="v1"} 1' in text


@pytest.mark.real_loop
async def test_too_many_calls_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as channel:
        stub = Stub(channel, v1, "PodResourcesLister")
        refused = 0
        for _ in range(BURST * 20):  # faster than a hundred a second by far
            try:
                await stub.List(v1.ListPodResourcesRequest(), wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                assert (error.code(), error.details()) == (
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "rejected by rate limit",
                )
                refused += 1
        assert refused


@pytest.mark.real_loop
async def test_a_socket_that_cannot_be_had_costs_only_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (tmp_path / ("x" * 120), tmp_path / "file"):
        (tmp_path / "file").write_text("in the way")
        server = PodResourcesServer(
            socket=folder / "kubelet.sock",
            resources=PodResources(active=pods, known=pods, assigned=nothing()),
            clock=SystemClock(),
            metrics=Registry(),
        )
        async with running(server):
            await SystemClock().sleep(0)
    assert caplog.text.count("the podresources service is not offered") == 2


@pytest.mark.parametrize("lists_active", [True, False])
def test_pods_that_have_ended(lists_active: bool) -> None:
    """v1alpha1 always lists them, v1 as the gate KubeletPodResourcesListUseActivePods says, and Get never finds one."""
    resources = PodResources(
        active=pods, known=lambda: [*pods(), a_pod("ended")], assigned=nothing(), lists_active=lists_active
    )
    listed = [each.name for each in resources.list().pod_resources]
    assert ("ended" in listed) is not lists_active
    assert [each.name for each in resources.list_devices().pod_resources][-1] == "ended"
    assert resources.get("default", "ended") is None


def test_without_managers_nobody_holds_anything() -> None:
    resources = PodResources(active=pods, known=pods, assigned=nothing())
    assert resources.allocatable() == v1.AllocatableResourcesResponse()
    assert resources.list().pod_resources[0].containers[1] == v1.ContainerResources(name="main")
    assert resources.get("default", "nobody") is None
