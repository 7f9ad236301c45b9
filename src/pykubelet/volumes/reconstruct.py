"""After a restart: which volumes an earlier life of the agent left, read from the folders of pods.

Only names are read, so a dead file server cannot stop the start. Everything found counts as uncertain: it is
set up again if its pod still wants it and torn down if not. A hostPath leaves no folder; it is found by the
places its subPaths have.

Volumes that the control plane attaches have a note of their unique name below the pod's folder. It comes before the
volume and goes after it, so that the node can say what it uses even if the pod and its claim are gone by then. CSI
volumes have upstream's own records for that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pykubelet.api.types import Volume
from pykubelet.clients.host.port import VolumePaths
from pykubelet.kit.files import write_atomic
from pykubelet.volumes.plugins.plugin import make_folder
from pykubelet.volumes.spec import HOST_PATH, VolumeSpec


class Found(NamedTuple):
    uid: str
    plugin: str
    folder: str
    block: bool = False
    attached: str = ""
    """Its unique name, if it is one the control plane attaches."""

    def spec(self) -> VolumeSpec:
        """As much of a spec as tear-down needs."""
        return VolumeSpec(
            name=self.folder,
            folder=self.folder,
            plugin=self.plugin,
            volume=Volume(name=self.folder),
            block=self.block,
            attached=self.attached,
        )


def _note(paths: VolumePaths, uid: str, plugin: str, folder: str) -> Path:
    return paths.pod(uid) / "attached" / plugin.replace("/", "~") / folder


def note_attached(paths: VolumePaths, uid: str, spec: VolumeSpec, unique: str) -> None:
    """Before the volume is set up."""
    note = _note(paths, uid, spec.plugin, spec.folder)
    if _read(note) != unique:
        make_folder(note.parent)
        write_atomic(note, unique.encode(), mode=0o600)


def forget_attached(paths: VolumePaths, uid: str, spec: VolumeSpec) -> None:
    """After it was torn down."""
    note = _note(paths, uid, spec.plugin, spec.folder)
    with contextlib.suppress(FileNotFoundError):
        note.unlink()
    for folder in (note.parent, note.parent.parent):
        with contextlib.suppress(OSError):  # other volumes have theirs in it
            os.rmdir(folder)


def _read(note: Path) -> str:
    try:
        return note.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""


def scan(paths: VolumePaths) -> list[Found]:
    """All volumes on disk. Blocking, quick."""
    found: list[Found] = []
    for uid in _folders(paths.pods):
        volumes = list(_volumes(uid, paths.volumes(uid), block=False))
        volumes += _volumes(uid, paths.volume_devices(uid), block=True)
        volumes = list(_with_notes(paths, uid, volumes))
        known = {volume.folder for volume in volumes}
        volumes += (Found(uid, HOST_PATH, name) for name in _folders(paths.subpaths(uid)) if name not in known)
        found += volumes
    return found


def _with_notes(paths: VolumePaths, uid: str, volumes: list[Found]) -> Iterator[Found]:
    noted = {
        (plugin.replace("~", "/"), name): _read(paths.pod(uid) / "attached" / plugin / name)
        for plugin in _folders(paths.pod(uid) / "attached")
        for name in _names(paths.pod(uid) / "attached" / plugin)
        if not name.startswith(".")  # a note that was being written when the agent was killed
    }
    for volume in volumes:
        yield volume._replace(attached=noted.pop((volume.plugin, volume.folder), ""))
    for (plugin, name), attached in noted.items():
        yield Found(uid, plugin, name, attached=attached)


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
