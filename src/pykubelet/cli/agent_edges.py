"""The production edges of an agent: the runtime, the host, systemd and logind where the settings need them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from pykubelet.cli.local_socket import forget_old_socket, local_socket
from pykubelet.cli.tracing import spans_sent
from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.clients.cri.connection import operation_metrics
from pykubelet.clients.cri.port import CgroupDriver, EventSource
from pykubelet.clients.dbus.port import BusDown, BusRefused, Logind
from pykubelet.clients.host.cgroup_stats import CgroupStats
from pykubelet.clients.host.cgroups import CgroupTree
from pykubelet.clients.host.folders import DiskFolders
from pykubelet.clients.host.kernel import DeviceKernelLog, KernelMemoryAlarms
from pykubelet.clients.host.machine import idle_seconds, read_machine, read_topology
from pykubelet.clients.host.mounts import HostMounts
from pykubelet.clients.host.network import InterfaceNetwork
from pykubelet.clients.host.node_stats import NodeStats
from pykubelet.clients.host.port import Machine, NodePaths, Slices
from pykubelet.clients.host.process import own_cgroup, set_oom_score, subordinate_ids
from pykubelet.clients.host.quotas import ProjectQuotas
from pykubelet.clients.http.client import ShortCalls
from pykubelet.clients.http.port import Fetched, FetchFailed
from pykubelet.clients.plugins.connection import GrpcRegistrations
from pykubelet.clients.plugins.devices import DeviceRegistry, GrpcDevicePlugin, read_allocate_response
from pykubelet.clients.plugins.port import CsiNode, DraDriver, Observe
from pykubelet.cm.capacity import machine_capacity, reservation_problem, reserved
from pykubelet.edges import ClusterEdges, Edges, GuardEdges, PluginEdges, ServeEdges
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import CriError, PykubeletError, Unimplemented
from pykubelet.model.http import HttpProblem
from pykubelet.model.runtime_status import RuntimeVersion
from pykubelet.node.shutdown import configured_periods
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.settings import Settings
from pykubelet.settings.validate import HostFacts, host_problems

logger = logging.getLogger(__name__)

CONTAINER_LOGS = Path("/var/log/containers")
NEEDS_RUNTIME_CONFIG = "1.37.0"
"""The Kubernetes version whose kubelet no longer works with a runtime that cannot say its cgroup driver."""


@asynccontextmanager
async def connected_edges(settings: Settings) -> AsyncIterator[Edges]:
    config, clock = settings.config, SystemClock()
    paths = _paths(settings)
    machine = read_machine()
    topology = read_topology(machine)
    refuse_host(settings, machine, topology.all_cpus)
    cgroup_stats, node_stats = CgroupStats(hugepage_sizes=machine.hugepage_sizes), NodeStats()
    folders = DiskFolders(paths)
    try:
        folders.make_roots()
    except OSError as error:
        raise PykubeletError(f"the folders of this node cannot be made: {error}") from error
    forget_old_socket(paths.root)
    metrics = Registry()
    async with spans_sent(settings, clock=clock, metrics=metrics), _runtime(settings, clock, metrics) as cri:
        version = await _connect(cri, config.runtime.container_runtime_endpoint)
        driver = await cgroup_driver(cri, metrics)
        name = settings.node_name(machine.hostname)
        async with (
            connected_slices(settings, reported=driver, unified=machine.cgroup_v2) as slices,
            _cluster(settings, clock, metrics, version, paths.root, name) as cluster,
        ):
            yield Edges(
                clock=clock,
                metrics=metrics,
                cri=cri,
                runtime_name=version.name,
                folders=folders,
                paths=paths,
                cgroups=CgroupTree(clock=clock),
                mounts=HostMounts(),
                quotas=ProjectQuotas(),
                machine=machine,
                idle_seconds=idle_seconds,
                topology=topology,
                network=ShortCalls(),
                fetch=fetch,
                cgroup_driver=driver,
                slices=slices,
                logind=logind_for(settings),
                host_ids=subordinate_ids(),
                host_network=InterfaceNetwork(),
                cluster=cluster,
                plugins=_plugin_edges(),
                guard=_guard_edges(cgroup_stats, node_stats),
                serve=ServeEdges(
                    cgroup_stats=cgroup_stats, node_stats=node_stats, local_socket=local_socket(paths.root)
                ),
                event_source=EventSource(name="runtime", open=cri.container_events),
            )


@asynccontextmanager
async def _runtime(settings: Settings, clock: SystemClock, metrics: Registry) -> AsyncIterator[GrpcCriClient]:
    runtime = settings.config.runtime
    cri = GrpcCriClient(
        runtime.container_runtime_endpoint,
        image_endpoint=runtime.image_service_endpoint,
        clock=clock,
        request_timeout=runtime.runtime_request_timeout,
        observe=operation_metrics(metrics),
        stream_lists=settings.gates.enabled("CRIListStreaming"),
    )
    try:
        yield cri
    finally:
        await cri.close()


def _paths(settings: Settings) -> NodePaths:
    pod_logs = Path(settings.config.container_logs.pod_logs_dir)
    return NodePaths(
        root=Path(settings.flags.root_dir), pod_logs=pod_logs, container_logs=container_logs_beside(pod_logs)
    )


def _plugin_edges() -> PluginEdges:
    return PluginEdges(
        registrations=GrpcRegistrations(),
        csi=_csi_node,
        devices=GrpcDevicePlugin,
        read_allocate_response=read_allocate_response,
        dra=_dra_driver,
        device_registry=DeviceRegistry,
    )


def _csi_node(socket: Path, observe: Observe) -> CsiNode:
    from pykubelet.clients.plugins.csi import GrpcCsiNode  # with the first driver: its messages are many

    return GrpcCsiNode(socket, observe)


def _dra_driver(socket: Path, version: str, observe: Observe) -> DraDriver:
    from pykubelet.clients.plugins.dra import GrpcDraDriver

    return GrpcDraDriver(socket, version, observe)


def _guard_edges(cgroup_stats: CgroupStats, node_stats: NodeStats) -> GuardEdges:
    return GuardEdges(
        cgroups=cgroup_stats,
        host=node_stats,
        kernel_log=DeviceKernelLog(),
        alarms=KernelMemoryAlarms(),
        set_oom_score=set_oom_score,
        own_group=own_cgroup(),
    )


@asynccontextmanager
async def _cluster(
    settings: Settings, clock: SystemClock, metrics: Registry, version: RuntimeVersion, root: Path, node_name: str
) -> AsyncIterator[ClusterEdges | None]:
    if settings.flags.standalone:
        yield None
        return
    # Imported late: a node without a cluster need not pay for the API client's memory.
    from pykubelet.cli.cluster_edges import connected_cluster

    async with connected_cluster(
        settings, clock=clock, metrics=metrics, runtime=version, root=root, node_name=node_name
    ) as cluster:
        yield cluster


def refuse_host(settings: Settings, machine: Machine, online: frozenset[int]) -> None:
    """End here, with every reason at once, on a machine that these settings cannot run on."""
    facts = HostFacts(cgroup_v1=not machine.cgroup_v2, swap_on=machine.swap_bytes > 0, online_cpus=online)
    problems = host_problems(settings.config, facts)
    capacity = machine_capacity(machine, settings.config.cgroups, None)
    if too_much := reservation_problem(capacity, reserved(settings.config.reservations)):
        problems.append(f"systemReserved, kubeReserved: {too_much}")
    if problems:
        raise SettingsError(problems)


class RuntimeConfig(Protocol):
    async def runtime_config(self) -> CgroupDriver: ...


async def cgroup_driver(cri: RuntimeConfig, metrics: Registry) -> str:
    """The cgroup driver the runtime reports; '' and a metric when it is too old to report one."""
    try:
        return await cri.runtime_config()
    except Unimplemented:
        losing = metrics.gauge(
            "kubelet_cri_losing_support", "1 for the version from which this runtime is too old.", ("version",)
        )
        losing.set(1, NEEDS_RUNTIME_CONFIG)
        return ""


async def fetch(url: str, headers: Mapping[str, str], *, timeout: float, max_bytes: int) -> Fetched:
    """One GET for the URL source, with its errors."""
    try:
        answer = await ShortCalls().fetch(url, headers, timeout=timeout, max_bytes=max_bytes)
    except HttpProblem as error:
        raise FetchFailed(str(error)) from error
    return Fetched(status=answer.status, body=answer.body)


def container_logs_beside(pod_logs: Path) -> Path:
    """/var/log/containers for the usual place; a private pod log folder keeps its links beside it."""
    return CONTAINER_LOGS if pod_logs == Path("/var/log/pods") else pod_logs.parent / "containers"


async def _connect(cri: GrpcCriClient, endpoint: str) -> RuntimeVersion:
    """Wait for the runtime: at boot the agent may well be up before it."""
    backoff = Backoff(initial=0.1, maximum=5.0)
    while True:
        try:
            version = await cri.connect()
        except CriError as error:
            if backoff.failures == 0:
                logger.warning("waiting for the container runtime", extra={"endpoint": endpoint, "error": str(error)})
            await asyncio.sleep(backoff.next())
        else:
            logger.info("connected", extra={"runtime": version.name, "version": version.version})
            return version


@asynccontextmanager
async def connected_slices(settings: Settings, *, reported: str, unified: bool) -> AsyncIterator[Slices | None]:
    """systemd, if it keeps the cgroups; `reported` is what the runtime says about that, '' when it does not.

    Raises PykubeletError when systemd is to keep them and cannot be reached.
    """
    cgroups = settings.config.cgroups
    if (reported or cgroups.cgroup_driver) != "systemd" or not cgroups.cgroups_per_qos:
        yield None
        return
    from pykubelet.clients.dbus.systemd import DbusSystemd, SystemdSlices

    systemd = DbusSystemd()
    try:
        try:
            await systemd.open()
        except (BusDown, BusRefused) as error:
            who = "the container runtime uses systemd for cgroups" if reported else "systemd is to keep the cgroups"
            raise PykubeletError(
                f"cgroupDriver (--cgroup-driver): {who}, but it does not answer: {error}; "
                "set the runtime and cgroupDriver to cgroupfs, or run where systemd does"
            ) from error
        yield SystemdSlices(systemd=systemd, unified=unified)
    finally:
        await systemd.close()


def logind_for(settings: Settings) -> Logind | None:
    """logind, if shutdowns are to wait for pods."""
    if not settings.gates.enabled("GracefulNodeShutdown") or not configured_periods(settings.config.shutdown):
        return None
    from pykubelet.clients.dbus.logind import DbusLogind

    return DbusLogind()
