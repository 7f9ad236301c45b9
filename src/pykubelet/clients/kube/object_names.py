"""Which secrets and config maps a pod needs, and for what.

Objects behind volumes must be followed for as long as the pod lives, since their files change with them; those
behind variables and image pulls are read only when containers start.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from pykubelet.api.types import ApiStruct, ConfigMap, Pod, Secret, Volume
from pykubelet.model.pod import AnyContainer, all_containers

# Volumes that name a secret through a reference object.
_SECRET_REFS = ("cephfs", "cinder", "flex_volume", "iscsi", "rbd", "scale_io", "storageos")


class ObjectName(Struct, frozen=True):
    kind: type[ApiStruct]
    namespace: str
    name: str

    def __str__(self) -> str:
        return f'"{self.namespace}"/"{self.name}"'


def referred(pod: Pod) -> dict[ObjectName, bool]:
    """Every object the pod refers to; True where its content must be followed (volumes)."""
    namespace = pod.metadata.namespace or ""
    found: dict[ObjectName, bool] = {}
    for reference in pod.spec.image_pull_secrets:
        _add(found, Secret, namespace, reference.name, False)
    for _, container in all_containers(pod):
        for kind, name in _of_variables(container):
            _add(found, kind, namespace, name, False)
    for volume in pod.spec.volumes:
        for kind, name in _of_volume(volume):
            _add(found, kind, namespace, name, True)
    return found


def _add(
    found: dict[ObjectName, bool], kind: type[ApiStruct], namespace: str, name: str | None, followed: bool
) -> None:
    if name:
        key = ObjectName(kind, namespace, name)
        found[key] = found.get(key, False) or followed


def _of_variables(container: AnyContainer) -> Iterator[tuple[type[ApiStruct], str | None]]:
    for source in container.env_from:
        if source.config_map_ref is not None:
            yield ConfigMap, source.config_map_ref.name
        if source.secret_ref is not None:
            yield Secret, source.secret_ref.name
    for variable in container.env:
        if variable.value_from is None:
            continue
        if variable.value_from.config_map_key_ref is not None:
            yield ConfigMap, variable.value_from.config_map_key_ref.name
        if variable.value_from.secret_key_ref is not None:
            yield Secret, variable.value_from.secret_key_ref.name


def _of_volume(volume: Volume) -> Iterator[tuple[type[ApiStruct], str | None]]:
    if volume.config_map is not None:
        yield ConfigMap, volume.config_map.name
    if volume.secret is not None:
        yield Secret, volume.secret.secret_name
    if volume.azure_file is not None:
        yield Secret, volume.azure_file.secret_name
    if volume.csi is not None and volume.csi.node_publish_secret_ref is not None:
        yield Secret, volume.csi.node_publish_secret_ref.name
    for field in _SECRET_REFS:
        source = getattr(volume, field)
        if source is not None and source.secret_ref is not None:
            yield Secret, source.secret_ref.name
    for projection in volume.projected.sources if volume.projected is not None else ():
        if projection.config_map is not None:
            yield ConfigMap, projection.config_map.name
        if projection.secret is not None:
            yield Secret, projection.secret.name
