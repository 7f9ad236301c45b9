"""Reconstruction: finds the volumes of an earlier run of the agent in the folders of pods.

Only names are read, so a hanging file server cannot block the start. Everything found is uncertain: it is set up again
if its pod still uses it and torn down if not. A hostPath leaves no folder; it is found by its subPath mounts.

Attachable volumes have a note with their unique name below the pod's folder. It is written before the volume is set up
and removed after tear-down, so that the node can report what it uses even if the pod and its claim are gone by then.
Volumes mounted by another agent have no note and are identified by the node's own mount of the disk. CSI volumes have
upstream's records.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pykubelet.api.types import Volume
from pykubelet.clients.host.port import MountEntry, NodePaths
from pykubelet.kit.files import write_atomic
from pykubelet.volumes.plugins.plugin import make_folder
from pykubelet.volumes.spec import FC, HOST_PATH, ISCSI, VolumeSpec

ISCSI_PORT = ":3260"


class Found(NamedTuple):
    uid: str
    plugin: str
    folder: str
    block: bool = False
    attached: tuple[str, ...] = ()
    """Its unique name, if it is attachable; several when it must be one of them."""

    def spec(self) -> VolumeSpec:
        """The part of a spec that tear-down needs."""
        return VolumeSpec(
            name=self.folder,
            folder=self.folder,
            plugin=self.plugin,
            volume=Volume(name=self.folder),
            block=self.block,
            attached=self.attached,
        )


def _note(paths: NodePaths, uid: str, plugin: str, folder: str) -> Path:
    return paths.pod(uid) / "attached" / plugin.replace("/", "~") / folder


def note_attached(paths: NodePaths, uid: str, spec: VolumeSpec, unique: str) -> None:
    """Call before the volume is set up."""
    note = _note(paths, uid, spec.plugin, spec.folder)
    if _read(note) != unique:
        make_folder(note.parent)
        write_atomic(note, unique.encode(), mode=0o600)


def forget_attached(paths: NodePaths, uid: str, spec: VolumeSpec) -> None:
    """Call after the volume was torn down."""
    note = _note(paths, uid, spec.plugin, spec.folder)
    with contextlib.suppress(FileNotFoundError):
        note.unlink()
    for folder in (note.parent, note.parent.parent):
        with contextlib.suppress(OSError):  # other volumes have notes in it
            os.rmdir(folder)


def _read(note: Path) -> str:
    try:
        return note.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""


def names_by_place(plugin: str, place: str) -> tuple[str, ...]:
    """Unique names of a disk from its folder on the node, upstream's `<target>-lun-<n>` or ids."""
    target, is_lun, lun = place.rpartition("-lun-")
    if plugin == FC:
        return (f"{FC}/[{target.replace('-', ' ')}]:{lun}" if is_lun else f"{FC}/[{place.replace('-', ' ')}]",)
    for mark in ("-iqn.", "-eui.", "-naa."):
        portal, known, rest = target.partition(mark)
        if known:
            # The folder has the port even if the volume's source has none.
            portals = dict.fromkeys((portal, portal.removesuffix(ISCSI_PORT)))
            return tuple(f"{ISCSI}/{each}:{mark[1:]}{rest}:{lun}" for each in portals)
    return ()


def _with_places(paths: NodePaths, table: Sequence[MountEntry], volume: Found) -> Found:
    if volume.plugin not in (ISCSI, FC) or volume.attached:
        return volume
    point, top = str(paths.volume(volume.uid, volume.plugin, volume.folder)), f"{paths.plugins / volume.plugin}/"
    devices = {entry.device for entry in table if entry.mount_point == point}
    for entry in table:
        if entry.device in devices and entry.mount_point.startswith(top):
            return volume._replace(attached=names_by_place(volume.plugin, Path(entry.mount_point).name))
    return volume


def scan(paths: NodePaths, table: Sequence[MountEntry] = ()) -> list[Found]:
    """All volumes on disk; `table` is the mount table of the node. Blocking, quick."""
    found: list[Found] = []
    for uid in _folders(paths.pods):
        volumes = list(_volumes(uid, paths.volumes(uid), block=False))
        volumes += _volumes(uid, paths.volume_devices(uid), block=True)
        volumes = [_with_places(paths, table, volume) for volume in _with_notes(paths, uid, volumes)]
        known = {volume.folder for volume in volumes}
        volumes += (Found(uid, HOST_PATH, name) for name in _folders(paths.subpaths(uid)) if name not in known)
        found += volumes
    return found


def _with_notes(paths: NodePaths, uid: str, volumes: list[Found]) -> Iterator[Found]:
    noted = {
        (plugin.replace("~", "/"), name): _read(paths.pod(uid) / "attached" / plugin / name)
        for plugin in _folders(paths.pod(uid) / "attached")
        for name in _names(paths.pod(uid) / "attached" / plugin)
        if not name.startswith(".")  # a temporary file of a killed agent
    }
    for volume in volumes:
        unique = noted.pop((volume.plugin, volume.folder), "")
        yield volume._replace(attached=(unique,) if unique else ())
    for (plugin, name), unique in noted.items():
        yield Found(uid, plugin, name, attached=(unique,))


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
