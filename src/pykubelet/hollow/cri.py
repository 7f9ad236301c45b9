"""A strict container runtime in memory: `MemoryCri` implements CriClient on the injected clock.

Covers: images and pulls, stats, version and conditions; sandboxes, containers and faults come from the
cri_*.py files beside this one. It behaves as containerd does, misuse included; the same contract
suite (tests/contracts/test_cri_contract.py) runs against both.
Does not cover: real processes, streams behind the exec and attach URLs.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.clients.cri.port import CgroupDriver, CriClient
from pykubelet.hollow.cri_containers import MemoryContainers
from pykubelet.hollow.cri_values import (
    MemoryContainer,
    MemoryImage,
    MemorySandbox,
    Subject,
    digest_of,
    full_name,
    made_id,
)
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CriError, CriNotFound, Unimplemented
from pykubelet.model.runtime_status import (
    FilesystemUsage,
    Image,
    ImageFilesystems,
    RuntimeCondition,
    RuntimeConditions,
    RuntimeHandler,
    RuntimeVersion,
    SandboxState,
)
from pykubelet.wire import cri_pb2

WORKING_SET = "container_memory_working_set_bytes"


class MemoryCri(MemoryContainers):
    """`MemoryCri(clock)`, then add_image(), program() and friends; it is a CriClient."""

    def __init__(
        self,
        clock: Clock,
        *,
        images: Sequence[str] = (),
        write_logs: bool = False,
        request_timeout: float = 120.0,
        pod_cidrs: Sequence[str] = ("10.88.0.0/16",),
        handlers: Sequence[str] = ("", "runc"),
        cgroup_driver: CgroupDriver = "cgroupfs",
    ) -> None:
        super().__init__(
            clock,
            request_timeout=request_timeout,
            pod_cidrs=pod_cidrs,
            handlers=handlers,
            write_logs=write_logs,
        )
        self.runtime_version = RuntimeVersion(name="fake", version="1.0.0", api_version="v1")
        self.cgroup_driver: CgroupDriver | None = cgroup_driver
        """None: runtime_config raises Unimplemented."""
        self.pod_cidr = ""
        self.images: dict[str, MemoryImage] = {}
        self.registry: dict[str, MemoryImage] = {}
        self.image_filesystem = FilesystemUsage(mountpoint="/var/lib/containerd", used_bytes=1_000_000)
        self._conditions = {
            "RuntimeReady": RuntimeCondition(type="RuntimeReady", status=True),
            "NetworkReady": RuntimeCondition(type="NetworkReady", status=True),
        }
        for name in images:
            self.add_image(name)

    # -- what it is programmed with

    def set_condition(self, kind: str, status: bool, *, reason: str = "", message: str = "") -> None:
        self._conditions[kind] = RuntimeCondition(type=kind, status=status, reason=reason, message=message)

    def add_image(
        self,
        name: str,
        *,
        size_bytes: int = 1_000_000,
        uid: int | None = None,
        username: str = "",
        pinned: bool = False,
    ) -> MemoryImage:
        """An image that is on the node already."""
        image = _make_image(name, size_bytes=size_bytes, uid=uid, username=username)
        image.pinned = pinned
        self.images[image.id] = image
        return image

    def add_to_registry(
        self,
        name: str,
        *,
        size_bytes: int = 1_000_000,
        uid: int | None = None,
        username: str = "",
        takes: float = 0.0,
        error: CriError | None = None,
        needs_auth: tuple[str, str] | None = None,
    ) -> MemoryImage:
        """An image that can be pulled (in `takes` seconds), or whose pull fails with `error`."""
        image = _make_image(name, size_bytes=size_bytes, uid=uid, username=username)
        image.takes, image.error, image.needs_auth = takes, error, needs_auth
        self.registry[full_name(name)] = image
        return image

    def set_usage(
        self,
        name: str,
        *,
        pod: str | None = None,
        cpu_nanocores: int = 0,
        cpu_seconds: float = 0.0,
        memory_bytes: int = 0,
        filesystem_bytes: int = 0,
    ) -> None:
        """What stats say about a container."""
        container = self.container(name, pod)
        container.cpu_nanocores, container.cpu_seconds = cpu_nanocores, cpu_seconds
        container.memory_bytes, container.filesystem_bytes = memory_bytes, filesystem_bytes

    # -- the port: runtime

    async def version(self) -> RuntimeVersion:
        await self._enter("version")
        return self.runtime_version

    async def status(self) -> RuntimeConditions:
        await self._enter("status")
        handlers = tuple(
            RuntimeHandler(name=name, recursive_read_only_mounts=True, user_namespaces=True) for name in self.handlers
        )
        return RuntimeConditions(conditions=tuple(self._conditions.values()), handlers=handlers)

    async def runtime_config(self) -> CgroupDriver:
        await self._enter("runtime_config")
        if self.cgroup_driver is None:
            raise Unimplemented("unknown method RuntimeConfig for service runtime.v1.RuntimeService")
        return self.cgroup_driver

    async def update_runtime_config(self, pod_cidr: str) -> None:
        await self._enter("update_runtime_config", args={"pod_cidr": pod_cidr})
        self.pod_cidr = pod_cidr

    # -- the port: images

    async def image_status(self, image: str) -> Image | None:
        await self._enter("image_status", Subject(name=image))
        found = self._find_image(image)
        return _image(found) if found else None

    async def list_images(self, image: str | None = None) -> Sequence[Image]:
        await self._enter("list_images", Subject(name=image or ""))
        return self._listed(image)

    async def pull_image(
        self,
        spec: cri_pb2.ImageSpec,
        auth: cri_pb2.AuthConfig | None = None,
        sandbox_config: cri_pb2.PodSandboxConfig | None = None,
    ) -> str:
        args = {"spec": spec, "auth": auth, "sandbox_config": sandbox_config}
        uid = sandbox_config.metadata.uid if sandbox_config is not None else ""
        await self._enter("pull_image", Subject(name=spec.image, pod_uid=uid), args=args, deadline=None)
        name = full_name(spec.image)
        offered = self._offered(name)
        if offered is None:
            raise CriNotFound(
                f'failed to pull and unpack image "{name}": failed to resolve reference "{name}": {name}: not found'
            )
        await self._spend(offered.takes)
        if offered.error is not None:
            raise offered.error
        if offered.needs_auth is not None and offered.needs_auth != _credentials(auth):
            raise CriError(f'failed to pull and unpack image "{name}": failed to authorize: 401 Unauthorized')
        present = self.images.setdefault(offered.id, offered)
        return present.id

    async def remove_image(self, image: str) -> None:
        await self._enter("remove_image", Subject(name=image))
        found = self._find_image(image)
        if found is not None:
            del self.images[found.id]

    async def image_fs_info(self) -> ImageFilesystems:
        await self._enter("image_fs_info")
        return ImageFilesystems(images=(self.image_filesystem,))

    # -- the port: figures

    async def list_container_stats(
        self, *, pod_uid: str | None = None, id: str | None = None, sandbox_id: str | None = None
    ) -> Sequence[cri_pb2.ContainerStats]:
        await self._enter("list_container_stats", Subject(id=id or "", pod_uid=pod_uid or ""))
        return [self._stats_of(c) for c in self._select(pod_uid, id, sandbox_id, running_only=True)]

    async def list_pod_sandbox_stats(self) -> Sequence[cri_pb2.PodSandboxStats]:
        await self._enter("list_pod_sandbox_stats")
        ready = [box for box in self.sandboxes.values() if box.state is SandboxState.READY]
        return [self._pod_stats_of(box) for box in ready]

    async def list_metric_descriptors(self) -> Sequence[cri_pb2.MetricDescriptor]:
        await self._enter("list_metric_descriptors")
        keys = ("container", "pod", "namespace")
        return [cri_pb2.MetricDescriptor(name=WORKING_SET, help="Memory that cannot be dropped", label_keys=keys)]

    async def list_pod_sandbox_metrics(self) -> Sequence[cri_pb2.PodSandboxMetrics]:
        await self._enter("list_pod_sandbox_metrics")
        return [
            cri_pb2.PodSandboxMetrics(
                pod_sandbox_id=box.id,
                container_metrics=[
                    cri_pb2.ContainerMetrics(container_id=each.id, metrics=[self._working_set_of(each, box)])
                    for each in self._select(None, None, box.id, running_only=True)
                ],
            )
            for box in self.sandboxes.values()
        ]

    # -- inside

    def _pod_stats_of(self, box: MemorySandbox) -> cri_pb2.PodSandboxStats:
        containers = [self._stats_of(each) for each in self._select(None, None, box.id, running_only=True)]
        stats = cri_pb2.PodSandboxStats()
        stats.attributes.id = box.id
        stats.attributes.metadata.CopyFrom(box.config.metadata)
        stats.linux.cpu.timestamp = stats.linux.memory.timestamp = self.clock.now_ns()
        stats.linux.cpu.usage_core_nano_seconds.value = sum(
            each.cpu.usage_core_nano_seconds.value for each in containers
        )
        stats.linux.memory.working_set_bytes.value = sum(each.memory.working_set_bytes.value for each in containers)
        stats.linux.process.process_count.value = len(containers)
        stats.linux.containers.extend(containers)
        return stats

    def _working_set_of(self, container: MemoryContainer, box: MemorySandbox) -> cri_pb2.Metric:
        labels = (container.config.metadata.name, box.name, box.config.metadata.namespace)
        value = cri_pb2.UInt64Value(value=container.memory_bytes)
        return cri_pb2.Metric(name=WORKING_SET, metric_type=cri_pb2.GAUGE, label_values=labels, value=value)

    def _find_image(self, name: str) -> MemoryImage | None:
        if name in self.images:
            return self.images[name]
        wanted = full_name(name)
        by_id = f"sha256:{name}"
        for image in self.images.values():
            if wanted in image.tags or wanted in image.digests or image.id == by_id:
                return image
        return None

    def _offered(self, name: str) -> MemoryImage | None:
        if name in self.registry:
            return self.registry[name]
        return next((image for image in self.registry.values() if name in image.digests), None)

    def _listed(self, image: str | None) -> list[Image]:
        if not image:
            return [_image(item) for item in self.images.values()]
        found = self._find_image(image)
        return [_image(found)] if found else []

    def _stats_of(self, container: MemoryContainer) -> cri_pb2.ContainerStats:
        now = self.clock.now_ns()
        stats = cri_pb2.ContainerStats()
        stats.attributes.id = container.id
        stats.attributes.metadata.CopyFrom(container.config.metadata)
        stats.attributes.labels.update(container.config.labels)
        stats.attributes.annotations.update(container.config.annotations)
        stats.cpu.timestamp = stats.memory.timestamp = stats.writable_layer.timestamp = now
        stats.cpu.usage_core_nano_seconds.value = int(container.cpu_seconds * 1e9)
        stats.cpu.usage_nano_cores.value = container.cpu_nanocores
        stats.memory.working_set_bytes.value = container.memory_bytes
        stats.memory.usage_bytes.value = container.memory_bytes
        stats.memory.rss_bytes.value = container.memory_bytes
        stats.writable_layer.fs_id.mountpoint = self.image_filesystem.mountpoint
        stats.writable_layer.used_bytes.value = container.filesystem_bytes
        stats.writable_layer.inodes_used.value = 1
        return stats


def _make_image(name: str, *, size_bytes: int, uid: int | None, username: str) -> MemoryImage:
    full = full_name(name)
    tags = [] if "@" in full else [full]
    digest = full if "@" in full else digest_of(name)
    return MemoryImage(
        id=f"sha256:{made_id(full, 0)}",
        tags=tags,
        digests=[digest],
        size_bytes=size_bytes,
        uid=uid,
        username=username,
    )


def _image(item: MemoryImage) -> Image:
    return Image(
        id=item.id,
        tags=tuple(item.tags),
        digests=tuple(item.digests),
        size_bytes=item.size_bytes,
        uid=item.uid,
        username=item.username,
        pinned=item.pinned,
    )


def _credentials(auth: cri_pb2.AuthConfig | None) -> tuple[str, str] | None:
    return (auth.username, auth.password) if auth is not None else None


def _fits_the_port(runtime: MemoryCri) -> CriClient:
    return runtime  # checked by mypy: a method that drifts from the port fails here
