"""The container runtime as the rest of the agent sees it.

One method for every RuntimeService and ImageService call. Results that travel are the frozen values of
model/runtime_status.py; big request configs, stats and metrics are the generated CRI
messages. Every method raises only CriError and its children (model/errors.py).
Promises: verbs that take something away (stop, remove) are idempotent, something already gone is success.
Does not cover: how the calls travel (client.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from pykubelet.model.runtime_status import (
    ContainerEvent,
    ContainerRecord,
    ContainerStatus,
    ExecResult,
    Image,
    ImageFilesystems,
    RuntimeConditions,
    RuntimeVersion,
    SandboxRecord,
    SandboxStatus,
)
from pykubelet.wire import cri_pb2

CgroupDriver = Literal["systemd", "cgroupfs"]


class CriRuntime(Protocol):
    """Calls about the runtime as a whole."""

    async def version(self) -> RuntimeVersion: ...

    async def status(self) -> RuntimeConditions: ...

    async def runtime_config(self) -> CgroupDriver:
        """The runtime's cgroup driver; raises Unimplemented on runtimes older than this call."""
        ...

    async def update_runtime_config(self, pod_cidr: str) -> None: ...

    def container_events(self) -> AsyncGenerator[ContainerEvent, None]:
        """Every event from now on. Ends only by an error: Unimplemented for good, RuntimeDown for retry."""
        ...


class CriSandboxes(Protocol):
    """Calls about pod sandboxes."""

    async def run_pod_sandbox(self, config: cri_pb2.PodSandboxConfig, runtime_handler: str = "") -> str:
        """Create and start a sandbox; returns its id."""
        ...

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """Kill what runs in the sandbox without grace and give its network back."""
        ...

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """Remove the sandbox and its containers, stopping them first if need be."""
        ...

    async def pod_sandbox_status(self, sandbox_id: str) -> SandboxStatus: ...

    async def sandbox_image(self, sandbox_id: str) -> str:
        """The image of its pause process, where the runtime shows it; else empty."""
        ...

    async def list_pod_sandboxes(
        self, *, pod_uid: str | None = None, id: str | None = None, ready_only: bool = False
    ) -> Sequence[SandboxRecord]: ...

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: str,
        *,
        overhead: cri_pb2.LinuxContainerResources | None = None,
        resources: cri_pb2.LinuxContainerResources | None = None,
    ) -> None: ...

    async def port_forward(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        """The URL at which the runtime serves the stream."""
        ...

    async def list_pod_sandbox_stats(self) -> Sequence[cri_pb2.PodSandboxStats]:
        """What all pods and their containers use; raises Unimplemented where the runtime does not measure pods."""
        ...

    async def list_metric_descriptors(self) -> Sequence[cri_pb2.MetricDescriptor]:
        """The series of which list_pod_sandbox_metrics has values; Unimplemented where it has none."""
        ...

    async def list_pod_sandbox_metrics(self) -> Sequence[cri_pb2.PodSandboxMetrics]: ...


class CriContainers(Protocol):
    """Calls about containers."""

    async def create_container(
        self, sandbox_id: str, config: cri_pb2.ContainerConfig, sandbox_config: cri_pb2.PodSandboxConfig
    ) -> str:
        """Create a container in a ready sandbox; returns its id."""
        ...

    async def start_container(self, container_id: str) -> None: ...

    async def stop_container(self, container_id: str, timeout: int) -> None:
        """Send the stop signal, wait `timeout` seconds, then kill; returns when the container is down."""
        ...

    async def remove_container(self, container_id: str) -> None: ...

    async def container_status(self, container_id: str) -> ContainerStatus: ...

    async def list_containers(
        self,
        *,
        pod_uid: str | None = None,
        id: str | None = None,
        sandbox_id: str | None = None,
        running_only: bool = False,
    ) -> Sequence[ContainerRecord]: ...

    async def update_container_resources(
        self,
        container_id: str,
        resources: cri_pb2.LinuxContainerResources,
        annotations: Mapping[str, str] | None = None,
    ) -> None: ...

    async def reopen_container_log(self, container_id: str) -> None: ...

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout: int = 0) -> ExecResult:
        """Run a command to its end. A non-zero exit is a result; running out of time is ExecTimedOut."""
        ...

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
        """The URL at which the runtime serves the stream."""
        ...

    async def attach(
        self,
        container_id: str,
        *,
        tty: bool = False,
        stdin: bool = False,
        stdout: bool = True,
        stderr: bool = True,
    ) -> str:
        """The URL at which the runtime serves the stream."""
        ...

    async def list_container_stats(
        self, *, pod_uid: str | None = None, id: str | None = None, sandbox_id: str | None = None
    ) -> Sequence[cri_pb2.ContainerStats]: ...

    async def checkpoint_container(self, container_id: str, location: str, timeout: int = 0) -> None: ...


class CriImages(Protocol):
    """Calls of the image service."""

    async def image_status(self, image: str) -> Image | None:
        """The image of that name, digest or id; None when it is not on the node."""
        ...

    async def list_images(self, image: str | None = None) -> Sequence[Image]: ...

    async def pull_image(
        self,
        spec: cri_pb2.ImageSpec,
        auth: cri_pb2.AuthConfig | None = None,
        sandbox_config: cri_pb2.PodSandboxConfig | None = None,
    ) -> str:
        """Fetch an image and return its reference on the node. No deadline: cancel to give up."""
        ...

    async def remove_image(self, image: str) -> None: ...

    async def image_fs_info(self) -> ImageFilesystems: ...


class CriClient(CriRuntime, CriSandboxes, CriContainers, CriImages, Protocol):
    """Everything at once; a manager that needs less should ask for one of the parts."""


class EventSource(Struct, frozen=True, kw_only=True):
    name: str
    open: Callable[[], AsyncIterator[ContainerEvent]]
    """Every event from now on; ends by Unimplemented for good, by another CriError for retry."""
