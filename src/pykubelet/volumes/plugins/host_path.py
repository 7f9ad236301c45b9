"""hostPath: a path of the host as it is. Nothing is mounted or removed; only its type is checked."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pykubelet.clients.host.port import NodePaths
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.plugin import Files, PluginDefaults, SetUp
from pykubelet.volumes.spec import HOST_PATH, VolumeSpec

TYPES = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


def check_type(path: str, kind: str) -> None:
    """Create the path if its type allows it, then check that it has the type."""
    if not kind:
        return
    if kind not in TYPES:
        raise VolumeProblem(f"{kind} is an invalid volume type")
    fits, called = TYPES[kind]
    if kind.endswith("OrCreate") and not os.path.exists(path):
        _create(path, kind)
    try:
        found = os.stat(path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = f"{path} is not {called}" if missing else f"{path}: {error.strerror}"
        raise VolumeProblem(f"hostPath type check failed: {why}") from error
    if not fits(found.st_mode):
        raise VolumeProblem(f"hostPath type check failed: {path} is not {called}")


def _create(path: str, kind: str) -> None:
    try:
        if kind == "DirectoryOrCreate":
            os.makedirs(path, 0o755, exist_ok=True)
        else:
            # At the target of a dangling link, as upstream.
            place = os.path.realpath(path)
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return
    except OSError as error:
        raise VolumeProblem(f"hostPath {path} cannot be created: {error.strerror}") from error


class HostPath(PluginDefaults):
    name = HOST_PATH
    selinux_relabel = False

    def __init__(self, *, paths: NodePaths) -> None:
        self._paths = paths

    def is_quick(self, spec: VolumeSpec) -> bool:
        # A type check stats a path of the host, which may be on a file server that hangs.
        return not (spec.volume.host_path and spec.volume.host_path.type)

    def mount_path(self, path: Path, spec: VolumeSpec) -> Path:
        return Path((spec.volume.host_path.path if spec.volume.host_path else "") or "")

    def set_up(self, task: SetUp, files: Files | None) -> None:
        source = task.spec.volume.host_path
        path = (source.path if source else "") or ""
        if ".." in path.split("/"):
            raise VolumeProblem(f"hostPath {path} must not contain '..'")
        if task.spec.mount_options:
            raise VolumeProblem(
                f"mount options {','.join(task.spec.mount_options)} of persistent volume {task.spec.persistent} "
                "are not supported for hostPath volumes"
            )
        check_type(path, (source.type if source else "") or "")

    def tear_down(self, uid: str, folder: str) -> None:
        """Nothing to remove."""
