"""Builds CRI mounts and devices from volumeMounts and volumeDevices, in the order of the spec.

Requires mounted volumes. Only subPaths touch the disk here: each is pinned by a bind mount (subpath.py) in a thread.
Mounts that are not volumes (/etc/hosts, termination log, devices) belong to the spec builder.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pykubelet.api.types import Pod, VolumeMount
from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.errors import PykubeletError
from pykubelet.model.expand import ExpansionTooLong, expand_strict
from pykubelet.model.pod import AnyContainer, uid_of
from pykubelet.volumes.actual_state import State, VolumeEntry, VolumeTable
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.image_volumes import ImageVolumes
from pykubelet.volumes.objects import VolumeRules
from pykubelet.volumes.plugins.plugin import VolumePlugin
from pykubelet.volumes.spec import IMAGE, VolumeSpec
from pykubelet.volumes.subpath import mount_point_of, mount_subpath
from pykubelet.wire import cri_pb2

PREPARE_SECONDS = 120.0
PROPAGATION = {
    "None": cri_pb2.MountPropagation.PROPAGATION_PRIVATE,
    "HostToContainer": cri_pb2.MountPropagation.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": cri_pb2.MountPropagation.PROPAGATION_BIDIRECTIONAL,
}
MAX_PATH = 4096
"""The kernel's limit."""


def container_path(path: str) -> str:
    """The mountPath, absolute and normalized."""
    return posixpath.normpath("/" + path.lstrip("/"))


def propagation_of(mount: VolumeMount) -> cri_pb2.MountPropagation:
    wanted = mount.mount_propagation or "None"
    if wanted not in PROPAGATION:
        raise VolumeProblem(f'invalid mountPropagation "{wanted}" of volume mount {mount.name}')
    return PROPAGATION[wanted]


def is_recursive_read_only(mount: VolumeMount, supported: bool) -> bool:
    wanted = mount.recursive_read_only or "Disabled"
    if wanted == "Disabled":
        return False
    refused = f'volume "{mount.name}" requested recursive read-only mode, but it is not'
    if not mount.read_only:
        raise VolumeProblem(f"{refused} read-only")
    if mount.mount_propagation not in (None, "", "None"):
        raise VolumeProblem(f'{refused} compatible with propagation "{mount.mount_propagation}"')
    if wanted == "IfPossible":
        return supported
    if wanted != "Enabled":
        raise VolumeProblem(f'invalid recursiveReadOnly "{wanted}" of volume mount {mount.name}')
    if not supported:
        raise VolumeProblem(f"{refused} supported by the runtime")
    return True


def subpath_of(mount: VolumeMount, env: Mapping[str, str]) -> str:
    """subPath, or subPathExpr with its variables expanded; raises when one has no value."""
    if not mount.sub_path_expr:
        return mount.sub_path or ""
    try:
        text, absent = expand_strict(mount.sub_path_expr, env.get, limit=MAX_PATH)
    except ExpansionTooLong as error:
        raise VolumeProblem(f"subPathExpr of volume mount {mount.name} is {error}") from error
    if absent:
        raise VolumeProblem(f"missing value for {', '.join(absent)} in subPathExpr of volume mount {mount.name}")
    return text


