"""local: a folder or disk of this node as a persistent volume. Folders are bound, disks mounted once and bound."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pykubelet.clients.host.port import Mounts, VolumePaths
from pykubelet.volumes.plugins.filesystems import DeviceMounts
from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import Files, SetUp
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.spec import LOCAL


class LocalVolume(MountedPlugin):
    name = LOCAL

    def __init__(self, *, mounts: Mounts, paths: VolumePaths) -> None:
        super().__init__(mounts=mounts, paths=paths)
        self._top = paths.plugins / LOCAL / "mounts"
        self._devices = DeviceMounts(mounts=mounts, top=self._top, pods=paths.pods)

    def mount(self, task: SetUp, files: Files | None) -> None:
        source, mode = self._source(task)
        if stat.S_ISDIR(mode):
            self._mounts.bind(source, task.path, read_only=task.spec.read_only)
            return
        if not stat.S_ISBLK(mode):
            raise VolumeProblem(f"local volume {source} is neither a directory nor a block device")
        place = self._top / task.spec.persistent
        fs_type = (task.spec.local.fs_type if task.spec.local else "") or "ext4"
        self._devices.show(str(source), place, task, fs_type)

    def device_of(self, task: SetUp, files: Files | None) -> str:
        source, mode = self._source(task)
        if not stat.S_ISBLK(mode):
            raise VolumeProblem(f"local volume {source} is no block device")
        return str(source)

    def released(self) -> None:
        self._devices.free_unused()

    def _source(self, task: SetUp) -> tuple[Path, int]:
        path = (task.spec.local.path if task.spec.local else "") or ""
        if ".." in path.split("/"):
            raise VolumeProblem(f"local volume {path} must not contain '..'")
        try:
            return Path(path), os.stat(path).st_mode
        except OSError as error:
            raise VolumeProblem(f"local volume {path}: {error.strerror}") from error
