"""The host as managers see it: pod folders, machine facts.

Managers take the part they need. Implementations are beside this file; tests give a temporary root.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.model.cgroups import CgroupLimits
from pykubelet.model.errors import PykubeletError
from pykubelet.model.stats import (
    CgroupBounds,
    CgroupDetail,
    CgroupUsage,
    DiskCounters,
    FolderUsage,
    FsUsage,
    NetworkCounters,
    ProcessCounts,
    TaskCounts,
)
from pykubelet.settings.node_flags import IPAddress


class PodFolders(Protocol):
    """The folders of pods. All calls are quick and safe to repeat."""

    def make_pod(self, uid: str) -> None:
        """Folders every pod has before anything of it runs."""
        ...

    def make_logs(self, pod: Pod) -> Path:
        """The pod's log folder, made if missing."""
        ...

    def make_container_logs(self, pod: Pod, container: str) -> Path: ...

    def log_files(self, pod: Pod, container: str) -> Sequence[str]:
        """Names of the log files a container left, any restart."""
        ...

    def link_log(self, pod: Pod, container: str, container_id: str, target: Path) -> None:
        """The short link in the folder that log collectors read."""
        ...

    def unlink_log(self, namespace: str, name: str, container: str, container_id: str) -> None: ...

    def remove_logs(self, folder: Path) -> None:
        """Remove a pod's log folder, however deep it is, never crossing into a mount; raises OSError."""
        ...

    def make_termination_log(self, uid: str, container: str) -> Path:
        """A fresh, empty file the container may write its last words into."""
        ...

    def read_tail(self, path: Path, limit_bytes: int) -> bytes:
        """The end of a file up to a limit; empty when there is none."""
        ...

    def write_etc_hosts(self, uid: str, content: str) -> Path: ...

    def read_text(self, path: Path) -> str:
        """A host file such as /etc/hosts; empty when there is none."""
        ...

    def pod_uids(self) -> Sequence[str]:
        """Pods that have a folder on disk."""
        ...

    def remove_pod(self, uid: str) -> None:
        """Remove a pod's folder, never crossing into a mount; raises OSError with the path that is busy."""
        ...


class Machine(Struct, frozen=True, kw_only=True):
    """Facts about the machine that do not change while the agent runs."""

    hostname: str
    cpus: int
    memory_bytes: int
    swap_bytes: int
    kernel: str
    os_image: str
    machine_id: str
    system_uuid: str
    boot_id: str
    architecture: str
    booted: float = 0.0
    """When, in seconds since 1970; 0 when the kernel does not say."""
    hugepage_sizes: tuple[int, ...] = ()
    """In bytes."""
    hugepages: tuple[tuple[int, int], ...] = ()
    """(size in bytes, count) that the kernel has set aside."""
    pids: int = 0
    """Tasks the kernel lets exist at once; 0 when it does not say."""
    cgroup_v2: bool = False
    apparmor: bool = False
    selinux: bool = False
    container_file_label: str = ""
    """SELinux label of container files, user:role:type:level; empty without SELinux."""
    swap_controller: bool = False
    """The kernel accounts swap per cgroup."""
    page_bytes: int = 4096
    thermal_paths: tuple[str, ...] = ()
    """CPU throttle folders, which containers must not see."""


# --- mounts and volume files (mounts.py, folders.py) ----------------------------------------------------------


class MountError(PykubeletError):
    """The kernel or a mount tool refused. The text says what was to be mounted where, and why not."""


class ToolMissing(MountError):
    """A program of the host that this kind of volume needs is not installed."""


class ToolFailed(MountError):
    """A program of the host ended with an error code."""

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text)
        self.output = output
        """What it printed."""


class MountEntry(Struct, frozen=True, kw_only=True):
    """One line of the kernel's mount table."""

    mount_point: str
    root: str
    """The part of the filesystem mounted here; for a bind mount the path that was bound."""
    device: str
    """major:minor of the filesystem."""
    fs_type: str
    source: str
    options: tuple[str, ...] = ()