class MountBuilder:
    def __init__(
        self,
        *,
        table: VolumeTable,
        plugins: Mapping[str, VolumePlugin],
        mounts: Mounts,
        paths: NodePaths,
        images: ImageVolumes,
        rules: VolumeRules,
    ) -> None:
        self._table = table
        self._plugins = plugins
        self._mounts = mounts
        self._paths = paths
        self._images = images
        self._rules = rules

    async def mounts_for(self, pod: Pod, container: AnyContainer, env: Mapping[str, str]) -> Sequence[cri_pb2.Mount]:
        found = []
        for index, mount in enumerate(container.volume_mounts):
            entry = self._mounted(pod, mount.name, f'mount into container "{container.name}"')
            assert entry.spec is not None
            plugin = self._plugins[entry.spec.plugin]
            built = cri_pb2.Mount(
                container_path=container_path(mount.mount_path or ""),
                readonly=bool(mount.read_only) or plugin.is_read_only(entry.spec),
                propagation=propagation_of(mount),
                recursive_read_only=is_recursive_read_only(mount, self._rules.supports_recursive_read_only(pod)),
                selinux_relabel=self._is_relabelled(pod, plugin, entry.spec),
            )
            subpath = subpath_of(mount, env)
            await self._share(uid_of(pod), self._mount_path(pod, entry.spec), built.propagation)
            if entry.spec.plugin == IMAGE:
                built.image.CopyFrom(self._image(pod, entry.spec))
                built.image_sub_path = subpath
            elif subpath:
                built.host_path = await self._subpath_mount(pod, container, index, entry.spec, mount, subpath)
            else:
                built.host_path = str(self._mount_path(pod, entry.spec))
            found.append(built)
        return found

    def _is_relabelled(self, pod: Pod, plugin: VolumePlugin, spec: VolumeSpec) -> bool:
        """Whether the runtime relabels the files for SELinux: not if they are read-only or labelled by their mount.

        Set for every mount of the volume: the runtime sees only the part below a subPath.
        """
        if not self._rules.selinux or not plugin.selinux_relabel or spec.read_only:
            return False
        return not self._rules.labels.label(pod, spec, supported=plugin.mounts_with_label(spec))

    async def devices_for(self, pod: Pod, container: AnyContainer) -> Sequence[cri_pb2.Device]:
        found = []
        for device in container.volume_devices:
            entry = self._mounted(pod, device.name or "", f'pass into container "{container.name}"')
            assert entry.spec is not None
            found.append(
                cri_pb2.Device(
                    host_path=str(device_link(self._paths, uid_of(pod), entry.spec)),
                    container_path=container_path(device.device_path or ""),
                    permissions="r" if entry.spec.read_only else "mrw",
                )
            )
        return found

    def path_of(self, pod: Pod, volume: str) -> str | None:
        record = self._table.pods.get(uid_of(pod))
        entry = record.entries.get(volume) if record else None
        if entry is None or entry.state is not State.MOUNTED or entry.spec is None or entry.spec.plugin == IMAGE:
            return None
        return str(self._mount_path(pod, entry.spec))

    def _mounted(self, pod: Pod, name: str, purpose: str) -> VolumeEntry:
        record = self._table.pods.get(uid_of(pod))
        entry = record.entries.get(name) if record else None
        if entry is None or entry.state is not State.MOUNTED or entry.spec is None:
            raise VolumeProblem(f'cannot find volume "{name}" to {purpose}')
        return entry

    def _mount_path(self, pod: Pod, spec: VolumeSpec) -> Path:
        return self._plugins[spec.plugin].mount_path(self._paths.volume(uid_of(pod), spec.plugin, spec.folder), spec)

    def _image(self, pod: Pod, spec: VolumeSpec) -> cri_pb2.ImageSpec:
        pulled = self._images.image_of(pod, spec.name)
        if pulled is not None:
            return pulled
        reference = (spec.volume.image.reference if spec.volume.image else "") or ""
        return cri_pb2.ImageSpec(image=reference, user_specified_image=reference)

    async def _share(self, uid: str, place: Path, wanted: cri_pb2.MountPropagation) -> None:
        """Make the volume's mount shared, without which mounts inside it do not propagate.

        A path of the host is left alone: its owner decides whether it is shared, and the runtime refuses if not.
        """
        private = wanted == cri_pb2.MountPropagation.PROPAGATION_PRIVATE
        if not private and str(place).startswith(f"{self._paths.pods}/"):
            work = partial(self._mounts.make_shared, place)
            await host_calls.run(work, name="sharing a mount", key=str(place), pod=uid, within=PREPARE_SECONDS)

    async def _subpath_mount(
        self, pod: Pod, container: AnyContainer, index: int, spec: VolumeSpec, mount: VolumeMount, subpath: str
    ) -> str:
        place = mount_point_of(self._paths, uid_of(pod), spec.folder, container.name, index)
        work = partial(mount_subpath, self._mounts, self._mount_path(pod, spec), subpath, place)
        try:
            await host_calls.run(
                work, name="preparing a subPath", key=str(place), pod=uid_of(pod), within=PREPARE_SECONDS
            )
        except (PykubeletError, OSError) as error:
            raise VolumeProblem(
                f'failed to prepare subPath for volumeMount "{mount.name}" of container "{container.name}": {error}'
            ) from error
        return str(place)


def device_link(paths: NodePaths, uid: str, spec: VolumeSpec) -> Path:
    """The link to a block volume's device inside the pod's folder."""
    return paths.volume_devices(uid) / spec.plugin.replace("/", "~") / spec.folder
