"""What volumes that are mounts of something else share: local, nfs, iscsi, fc.

The pod's folder is a mount point and nothing more: on tear-down it is unmounted and removed only if it is empty
then, so that data behind it is out of reach of any clean-up. A marker says that set-up was finished, so an agent
that restarts does not walk a big volume for its fsGroup again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from pykubelet.clients.host.port import Mounts, ToolMissing, VolumePaths
from pykubelet.volumes import ownership
from pykubelet.volumes.plugins.leftover import remove_empty
from pykubelet.volumes.plugins.plugin import TOOL_SECONDS, Files, PluginDefaults, SetUp, make_folder
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.selinux import mount_option


class MountedPlugin(PluginDefaults):
    name = ""
    owned = True
    """Whether fsGroup is applied to it."""

    def __init__(self, *, mounts: Mounts, paths: VolumePaths) -> None:
        self._mounts = mounts
        self._paths = paths

    def mount(self, task: SetUp, files: Files | None) -> None:
        """Mount the thing at `task.path`, which exists and is no mount yet."""
        raise NotImplementedError

    def released(self) -> None:
        """A pod's mount is gone; if it was the last of its disk, the node's own mount may go, too."""

    def device_of(self, task: SetUp, files: Files | None) -> str:
        """The block device of a volume that is passed on as one."""
        raise VolumeProblem(f"volumes of kind {self.name} cannot be used as block devices by this agent")

    def set_up(self, task: SetUp, files: Files | None) -> None:
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
        if self._is_first(task):
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
        link = self._paths.volume_devices(uid) / self.name.replace("/", "~") / folder
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        path = self._paths.volume(uid, self.name, folder)
        self.unmount(path)
        remove_empty(path)
        self._mounts.remove_tree(self._marker(uid, folder).parent)
        self.released()

    def unmount(self, path: Path) -> None:
        self._mounts.unmount(path)

    def is_mounted(self, path: Path) -> bool:
        return any(entry.mount_point == str(path) for entry in self._mounts.table())

    def _is_first(self, task: SetUp) -> bool:
        """Another pod that has the volume already chose its group; changing it under that pod would break it."""
        pods, tail = f"{self._paths.pods}/", f"/{self.name.replace('/', '~')}/{task.spec.folder}"
        others = (e.mount_point for e in self._mounts.table() if e.mount_point != str(task.path))
        return not any(point.startswith(pods) and point.endswith(tail) for point in others)

    def _link_device(self, task: SetUp, device: str) -> None:
        link = self._paths.volume_devices(task.uid) / self.name.replace("/", "~") / task.spec.folder
        make_folder(link.parent)
        if os.path.lexists(link):
            if os.readlink(link) == device:
                return
            link.unlink()
        link.symlink_to(device)

    def _marker(self, uid: str, folder: str) -> Path:
        return self._paths.plugin_data(uid, self.name, folder) / "ready"


class DeviceMounts:
    """Filesystems on block devices, each mounted once on the node and bound into every pod that has it."""

    def __init__(self, *, mounts: Mounts, top: Path, pods: Path) -> None:
        self._mounts = mounts
        self._top = top
        self._pods = pods
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """One operation at a time on one disk or target; others go on."""
        with self._lock(key):
            yield

    def show(self, device: str, place: Path, task: SetUp, fs_type: str) -> None:
        """Mount the device at `place` unless it is there already, and show that at the pod's folder."""
        spec = task.spec
        # Held until the pod's mount exists, so that nobody frees the place between the two.
        with self._lock(str(place)):
            if not any(entry.mount_point == str(place) for entry in self._mounts.table()):
                make_folder(place)
                options = (*spec.mount_options, *mount_option(task.label), *(("ro",) if spec.read_only else ()))
                prepare_filesystem(self._mounts, device, fs_type, read_only=spec.read_only)
                self._mounts.by_tool(
                    device, place, fs_type=fs_type, options=options or ("defaults",), seconds=TOOL_SECONDS
                )
            self._mounts.bind(place, task.path, read_only=spec.read_only)

    def free_unused(self) -> list[Path]:
        """Unmount the node's own mounts of disks that no pod has any more, also what a killed agent left."""
        freed = []
        for point in self._unused():
            lock = self._lock(point)
            if not lock.acquire(blocking=False):
                continue  # a pod is just getting it
            try:
                if point in self._unused():
                    self._mounts.unmount(Path(point))
                    remove_empty(Path(point))
                    freed.append(Path(point))
            finally:
                lock.release()
        return freed

    def _unused(self) -> list[str]:
        table = self._mounts.table()
        used = {entry.device for entry in table if entry.mount_point.startswith(f"{self._pods}/")}
        return [e.mount_point for e in table if e.mount_point.startswith(f"{self._top}/") and e.device not in used]

    def _lock(self, key: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(key, threading.Lock())


def prepare_filesystem(mounts: Mounts, device: str, fs_type: str, *, read_only: bool) -> None:
    """Check what is on a device, and make a filesystem only if it is certain that there is nothing.

    `blkid` ends with 2 and says nothing for a blank device; anything it cannot decide is an error, not a reason
    to format.
    """
    told = mounts.run("blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device, seconds=60, allow=(2,))
    facts = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    if "PTTYPE" in facts and "TYPE" not in facts:
        raise VolumeProblem(f"{device} holds a partition table and is not formatted")
    if "TYPE" not in facts:
        if read_only:
            raise VolumeProblem(f"{device} has no filesystem and is read-only")
        quiet = ("-F", "-m0") if fs_type.startswith("ext") else ()
        mounts.run(f"mkfs.{fs_type}", *quiet, device, seconds=TOOL_SECONDS)
    elif facts["TYPE"] != fs_type:
        raise VolumeProblem(f"{device} holds {facts['TYPE']}, but {fs_type} is asked for")
    elif not read_only:
        with contextlib.suppress(ToolMissing):
            mounts.run("fsck", "-a", device, seconds=TOOL_SECONDS, allow=(1,))
