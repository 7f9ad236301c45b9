"""The podresources service on its local socket: which container holds which CPUs, memory and devices.

Monitoring agents and topology tools ask it (v1: List, Get, GetAllocatableResources; v1alpha1: List). Does not cover:
the socket (local_grpc.py), allocating resources (cm/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pykubelet.api.types import Pod
from pykubelet.cm.container_resources import AssignedResources
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.pod import AnyContainer, is_sidecar, name_of, namespace_of, uid_of
from pykubelet.model.topology import ClaimShare, DeviceShare, MemoryShare
from pykubelet.server.local_grpc import CallLimit, abort, handlers, serve
from pykubelet.wire import podresources_v1_pb2 as v1
from pykubelet.wire import podresources_v1alpha1_pb2 as v1alpha1

ListPods = Callable[[], Iterable[Pod]]


class PodResources:
    """The service's responses as messages; pure but for reading the assignments."""

    def __init__(
        self, *, active: ListPods, known: ListPods, assigned: AssignedResources, lists_active: bool = True
    ) -> None:
        """`known` are all pods, also those that have ended; `lists_active`: List leaves these out."""
        self._active = active
        self._known = known
        self._listed = active if lists_active else known
        self._assigned = assigned

    def list(self) -> v1.ListPodResourcesResponse:
        return v1.ListPodResourcesResponse(pod_resources=[self._of(pod) for pod in self._listed()])

    def list_devices(self) -> v1alpha1.ListPodResourcesResponse:
        """As v1alpha1 has it: of all pods, the names of the devices of their regular containers."""
        return v1alpha1.ListPodResourcesResponse(
            pod_resources=[
                v1alpha1.PodResources(
                    name=name_of(pod),
                    namespace=namespace_of(pod),
                    containers=[self._devices_alpha(uid_of(pod), each) for each in pod.spec.containers],
                )
                for pod in self._known()
            ]
        )

    def get(self, namespace: str, name: str) -> v1.GetPodResourcesResponse | None:
        """None for a pod that is not active here."""
        for pod in self._active():
            if (namespace_of(pod), name_of(pod)) == (namespace, name):
                return v1.GetPodResourcesResponse(pod_resources=self._of(pod))
        return None

    def allocatable(self) -> v1.AllocatableResourcesResponse:
        assigned = self._assigned
        return v1.AllocatableResourcesResponse(
            devices=list(_devices(assigned.allocatable_devices())),
            cpu_ids=sorted(assigned.allocatable_cpus()),
            memory=[_memory(share) for share in assigned.allocatable_memory()],
        )

    def _of(self, pod: Pod) -> v1.PodResources:
        uid = uid_of(pod)
        return v1.PodResources(
            name=name_of(pod),
            namespace=namespace_of(pod),
            containers=[self._container(uid, each.name) for each in shown_containers(pod)],
        )

    def _container(self, uid: str, name: str) -> v1.ContainerResources:
        assigned = self._assigned
        return v1.ContainerResources(
            name=name,
            devices=list(_devices(assigned.devices_of(uid, name))),
            cpu_ids=sorted(assigned.cpus_of(uid, name)),
            memory=[_memory(share) for share in assigned.memory_of(uid, name)],
            dynamic_resources=[_claim(share) for share in assigned.claims_of(uid, name)],
        )

    def _devices_alpha(self, uid: str, container: AnyContainer) -> v1alpha1.ContainerResources:
        name = container.name
        shares = self._assigned.devices_of(uid, name)
        devices = [v1alpha1.ContainerDevices(resource_name=share.resource, device_ids=share.ids) for share in shares]
        return v1alpha1.ContainerResources(name=name, devices=devices)


def shown_containers(pod: Pod) -> list[AnyContainer]:
    """Containers that may hold something as long as the pod lives: sidecars first, then the regular ones."""
    return [*(each for each in pod.spec.init_containers if is_sidecar(each)), *pod.spec.containers]


def _devices(shares: Iterable[DeviceShare]) -> Iterator[v1.ContainerDevices]:
    """An entry for each device, since each may sit elsewhere; readers add them up by resource."""
    for share in shares:
        for each in share.ids:
            topology = _topology(share.numa) if share.numa else None
            yield v1.ContainerDevices(resource_name=share.resource, device_ids=[each], topology=topology)