class Mounts(Protocol):
    """Mounting and unmounting. Every call blocks and may hang with its filesystem: call it in a thread unless
    it is about tmpfs. Raises MountError. Targets must exist and are never followed if they are links."""

    def table(self) -> Sequence[MountEntry]:
        """All mounts, oldest first. Reads only the kernel's table, so a dead server cannot hang it."""
        ...

    def is_mounted(self, path: Path) -> bool:
        """Whether something is mounted exactly here; much cheaper than the table, but touches the filesystem."""
        ...

    def tmpfs(self, target: Path, *, size_bytes: int | None) -> None:
        """Memory as a filesystem, open to all users (1777), kept out of swap where the kernel can."""
        ...

    def hugetlbfs(self, target: Path, *, page_size: str, size_bytes: int | None) -> None: ...

    def bind(self, source: Path, target: Path, *, read_only: bool, options: Sequence[str] = ()) -> None:
        """Show `source` at `target`. Of the options those count that a mount point can have, such as noexec."""
        ...

    def bind_descriptor(self, descriptor: int, target: Path, *, read_only: bool) -> None:
        """Show what an open descriptor stands for at `target`, regardless of where its path leads by now."""
        ...

    def by_tool(
        self, source: str, target: Path, *, fs_type: str, options: Sequence[str], seconds: float | None
    ) -> None:
        """Mount with the host's `mount`, for filesystems that need helpers. A source beginning with `-` is refused."""
        ...

    def unmount(self, target: Path) -> bool:
        """Unmount everything stacked on `target`; False when nothing was. Not there at all is success."""
        ...

    def unmount_forced(self, target: Path, *, seconds: float) -> bool:
        """The same for filesystems whose server may be gone: after `seconds` by force."""
        ...

    def run(self, *command: str, seconds: float | None, allow: Container[int] = (), shown: str = "") -> str:
        """A program of the host; its output. ToolMissing when it is not there, ToolFailed when it ends with
        anything but 0 or one of `allow`, MountError when not within `seconds`: then it is killed with all it started.
        With None it may take its time and goes on even if the agent ends, as what repairs a filesystem must. `shown` is
        the command in errors, when its arguments may hold secrets."""
        ...

    def make_shared(self, folder: Path) -> None:
        """Let mounts made in `folder` later reach containers and back (mountPropagation). Makes it a mount point of
        its own where needed, which `unmount` ends. Safe to repeat."""
        ...

    def remove_tree(self, folder: Path) -> None:
        """Remove a folder and all below; never follows a link, never enters a mount (MountError names it)."""
        ...


class Counted(Struct, frozen=True, kw_only=True):
    """A tree's content as the filesystem itself counts it."""

    bytes: int
    inodes: int


class Quotas(Protocol):
    """Project quotas as counters (quotas.py). Quick calls."""

    def begin(self, folder: Path, key: str) -> bool:
        """Count what is made in the empty `folder` from now on; False where that cannot be had."""
        ...

    def counted(self, folder: Path) -> Counted | None:
        """None: nothing is counted there."""
        ...


LINK_NAME_LIMIT = 255


