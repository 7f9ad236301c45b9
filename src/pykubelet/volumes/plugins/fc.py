"""fc: a fibre channel disk that the fabric shows to this node; found by target and lun or by its world-wide id."""

from __future__ import annotations

import glob
import os

from pykubelet.api.types import FCVolumeSource
from pykubelet.clients.host.port import Mounts, VolumePaths
from pykubelet.volumes.plugins.disks import multipath_of, rescan_hosts, wait_for_device
from pykubelet.volumes.plugins.filesystems import DeviceMounts
from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import Files, SetUp
from pykubelet.volumes.plugins.words import word
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.spec import FC, VolumeSpec


def unique_name(source: FCVolumeSource) -> str:
    """What the control plane calls the disk in volumesAttached: Go's way to print lists."""
    if source.target_wwns and source.lun is not None:
        return f"[{' '.join(source.target_wwns)}]:{source.lun}"
    return f"[{' '.join(source.wwids)}]" if source.wwids else ""


def global_name(source: FCVolumeSource) -> str:
    """The disk's folder on the node; every part is a checked word."""
    if source.target_wwns and source.lun is not None:
        names = [word(name, "fc.targetWWNs") for name in source.target_wwns]
        return word(f"{'-'.join(names)}-lun-{source.lun}", "fc.targetWWNs")
    if source.wwids:
        return word("-".join(word(name.replace(" ", "_"), "fc.wwids") for name in source.wwids), "fc.wwids")
    raise VolumeProblem("fc volume names neither targetWWNs with a lun nor wwids")


def device_patterns(source: FCVolumeSource) -> list[str]:
    """Where the device may show up."""
    by_target = [
        f"/dev/disk/by-path/*-fc-0x{glob.escape(wwn.lower())}-lun-{source.lun or 0}" for wwn in source.target_wwns
    ]
    return by_target + [f"/dev/disk/by-id/scsi-{glob.escape(wwid.replace(' ', '_'))}" for wwid in source.wwids]


class FcVolume(MountedPlugin):
    name = FC

    def __init__(self, *, mounts: Mounts, paths: VolumePaths) -> None:
        super().__init__(mounts=mounts, paths=paths)
        self._top = paths.plugins / FC
        self._devices = DeviceMounts(mounts=mounts, top=self._top, pods=paths.pods)

    def attached_as(self, spec: VolumeSpec) -> str:
        return f"{FC}/{unique_name(spec.volume.fc)}" if spec.volume.fc is not None else ""

    def mount(self, task: SetUp, files: Files | None) -> None:
        source = _source(task)
        self._devices.show(_find(source), self._top / global_name(source), task, source.fs_type or "ext4")

    def device_of(self, task: SetUp, files: Files | None) -> str:
        return _find(_source(task))

    def released(self) -> None:
        self._devices.free_unused()


def _source(task: SetUp) -> FCVolumeSource:
    source = task.spec.volume.fc
    assert source is not None
    return source


def _find(source: FCVolumeSource) -> str:
    patterns = device_patterns(source)

    def look() -> str | None:
        return next((found for pattern in patterns for found in glob.glob(pattern)), None)

    found = look()
    if found is None:
        rescan_hosts()
        found = wait_for_device(look, f"fc disk {global_name(source)}")
    return os.path.realpath(multipath_of(found))
