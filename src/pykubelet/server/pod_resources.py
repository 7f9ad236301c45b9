"""The podresources service on its local socket: which container holds which CPUs, memory and devices.

Monitoring agents and topology tools ask it (v1: List, Get, GetAllocatableResources; v1alpha1: List). Access is by the
permissions of the socket's folder. Callers are limited as upstream limits them. A socket that cannot be had costs
this service, not the node. Does not cover: allocating resources (cm/).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pykubelet.api.types import Pod
from pykubelet.cm.container_resources import AssignedResources
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import TokenBucket
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import finish
from pykubelet.model.pod import AnyContainer, is_sidecar, name_of, namespace_of, uid_of
from pykubelet.model.topology import ClaimShare, DeviceShare, MemoryShare
from pykubelet.wire import podresources_v1_pb2 as v1
from pykubelet.wire import podresources_v1alpha1_pb2 as v1alpha1

if TYPE_CHECKING:
    import grpc.aio

logger = logging.getLogger(__name__)

RATE, BURST = 100.0, 10
"""Calls a second, and how many at once after a silence."""
MAX_SOCKET_PATH = 107
"""Bytes the kernel takes for a socket's path."""
STOP_WITHIN = 2.0
ActivePods = Callable[[], Iterable[Pod]]


class PodResources:
    """The service's responses as messages; pure but for reading the assignments."""

    def __init__(self, *, active: ActivePods, assigned: AssignedResources) -> None:
        self._active = active
        self._assigned = assigned

    def list(self) -> v1.ListPodResourcesResponse:
        return v1.ListPodResourcesResponse(pod_resources=[self._of(pod) for pod in self._active()])

    def list_devices(self) -> v1alpha1.ListPodResourcesResponse:
        """As v1alpha1 has it: names of devices only."""
        return v1alpha1.ListPodResourcesResponse(
            pod_resources=[
                v1alpha1.PodResources(
                    name=name_of(pod),
                    namespace=namespace_of(pod),
                    containers=[self._devices_alpha(uid_of(pod), each) for each in shown_containers(pod)],
                )
                for pod in self._active()
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

    def __init__(
        self, *, socket: Path, active: ActivePods, assigned: AssignedResources, clock: Clock, metrics: Registry
    ) -> None:
        self._socket = socket
        self._resources = PodResources(active=active, assigned=assigned)
        self._clock = clock
        self._bucket = TokenBucket(rate=RATE, burst=BURST)
        self._calls = _Calls(metrics)

    async def run(self) -> None:
        import grpc.aio

        server: grpc.aio.Server | None = grpc.aio.server()
        assert server is not None
        server.add_generic_rpc_handlers(self._handlers())
        try:
            self._listen(server)
            await server.start()
        except (OSError, RuntimeError) as error:  # RuntimeError: what grpc says when it cannot bind
            logger.error(
                "the podresources service is not offered", extra={"socket": str(self._socket), "error": str(error)}
            )
            server = None
        try:
            await asyncio.Event().wait()
        finally:
            if server is not None:
                await finish(server.stop(STOP_WITHIN / 2), within=STOP_WITHIN)
                self._socket.unlink(missing_ok=True)

    def _listen(self, server: grpc.aio.Server) -> None:
        path = str(self._socket)
        if len(path.encode()) > MAX_SOCKET_PATH:
            raise OSError(f"the path of the socket has more than {MAX_SOCKET_PATH} bytes")
        self._socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)  # left by an agent that was killed
        server.add_insecure_port(f"unix:{path}")

    def _handlers(self) -> tuple[Any, ...]:
        """By hand: a generated servicer is a class, and this is four functions."""
        import grpc

        def handler(method: Any, request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )

        return (
            grpc.method_handlers_generic_handler(
                "v1.PodResourcesLister",
                {
                    "List": handler(self._list, v1.ListPodResourcesRequest),
                    "Get": handler(self._get, v1.GetPodResourcesRequest),
                    "GetAllocatableResources": handler(self._allocatable, v1.AllocatableResourcesRequest),
                },
            ),
            grpc.method_handlers_generic_handler(
                "v1alpha1.PodResourcesLister",
                {"List": handler(self._list_devices, v1alpha1.ListPodResourcesRequest)},
            ),
        )

    async def _list(self, request: Any, context: Any) -> Any:
        await self._limit(context)
        self._calls.count("list", "v1")
        return self._resources.list()

    async def _list_devices(self, request: Any, context: Any) -> Any:
        await self._limit(context)
        self._calls.count("", "v1alpha1")
        return self._resources.list_devices()

    async def _get(self, request: v1.GetPodResourcesRequest, context: Any) -> Any:
        await self._limit(context)
        self._calls.count("get", "v1")
        found = self._resources.get(request.pod_namespace, request.pod_name)
        if found is None:
            self._calls.failed("get", "v1")
            await _abort(context, "UNKNOWN", f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        return found

    async def _allocatable(self, request: Any, context: Any) -> Any:
        await self._limit(context)
        self._calls.count("get_allocatable", "v1")
        return self._resources.allocatable()

    async def _limit(self, context: Any) -> None:
        if not self._bucket.try_take(self._clock.monotonic()):
            await _abort(context, "RESOURCE_EXHAUSTED", "rejected by rate limit")


async def _abort(context: Any, code: str, text: str) -> NoReturn:
    import grpc

    await context.abort(grpc.StatusCode[code], text)
    raise AssertionError("abort raises")


class _Calls:
    """Upstream's counters of this endpoint."""

    def __init__(self, metrics: Registry) -> None:
        labels = ("server_api_version",)
        prefix = "kubelet_pod_resources_endpoint"
        self._all = metrics.counter(f"{prefix}_requests_total", "Calls of the podresources service", labels)
        names = ("list", "get", "get_allocatable")
        self._each = {n: metrics.counter(f"{prefix}_requests_{n}", f"Calls of its {n}", labels) for n in names}
        self._failed = {n: metrics.counter(f"{prefix}_errors_{n}", f"Failed calls of its {n}", labels) for n in names}

    def count(self, kind: str, version: str) -> None:
        self._all.inc(version)
        if kind:
            self._each[kind].inc(version)

    def failed(self, kind: str, version: str) -> None:
        self._failed[kind].inc(version)
