"""CSI migration: translates seven in-tree volume kinds to the CSI drivers that replaced them.

The control plane attaches them under the driver's name because the CSINode says that this node does the same. So
handles, attributes and topology must equal upstream's translation exactly: another handle is another disk.
Pure; a volume of any other kind is returned unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.types import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    AzureFilePersistentVolumeSource,
    AzureFileVolumeSource,
    CinderPersistentVolumeSource,
    CinderVolumeSource,
    CSIPersistentVolumeSource,
    GCEPersistentDiskVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeSpec,
    PortworxVolumeSource,
    SecretReference,
    Volume,
    VolumeNodeAffinity,
    VsphereVirtualDiskVolumeSource,
)
from pykubelet.volumes.errors import VolumeProblem

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
ZONES_APART = "__"
"""Between the zones of one label."""
ONCE, READ_MANY, MANY = "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"
UNSPECIFIED = "UNSPECIFIED"
AZURE_GROUP = "kubernetes.io/azure-file-resource-group"
PORTWORX_SECRET, PORTWORX_NAMESPACE = "openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace"
_AZURE_ACCOUNT = re.compile("azure-storage-account-(.+)-secret")
_AWS_VOLUME = re.compile("vol-[^/]*")


class _Written(Struct, frozen=True, kw_only=True):
    """The origin of a source: a persistent volume, or a pod (then `inline`)."""

    name: str
    """Of the persistent volume, or of the volume in its pod."""
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    inline: bool


class _Kind(Struct, frozen=True, kw_only=True):
    driver: str
    translate: Callable[[Any, _Written], CSIPersistentVolumeSource]
    zone: str = ""
    """The driver's topology key for zones; empty when topology is not translated."""
    region: str = ""
    modes: Callable[[Any], str] = lambda source: ONCE
    """Access mode of an inline volume."""
    folder: Callable[[str, str], str] = lambda driver, handle: f"{driver}-{handle}"
    """Name of an inline volume: unique for each disk."""


# --- the kinds ------------------------------------------------------------------------------------


def _aws(source: AWSElasticBlockStoreVolumeSource, written: _Written) -> CSIPersistentVolumeSource:
    return CSIPersistentVolumeSource(
        driver=_KINDS["aws_elastic_block_store"].driver,
        volume_handle=aws_volume(source.volume_id or ""),
        read_only=bool(source.read_only),
        fs_type=source.fs_type,
        volume_attributes={"partition": str(source.partition or 0)},
    )


def aws_volume(text: str) -> str:
    """`aws://<zone>/vol-1`, `aws:///vol-1` and `vol-1` are the same volume."""
    if not text.startswith("aws://"):
        return text
    try:
        found = urlsplit(text).path.strip("/")
    except ValueError:
        found = ""
    if _AWS_VOLUME.fullmatch(found) is None:
        raise VolumeProblem(f"volumeID {text!r} of awsElasticBlockStore is not of the form aws://<zone>/vol-<id>")
    return found


def _gce(source: GCEPersistentDiskVolumeSource, written: _Written) -> CSIPersistentVolumeSource:
    label = written.labels.get(OLD_ZONE) or written.labels.get(ZONE) or ""
    zones = label.split(ZONES_APART)
    place = f"regions/{gce_region(zones)}" if len(zones) > 1 else f"zones/{label or UNSPECIFIED}"
    return CSIPersistentVolumeSource(
        driver=_KINDS["gce_persistent_disk"].driver,
        volume_handle=f"projects/{UNSPECIFIED}/{place}/disks/{source.pd_name or ''}",
        read_only=bool(source.read_only),
        fs_type=source.fs_type,
        volume_attributes={"partition": str(source.partition) if source.partition else ""},
    )


def gce_region(zones: Sequence[str]) -> str:
    regions = set()
    for zone in zones:
        parts = zone.split("-")
        if len(parts) != 3:
            raise VolumeProblem(f"zone {zone!r} of a gcePersistentDisk is not of the form <locale>-<region>-<zone>")
        regions.add("-".join(parts[:2]))
    if len(regions) != 1:
        raise VolumeProblem(f"zones of a gcePersistentDisk lie in several regions: {', '.join(sorted(regions))}")
    return regions.pop()


def gce_modes(modes: Sequence[str]) -> list[str]:
    """The in-tree plugin ignored modes, the driver refuses those a disk cannot have: keep what was in use."""
    if not modes:
        return []
    return [READ_MANY] if READ_MANY in modes and not {ONCE, MANY} & set(modes) else [ONCE]


