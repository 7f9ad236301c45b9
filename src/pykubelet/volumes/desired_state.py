"""Desired state of world: which volumes a pod uses, the API objects they depend on, and the volume behind a claim.

Only volumes that a container mounts or maps count, as upstream; others are neither fetched nor waited for. Claims are
read from the API server at every attempt; one that is not bound yet is an error that is retried, and sooner when the
claim changes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import NamedTuple

from pykubelet.api.quantity import Quantity, QuantityError
from pykubelet.api.references import claim_name, volume_references
from pykubelet.api.types import (
    FlexPersistentVolumeSource,
    FlexVolumeSource,
    ISCSIPersistentVolumeSource,
    ISCSIVolumeSource,
    LocalObjectReference,
    NodeSelector,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Volume,
)
from pykubelet.model.pod import all_containers, namespace_of, uid_of
from pykubelet.volumes.csi.migration import migrated_volume
from pykubelet.volumes.errors import ClaimProblem, VolumeProblem
from pykubelet.volumes.objects import Claims
from pykubelet.volumes.spec import CSI, LOCAL, PLUGINS, VolumeSpec, flex_plugin, wire_name


class ObjectKey(NamedTuple):
    """An API object that a volume depends on; `kind` in lower case, cluster-scoped objects have no namespace."""

    kind: str
    namespace: str
    name: str


class Use(NamedTuple):
    """How the containers of a pod use one volume."""

    volume: Volume
    mounted: bool
    mapped: bool


def desired_volumes(pod: Pod) -> dict[str, Use]:
    """Volumes that a container uses, by name, in the order of the spec."""
    mounted: set[str] = set()
    mapped: set[str] = set()
    for _, container in all_containers(pod):
        mounted.update(mount.name for mount in container.volume_mounts)
        mapped.update(device.name or "" for device in container.volume_devices)
    found = {}
    for volume in pod.spec.volumes:
        name = volume.name
        if name in mounted or name in mapped:
            found[name] = Use(volume, name in mounted, name in mapped)
    return found


def objects_of(pod: Pod, volume: Volume) -> frozenset[ObjectKey]:
    """Objects whose creation or change concerns the volume."""
    # Of trust bundles by signer any may matter: the empty name stands for all of them.
    return frozenset(ObjectKey(each.kind.lower(), each.namespace, each.name) for each in volume_references(pod, volume))


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
    """The user all containers run as, if the spec names the same for all of them."""
    general = pod.spec.security_context.run_as_user if pod.spec.security_context else None
    users = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        own = container.security_context.run_as_user if container.security_context else None
        users.add(own if own is not None else general)
    return users.pop() if len(users) == 1 else None


PROTECTION = "kubernetes.io/pvc-protection"
GID_ANNOTATION = "pv.beta.kubernetes.io/gid"
_SHARED_KINDS = ("host_path", "nfs", "fc")


async def resolve_claim(
    claims: Claims, pod: Pod, use: Use, fits_node: Callable[[NodeSelector], bool] = lambda selector: True
) -> VolumeSpec:
    namespace, name = namespace_of(pod), claim_name(pod, use.volume)
    claim = await claims.claim(namespace, name)
    if claim is None:
        missing = f"persistentvolumeclaim {namespace}/{name}"
        raise ClaimProblem(f"{missing} not found", missing=missing)
    _check_claim(pod, use, claim)
    volume_name = claim.spec.volume_name or ""
    volume = await claims.volume(volume_name)
    if volume is None:
        raise ClaimProblem(f"failed to fetch PV {volume_name} from API server: not found")
    _check_volume(claim, volume)
    now = migrated_volume(volume)
    affinity = now.spec.node_affinity.required if now.spec.node_affinity else None
    if affinity is not None and not fits_node(affinity):
        raise VolumeProblem(f"node affinity of persistent volume {volume_name} does not match this node")
    return _spec(use, namespace, name, now, migrated=now is not volume)


def _check_claim(pod: Pod, use: Use, claim: PersistentVolumeClaim) -> None:
    if use.volume.ephemeral is not None:
        owners = claim.metadata.owner_references
        if not any(owner.controller and owner.uid == uid_of(pod) for owner in owners):
            raise ClaimProblem(f"PVC {claim.metadata.name} is not owned by pod")
    if claim.metadata.deletion_timestamp is not None and PROTECTION not in claim.metadata.finalizers:
        raise ClaimProblem("PVC is being deleted")
    if claim.status.phase != "Bound":
        raise ClaimProblem("PVC is not bound")
    if not claim.spec.volume_name:
        raise ClaimProblem("PVC has empty pvc.Spec.VolumeName")


def _check_volume(claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
    reference = volume.spec.claim_ref
    name = volume.metadata.name
    if reference is None:
        raise ClaimProblem(
            f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        )
    if reference.uid != claim.metadata.uid:
        raise ClaimProblem(
            f"found PV object {name} but its pv.Spec.ClaimRef.UID {reference.uid} does not point to "
            f"claim.UID {claim.metadata.uid}"
        )


def _spec(use: Use, namespace: str, claim: str, volume: PersistentVolume, *, migrated: bool) -> VolumeSpec:
    name, source = use.volume.name, volume.spec
    mode = source.volume_mode or "Filesystem"
    if use.mounted and mode != "Filesystem":
        raise ClaimProblem(f"volume {name} has volumeMode {mode}, but is specified in volumeMounts")
    if use.mapped and mode != "Block":
        raise ClaimProblem(f"volume {name} has volumeMode {mode}, but is specified in volumeDevices")
    plugin, shaped = _shape(volume, name)
    source_claim = use.volume.persistent_volume_claim
    return VolumeSpec(
        name=name,
        folder=volume.metadata.name or "",
        plugin=plugin,
        volume=shaped,
        local=source.local,
        csi=source.csi,
        # As upstream: what the claim's user says counts, not what the persistent volume's source says.
        read_only=bool(source_claim is not None and source_claim.read_only),
        block=mode == "Block",
        persistent=volume.metadata.name or "",
        claim=(namespace, claim),
        mount_options=_options(volume),
        access_modes=tuple(source.access_modes),
        gid=_gid(volume),
        secret_namespace=_secret_namespace(source.iscsi or source.flex_volume, namespace),
        size_bytes=_bytes(source.capacity.get("storage")),
        migrated=migrated,
    )


def _shape(volume: PersistentVolume, name: str) -> tuple[str, Volume]:
    """The plugin and the source in the shape inline volumes have."""
    source = volume.spec
    if source.local is not None:
        return LOCAL, Volume(name=name)
    if source.csi is not None:
        return CSI, Volume(name=name)
    if source.flex_volume is not None:
        flex = _inline_flex(source.flex_volume)
        return flex_plugin(flex), Volume(name=name, flex_volume=flex)
    if source.iscsi is not None:
        return PLUGINS["iscsi"], Volume(name=name, iscsi=_inline_iscsi(source.iscsi))
    for kind in _SHARED_KINDS:
        found = getattr(source, kind)
        if found is not None:
            shaped = Volume(name=name)
            setattr(shaped, kind, found)
            return PLUGINS[kind], shaped
    blank = Volume(name=name)
    kinds = [field for field in PLUGINS if getattr(source, field, None) is not None]
    others = [f for f in source.__struct_fields__ if hasattr(blank, f) and getattr(source, f, None) is not None]
    kind = (kinds or others or [""])[0]
    shown = wire_name(blank, kind) if kind else "unknown"
    raise VolumeProblem(f"persistent volume {volume.metadata.name} of kind {shown} is not supported by this agent")


def _inline_iscsi(source: ISCSIPersistentVolumeSource) -> ISCSIVolumeSource:
    secret = source.secret_ref
    return ISCSIVolumeSource(
        chap_auth_discovery=source.chap_auth_discovery,
        chap_auth_session=source.chap_auth_session,
        fs_type=source.fs_type,
        initiator_name=source.initiator_name,
        iqn=source.iqn,
        iscsi_interface=source.iscsi_interface,
        lun=source.lun,
        portals=source.portals,
        read_only=source.read_only,
        secret_ref=LocalObjectReference(name=secret.name) if secret is not None else None,
        target_portal=source.target_portal,
    )


def _inline_flex(source: FlexPersistentVolumeSource) -> FlexVolumeSource:
    secret = source.secret_ref
    return FlexVolumeSource(
        driver=source.driver,
        fs_type=source.fs_type,
        options=source.options,
        read_only=source.read_only,
        secret_ref=LocalObjectReference(name=secret.name) if secret is not None else None,
    )


def _secret_namespace(source: ISCSIPersistentVolumeSource | FlexPersistentVolumeSource | None, namespace: str) -> str:
    secret = source.secret_ref if source is not None else None
    return (secret.namespace if secret is not None else "") or namespace


def _options(volume: PersistentVolume) -> tuple[str, ...]:
    old_style = volume.metadata.annotations.get("volume.beta.kubernetes.io/mount-options", "")
    return tuple(volume.spec.mount_options) or tuple(option for option in old_style.split(",") if option)


def _gid(volume: PersistentVolume) -> int | None:
    text = volume.metadata.annotations.get(GID_ANNOTATION, "")
    return int(text) if text.isdigit() else None


def _bytes(value: str | int | float | None) -> int | None:
    try:
        return None if value is None else Quantity.parse(value).value()
    except QuantityError:
        return None
