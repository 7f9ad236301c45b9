"""What the container runtime reported, as frozen values.

These are the only runtime results that travel above `clients/cri`. Times are unix nanoseconds as the
CRI gives them (0 = not happened). Requests with large configs use the generated CRI messages directly.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct, field

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def _no_labels() -> Mapping[str, str]:
    """One shared empty mapping; as a plain default Python 3.11 would refuse it as unhashable."""
    return NO_LABELS


class SandboxState(enum.Enum):
    READY = "ready"
    NOT_READY = "notready"


class ContainerState(enum.Enum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class Life(enum.Enum):
    """What matters of a state: it runs, it has ended, or neither is known."""

    RUNNING = "running"
    ENDED = "ended"
    OTHER = "other"


class NamespaceMode(enum.Enum):
    POD = 0
    CONTAINER = 1
    NODE = 2
    TARGET = 3


class SandboxRecord(Struct, frozen=True, kw_only=True):
    """One row of ListPodSandbox."""

    id: str
    pod_uid: str
    pod_name: str
    pod_namespace: str
    attempt: int = 0
    state: SandboxState = SandboxState.READY
    created_at: int = 0
    labels: Mapping[str, str] = field(default_factory=_no_labels)
    annotations: Mapping[str, str] = field(default_factory=_no_labels)
    runtime_handler: str = ""


class SandboxStatus(Struct, frozen=True, kw_only=True):
    """PodSandboxStatus: a sandbox with its addresses."""

    id: str
    pod_uid: str
    pod_name: str
    pod_namespace: str
    attempt: int = 0
    state: SandboxState = SandboxState.READY
    created_at: int = 0
    ips: tuple[str, ...] = ()
    """Primary address first; empty for host network."""
    network_mode: NamespaceMode = NamespaceMode.POD
    labels: Mapping[str, str] = field(default_factory=_no_labels)
    annotations: Mapping[str, str] = field(default_factory=_no_labels)
    runtime_handler: str = ""


class ContainerRecord(Struct, frozen=True, kw_only=True):
    """One row of ListContainers. `pod_uid` and `name` come from labels, so foreign containers have ''."""

    id: str
    sandbox_id: str
    pod_uid: str
    pod_name: str
    pod_namespace: str
    name: str
    attempt: int = 0
    state: ContainerState = ContainerState.CREATED
    created_at: int = 0
    image: str = ""
    image_ref: str = ""
    image_id: str = ""
    labels: Mapping[str, str] = field(default_factory=_no_labels)
    annotations: Mapping[str, str] = field(default_factory=_no_labels)


class MountRecord(Struct, frozen=True, kw_only=True):
    container_path: str
    host_path: str
    readonly: bool = False
    image: str = ""
    """What is mounted, when that is an image."""


class ContainerResources(Struct, frozen=True, kw_only=True):
    """The Linux limits the runtime says are in force; None = not reported."""

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None
    memory_limit_bytes: int | None = None
    memory_swap_limit_bytes: int | None = None
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    unified: Mapping[str, str] = field(default_factory=_no_labels)


class ContainerUser(Struct, frozen=True, kw_only=True):
    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


class ContainerStatus(Struct, frozen=True, kw_only=True):
    """ContainerStatus: one container in full. Name, hash and counters are read from its annotations."""

    id: str
    sandbox_id: str = ""
    """Not part of the CRI message; filled in when containers are listed."""
    name: str
    attempt: int = 0
    state: ContainerState = ContainerState.CREATED
    created_at: int = 0
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    image: str = ""
    """Image name as the runtime reports it (status.image.image)."""
    image_ref: str = ""
    image_id: str = ""
    reason: str = ""
    message: str = ""
    labels: Mapping[str, str] = field(default_factory=_no_labels)
    annotations: Mapping[str, str] = field(default_factory=_no_labels)
    mounts: tuple[MountRecord, ...] = ()
    log_path: str = ""
    resources: ContainerResources | None = None
    user: ContainerUser | None = None
    stop_signal: str = ""


class PodRuntimeStatus(Struct, frozen=True, kw_only=True, dict=True):
    """Everything the runtime knows about one pod at one moment.

    `sandboxes` and `containers` are ordered newest first (attempt, then creation), so the first match
    by name is the current one.
    """

    uid: str
    name: str = ""
    namespace: str = ""
    ips: tuple[str, ...] = ()
    sandboxes: tuple[SandboxStatus, ...] = ()
    containers: tuple[ContainerStatus, ...] = ()
    observed_at: float = 0.0
    """Monotonic time at which the listing behind this value was started."""

    def container(self, name: str) -> ContainerStatus | None:
        """The newest container of that name."""
        return next(iter(self.runs_of(name)), None)

    def runs_of(self, name: str) -> Sequence[ContainerStatus]:
        """All containers of that name, newest first."""
        return self._by_name.get(name, ())

    @functools.cached_property
    def _by_name(self) -> Mapping[str, Sequence[ContainerStatus]]:
        # Called for every container of the spec at every sync; a pod may have thousands.
        found: dict[str, list[ContainerStatus]] = {}
        for each in self.containers:
            found.setdefault(each.name, []).append(each)
        return found

    def running(self) -> tuple[ContainerStatus, ...]:
        return tuple(c for c in self.containers if c.state is ContainerState.RUNNING)

    def ready_sandboxes(self) -> tuple[SandboxStatus, ...]:
        return tuple(s for s in self.sandboxes if s.state is SandboxState.READY)

    def shows_the_same(self, other: PodRuntimeStatus) -> bool:
        """Whether nothing happened in the runtime between the two looks."""
        return self.sandboxes == other.sandboxes and self.containers == other.containers

    def ended_since(self, before: PodRuntimeStatus) -> bool:
        """Whether a container that is the newest of its name has come to an end since then."""
        known = {c.id for c in before.containers if c.state is ContainerState.EXITED}
        newest = (self.container(name) for name in {c.name for c in self.containers})
        return any(c is not None and c.state is ContainerState.EXITED and c.id not in known for c in newest)


class RuntimeVersion(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    api_version: str


class RuntimeCondition(Struct, frozen=True, kw_only=True):
    type: str
    status: bool
    reason: str = ""
    message: str = ""


class RuntimeHandler(Struct, frozen=True, kw_only=True):
    name: str
    recursive_read_only_mounts: bool = False
    user_namespaces: bool = False


class RuntimeConditions(Struct, frozen=True, kw_only=True):
    """CRI Status: conditions, handlers, features."""

    conditions: tuple[RuntimeCondition, ...] = ()
    handlers: tuple[RuntimeHandler, ...] = ()
    supplemental_groups_policy: bool | None = None
    """None: the runtime does not report its features."""
    user_namespaces_host_network: bool = False
    """Whether a pod may have a user namespace and the host's network."""

    def condition(self, kind: str) -> RuntimeCondition | None:
        return next((c for c in self.conditions if c.type == kind), None)

    def supports_recursive_read_only(self, handler: str | None) -> bool:
        """Whether that handler, None = one not known, can make whole mount trees read-only."""
        return any(each.name == handler and each.recursive_read_only_mounts for each in self.handlers)

    def supports_user_namespaces(self, handler: str) -> bool:
        return any(each.name == handler and each.user_namespaces for each in self.handlers)


class Image(Struct, frozen=True, kw_only=True):
    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    size_bytes: int = 0
    uid: int | None = None
    """Numeric user of the image, if it names one."""
    username: str = ""
    pinned: bool = False


class FilesystemUsage(Struct, frozen=True, kw_only=True):
    mountpoint: str
    used_bytes: int = 0
    inodes_used: int = 0
    timestamp: int = 0


class ImageFilesystems(Struct, frozen=True, kw_only=True):
    images: tuple[FilesystemUsage, ...] = ()
    containers: tuple[FilesystemUsage, ...] = ()


class ExecResult(Struct, frozen=True, kw_only=True):
    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0


class EventKind(enum.Enum):
    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"
    OOM = "oom"


class ContainerEvent(Struct, frozen=True, kw_only=True):
    """A hint that something happened to a container or sandbox; the receiver looks for itself."""

    container_id: str
    kind: EventKind
    pod_uid: str = ""
    """Known with CRI events; empty with containerd's own stream."""
    created_at: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
