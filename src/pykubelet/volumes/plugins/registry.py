"""All kinds of volumes this agent serves, by plugin name. A CSI plugin joins by `more`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pykubelet.clients.host.port import Mounts, Quotas, VolumePaths
from pykubelet.kit.clock import Clock
from pykubelet.volumes.objects import VolumeObjects
from pykubelet.volumes.plugins.content import ConfigMapVolume, DownwardVolume, ProjectedVolume, SecretVolume
from pykubelet.volumes.plugins.empty_dir import EmptyDir
from pykubelet.volumes.plugins.fc import FcVolume
from pykubelet.volumes.plugins.host_path import HostPath
from pykubelet.volumes.plugins.image import ImageVolume
from pykubelet.volumes.plugins.iscsi import IscsiVolume
from pykubelet.volumes.plugins.local import LocalVolume
from pykubelet.volumes.plugins.nfs import NfsVolume
from pykubelet.volumes.plugins.plugin import VolumePlugin


def make_plugins(
    *,
    mounts: Mounts,
    paths: VolumePaths,
    clock: Clock,
    objects: VolumeObjects,
    allocatable_memory: Callable[[], int],
    more: Sequence[VolumePlugin] = (),
    quotas: Quotas | None = None,
) -> dict[str, VolumePlugin]:
    ground = EmptyDir(mounts=mounts, paths=paths, allocatable_memory=allocatable_memory, quotas=quotas)
    plugins: list[VolumePlugin] = [ground, HostPath(paths=paths), ImageVolume()]
    for kind in (ConfigMapVolume, SecretVolume, DownwardVolume, ProjectedVolume):
        plugins.append(kind(mounts=mounts, paths=paths, clock=clock, objects=objects, ground=ground))
    plugins += [
        LocalVolume(mounts=mounts, paths=paths),
        NfsVolume(mounts=mounts, paths=paths),
        IscsiVolume(mounts=mounts, paths=paths, references=objects.references),
        FcVolume(mounts=mounts, paths=paths),
    ]
    return {plugin.name: plugin for plugin in (*plugins, *more)}