class NodePaths(Struct, frozen=True, kw_only=True):
    """Every path the agent uses, under the roots it was given; laid out as upstream does. Only computes.

    Names that come from manifests are validated before they get here, so joining them cannot leave the root.
    """

    root: Path
    """`--root-dir`: everything the agent keeps about pods and plugins."""
    pod_logs: Path
    container_logs: Path

    @property
    def pods(self) -> Path:
        return self.root / "pods"

    def pod(self, uid: str) -> Path:
        return self.pods / uid

    def volumes(self, uid: str) -> Path:
        return self.pod(uid) / "volumes"

    def volume(self, uid: str, plugin: str, name: str) -> Path:
        """`plugin` is the full name, e.g. kubernetes.io/empty-dir."""
        return self.volumes(uid) / plugin.replace("/", "~") / name

    def plugin_data(self, uid: str, plugin: str, name: str) -> Path:
        return self.pod(uid) / "plugins" / plugin.replace("/", "~") / name

    def volume_devices(self, uid: str) -> Path:
        return self.pod(uid) / "volumeDevices"

    def subpaths(self, uid: str) -> Path:
        return self.pod(uid) / "volume-subpaths"

    def container(self, uid: str, container: str) -> Path:
        return self.pod(uid) / "containers" / container

    def etc_hosts(self, uid: str) -> Path:
        return self.pod(uid) / "etc-hosts"

    def log_folder(self, namespace: str, name: str, uid: str) -> Path:
        return self.pod_logs / f"{namespace}_{name}_{uid}"

    def log_link(self, namespace: str, name: str, container: str, container_id: str) -> Path:
        tail = f"-{container_id}.log"
        head = f"{name}_{namespace}_{container}"[: LINK_NAME_LIMIT - len(tail)]
        return self.container_logs / (head + tail)

    @property
    def plugins(self) -> Path:
        return self.root / "plugins"

    @property
    def plugin_sockets(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def device_plugins(self) -> Path:
        return self.root / "device-plugins"

    @property
    def seccomp(self) -> Path:
        return self.root / "seccomp"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"


# --- notifications of the kernel (kernel.py) ----------------------------------------


class AlarmRefused(PykubeletError):
    """The kernel refuses the notification; the text says which file and why."""


class MemoryAlarms(Protocol):
    """Has the kernel notify us when memory runs short, so that usage need not be polled."""

    @property
    def by_usage(self) -> bool:
        """Whether the number given to `watch` counts; else one alarm serves for all."""
        ...

    def watch(self, group: str, usage_bytes: int, wake: Callable[[], None]) -> MemoryAlarm:
        """Call `wake` on the loop when the group ('/' = the machine) may have crossed that usage. It may come for
        other reasons, too: look again. cgroup v1 counts usage; v2 notifies that memory is short, at any usage.
        Raises AlarmRefused."""
        ...


class MemoryAlarm(Protocol):
    @property
    def is_over(self) -> bool:
        """The group it watched is gone: it will not ring again, and was rung once more to say so."""
        ...

    def close(self) -> None: ...


class KernelLog(Protocol):
    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        """Call `on_line` with each new line of the kernel's log; returns what ends it. Raises AlarmRefused."""
        ...


class HostNetwork(Protocol):
    def addresses(self) -> frozenset[IPAddress]:
        """Every address on an interface of this machine."""
        ...

    def route_addresses(self) -> Sequence[IPAddress]:
        """Addresses of the interface that holds the default route, best first; of any interface without one."""
        ...

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        """The resolver's addresses of this name; may be empty."""
        ...


class CgroupHost(Protocol):
    def create(self, path: str, limits: CgroupLimits) -> None:
        """Make the group, parents included, and limit it as far as the host lets us. Safe to repeat."""
        ...

    def apply(self, path: str, limits: CgroupLimits) -> None:
        """Change limits of a group; OSError when the host refuses any of them."""
        ...

    def read(self, path: str) -> CgroupLimits | None:
        """CPU and memory limits in force; None when there is no such group."""
        ...

    def memory_usage(self, path: str) -> int | None:
        """Bytes in use below the group; None when the host does not say."""
        ...

    def exists(self, path: str) -> bool: ...

    def children(self, path: str) -> Sequence[str]: ...

    def join(self, path: str, pid: int) -> None:
        """Move a process into a group, which is made if missing. OSError when the host refuses."""
        ...

    def programs(self, path: str) -> Sequence[int]:
        """Process ids of programs in the group itself, without the first process and without the kernel's threads."""
        ...

    async def destroy(self, path: str) -> None: ...


class Slices(Protocol):
    """The manager of the cgroup tree (systemd), consulted before a group is changed. OSError when it refuses."""

    async def hold(self, path: str, limits: CgroupLimits) -> None:
        """Have the group with these limits, whether it was there or not."""
        ...

    async def drop(self, path: str) -> None:
        """Give the group up; not there is success."""
        ...


class CgroupReader(Protocol):
    """Usage, limits and members of cgroups."""

    def usage(self, path: str, now_ns: int) -> CgroupUsage | None: ...

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool, counters: bool) -> CgroupDetail: ...

    def bounds(self, path: str) -> CgroupBounds: ...

    def exists(self, path: str) -> bool: ...

    def locate(self, parent: str, container_id: str) -> str | None: ...

    def processes(self, path: str) -> tuple[int, ...]: ...

    def created_ns(self, path: str) -> int: ...

    def oom_kills(self, path: str) -> int | None: ...


class HostReader(Protocol):
    """Usage of the machine's disks, network and processes."""

    def filesystem(self, path: str, now_ns: int) -> FsUsage | None: ...

    def folder(self, path: str, now_ns: int, *, deep: bool = True) -> FolderUsage | None: ...

    def file(self, path: str, now_ns: int) -> FolderUsage | None: ...

    def boot_seconds(self) -> int: ...

    def tasks(self, now_ns: int) -> TaskCounts | None: ...

    def network(self, now_ns: int, pid: int | None = None) -> NetworkCounters | None: ...

    def disks(self) -> tuple[DiskCounters, ...]: ...

    def processes(self, pids: tuple[int, ...]) -> ProcessCounts: ...