def _azure_disk(source: AzureDiskVolumeSource, written: _Written) -> CSIPersistentVolumeSource:
    if source.kind is not None and source.kind.lower() != "managed":
        raise VolumeProblem(f"azureDisk of kind {source.kind} has no driver: only kind Managed has one")
    attributes = {"kind": "Managed"}
    if source.caching_mode is not None and (source.caching_mode or not written.inline):
        attributes["cachingmode"] = source.caching_mode
    if source.fs_type is not None:
        attributes["fstype"] = source.fs_type
    return CSIPersistentVolumeSource(
        driver=_KINDS["azure_disk"].driver,
        volume_handle=source.disk_uri or "",
        read_only=bool(source.read_only),
        fs_type=source.fs_type,
        volume_attributes=attributes,
    )


def _azure_file(
    source: AzureFileVolumeSource | AzureFilePersistentVolumeSource, written: _Written
) -> CSIPersistentVolumeSource:
    secret, share = source.secret_name or "", source.share_name or ""
    own = source.secret_namespace if isinstance(source, AzureFilePersistentVolumeSource) else None
    namespace = own if own is not None else written.namespace or ("default" if written.inline else "")
    if not namespace:
        raise VolumeProblem("azureFile names no secretNamespace, and its volume no claim to take it from")
    found = _AZURE_ACCOUNT.search(secret)
    account = found[1] if found is not None else secret
    group = "" if written.inline else written.annotations.get(AZURE_GROUP, "")
    return CSIPersistentVolumeSource(
        driver=_KINDS["azure_file"].driver,
        volume_handle=f"{group}#{account}#{share}#{written.name}#{namespace}",
        read_only=bool(source.read_only),
        volume_attributes={"sharename": share},
        node_stage_secret_ref=SecretReference(name=secret, namespace=namespace),
    )


def _cinder(source: CinderVolumeSource | CinderPersistentVolumeSource, written: _Written) -> CSIPersistentVolumeSource:
    return CSIPersistentVolumeSource(
        driver=_KINDS["cinder"].driver,
        volume_handle=source.volume_id or "",
        read_only=bool(source.read_only),
        fs_type=source.fs_type,
    )


def _portworx(source: PortworxVolumeSource, written: _Written) -> CSIPersistentVolumeSource:
    name, namespace = written.annotations.get(PORTWORX_SECRET), written.annotations.get(PORTWORX_NAMESPACE)
    named = name is not None and namespace is not None and not written.inline
    secret = SecretReference(name=name, namespace=namespace) if named else None
    return CSIPersistentVolumeSource(
        driver=_KINDS["portworx_volume"].driver,
        volume_handle=source.volume_id or "",
        fs_type=source.fs_type,
        controller_publish_secret_ref=secret,
        node_stage_secret_ref=secret,
        node_publish_secret_ref=secret,
        controller_expand_secret_ref=secret,
        node_expand_secret_ref=secret,
    )


def _vsphere(source: VsphereVirtualDiskVolumeSource, written: _Written) -> CSIPersistentVolumeSource:
    policy = source.storage_policy_name
    return CSIPersistentVolumeSource(
        driver=_KINDS["vsphere_volume"].driver,
        volume_handle=source.volume_path or "",
        fs_type=source.fs_type,
        volume_attributes={"storagepolicyname": policy} if policy else {},
    )


def _by_reading(source: GCEPersistentDiskVolumeSource | PortworxVolumeSource) -> str:
    return READ_MANY if source.read_only else ONCE


_KINDS = {
    "aws_elastic_block_store": _Kind(driver="ebs.csi.aws.com", translate=_aws, zone="topology.ebs.csi.aws.com/zone"),
    "azure_disk": _Kind(driver="disk.csi.azure.com", translate=_azure_disk, folder=lambda driver, handle: handle),
    "azure_file": _Kind(
        driver="file.csi.azure.com",
        translate=_azure_file,
        modes=lambda source: MANY,
        folder=lambda driver, handle: handle,
    ),
    "cinder": _Kind(
        driver="cinder.csi.openstack.org", translate=_cinder, zone="topology.cinder.csi.openstack.org/zone"
    ),
    "gce_persistent_disk": _Kind(
        driver="pd.csi.storage.gke.io",
        translate=_gce,
        zone="topology.gke.io/zone",
        modes=_by_reading,
        folder=lambda driver, handle: f"{driver}-{handle.rpartition('/')[2]}",
    ),
    "portworx_volume": _Kind(driver="pxd.portworx.com", translate=_portworx, modes=_by_reading),
    "vsphere_volume": _Kind(
        driver="csi.vsphere.vmware.com",
        translate=_vsphere,
        zone="topology.csi.vmware.com/zone",
        region="topology.csi.vmware.com/region",
    ),
}


