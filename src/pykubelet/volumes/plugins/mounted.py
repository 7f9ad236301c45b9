"""Volumes that are mounts of something else: the base class of local, nfs, iscsi and fc; local and nfs themselves.

The pod's folder is only a mount point: tear-down unmounts it and removes it only if it is empty then, so that no
clean-up can reach the data behind it. A marker records that set-up was finished, so that a restarted agent does not
walk a big volume for its fsGroup again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path

from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.volumes import ownership
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.disks import DeviceMounts, Note
from pykubelet.volumes.plugins.plugin import TOOL_SECONDS, Files, PluginDefaults, SetUp, make_folder, remove_empty
from pykubelet.volumes.plugins.validation import fs_type, host, line
from pykubelet.volumes.spec import LOCAL, NFS


class MountedPlugin(PluginDefaults):
    name = ""
    owned = True
    """Whether fsGroup is applied to it."""
    first_pod_owns = False
    """Whether only the first pod's fsGroup is applied, and the others get an event."""

    def __init__(self, *, mounts: Mounts, paths: NodePaths) -> None:
        self._mounts = mounts
        self._paths = paths

    def using(self, task: SetUp) -> AbstractContextManager[None]:
        """Entered around set-up."""
        return contextlib.nullcontext()

    def mount(self, task: SetUp, files: Files | None) -> None:
        """Mount the thing at `task.path`, which exists and is no mount yet."""
        raise NotImplementedError

    def released(self, uid: str, folder: str) -> None:
        """Called when a pod's mount is gone, to release the disk with its last user. Repeated if it fails."""

    def device_of(self, task: SetUp, files: Files | None) -> str:
        """The block device of a volume with volumeMode Block."""
        raise VolumeProblem(f"volumes of kind {self.name} cannot be used as block devices by this agent")

    def set_up(self, task: SetUp, files: Files | None) -> None:
        with self.using(task):
            if task.spec.block:
                self._link_device(task, self.device_of(task, files))
                return
            marker = self._marker(task.uid, task.spec.folder)
            mounted = self.is_mounted(task.path)
            if mounted and marker.exists():
                return
            make_folder(task.path)
            if not mounted:
                self.mount(task, files)
        if self.owned and not task.spec.read_only:
            self._give(task)
        make_folder(marker.parent)
        marker.touch()

    def _give(self, task: SetUp) -> None:
        if not self.first_pod_owns or self._is_first(task):
            ownership.give(
                task.path,
                task.fs_group,
                on_root_mismatch=task.on_root_mismatch,
                progress=task.feedback.progress,
            )
        elif task.fs_group is not None and (found := os.stat(task.path).st_gid) != task.fs_group:
            text = (
                f"The requested fsGroup is {task.fs_group}, but the volume {task.spec.name} has GID {found}. "
                "The volume may not be shareable."
            )
            task.feedback.warnings.append(("AlreadyMountedVolume", text))

    def tear_down(self, uid: str, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._marker(uid, folder).unlink()
        path = self._paths.volume(uid, self.name, folder)
        self.unmount(path)
        self.released(uid, folder)
        # Last, so that the next run of the agent finds what this one could not release.
        with contextlib.suppress(FileNotFoundError):
            self._device_link(uid, folder).unlink()
        remove_empty(path)
        self._mounts.remove_tree(self._marker(uid, folder).parent)

    def unmount(self, path: Path) -> None:
        self._mounts.unmount(path)

    def is_mounted(self, path: Path) -> bool:
        return any(entry.mount_point == str(path) for entry in self._mounts.table())

    def _is_first(self, task: SetUp) -> bool:
        """Whether no other pod uses the volume: changing the group under another pod would break it."""
        pods, tail = f"{self._paths.pods}/", f"/{self.name.replace('/', '~')}/{task.spec.folder}"
        others = (e.mount_point for e in self._mounts.table() if e.mount_point != str(task.path))
        return not any(point.startswith(pods) and point.endswith(tail) for point in others)

    def _device_link(self, uid: str, folder: str) -> Path:
        return self._paths.volume_devices(uid) / self.name.replace("/", "~") / folder

    def _link_device(self, task: SetUp, device: str) -> None:
        link = self._device_link(task.uid, task.spec.folder)
        make_folder(link.parent)
        if os.path.lexists(link):
            if os.readlink(link) == device:
                return
            link.unlink()
        link.symlink_to(device)

    def _marker(self, uid: str, folder: str) -> Path:
        return self._paths.plugin_data(uid, self.name, folder) / "ready"


FORCE_AFTER = 60.0
"""Seconds an unmount may wait for a server before it is forced."""


class NfsVolume(MountedPlugin):
    name = NFS
    owned = False
    selinux_relabel = False

    def mount(self, task: SetUp, files: Files | None) -> None:
        source = task.spec.volume.nfs
        assert source is not None
        server = host(source.server, "nfs.server")
        shown = f"[{server}]" if ":" in server and not server.startswith("[") else server
        options = (*task.spec.mount_options, "ro") if task.spec.read_only else task.spec.mount_options
        exported = f"{shown}:{line(source.path or '', 'nfs.path')}"
        self._mounts.by_tool(exported, task.path, fs_type="nfs", options=options, seconds=TOOL_SECONDS)

    def unmount(self, path: Path) -> None:
        self._mounts.unmount_forced(path, seconds=FORCE_AFTER)


class LocalVolume(MountedPlugin):
    name = LOCAL
    first_pod_owns = True

    def __init__(self, *, mounts: Mounts, paths: NodePaths) -> None:
        super().__init__(mounts=mounts, paths=paths)
        self._top = paths.plugins / LOCAL / "mounts"
        self._devices = DeviceMounts(mounts=mounts, paths=paths, plugin=LOCAL, top=self._top)

    def using(self, task: SetUp) -> AbstractContextManager[None]:
        return self._devices.used(task, Note(place=str(self._place(task))))

    def mount(self, task: SetUp, files: Files | None) -> None:
        source, mode = self._source(task)
        if stat.S_ISDIR(mode):
            options = task.spec.mount_options
            self._mounts.bind(source, task.path, read_only=task.spec.read_only, options=options)
            return
        if not stat.S_ISBLK(mode):
            raise VolumeProblem(f"local volume {source} is neither a directory nor a block device")
        kind = fs_type(task.spec.local.fs_type if task.spec.local else None, "local.fsType")
        self._devices.show(str(source), self._place(task), task, kind)

    def device_of(self, task: SetUp, files: Files | None) -> str:
        source, mode = self._source(task)
        if not stat.S_ISBLK(mode):
            raise VolumeProblem(f"local volume {source} is no block device")
        return str(source)

    def released(self, uid: str, folder: str) -> None:
        # A disk of this node is not detached.
        self._devices.release(uid, folder, lambda place, record: True)

    def _place(self, task: SetUp) -> Path:
        return self._top / task.spec.persistent

    def _source(self, task: SetUp) -> tuple[Path, int]:
        path = (task.spec.local.path if task.spec.local else "") or ""
        if ".." in path.split("/"):
            raise VolumeProblem(f"local volume {path} must not contain '..'")
        source = Path("/", path)  # as upstream takes a path without a slash
        try:
            return source, os.stat(source).st_mode
        except OSError as error:
            raise VolumeProblem(f"local volume {path}: {error.strerror}") from error
