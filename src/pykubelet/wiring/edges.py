"""Everything outside the process, in one value: what tests replace, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.cgroup_stats import CgroupStats
from pykubelet.clients.host.node_stats import NodeStats
from pykubelet.clients.host.paths import NodePaths
from pykubelet.clients.host.port import Machine, Mounts, PodFolders
from pykubelet.clients.http.port import PodNetwork
from pykubelet.kit.clock import Clock
from pykubelet.node.addresses import HostNetwork
from pykubelet.pleg.events import EventSource
from pykubelet.resources.cgroups import CgroupHost
from pykubelet.sources.url import Fetch
from pykubelet.wiring.cluster import ClusterEdges


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeEdges:
    """What the node's server stands on."""

    cgroup_stats: CgroupStats
    node_stats: NodeStats
    local_socket: Path | None = None
    """Where root's own commands find the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
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
    event_sources: Sequence[EventSource] = ()
    cgroup_driver: str = ""
    """What the runtime says it uses; '' when it does not say."""
    host_ids: tuple[int, int] | None = None
    """First and length of the ids set aside for pods with user namespaces; None = the usual ones."""
    host_network: HostNetwork | None = None
    """This machine's interfaces; None = pods without an API server are told no host address."""
    cluster: ClusterEdges | None = None
    """The API server; None on a node that has none."""
    serve: ServeEdges | None = None
    """How to serve; None = nobody asks this node anything."""
