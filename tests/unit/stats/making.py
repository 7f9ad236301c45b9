"""A node of folders with a provider on top; everything runs inline, time jumps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pykubelet.api.types import Pod
from pykubelet.clients.host.cgroup_stats import CgroupStats
from pykubelet.clients.host.node_stats import NodeStats
from pykubelet.clients.host.port import Machine, NodePaths
from pykubelet.edges import GuardEdges
from pykubelet.eviction.stats import EvictionStats
from pykubelet.kit.clock import Clock, LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Services
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import (
    ContainerState,
    ContainerStatus,
    FilesystemUsage,
    ImageFilesystems,
    NamespaceMode,
    PodRuntimeStatus,
    SandboxStatus,
)
from pykubelet.stats.build import Stats
from pykubelet.stats.cadvisor import machine_lines
from pykubelet.stats.provider import StatsProvider, StatsSettings
from pykubelet.stats.runtime_metrics import RuntimeMetrics
from pykubelet.stats.snapshot import CgroupNames
from pykubelet.stats.source import NodeStatsSource
from pykubelet.stats.volumes import VolumeStatsCalculator
from pykubelet.volumes.spec import VolumeUsage
from pykubelet.wire import cri_pb2
from tests.builders import a_pod
from tests.fakes.fake_guard import FakeKernelLog
from tests.unit.stats.trees import NET_DEV, group, machine, write

CREATED = 1_700_000_100_000_000_000
MACHINE = Machine(
    hostname="n1",
    cpus=4,
    memory_bytes=1_000_000,
    swap_bytes=102_400,
    kernel="6.1",
    os_image='Some "Linux"',
    machine_id="m",
    system_uuid="s",
    boot_id="b",
    architecture="amd64",
)


async def inline(work: Callable[[], Any]) -> Any:
    return work()


def an_observed_container(name: str, id: str, state: ContainerState = ContainerState.RUNNING) -> ContainerStatus:
    return ContainerStatus(id=id, name=name, state=state, image='img"1', created_at=CREATED + 5_000_000_000)


def a_status(
    name: str, *containers: ContainerStatus, network: NamespaceMode = NamespaceMode.POD, sandbox: bool = True
) -> PodRuntimeStatus:
    box = SandboxStatus(
        id=f"box-{name}",
        pod_uid=f"uid-{name}",
        pod_name=name,
        pod_namespace="ns",
        created_at=CREATED,
        network_mode=network,
    )
    return PodRuntimeStatus(
        uid=f"uid-{name}",
        name=name,
        namespace="ns",
        sandboxes=(box,) if sandbox else (),
        containers=containers,
    )


def container_stats(
    container: str, *, used: int = 8192, mountpoint: str = "", cpu_ns: int = 3
) -> cri_pb2.ContainerStats:
    return cri_pb2.ContainerStats(
        attributes=cri_pb2.ContainerAttributes(id=container),
        cpu=cri_pb2.CpuUsage(timestamp=CREATED, usage_core_nano_seconds=cri_pb2.UInt64Value(value=cpu_ns)),
        memory=cri_pb2.MemoryUsage(timestamp=CREATED, working_set_bytes=cri_pb2.UInt64Value(value=4321)),
        writable_layer=cri_pb2.FilesystemUsage(
            timestamp=CREATED,
            fs_id=cri_pb2.FilesystemIdentifier(mountpoint=mountpoint),
            used_bytes=cri_pb2.UInt64Value(value=used),
            inodes_used=cri_pb2.UInt64Value(value=5),
        ),
    )


class FakeRuntime:
    def __init__(self, mountpoint: str) -> None:
        self.stats: list[cri_pb2.ContainerStats] = []
        self.pod_stats: list[cri_pb2.PodSandboxStats] = []
        self.descriptors: list[cri_pb2.MetricDescriptor] = []
        self.pod_metrics: list[cri_pb2.PodSandboxMetrics] = []
        self.pod_problem: CriError | None = None
        """What calls about whole pods end with."""
        self.calls = self.pod_calls = self.descriptor_calls = 0
        self.asked_images: list[str] = []
        self.broken = False
        self.lost = False
        """Cannot say where its images are."""
        self.mountpoint = mountpoint

    async def list_container_stats(
        self, *, pod_uid: str | None = None, id: str | None = None, sandbox_id: str | None = None
    ) -> Sequence[cri_pb2.ContainerStats]:
        self.calls += 1
        if self.broken:
            raise CriError("list_container_stats: the runtime sleeps")
        return self.stats

    async def list_pod_sandbox_stats(self) -> Sequence[cri_pb2.PodSandboxStats]:
        self.pod_calls += 1
        if self.pod_problem is not None:
            raise self.pod_problem
        return self.pod_stats

    async def list_metric_descriptors(self) -> Sequence[cri_pb2.MetricDescriptor]:
        self.descriptor_calls += 1
        if self.pod_problem is not None:
            raise self.pod_problem
        return self.descriptors

    async def list_pod_sandbox_metrics(self) -> Sequence[cri_pb2.PodSandboxMetrics]:
        if self.pod_problem is not None:
            raise self.pod_problem
        return self.pod_metrics

    async def sandbox_image(self, sandbox_id: str) -> str:
        self.asked_images.append(sandbox_id)
        if self.broken:
            raise CriError("pod_sandbox_status: the runtime sleeps")
        return "registry.example/pause:3"

    async def image_fs_info(self) -> ImageFilesystems:
        if self.lost:
            raise CriError("image_fs_info: the runtime sleeps")
        usage = FilesystemUsage(mountpoint=self.mountpoint, used_bytes=777, inodes_used=7, timestamp=CREATED)
        return ImageFilesystems(images=(usage,))


class NoVolumes:
    async def usage(self, pod: Pod) -> Sequence[VolumeUsage]:
        return ()

    def pods(self) -> list[Pod]:
        return []


def no_volumes(clock: Clock) -> VolumeStatsCalculator:
    return VolumeStatsCalculator(meter=NoVolumes(), table=NoVolumes(), clock=clock, metrics=Registry())


class StatsFixture:
    """Everything around a provider; `add` makes pods."""

    def __init__(
        self, version: int, folder: Path, volumes: VolumeStatsCalculator | None = None, **settings: Any
    ) -> None:
        self.version = version
        self.cgroup_root, self.proc = machine(version, folder)
        write(folder, {"sys/dev/block/8:0/uevent": "DEVNAME=sda\n", "images/x": ""})
        self.paths = NodePaths(root=folder, pod_logs=folder / "logs", container_logs=folder / "links")
        self.cgroups = CgroupStats(root=self.cgroup_root, proc=self.proc, hugepage_sizes=(2 << 20,))
        self.host = NodeStats(proc=self.proc, sys=folder / "sys")
        self.runtime = FakeRuntime(str(folder / "images"))
        self.clock = LoopClock()
        self.known: list[Pod] = []
        self.statuses: dict[str, PodRuntimeStatus] = {}
        names = settings.pop("groups", CgroupNames())
        run = settings.pop("run", inline)
        shows_hidden = settings.pop("shows_hidden", False)
        guard = GuardEdges(cgroups=self.cgroups, host=self.host, kernel_log=FakeKernelLog())
        self.provider = StatsProvider(
            guard,
            cri=self.runtime,
            table=self,
            paths=self.paths,
            clock=self.clock,
            settings=StatsSettings(cgroups=names, **settings),
            run=run,
        )
        from_runtime = settings.get("from_runtime", False)
        volumes = volumes or no_volumes(self.clock)
        stats = Stats(provider=self.provider, volumes=volumes, cgroups=names, services=Services())
        self.source = NodeStatsSource(
            provider=self.provider,
            volumes=volumes,
            machine=MACHINE,
            machine_text=machine_lines(MACHINE, physical_cores=2, sockets=1, version="v1"),
            node_name="n1",
            disk_names=self.host.device_name,
            runtime_metrics=RuntimeMetrics(self.runtime) if from_runtime else None,
            shows_hidden=shows_hidden,
        )
        self.signals = EvictionStats(
            stats,
            guard,
            cri=self.runtime,
            clock=self.clock,
            memory_bytes=MACHINE.memory_bytes,
            root_dir=str(folder),
        )

    def pods(self) -> list[Pod]:
        return self.known

    def runtime_statuses(self) -> list[PodRuntimeStatus]:
        return list(self.statuses.values())

    def runtime_status(self, uid: str) -> PodRuntimeStatus:
        return self.statuses[uid]

    def group(self, path: str, *, cpu_ns: int = 5_000_000_000, usage: int = 20_000) -> None:
        write(self.cgroup_root, group(self.version, path, cpu_ns=cpu_ns, usage=usage))

    def add(self, name: str, *, network: NamespaceMode = NamespaceMode.POD, groups: bool = True) -> str:
        """A best-effort pod with one running container `app`; its cgroup path."""
        self.known.append(a_pod(name, namespace="ns"))
        self.statuses[f"uid-{name}"] = a_status(name, an_observed_container("app", f"con-{name}"), network=network)
        self.runtime.stats.append(container_stats(f"con-{name}", mountpoint=self.runtime.mountpoint))
        path = f"/kubepods/besteffort/poduid-{name}"
        if groups:
            for each in ("/kubepods", path, f"{path}/box-{name}", f"{path}/con-{name}"):
                self.group(each)
            write(self.proc, {"41/net/dev": NET_DEV})
        write(self.paths.pod_logs, {f"ns_{name}_uid-{name}/app/0.log": "x" * 9000})
        write(self.paths.root, {f"pods/uid-{name}/etc-hosts": "127.0.0.1 localhost\n"})
        return path
