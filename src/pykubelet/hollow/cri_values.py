"""What the runtime in memory is made of: programmable behaviours, images, sandboxes, containers, calls.

Covers: its records and the values it is programmed with.
Does not cover: what happens to them (cri_sandboxes.py, cri_containers.py, cri.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from pykubelet.model.container_keys import POD_UID_LABEL
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ContainerState, ExecResult, SandboxState
from pykubelet.wire import cri_pb2

T = TypeVar("T")

KILLED = 137
"""128 + SIGKILL"""
TERMINATED = 143
"""128 + SIGTERM"""
START_FAILED = 128
"""containerd's exit code for a container whose program could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What the program in a container does. The default runs forever and obeys SIGTERM at once."""

    exits_after: float | None = None
    """Seconds from start to exit by itself; None = never."""
    exit_code: int = 0
    oom: bool = False
    """Its own exit is an out-of-memory kill: code 137, reason OOMKilled."""
    stops_after: float | None = 0.0
    """Seconds from the stop signal to its end; None = ignores the signal, only a kill ends it."""
    stop_code: int = TERMINATED
    create_error: CriError | None = None
    start_error: CriError | None = None
    create_takes: float = 0.0
    start_takes: float = 0.0
    output: tuple[str, ...] = ()
    """Lines written to the log when it starts (only with write_logs)."""
    answers_after: float = 0.0
    """Seconds from start until it answers probes (only on hollow nodes)."""
    deaf: float = 0.0
    """Share of probes that it does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """What a command run inside a container does."""

    result: ExecResult = field(default_factory=ExecResult)
    takes: float = 0.0
    error: CriError | None = None


ExecScript = Exec | Callable[["MemoryContainer", Sequence[str]], Exec]


class Subject(NamedTuple):
    """What a call is about, as far as that is known."""

    name: str = ""
    """Of the pod, container or image."""
    id: str = ""
    pod_uid: str = ""


NOTHING = Subject()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that the runtime received."""

    verb: str
    about: Subject = NOTHING
    args: Mapping[str, object] = field(default_factory=dict)
    at: float = 0.0

    @property
    def name(self) -> str:
        return self.about.name

    @property
    def id(self) -> str:
        return self.about.id

    @property
    def pod_uid(self) -> str:
        return self.about.pod_uid


@dataclass(slots=True, kw_only=True)
class MemoryImage:
    """An image on the node or in the pretended registry."""

    id: str
    tags: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    size_bytes: int = 1_000_000
    uid: int | None = None
    username: str = ""
    pinned: bool = False
    takes: float = 0.0
    """Seconds a pull needs."""
    error: CriError | None = None
    """What a pull fails with."""
    needs_auth: tuple[str, str] | None = None
    """User and password without which the registry refuses."""


@dataclass(slots=True, kw_only=True, eq=False)
class MemorySandbox:
    id: str
    config: cri_pb2.PodSandboxConfig
    created_at: int
    state: SandboxState = SandboxState.READY
    ips: tuple[str, ...] = ()
    runtime_handler: str = ""
    resources: cri_pb2.LinuxContainerResources | None = None
    overhead: cri_pb2.LinuxContainerResources | None = None
    containers: dict[str, MemoryContainer] = field(default_factory=dict)
    """By id."""

    @property
    def key(self) -> str:
        """The name containerd reserves, which makes a sandbox attempt unique."""
        m = self.config.metadata
        return f"{m.name}_{m.namespace}_{m.uid}_{m.attempt}"

    @property
    def name(self) -> str:
        return self.config.metadata.name

    @property
    def pod_uid(self) -> str:
        return self.config.metadata.uid

    @property
    def host_network(self) -> bool:
        options = self.config.linux.security_context.namespace_options
        return options.network == cri_pb2.NODE


@dataclass(slots=True, kw_only=True, eq=False)
class MemoryContainer:
    id: str
    sandbox: MemorySandbox
    config: cri_pb2.ContainerConfig
    image: MemoryImage
    behaviour: Behaviour
    created_at: int
    state: ContainerState = ContainerState.CREATED
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    resources: cri_pb2.LinuxContainerResources | None = None
    signalled: bool = False
    """The stop signal was delivered; containerd sends it only once."""
    starting: bool = False
    removed: bool = False
    timer: asyncio.TimerHandle | None = None
    """The pending exit, if the program is going to end by itself or by a signal."""
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    """Resolved when the container ends."""
    log_fd: int | None = None
    cpu_nanocores: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 1_000_000
    filesystem_bytes: int = 0

    @property
    def name(self) -> str:
        return self.config.metadata.name

    @property
    def attempt(self) -> int:
        return self.config.metadata.attempt

    @property
    def key(self) -> str:
        m, pod = self.config.metadata, self.sandbox.config.metadata
        return f"{m.name}_{pod.name}_{pod.namespace}_{pod.uid}_{m.attempt}"

    @property
    def log_path(self) -> str:
        directory = self.sandbox.config.log_directory
        if not directory or not self.config.log_path:
            return ""
        return f"{directory}/{self.config.log_path}"


class PodIndex(Generic[T]):
    """What belongs to a pod, by the UID in its labels: a node's runtime is asked about single pods all the time."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, T]] = {}

    def add(self, labels: Mapping[str, str], id: str, item: T) -> None:
        self._of.setdefault(labels.get(POD_UID_LABEL, ""), {})[id] = item

    def remove(self, labels: Mapping[str, str], id: str) -> None:
        uid = labels.get(POD_UID_LABEL, "")
        items = self._of[uid]
        del items[id]
        if not items:
            del self._of[uid]

    def of(self, uid: str) -> Sequence[T]:
        return list(self._of.get(uid, {}).values())


def made_id(kind: str, number: int) -> str:
    """64 hex digits as real runtimes give, the same in every run."""
    return hashlib.sha256(f"{kind}-{number}".encode()).hexdigest()


def full_name(image: str) -> str:
    """The way containerd writes an image name: registry, library/ and :latest filled in; ids as they are."""
    if image.startswith("sha256:"):
        return image
    first, slash, rest = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif "." not in first and ":" not in first and first != "localhost":
        image = f"docker.io/{image}"
    elif first == "docker.io" and "/" not in rest:
        image = f"docker.io/library/{rest}"
    if "@" in image:
        base, _, digest = image.partition("@")
        return f"{_untagged(base)}@{digest}"
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def _untagged(name: str) -> str:
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def digest_of(image: str) -> str:
    """A repo digest for a tagged name."""
    return f"{_untagged(full_name(image))}@sha256:{made_id(full_name(image), 1)}"
