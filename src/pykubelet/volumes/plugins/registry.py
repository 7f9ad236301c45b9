"""All volume plugins by name, with the two smallest: image volumes, and volumes of unknown plugins found on disk.

FlexVolume drivers are plugins too, made when a pod first uses one or volumes of it are found on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.kit.clock import Clock
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import VolumeObjects, VolumeRules
from pykubelet.volumes.plugins.empty_dir import EmptyDir
from pykubelet.volumes.plugins.fc import FcVolume
from pykubelet.volumes.plugins.flex import FlexVolume
from pykubelet.volumes.plugins.host_path import HostPath
from pykubelet.volumes.plugins.iscsi import IscsiVolume
from pykubelet.volumes.plugins.mounted import LocalVolume, NfsVolume
from pykubelet.volumes.plugins.plugin import Files, PluginDefaults, SetUp, VolumePlugin, remove_empty, unmount_below
from pykubelet.volumes.plugins.projected import ConfigMapVolume, DownwardVolume, ProjectedVolume, SecretVolume
from pykubelet.volumes.spec import IMAGE, VolumeSpec


class Plugins(dict[str, VolumePlugin]):
    def __init__(
        self,
        known: Iterable[VolumePlugin],
        *,
        flex: Callable[[str], FlexVolume],
        leftover: Callable[[str], VolumePlugin],
    ) -> None:
        super().__init__((plugin.name, plugin) for plugin in known)
        self._flex = flex
        self._leftover = leftover

    def of(self, spec: VolumeSpec) -> VolumePlugin:
        plugin = self.get(spec.plugin)
        if spec.volume.flex_volume is not None and not isinstance(plugin, FlexVolume):
            plugin = self[spec.plugin] = self._flex(spec.plugin)
        if plugin is None:
            raise VolumeProblem(f"no plugin {spec.plugin} is registered on this node")
        return plugin

    def of_found(self, name: str) -> VolumePlugin:
        """The plugin of volumes that were found on disk."""
        if name not in self:
            driver = self._flex(name)
            if driver.is_installed:
                driver.reconstruct()
            self[name] = driver if driver.is_installed else self._leftover(name)
        return self[name]

    def keep_used(self, names: Collection[str]) -> None:
        """Forget drivers without users whose programs were never there: pods name what they like."""
        for name, plugin in list(self.items()):
            is_empty = isinstance(plugin, Leftover) or (isinstance(plugin, FlexVolume) and not plugin.has_state)
            if is_empty and name not in names:
                del self[name]


def make_plugins(
    clock: Clock, *, node: str, mounts: Mounts, paths: NodePaths, objects: VolumeObjects, rules: VolumeRules
) -> Plugins:
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
    return Plugins(
        plugins,
        flex=lambda name: FlexVolume(name, node=node, mounts=mounts, paths=paths, objects=objects, rules=rules),
        leftover=lambda name: Leftover(name, mounts=mounts, paths=paths),
    )


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