# --- volumes --------------------------------------------------------------------------------------


def migrated_volume(volume: PersistentVolume) -> PersistentVolume:
    """The persistent volume translated for its driver; the same object when it is of no such kind."""
    field = next((field for field in _KINDS if getattr(volume.spec, field) is not None), None)
    if field is None:
        return volume
    kind, claim = _KINDS[field], volume.spec.claim_ref
    written = _Written(
        name=volume.metadata.name or "",
        namespace=(claim.namespace if claim is not None else "") or "",
        labels=volume.metadata.labels,
        annotations=volume.metadata.annotations,
        inline=False,
    )
    source = _checked(field, kind.translate(getattr(volume.spec, field), written))
    spec = replace(volume.spec, csi=source, node_affinity=_affinity(volume, kind))
    setattr(spec, field, None)
    if field == "gce_persistent_disk":
        spec.access_modes = gce_modes(spec.access_modes)
    return replace(volume, spec=spec)


def migrated_inline(volume: Volume, namespace: str) -> PersistentVolume | None:
    """The persistent volume that corresponds to an inline volume; None when it is of no such kind."""
    field = next((field for field in _KINDS if getattr(volume, field) is not None), None)
    if field is None:
        return None
    kind, source = _KINDS[field], getattr(volume, field)
    written = _Written(name=volume.name, namespace=namespace, labels={}, annotations={}, inline=True)
    csi = _checked(field, kind.translate(source, written))
    return PersistentVolume(
        metadata=ObjectMeta(name=kind.folder(kind.driver, csi.volume_handle or "")),
        spec=PersistentVolumeSpec(csi=csi, access_modes=[kind.modes(source)], volume_mode="Filesystem"),
    )


def _checked(field: str, source: CSIPersistentVolumeSource) -> CSIPersistentVolumeSource:
    if not (source.volume_handle or "").strip("./"):
        raise VolumeProblem(f"volume of kind {field.replace('_', ' ')} names no disk")
    return source


# --- topology -------------------------------------------------------------------------------------


def _affinity(volume: PersistentVolume, kind: _Kind) -> VolumeNodeAffinity | None:
    """Zones under the driver's topology key, from the volume's node affinity or its labels."""
    affinity = volume.spec.node_affinity
    if not kind.zone:
        return affinity
    terms = list(affinity.required.node_selector_terms) if affinity is not None and affinity.required else []
    labels = volume.metadata.labels
    zone, region = _topology_labels(terms, labels)
    terms = _moved(terms, zone, kind.zone, _zones(labels.get(zone, ""), several=not kind.region))
    if kind.region:
        terms = _moved(terms, region, kind.region, _zones(labels.get(region, ""), several=False))
    elif region == OLD_REGION:
        terms = _renamed(terms, OLD_REGION, REGION)
    return VolumeNodeAffinity(required=NodeSelector(node_selector_terms=terms)) if terms else affinity


def _topology_labels(terms: Sequence[NodeSelectorTerm], labels: Mapping[str, str]) -> tuple[str, str]:
    """Whether the volume has the beta or the GA zone labels."""
    keys = {each.key for term in terms for each in term.match_expressions}
    for known in (keys, labels):
        if ZONE in known:
            return ZONE, REGION
        if OLD_ZONE in known:
            return OLD_ZONE, OLD_REGION
    return ZONE, REGION


def _zones(label: str, *, several: bool) -> list[str]:
    parts = label.split(ZONES_APART) if several else [label]
    return sorted({part.strip() for part in parts} - {""})


def _moved(terms: list[NodeSelectorTerm], key: str, new: str, otherwise: list[str]) -> list[NodeSelectorTerm]:
    """Requirements under `key` under `new`; without any, the values of `otherwise` in every term."""
    if any(each.key == key and each.values for term in terms for each in term.match_expressions):
        return _renamed(terms, key, new)
    if not otherwise:
        return terms
    added = NodeSelectorRequirement(key=new, operator="In", values=otherwise)
    return [replace(term, match_expressions=[*term.match_expressions, added]) for term in terms or [NodeSelectorTerm()]]


def _renamed(terms: Sequence[NodeSelectorTerm], key: str, new: str) -> list[NodeSelectorTerm]:
    return [
        replace(
            term,
            match_expressions=[replace(each, key=new) if each.key == key else each for each in term.match_expressions],
        )
        for term in terms
    ]
