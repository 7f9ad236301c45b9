"""Everything outside the process, in one value: what tests replace, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct, field

from pykubelet.clients.cri.port import CriClient, EventSource
from pykubelet.clients.dbus.port import Logind
from pykubelet.clients.host.cgroup_stats import CgroupStats
from pykubelet.clients.host.node_stats import NodeStats
from pykubelet.clients.host.port import (
    CgroupHost,
    CgroupReader,
    HostNetwork,
    HostReader,
    KernelLog,
    Machine,
    MemoryAlarms,
    Mounts,
    NodePaths,
    PodFolders,
    Quotas,
    Slices,
)
from pykubelet.clients.http.port import Fetch, PodNetwork
from pykubelet.clients.kube.port import KubeClient
from pykubelet.clients.plugins.port import (
    CsiConnect,
    DeviceConnect,
    DraConnect,
    ReadAllocateResponse,
    Registrations,
    TakeDevicePlugin,
)
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Service
from pykubelet.model.topology import Topology


async def _nothing() -> None:
    """Do nothing."""


class ClusterEdges(Struct, frozen=True, kw_only=True):
    """The outside of a cluster node, beside what every node has."""

    client: KubeClient
    heartbeat: KubeClient
    """For lease and node status: a connection of its own and no rate limit, so that pods never delay it."""
    events: KubeClient
    """With the rate of events (eventRecordQPS, eventBurst)."""
    network: HostNetwork
    storage_size: Callable[[], int]
    """Bytes of the filesystem that holds the root folder."""
    runtime_version: str
    """`<name>://<version>` of the runtime."""
    renew: Callable[[], Awaitable[None]] = _nothing
    """Have every client make new connections, because there is a new certificate."""
    abandon: Callable[[], Awaitable[None]] = _nothing
    """End every client's connections, because nothing is heard on them."""
    renews_certificate: bool = False
    """The client certificate is renewed by us (rotateCertificates)."""
    locked_out: Callable[[str], None] = lambda why: None
    """Called when the agent can no longer get a certificate."""


class ServeEdges(Struct, frozen=True, kw_only=True):
    """What the node's server stands on."""

    cgroup_stats: CgroupStats
    node_stats: NodeStats
    local_socket: Path | None = None
    """Where root's own commands find the agent."""


class GuardEdges(Struct, frozen=True, kw_only=True):
    """What the node watches itself with."""

    cgroups: CgroupReader
    host: HostReader
    kernel_log: KernelLog
    alarms: MemoryAlarms | None = None
    """None: the kernel gives no notice when memory is short."""
    set_oom_score: Callable[[int], None] | None = None
    """None: the agent's own process is left as it is."""
    own_group: str = ""
    """The cgroup the agent was started in; empty when it has none of its own."""


class PluginEdges(Struct, frozen=True, kw_only=True):
    """How plugins are talked to."""

    registrations: Registrations
    csi: CsiConnect
    devices: DeviceConnect
    read_allocate_response: ReadAllocateResponse
    dra: DraConnect
    device_registry: Callable[[Path, TakeDevicePlugin], Service]
    """The socket, in this folder, at which device plugins register."""


class Edges(Struct, frozen=True, kw_only=True):
    """Everything outside this process."""

    clock: Clock
    cri: CriClient
    runtime_name: str
    folders: PodFolders
    paths: NodePaths
    cgroups: CgroupHost
    mounts: Mounts
    machine: Machine
    network: PodNetwork
    fetch: Fetch
    idle_seconds: Callable[[], float | None] = lambda: None
    """How long all processors together did nothing since the boot; None = not known."""
    metrics: Registry = field(default_factory=Registry)
    """Where everything is counted; the edges' own calls, too."""
    event_source: EventSource | None = None
    cgroup_driver: str = ""
    """What the runtime says it uses; '' when it does not say."""
    logind: Logind | None = None
    """Announces shutdowns of the machine and can delay them; None = no such service."""
    quotas: Quotas | None = None
    """Filesystems that count what a folder holds; None = volumes are walked."""
    slices: Slices | None = None
    """systemd, where it keeps the cgroups (cgroupDriver systemd)."""
    host_ids: tuple[int, int] | None = None
    """First and length of the ids set aside for pods with user namespaces; None = the usual ones."""
    host_network: HostNetwork | None = None
    """This machine's interfaces; None = pods without an API server get no host address."""
    topology: Topology | None = None
    """Where CPUs and memory sit; None = one flat node."""
    plugins: PluginEdges | None = None
    """How to talk to plugins; None = no plugins are looked for."""
    cluster: ClusterEdges | None = None
    """The API server; None on a node that has none."""
    serve: ServeEdges | None = None
    """How to serve; None = the node serves nothing."""
    guard: GuardEdges | None = None
    """How to watch the node; None = nothing is evicted, and nothing can be served."""
