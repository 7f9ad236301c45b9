"""After a restart: which volumes an earlier life of the agent left, read from the folders of pods.

Only names are read, so a dead file server cannot stop the start. Everything found counts as uncertain: it is
set up again if its pod still wants it and torn down if not. A hostPath leaves no folder; it is found by the
places its subPaths have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pykubelet.api.types import Volume
from pykubelet.clients.host.port import VolumePaths
from pykubelet.volumes.spec import HOST_PATH, VolumeSpec


class Found(NamedTuple):
    uid: str
    plugin: str
    folder: str
    block: bool = False

    def spec(self) -> VolumeSpec:
        """As much of a spec as tear-down needs."""
        return VolumeSpec(
            name=self.folder,
            folder=self.folder,
            plugin=self.plugin,
            volume=Volume(name=self.folder),
            block=self.block,
        )


def scan(paths: VolumePaths) -> list[Found]:
    """All volumes on disk. Blocking, quick."""
    found: list[Found] = []
    for uid in _folders(paths.pods):
        volumes = list(_volumes(uid, paths.volumes(uid), block=False))
        volumes += _volumes(uid, paths.volume_devices(uid), block=True)
        known = {volume.folder for volume in volumes}
        volumes += (Found(uid, HOST_PATH, name) for name in _folders(paths.subpaths(uid)) if name not in known)
        found += volumes
    return found


def _volumes(uid: str, top: Path, *, block: bool) -> Iterator[Found]:
    for plugin in _folders(top):
        for name in _names(top / plugin) if block else _folders(top / plugin):
            yield Found(uid, plugin.replace("~", "/"), name, block)


def _folders(top: Path) -> list[str]:
    try:
        with os.scandir(top) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _names(top: Path) -> list[str]:
    try:
        return sorted(os.listdir(top))
    except (FileNotFoundError, NotADirectoryError):
        return []
