"""local: a folder or disk of this node as a persistent volume. Folders are bound, disks mounted once and bound."""

from __future__ import annotations

import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path

from pykubelet.clients.host.port import Mounts, VolumePaths
from pykubelet.volumes.plugins.filesystems import DeviceMounts, Note
from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import Files, SetUp
from pykubelet.volumes.plugins.words import fs_type
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.spec import LOCAL


class LocalVolume(MountedPlugin):
    name = LOCAL
    first_pod_owns = True

    def __init__(self, *, mounts: Mounts, paths: VolumePaths) -> None:
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
        # A disk of this node stays where it is.
        self._devices.give_back(uid, folder, lambda place, record: True)

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
