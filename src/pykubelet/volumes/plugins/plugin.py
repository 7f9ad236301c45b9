"""The interface of volume plugins, and what it is passed.

A plugin gathers what it needs from the API server (async, no files), then sets up (blocking, files only), and later
tears down knowing only the pod's uid and the folder's name, because after a restart nothing else is known. All three
may be repeated at any time and after any interruption.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pykubelet.api.types import Pod
from pykubelet.clients.host.port import Mounts
from pykubelet.model.pod import uid_of
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.spec import VolumeSpec, VolumeUsage

FOLDER_MODE = 0o750
TOOL_SECONDS = 110.0
"""Deadline of one host program; below that of the whole operation, so that its own error is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    data: bytes
    mode: int
    uid: int | None = None
    """Owner; None = root."""


Files = Mapping[str, FileContent]
"""Content of a volume by relative path."""


@dataclass(slots=True)
class Feedback:
    """Progress of a set-up that runs in a thread; written there, read elsewhere."""

    files: int = 0
    """Files whose owner was changed so far."""
    warnings: list[tuple[str, str]] = field(default_factory=list)
    """Reason and message of events to publish."""

    def progress(self, files: int) -> None:
        self.files = files


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    pod: Pod
    spec: VolumeSpec
    path: Path
    """The volume's folder below the pod's."""
    fs_user: int | None = None
    nested: tuple[str, ...] = ()
    """Folders inside this volume on which other volumes will be mounted."""
    label: str = ""
    """SELinux label to mount it with; empty: none."""
    unique_name: str = ""
    """Set when it has to be attached."""
    device: str = ""
    """The device path from when it was attached; empty for kinds that look for it themselves."""
    feedback: Feedback = field(default_factory=Feedback, compare=False)

    @property
    def uid(self) -> str:
        return uid_of(self.pod)

    @property
    def fs_group(self) -> int | None:
        return self.pod.spec.security_context.fs_group if self.pod.spec.security_context else None

    @property
    def on_root_mismatch(self) -> bool:
        context = self.pod.spec.security_context
        return context is not None and context.fs_group_change_policy == "OnRootMismatch"


class VolumePlugin(Protocol):
    @property
    def name(self) -> str:
        """In full, e.g. kubernetes.io/empty-dir."""
        ...

    @property
    def requires_remount(self) -> bool:
        """Whether set-up is repeated to update the content of a running pod's volume."""
        ...

    @property
    def selinux_relabel(self) -> bool:
        """Whether the runtime may relabel the volume for SELinux: only volumes that no one but the pod uses."""
        ...

    def mounts_with_label(self, spec: VolumeSpec) -> bool:
        """Whether the volume can be mounted with an SELinux label for all its files."""
        ...

    def is_quick(self, spec: VolumeSpec) -> bool:
        """Whether set-up takes microseconds and cannot hang, so that it may run on the loop."""
        ...

    def unique_name(self, spec: VolumeSpec) -> str:
        """Unique name of a volume that has to be attached to nodes; empty for all others."""
        ...

    async def ready(self) -> None:
        """Wait until the synchronous questions below can be answered."""
        ...

    @property
    def cannot_attach(self) -> str:
        """Why set-up cannot attach a volume that the control plane leaves to this agent; empty when it can."""
        ...

    async def attach_error(self, spec: VolumeSpec) -> str:
        """Why the volume is not attached to this node; empty when unknown."""
        ...

    async def node_is_full(self, spec: VolumeSpec) -> bool:
        """Whether the volume is not attached because this node has as many as it can have."""
        ...

    def reconstruct(self) -> None:
        """Read from disk what an earlier run of the agent left on the node. Blocking; called first."""
        ...

    def reconstruct_spec(self, uid: str, found: VolumeSpec) -> VolumeSpec:
        """Complete the spec of a volume found on disk. Blocking."""
        ...

    def in_use(self) -> Iterable[str]:
        """Unique names of volumes that are on the node itself, whether a pod uses them or not."""
        ...

    def mount_path(self, path: Path, spec: VolumeSpec) -> Path:
        """The path that is mounted into containers: the volume's folder, or a path of the host."""
        ...

    def is_read_only(self, spec: VolumeSpec) -> bool: ...

    async def usage(self, uid: str, spec: VolumeSpec) -> VolumeUsage | None:
        """Usage as the volume's driver reports it; None: measure the filesystem."""
        ...

    async def gather(self, task: SetUp) -> Files | None: ...

    def set_up(self, task: SetUp, files: Files | None) -> None: ...

    def tear_down(self, uid: str, folder: str) -> None: ...


Waiting = Callable[[str], None]
"""Called with what a volume waits for right now."""


def make_folder(path: Path) -> None:
    """The folder and its parents, 0750 each."""
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_folder(path.parent)
        make_folder(path)


def unmount_below(mounts: Mounts, path: Path) -> None:
    """Unmount all that is mounted at or below `path`, innermost first."""
    prefix = f"{path}/"
    points = {e.mount_point for e in mounts.table() if e.mount_point == str(path) or e.mount_point.startswith(prefix)}
    for point in sorted(points, key=len, reverse=True):
        mounts.unmount(Path(point))


def remove_empty(path: Path) -> None:
    """Remove a mount point; refuses when it is not empty."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise VolumeProblem(f"cannot remove {path}: {error.strerror}") from error


class PluginDefaults:
    """Defaults that fit most plugins."""

    requires_remount = False
    selinux_relabel = True
    cannot_attach = ""

    def mounts_with_label(self, spec: VolumeSpec) -> bool:
        return False

    def is_quick(self, spec: VolumeSpec) -> bool:
        return False

    def unique_name(self, spec: VolumeSpec) -> str:
        return ""

    def reconstruct(self) -> None:
        return

    def reconstruct_spec(self, uid: str, found: VolumeSpec) -> VolumeSpec:
        return found

    def in_use(self) -> Iterable[str]:
        return ()

    async def ready(self) -> None:
        return

    async def attach_error(self, spec: VolumeSpec) -> str:
        return ""

    async def node_is_full(self, spec: VolumeSpec) -> bool:
        return False

    def mount_path(self, path: Path, spec: VolumeSpec) -> Path:
        return path

    def is_read_only(self, spec: VolumeSpec) -> bool:
        return spec.read_only

    async def usage(self, uid: str, spec: VolumeSpec) -> VolumeUsage | None:
        return None

    async def gather(self, task: SetUp) -> Files | None:
        return None


class RemotePlugin(PluginDefaults):
    """A kind whose volumes an external driver mounts: called on the loop, with deadlines."""

    async def publish(self, task: SetUp, waiting: Waiting) -> None:
        """Called instead of `set_up`; stages the volume first."""
        raise NotImplementedError

    async def unpublish(self, uid: str, spec: VolumeSpec, waiting: Waiting) -> None:
        """Called instead of `tear_down`."""
        raise NotImplementedError

    async def unstage(self, spec: VolumeSpec, waiting: Waiting) -> None:
        """After `unpublish`: unstage it from the node if no other pod has it."""
        raise NotImplementedError

    def set_up(self, task: SetUp, files: Files | None) -> None:
        raise NotImplementedError("use publish()")

    def tear_down(self, uid: str, folder: str) -> None:
        raise NotImplementedError("use unpublish()")