def _memory(share: MemoryShare) -> v1.ContainerMemory:
    return v1.ContainerMemory(memory_type=share.kind, size=share.size, topology=_topology(share.numa))


def _topology(nodes: Iterable[int]) -> v1.TopologyInfo:
    return v1.TopologyInfo(nodes=[v1.NUMANode(ID=node) for node in nodes])


def _claim(share: ClaimShare) -> v1.DynamicResource:
    return v1.DynamicResource(
        claim_name=share.name,
        claim_namespace=share.namespace,
        claim_resources=[
            v1.ClaimResource(
                cdi_devices=[v1.CDIDevice(name=name) for name in device.cdi],
                driver_name=device.driver,
                pool_name=device.pool,
                device_name=device.device,
                share_id=device.share_id or None,
            )
            for device in share.devices
        ],
    )


class PodResourcesServer:
    """The service on its socket, for as long as it runs."""

    name = "pod-resources"

    def __init__(self, *, socket: Path, resources: PodResources, clock: Clock, metrics: Registry) -> None:
        self._socket = socket
        self._resources = resources
        self._limit = CallLimit(clock)
        self._calls = _Calls(metrics)

    async def run(self) -> None:
        await serve(self._socket, "podresources", [self._v1(), self._v1alpha1()])

    def _v1(self) -> Any:
        return handlers(
            "v1.PodResourcesLister",
            {
                "List": (self._list, v1.ListPodResourcesRequest),
                "Get": (self._get, v1.GetPodResourcesRequest),
                "GetAllocatableResources": (self._allocatable, v1.AllocatableResourcesRequest),
            },
        )

    def _v1alpha1(self) -> Any:
        return handlers("v1alpha1.PodResourcesLister", {"List": (self._list_devices, v1alpha1.ListPodResourcesRequest)})

    async def _list(self, request: Any, context: Any) -> Any:
        await self._limit.check(context)
        self._calls.count("list", "v1")
        return self._resources.list()

    async def _list_devices(self, request: Any, context: Any) -> Any:
        await self._limit.check(context)
        self._calls.count("", "v1alpha1")
        return self._resources.list_devices()

    async def _get(self, request: v1.GetPodResourcesRequest, context: Any) -> Any:
        await self._limit.check(context)
        self._calls.count("get", "v1")
        found = self._resources.get(request.pod_namespace, request.pod_name)
        if found is None:
            self._calls.failed("get", "v1")
            await abort(context, "UNKNOWN", f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        return found

    async def _allocatable(self, request: Any, context: Any) -> Any:
        await self._limit.check(context)
        self._calls.count("get_allocatable", "v1")
        return self._resources.allocatable()


REQUESTS = {
    "list": "kubelet_pod_resources_endpoint_requests_list",
    "get": "kubelet_pod_resources_endpoint_requests_get",
    "get_allocatable": "kubelet_pod_resources_endpoint_requests_get_allocatable",
}
ERRORS = {
    "list": "kubelet_pod_resources_endpoint_errors_list",
    "get": "kubelet_pod_resources_endpoint_errors_get",
    "get_allocatable": "kubelet_pod_resources_endpoint_errors_get_allocatable",
}


class _Calls:
    """Upstream's counters of this endpoint."""

    def __init__(self, metrics: Registry) -> None:
        labels = ("server_api_version",)
        self._all = metrics.counter(
            "kubelet_pod_resources_endpoint_requests_total", "Calls of the podresources service", labels
        )
        self._each = {kind: metrics.counter(name, f"Calls of its {kind}", labels) for kind, name in REQUESTS.items()}
        self._failed = {
            kind: metrics.counter(name, f"Failed calls of its {kind}", labels) for kind, name in ERRORS.items()
        }

    def count(self, kind: str, version: str) -> None:
        self._all.inc(version)
        if kind:
            self._each[kind].inc(version)

    def failed(self, kind: str, version: str) -> None:
        self._failed[kind].inc(version)
