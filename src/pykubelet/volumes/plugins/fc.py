"""fc: a Fibre Channel disk, found by target WWNs and lun or by WWIDs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from pykubelet.api.types import FCVolumeSource
from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.disks import APPEAR_SECONDS, BLOCK, MAP_SECONDS, DeviceMounts, Note, ScsiDisks
from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import Files, SetUp
from pykubelet.volumes.plugins.validation import fs_type, word
from pykubelet.volumes.reconstruct import names_by_place
from pykubelet.volumes.spec import FC, VolumeSpec


def unique_name(source: FCVolumeSource) -> str:
    """The disk's name in volumesAttached, in Go's way to print lists."""
    if source.target_wwns and source.lun is not None:
        return f"[{' '.join(source.target_wwns)}]:{source.lun}"
    return f"[{' '.join(source.wwids)}]" if source.wwids else ""


def global_name(source: FCVolumeSource) -> str:
    """The disk's folder on the node; every part is validated."""
    if source.target_wwns and source.lun is not None:
        names = [word(name, "fc.targetWWNs") for name in source.target_wwns]
        return word(f"{'-'.join(names)}-lun-{source.lun}", "fc.targetWWNs")
    if source.wwids:
        return word("-".join(word(name.replace(" ", "_"), "fc.wwids") for name in source.wwids), "fc.wwids")
    raise VolumeProblem("fc volume names neither targetWWNs with a lun nor wwids")


def link_names(source: FCVolumeSource) -> tuple[str, re.Pattern[str]]:
    """In which folder below /dev/disk udev puts links to the disk, and their names."""
    if source.target_wwns and source.lun is not None:
        names = "|".join(re.escape(wwn.lower()) for wwn in source.target_wwns)
        return "by-path", re.compile(rf"(pci-.*-)?fc-0x({names})-lun-{source.lun}")
    names = "|".join(re.escape(wwid.replace(" ", "_")) for wwid in source.wwids)
    return "by-id", re.compile(rf"scsi-({names})")


class FcVolume(MountedPlugin):
    name = FC

    def __init__(self, *, mounts: Mounts, paths: NodePaths, disks: ScsiDisks | None = None) -> None:
        super().__init__(mounts=mounts, paths=paths)
        self._top = paths.plugins / FC
        self._devices = DeviceMounts(mounts=mounts, paths=paths, plugin=FC, top=self._top, record_file="fc.json")
        self._disks = disks or ScsiDisks(mounts=mounts)

    def mounts_with_label(self, spec: VolumeSpec) -> bool:
        return True

    def unique_name(self, spec: VolumeSpec) -> str:
        return f"{FC}/{unique_name(spec.volume.fc)}" if spec.volume.fc is not None else ""

    def reconstruct(self) -> None:
        self._devices.reconstruct()

    def in_use(self) -> Iterable[str]:
        return [name for place in self._devices.unclaimed() for name in names_by_place(FC, place.name)]

    def using(self, task: SetUp) -> AbstractContextManager[None]:
        record = msgspec.json.encode(_source(task)).decode()
        return self._devices.used(task, Note(place=str(self._place(task)), record=record))

    def mount(self, task: SetUp, files: Files | None) -> None:
        source = _source(task)
        kind = fs_type(source.fs_type, "fc.fsType")
        self._devices.show(self._find(source), self._place(task), task, kind)

    def device_of(self, task: SetUp, files: Files | None) -> str:
        return self._find(_source(task))

    def released(self, uid: str, folder: str) -> None:
        self._devices.release(uid, folder, self._detach)

    def _place(self, task: SetUp) -> Path:
        top = self._top / BLOCK if task.spec.block else self._top
        return top / global_name(_source(task))

    def _find(self, source: FCVolumeSource) -> str:
        """The disk's device. If multipath did not combine it, the bus is rescanned first."""
        known = self._links(source)
        combined = self._disks.combined(known) if known else ""
        if not combined.startswith("dm-"):
            self._disks.rescan()
            found = self._disks.wait(lambda: self._links(source), APPEAR_SECONDS)
            if not found:
                text = f"fc disk {global_name(source)} did not appear as a device within {APPEAR_SECONDS:.0f} s"
                raise VolumeProblem(text)
            # Several paths that just appeared: multipath needs a moment to combine them.
            patience = MAP_SECONDS if len(found) > 1 and set(found) != set(known) else 0.0
            combined = self._disks.combined(found, patience)
        return self._disks.path(combined)

    def _links(self, source: FCVolumeSource) -> list[str]:
        folder, fits = link_names(source)
        top = self._disks.dev / "disk" / folder
        names = sorted(os.listdir(top)) if top.is_dir() else []
        return list(dict.fromkeys(Path(os.path.realpath(top / name)).name for name in names if fits.fullmatch(name)))

    def _detach(self, place: Path, record: str) -> bool:
        if not record:
            return True  # it is not recorded which disk it was
        try:
            source = msgspec.json.decode(record, type=FCVolumeSource)
        except msgspec.MsgspecError as error:
            raise VolumeProblem(f"the record of the disk at {place} cannot be read: {error}") from error
        name = global_name(source)
        other = self._top / name if place.parent.name == BLOCK else self._top / BLOCK / name
        if any(note.place == str(other) for note in self._devices.notes()):
            return True  # the same disk is used in the other form
        return self._disks.remove(self._links(source))


def _source(task: SetUp) -> FCVolumeSource:
    source = task.spec.volume.fc
    assert source is not None
    return source
