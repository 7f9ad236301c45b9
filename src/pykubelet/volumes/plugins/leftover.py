"""Volumes of kinds nobody here knows, found on disk after a restart: unmounted, and removed only if that leaves
their folder empty. What is in it is somebody else's data."""

from __future__ import annotations

import os
from pathlib import Path

from pykubelet.clients.host.port import Mounts, VolumePaths
from pykubelet.volumes.plugins.plugin import Files, PluginDefaults, SetUp
from pykubelet.volumes.problems import VolumeProblem


class Leftover(PluginDefaults):
    def __init__(self, name: str, *, mounts: Mounts, paths: VolumePaths) -> None:
        self.name = name
        self._mounts = mounts
        self._paths = paths

    def set_up(self, task: SetUp, files: Files | None) -> None:
        raise VolumeProblem(f"no plugin {self.name} is registered on this node")

    def tear_down(self, uid: str, folder: str) -> None:
        path = self._paths.volume(uid, self.name, folder)
        unmount_below(self._mounts, path)
        remove_empty(path)


def unmount_below(mounts: Mounts, path: Path) -> None:
    """Unmount all that is mounted at or below `path`, innermost first."""
    prefix = f"{path}/"
    points = {e.mount_point for e in mounts.table() if e.mount_point == str(path) or e.mount_point.startswith(prefix)}
    for point in sorted(points, key=len, reverse=True):
        mounts.unmount(Path(point))


def remove_empty(path: Path) -> None:
    """Remove a mount point; refuses when anything is in it, because then it is not ours to remove."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise VolumeProblem(f"cannot remove {path}: {error.strerror}") from error
