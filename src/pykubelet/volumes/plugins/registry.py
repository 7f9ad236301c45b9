"""All volume plugins by name, with the two smallest: image volumes, and volumes of unknown plugins found on disk."""

from __future__ import annotations

from pathlib import Path

from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.kit.clock import Clock
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import VolumeObjects, VolumeRules
from pykubelet.volumes.plugins.empty_dir import EmptyDir
from pykubelet.volumes.plugins.fc import FcVolume
from pykubelet.volumes.plugins.host_path import HostPath
from pykubelet.volumes.plugins.iscsi import IscsiVolume
from pykubelet.volumes.plugins.mounted import LocalVolume, NfsVolume
from pykubelet.volumes.plugins.plugin import Files, PluginDefaults, SetUp, VolumePlugin, remove_empty, unmount_below
from pykubelet.volumes.plugins.projected import ConfigMapVolume, DownwardVolume, ProjectedVolume, SecretVolume
from pykubelet.volumes.spec import IMAGE, VolumeSpec


def make_plugins(
    clock: Clock, *, mounts: Mounts, paths: NodePaths, objects: VolumeObjects, rules: VolumeRules
) -> dict[str, VolumePlugin]:
    """All plugins but CSI, by name."""
    empty_dir = EmptyDir(mounts=mounts, paths=paths, allocatable_memory=rules.allocatable_memory, quotas=rules.quotas)
    plugins: list[VolumePlugin] = [empty_dir, HostPath(paths=paths), ImageVolume()]
    for kind in (ConfigMapVolume, SecretVolume, DownwardVolume, ProjectedVolume):
        plugins.append(kind(mounts=mounts, paths=paths, clock=clock, objects=objects, empty_dir=empty_dir))
    plugins += [
        LocalVolume(mounts=mounts, paths=paths),
        NfsVolume(mounts=mounts, paths=paths),
        IscsiVolume(mounts=mounts, paths=paths, references=objects.references, claims=objects.claims),
        FcVolume(mounts=mounts, paths=paths),
    ]
    return {plugin.name: plugin for plugin in plugins}


class ImageVolume(PluginDefaults):
    name = IMAGE
    selinux_relabel = False

    def is_quick(self, spec: VolumeSpec) -> bool:
        return True

    def mount_path(self, path: Path, spec: VolumeSpec) -> Path:
        return Path()

    def is_read_only(self, spec: VolumeSpec) -> bool:
        return True

    def set_up(self, task: SetUp, files: Files | None) -> None:
        """The runtime mounts the image when it creates a container."""

    def tear_down(self, uid: str, folder: str) -> None:
        """The runtime unmounts the image with the container."""


class Leftover(PluginDefaults):
    """Volumes of an unknown plugin, found on disk: unmounted, but only empty folders are removed."""

    def __init__(self, name: str, *, mounts: Mounts, paths: NodePaths) -> None:
        self.name = name
        self._mounts = mounts
        self._paths = paths

    def set_up(self, task: SetUp, files: Files | None) -> None:
        raise VolumeProblem(f"no plugin {self.name} is registered on this node")

    def tear_down(self, uid: str, folder: str) -> None:
        path = self._paths.volume(uid, self.name, folder)
        unmount_below(self._mounts, path)
        remove_empty(path)
