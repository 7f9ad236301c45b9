"""Plugins as managers see them: how one registers, and the calls of each kind.

Plugins are programs of others that serve gRPC on a unix socket below our folders. Nothing they say is trusted:
every call has a deadline, and callers check the answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from pykubelet.kit.clock import Clock
from pykubelet.kit.text import grpc_code
from pykubelet.model.errors import PluginError


class PluginInfo(Struct, frozen=True, kw_only=True):
    """A plugin's description from its registration socket."""

    type: str
    name: str
    endpoint: str
    """The socket that serves the plugin's own calls; empty means the registration socket itself."""
    versions: tuple[str, ...]


class Registrations(Protocol):
    """The registration service that plugins serve. Trouble is a PluginError."""

    async def info(self, socket: Path) -> PluginInfo: ...

    async def notify(self, socket: Path, problem: str | None) -> None:
        """Tell the plugin that it is registered, or why it is not."""
        ...


Observe = Callable[[str], AbstractContextManager[None]]
"""Entered around each call, by the name of the method."""


def unobserved(method: str) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def timed(clock: Clock, observe: Callable[[float, str], None]) -> Iterator[None]:
    """Pass the seconds that a call takes and the gRPC code that it ends with to `observe`."""
    began, code = clock.monotonic(), "CANCELLED"
    try:
        yield
        code = "OK"
    except PluginError as error:
        code = error.code
        raise
    finally:
        observe(clock.monotonic() - began, grpc_code(code))


# --- storage drivers (csi.py) -------------------------------------------------------------------------------


class CsiNodeInfo(Struct, frozen=True, kw_only=True):
    node_id: str
    max_volumes: int = 0
    """0 = the driver sets no limit."""
    topology: Mapping[str, str] | None = None


class CsiVolume(Struct, frozen=True, kw_only=True):
    """One volume as every call of a driver describes it."""

    volume_id: str
    access_mode: str
    """By its name in the protocol, such as SINGLE_NODE_WRITER."""
    block: bool = False
    fs_type: str = ""
    mount_flags: tuple[str, ...] = ()
    mount_group: str = ""
    publish_context: Mapping[str, str] = field(default_factory=dict)
    volume_context: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


class CsiUsage(Struct, frozen=True, kw_only=True):
    """Bytes and inodes, as far as the driver reports them."""

    used_bytes: int = 0
    total_bytes: int = 0
    available_bytes: int = 0
    used_inodes: int = 0
    total_inodes: int = 0
    available_inodes: int = 0
    abnormal: bool = False
    """Whether the driver finds that something is wrong with the volume."""
    condition: str = ""
    """The driver's words about that."""


class CsiNode(Protocol):
    """The node side of one storage driver. Trouble is a PluginError; every call may be repeated."""

    async def info(self) -> CsiNodeInfo: ...

    async def capabilities(self) -> frozenset[str]:
        """Names such as STAGE_UNSTAGE_VOLUME."""
        ...

    async def stage(self, volume: CsiVolume, staging: Path) -> None: ...

    async def unstage(self, volume_id: str, staging: Path) -> None: ...

    async def publish(self, volume: CsiVolume, target: Path, *, staging: Path | None, read_only: bool) -> None: ...

    async def unpublish(self, volume_id: str, target: Path) -> None: ...

    async def expand(self, volume: CsiVolume, path: Path, *, staging: Path | None, required_bytes: int) -> int:
        """The size it has now; 0 when the driver does not say."""
        ...

    async def usage(self, volume_id: str, path: Path, *, staging: Path | None) -> CsiUsage: ...


CsiConnect = Callable[[Path, Observe], CsiNode]
"""The driver that serves on this socket. Connects with each call, so it may be kept while the driver restarts."""


# --- device plugins (devices.py) ----------------------------------------------------------------------------


class DeviceOptions(Struct, frozen=True, kw_only=True):
    pre_start: bool = False
    """PreStartContainer wants to be called."""
    prefers: bool = False
    """GetPreferredAllocation can be called."""


class Device(Struct, frozen=True, kw_only=True):
    id: str
    healthy: bool
    numa: tuple[int, ...] = ()
    """Empty when the plugin does not say."""


class AllocatedMount(Struct, frozen=True, kw_only=True):
    container_path: str
    host_path: str
    read_only: bool = False


class AllocatedDevice(Struct, frozen=True, kw_only=True):
    container_path: str
    host_path: str
    permissions: str


class AllocateResponse(Struct, frozen=True, kw_only=True):
    """A plugin's additions to a container that has its devices."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[AllocatedMount, ...] = ()
    devices: tuple[AllocatedDevice, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    wire: bytes = b""
    """The plugin's answer as it came, for the checkpoint that upstream reads, too."""


class DevicePlugin(Protocol):
    """One running device plugin. Trouble is a PluginError."""

    async def options(self) -> DeviceOptions: ...

    def watch(self) -> AsyncGenerator[Sequence[Device], None]:
        """All devices, now and after each change, until the plugin goes."""
        ...

    async def preferred(self, available: Sequence[str], must_have: Sequence[str], count: int) -> Sequence[str]: ...

    async def allocate(self, ids: Sequence[str]) -> AllocateResponse: ...

    async def pre_start(self, ids: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


DeviceConnect = Callable[[Path], DevicePlugin]


class DeviceRegistration(Struct, frozen=True, kw_only=True):
    """A plugin's registration for a resource."""

    version: str
    endpoint: str
    """The name of its socket in the folder of device plugins."""
    resource: str


TakeDevicePlugin = Callable[[DeviceRegistration], Awaitable[None]]
"""Raises a PykubeletError to refuse; the plugin gets the text."""

ReadAllocateResponse = Callable[[bytes], AllocateResponse]
"""A plugin's answer from a checkpoint."""


# --- drivers of dynamic resources (dra.py) --------------------------------------------------------------------


class ClaimRef(Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str


class PreparedDevice(Struct, frozen=True, kw_only=True):
    pool: str
    device: str
    requests: tuple[str, ...] = ()
    """Of the claim, that this device serves; empty = all."""
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""


class Prepared(Struct, frozen=True, kw_only=True):
    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class ClaimedHealth(Struct, frozen=True, kw_only=True):
    pool: str
    device: str
    health: str
    """Healthy, Unhealthy or Unknown."""
    stale_after: float = 30.0
    """Seconds after which nothing is known any more."""
    message: str = ""


class DraDriver(Protocol):
    """One driver of dynamic resources. Trouble of the whole call is a PluginError."""

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Prepared]:
        """By the claim's uid."""
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """By the claim's uid, what went wrong; empty when nothing did."""
        ...

    def watch_health(self) -> AsyncGenerator[Sequence[ClaimedHealth], None]:
        """The devices' health as the driver reports it; ends at once with PluginError when it never does."""
        ...

    def connected(self) -> AsyncGenerator[bool, None]:
        """Whether the driver's socket accepts, at first and at each change, until it is closed here."""
        ...

    async def close(self) -> None:
        """End the connection with all calls under way."""
        ...


DraConnect = Callable[[Path, str, Observe], DraDriver]
"""The driver at this socket, in this version of the service: v1 or v1beta1."""
