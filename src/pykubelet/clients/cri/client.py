"""The container runtime over gRPC: `CriClient` for a CRI socket.

Covers: the RuntimeService and ImageService calls in use, their deadlines, the check at start, idempotent stop and
remove, the event stream with containerd's own as fallback.
Does not cover: errors and metrics (connection.py), message to value (convert.py).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TypeVar

from google.protobuf.message import Message

from pykubelet.clients.cri import calls, containerd_events, convert
from pykubelet.clients.cri.calls import IMAGE_SERVICE, RUNTIME_SERVICE, Rpc
from pykubelet.clients.cri.connection import CallObserver, Connection
from pykubelet.clients.cri.port import CgroupDriver
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CallTimedOut, CriError, ExecTimedOut, NotFound, RuntimeDown, Unimplemented
from pykubelet.model.runtime_status import (
    ContainerEvent,
    ContainerRecord,
    ContainerState,
    ContainerStatus,
    ExecResult,
    Image,
    ImageFilesystems,
    RuntimeConditions,
    RuntimeVersion,
    SandboxRecord,
    SandboxState,
    SandboxStatus,
)
from pykubelet.wire import cri_pb2 as pb

logger = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)

API_VERSION = "0.1.0"
"""Sent in Version by every kubelet, and expected back; the API itself is v1."""

ENDS_AT_ONCE = 1.0
"""Seconds within which a stream of events that ends without a word was never one."""

_EXEC_TIMEOUT_TEXTS = ("timed out", "timeout ")
"""Runtimes that report an exec out of time as an unknown error say one of these."""


class GrpcCriClient:
    """Use as `async with GrpcCriClient(...) as cri`, or call connect() and close()."""

    def __init__(
        self,
        endpoint: str,
        *,
        clock: Clock,
        image_endpoint: str = "",
        request_timeout: float = 120.0,
        observe: CallObserver | None = None,
        stream_lists: bool = False,
    ) -> None:
        """`stream_lists`: take lists as streams, whose length no limit of a message bounds, while the runtime can."""
        self._endpoint = endpoint
        self._image_endpoint = image_endpoint or endpoint
        self._clock = clock
        self._timeout = request_timeout
        self._observe = observe
        self._streams_lists = {RUNTIME_SERVICE: stream_lists, IMAGE_SERVICE: stream_lists}
        self._connections: dict[str, Connection] = {}

    async def connect(self) -> RuntimeVersion:
        """Check that both sockets speak this API; may be tried again after an error."""
        try:
            version = await self.version()
            await self.image_fs_info()
        except CriError:
            await self.close()
            raise
        return version

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def __aenter__(self) -> GrpcCriClient:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _connection(self, endpoint: str) -> Connection:
        # One channel when both endpoints are the same socket, as they nearly always are.
        found = self._connections.get(endpoint)
        if found is None:
            found = Connection(endpoint, clock=self._clock, observe=self._observe)
            self._connections[endpoint] = found
        return found

    @property
    def _runtime(self) -> Connection:
        return self._connection(self._endpoint)

    @property
    def _images(self) -> Connection:
        return self._connection(self._image_endpoint)

    async def _call(self, rpc: Rpc[A], request: Message) -> A:
        """A call with the usual deadline."""
        connection = self._images if rpc.path.startswith(IMAGE_SERVICE) else self._runtime
        return await connection.call(rpc, request, timeout=self._timeout)

    async def _streamed(self, rpc: Rpc[A], request: Message) -> Sequence[A] | None:
        """A list in pieces; None where it has to be asked for as one answer."""
        service, _, name = rpc.path.rpartition("/")
        if not self._streams_lists[service]:
            return None
        connection = self._images if service == IMAGE_SERVICE else self._runtime
        try:
            async with aclosing(connection.stream(rpc, request, timeout=self._timeout)) as pieces:
                return [piece async for piece in pieces]
        except Unimplemented:
            logger.info("%s not implemented, lists come as one answer", name)
            self._streams_lists[service] = False
            return None
        except CriError as error:
            logger.error("%s recv failed", name, extra={"error": str(error)})
            raise

    # -- the runtime as a whole

    async def version(self) -> RuntimeVersion:
        request = pb.VersionRequest(version=API_VERSION)
        answer = await self._call(calls.VERSION, request)
        if answer.version != API_VERSION:
            raise CriError(f"runtime at {self._endpoint} speaks {answer.version!r}, not {API_VERSION!r}")
        for field in ("runtime_name", "runtime_version", "runtime_api_version"):
            if not getattr(answer, field):
                raise CriError(f"runtime at {self._endpoint} did not give its {field}")
        return RuntimeVersion(
            name=answer.runtime_name, version=answer.runtime_version, api_version=answer.runtime_api_version
        )

    async def status(self) -> RuntimeConditions:
        answer = await self._call(calls.STATUS, pb.StatusRequest())
        return convert.runtime_conditions(answer)

    async def runtime_config(self) -> CgroupDriver:
        request = pb.RuntimeConfigRequest()
        answer = await self._call(calls.RUNTIME_CONFIG, request)
        return "systemd" if answer.linux.cgroup_driver == pb.SYSTEMD else "cgroupfs"

    async def update_runtime_config(self, pod_cidr: str) -> None:
        network = pb.NetworkConfig(pod_cidr=pod_cidr)
        request = pb.UpdateRuntimeConfigRequest(runtime_config=pb.RuntimeConfig(network_config=network))
        await self._call(calls.UPDATE_RUNTIME_CONFIG, request)

    async def container_events(self) -> AsyncGenerator[ContainerEvent, None]:
        try:
            async with aclosing(self._cri_events()) as events:
                async for event in events:
                    yield event
        except Unimplemented:
            fallback = containerd_events.container_events(self._runtime, clock=self._clock, is_down=self._is_down)
            async with aclosing(fallback) as events:
                async for event in events:
                    yield event
        raise RuntimeDown(f"the event stream of {self._endpoint} ended")

    async def _is_down(self, id: str) -> bool:
        """Whether this container or sandbox, whichever it is, does not run."""
        try:
            return (await self.container_status(id)).state is not ContainerState.RUNNING
        except NotFound:
            with suppress(NotFound):
                return (await self.pod_sandbox_status(id)).state is not SandboxState.READY
            return True

    async def _cri_events(self) -> AsyncGenerator[ContainerEvent, None]:
        stream = self._runtime.stream(calls.GET_CONTAINER_EVENTS, pb.GetEventsRequest())
        opened, silent = self._clock.monotonic(), True
        async with aclosing(stream) as answers:
            async for answer in answers:
                silent = False
                event = convert.container_event(answer)
                if event is not None:
                    yield event
        if silent and self._clock.monotonic() - opened < ENDS_AT_ONCE:
            # CRI-O with `enable_pod_events = false`, its default.
            raise Unimplemented(f"{self._endpoint} makes no events of containers: the stream ends at once")

    # -- sandboxes

    async def run_pod_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str = "") -> str:
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        # Twice the time: setting up the pod network may include work the runtime cannot hurry.
        answer = await self._runtime.call(calls.RUN_POD_SANDBOX, request, timeout=2 * self._timeout)
        if not answer.pod_sandbox_id:
            raise CriError(f"the runtime gave no id for the sandbox of {config.metadata.name!r}")
        return answer.pod_sandbox_id

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        request = pb.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        with suppress(NotFound):
            await self._call(calls.STOP_POD_SANDBOX, request)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        request = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        with suppress(NotFound):
            await self._call(calls.REMOVE_POD_SANDBOX, request)

    async def pod_sandbox_status(self, sandbox_id: str) -> SandboxStatus:
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)
        answer = await self._call(calls.POD_SANDBOX_STATUS, request)
        return convert.sandbox_status(answer.status)

    async def sandbox_image(self, sandbox_id: str) -> str:
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        answer = await self._call(calls.POD_SANDBOX_STATUS, request)
        return convert.sandbox_image(answer.info)

    async def list_pod_sandboxes(
        self, *, pod_uid: str | None = None, id: str | None = None, ready_only: bool = False
    ) -> Sequence[SandboxRecord]:
        wanted = convert.sandbox_filter(pod_uid=pod_uid, id=id, ready_only=ready_only)
        pieces = await self._streamed(calls.STREAM_POD_SANDBOXES, pb.StreamPodSandboxesRequest(filter=wanted))
        if pieces is not None:
            return [convert.sandbox_record(item) for piece in pieces for item in piece.pod_sandboxes]
        answer = await self._call(calls.LIST_POD_SANDBOX, pb.ListPodSandboxRequest(filter=wanted))
        return [convert.sandbox_record(item) for item in answer.items]

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: str,
        *,
        overhead: pb.LinuxContainerResources | None = None,
        resources: pb.LinuxContainerResources | None = None,
    ) -> None:
        request = pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox_id, overhead=overhead, resources=resources)
        await self._call(calls.UPDATE_POD_SANDBOX_RESOURCES, request)

    async def port_forward(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        request = pb.PortForwardRequest(pod_sandbox_id=sandbox_id, port=ports)
        answer = await self._call(calls.PORT_FORWARD, request)
        return _url(answer.url, "port-forward")

    async def list_pod_sandbox_stats(self) -> Sequence[pb.PodSandboxStats]:
        pieces = await self._streamed(calls.STREAM_POD_SANDBOX_STATS, pb.StreamPodSandboxStatsRequest())
        if pieces is not None:
            return tuple(stats for piece in pieces for stats in piece.pod_sandbox_stats)
        return tuple((await self._call(calls.LIST_POD_SANDBOX_STATS, pb.ListPodSandboxStatsRequest())).stats)

    async def list_metric_descriptors(self) -> Sequence[pb.MetricDescriptor]:
        return tuple((await self._call(calls.LIST_METRIC_DESCRIPTORS, pb.ListMetricDescriptorsRequest())).descriptors)

    async def list_pod_sandbox_metrics(self) -> Sequence[pb.PodSandboxMetrics]:
        pieces = await self._streamed(calls.STREAM_POD_SANDBOX_METRICS, pb.StreamPodSandboxMetricsRequest())
        if pieces is not None:
            return tuple(metrics for piece in pieces for metrics in piece.pod_sandbox_metrics)
        return tuple((await self._call(calls.LIST_POD_SANDBOX_METRICS, pb.ListPodSandboxMetricsRequest())).pod_metrics)

    # -- containers

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> str:
        request = pb.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)
        answer = await self._call(calls.CREATE_CONTAINER, request)
        if not answer.container_id:
            raise CriError(f"the runtime gave no id for container {config.metadata.name!r}")
        return answer.container_id

    async def start_container(self, container_id: str) -> None:
        request = pb.StartContainerRequest(container_id=container_id)
        await self._call(calls.START_CONTAINER, request)

    async def stop_container(self, container_id: str, timeout: int) -> None:
        request = pb.StopContainerRequest(container_id=container_id, timeout=timeout)
        with suppress(NotFound):
            await self._runtime.call(calls.STOP_CONTAINER, request, timeout=self._timeout + timeout)

    async def remove_container(self, container_id: str) -> None:
        request = pb.RemoveContainerRequest(container_id=container_id)
        with suppress(NotFound):
            await self._call(calls.REMOVE_CONTAINER, request)

    async def container_status(self, container_id: str) -> ContainerStatus:
        request = pb.ContainerStatusRequest(container_id=container_id)
        answer = await self._call(calls.CONTAINER_STATUS, request)
        return convert.container_status(answer.status)

    async def list_containers(
        self,
        *,
        pod_uid: str | None = None,
        id: str | None = None,
        sandbox_id: str | None = None,
        running_only: bool = False,
    ) -> Sequence[ContainerRecord]:
        wanted = convert.container_filter(pod_uid=pod_uid, id=id, sandbox_id=sandbox_id, running_only=running_only)
        pieces = await self._streamed(calls.STREAM_CONTAINERS, pb.StreamContainersRequest(filter=wanted))
        if pieces is not None:
            return [convert.container_record(item) for piece in pieces for item in piece.containers]
        answer = await self._call(calls.LIST_CONTAINERS, pb.ListContainersRequest(filter=wanted))
        return [convert.container_record(item) for item in answer.containers]

    async def update_container_resources(
        self,
        container_id: str,
        resources: pb.LinuxContainerResources,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        request = pb.UpdateContainerResourcesRequest(
            container_id=container_id, linux=resources, annotations=annotations
        )
        await self._call(calls.UPDATE_CONTAINER_RESOURCES, request)

    async def reopen_container_log(self, container_id: str) -> None:
        request = pb.ReopenContainerLogRequest(container_id=container_id)
        await self._call(calls.REOPEN_CONTAINER_LOG, request)

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout: int = 0) -> ExecResult:
        request = pb.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout)
        # Without a limit of its own the command may run for as long as it likes.
        deadline = self._timeout + timeout if timeout > 0 else None
        try:
            answer = await self._runtime.call(calls.EXEC_SYNC, request, timeout=deadline)
        except CallTimedOut as error:
            raise ExecTimedOut(str(error)) from error
        except CriError as error:
            if type(error) is CriError and any(text in str(error) for text in _EXEC_TIMEOUT_TEXTS):
                raise ExecTimedOut(str(error)) from error
            raise
        return ExecResult(stdout=answer.stdout, stderr=answer.stderr, exit_code=answer.exit_code)

    async def exec(
        self,
        container_id: str,
        command: Sequence[str],
        *,
        tty: bool = False,
        stdin: bool = False,
        stdout: bool = True,
        stderr: bool = True,
    ) -> str:
        request = pb.ExecRequest(
            container_id=container_id, cmd=command, tty=tty, stdin=stdin, stdout=stdout, stderr=stderr
        )
        answer = await self._call(calls.EXEC, request)
        return _url(answer.url, "exec")

    async def attach(
        self,
        container_id: str,
        *,
        tty: bool = False,
        stdin: bool = False,
        stdout: bool = True,
        stderr: bool = True,
    ) -> str:
        request = pb.AttachRequest(container_id=container_id, tty=tty, stdin=stdin, stdout=stdout, stderr=stderr)
        return _url((await self._call(calls.ATTACH, request)).url, "attach")

    async def list_container_stats(
        self, *, pod_uid: str | None = None, id: str | None = None, sandbox_id: str | None = None
    ) -> Sequence[pb.ContainerStats]:
        wanted = convert.container_stats_filter(pod_uid=pod_uid, id=id, sandbox_id=sandbox_id)
        pieces = await self._streamed(calls.STREAM_CONTAINER_STATS, pb.StreamContainerStatsRequest(filter=wanted))
        if pieces is not None:
            return tuple(stats for piece in pieces for stats in piece.container_stats)
        answer = await self._call(calls.LIST_CONTAINER_STATS, pb.ListContainerStatsRequest(filter=wanted))
        return tuple(answer.stats)

    async def checkpoint_container(self, container_id: str, location: str, timeout: int = 0) -> None:
        request = pb.CheckpointContainerRequest(container_id=container_id, location=location, timeout=timeout)
        deadline = max(self._timeout, float(timeout))
        await self._runtime.call(calls.CHECKPOINT_CONTAINER, request, timeout=deadline)

    # -- images

    async def image_status(self, image: str) -> Image | None:
        request = pb.ImageStatusRequest(image=pb.ImageSpec(image=image))
        answer = await self._call(calls.IMAGE_STATUS, request)
        if not answer.HasField("image"):
            return None
        return convert.image(answer.image)

    async def list_images(self, image: str | None = None) -> Sequence[Image]:
        wanted = convert.image_filter(image)
        pieces = await self._streamed(calls.STREAM_IMAGES, pb.StreamImagesRequest(filter=wanted))
        if pieces is not None:
            return [convert.image(item) for piece in pieces for item in piece.images]
        answer = await self._call(calls.LIST_IMAGES, pb.ListImagesRequest(filter=wanted))
        return [convert.image(item) for item in answer.images]

    async def pull_image(
        self,
        spec: pb.ImageSpec,
        auth: pb.AuthConfig | None = None,
        sandbox_config: pb.PodSandboxConfig | None = None,
    ) -> str:
        request = pb.PullImageRequest(image=spec, auth=auth, sandbox_config=sandbox_config)
        answer = await self._images.call(calls.PULL_IMAGE, request, timeout=None)
        if not answer.image_ref:
            raise CriError(f"the runtime gave no reference for image {spec.image!r}")
        return answer.image_ref

    async def remove_image(self, image: str) -> None:
        request = pb.RemoveImageRequest(image=pb.ImageSpec(image=image))
        with suppress(NotFound):
            await self._call(calls.REMOVE_IMAGE, request)

    async def image_fs_info(self) -> ImageFilesystems:
        request = pb.ImageFsInfoRequest()
        answer = await self._call(calls.IMAGE_FS_INFO, request)
        return convert.image_filesystems(answer)


def _url(url: str, what: str) -> str:
    if not url:
        raise CriError(f"the runtime gave no address for {what}")
    return url
