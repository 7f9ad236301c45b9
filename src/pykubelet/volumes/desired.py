"""Desired state: which volumes a pod wants, how it uses them, which API objects they hang on. Pure.

Only volumes that a container mounts or maps count, as upstream counts them; one that nobody uses is neither
fetched nor waited for.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from pykubelet.api.types import Pod, Volume, VolumeProjection
from pykubelet.model.pod import all_containers, name_of, namespace_of


class ObjectKey(NamedTuple):
    """An object of the API server that a volume hangs on; `kind` in lower case, cluster objects have no namespace."""

    kind: str
    namespace: str
    name: str


class Use(NamedTuple):
    """How the containers of a pod use one volume."""

    volume: Volume
    mounted: bool
    mapped: bool


def wanted_volumes(pod: Pod) -> dict[str, Use]:
    """Volumes by name that some container uses, in the order of the spec."""
    mounted: set[str] = set()
    mapped: set[str] = set()
    for _, container in all_containers(pod):
        mounted.update(mount.name or "" for mount in container.volume_mounts)
        mapped.update(device.name or "" for device in container.volume_devices)
    found = {}
    for volume in pod.spec.volumes:
        name = volume.name or ""
        if name in mounted or name in mapped:
            found[name] = Use(volume, name in mounted, name in mapped)
    return found


def claim_name(pod: Pod, volume: Volume) -> str:
    """The claim behind a volume; empty when it needs none."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name or ""
    if volume.ephemeral is not None:
        return f"{name_of(pod)}-{volume.name}"
    return ""


def objects_of(pod: Pod, volume: Volume) -> frozenset[ObjectKey]:
    """Objects whose arrival or change concerns the volume."""
    return frozenset(_objects(pod, volume))


def _objects(pod: Pod, volume: Volume) -> Iterator[ObjectKey]:
    namespace = namespace_of(pod)
    if volume.config_map is not None:
        yield ObjectKey("configmap", namespace, volume.config_map.name or "")
    if volume.secret is not None:
        yield ObjectKey("secret", namespace, volume.secret.secret_name or "")
    if claim := claim_name(pod, volume):
        yield ObjectKey("persistentvolumeclaim", namespace, claim)
    if volume.projected is not None:
        for source in volume.projected.sources:
            yield from _projected(namespace, pod, source)


def _projected(namespace: str, pod: Pod, source: VolumeProjection) -> Iterator[ObjectKey]:
    if source.config_map is not None:
        yield ObjectKey("configmap", namespace, source.config_map.name or "")
    if source.secret is not None:
        yield ObjectKey("secret", namespace, source.secret.name or "")
    if source.service_account_token is not None:
        yield ObjectKey("serviceaccount", namespace, pod.spec.service_account_name or "default")
    if source.cluster_trust_bundle is not None:
        # By signer any bundle may matter: the empty name stands for all of them.
        yield ObjectKey("clustertrustbundle", "", source.cluster_trust_bundle.name or "")


def nested_folders(pod: Pod, name: str) -> tuple[str, ...]:
    """Folders inside a volume on which other volumes of the same container are mounted, outermost first."""
    found: set[str] = set()
    for _, container in all_containers(pod):
        places = [(mount.name, _clean(mount.mount_path)) for mount in container.volume_mounts]
        inside = [place for owner, place in places if owner == name]
        for base in inside:
            for owner, place in places:
                if owner != name and place != base and place.startswith(base.rstrip("/") + "/"):
                    found.add(place[len(base.rstrip("/")) + 1 :])
    return tuple(sorted(found))


def _clean(path: str | None) -> str:
    return posixpath.normpath("/" + (path or "").lstrip("/"))


def fs_user(pod: Pod) -> int | None:
    """The user all containers run as, when the spec says one and the same for all of them."""
    general = pod.spec.security_context.run_as_user if pod.spec.security_context else None
    users = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        own = container.security_context.run_as_user if container.security_context else None
        users.add(own if own is not None else general)
    return users.pop() if len(users) == 1 else None
