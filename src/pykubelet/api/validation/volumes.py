"""Volumes of a pod: exactly one source each, and what each kind of source needs.

Does not cover: projected and downward API files (files.py), mounts (mounts.py).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pykubelet.api.pod_resources import parse_amount
from pykubelet.api.quantity import ZERO
from pykubelet.api.types import (
    AzureDiskVolumeSource,
    CSIVolumeSource,
    EmptyDirVolumeSource,
    FCVolumeSource,
    FlexVolumeSource,
    FlockerVolumeSource,
    GitRepoVolumeSource,
    HostPathVolumeSource,
    ImageVolumeSource,
    ISCSIVolumeSource,
    NFSVolumeSource,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimTemplate,
    Pod,
    QuobyteVolumeSource,
    StorageOSVolumeSource,
    Volume,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.files import validate_downward_volume, validate_key_files, validate_projected
from pykubelet.api.validation.findings import Findings, key_path, show
from pykubelet.api.validation.metadata import validate_annotations, validate_labels, validate_selector

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
HOST_PATH_TYPES = (
    "",
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)
ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")

# Python name -> name in the manifest, of every kind of source there is.
SOURCES = {
    field: name
    for field, name in zip(Volume.__struct_fields__, Volume.__struct_encode_fields__, strict=True)
    if field != "name"
}
# Fields that a kind cannot do without, as (Python name, name in the manifest).
REQUIRED: dict[str, tuple[tuple[str, str], ...]] = {
    "aws_elastic_block_store": (("volume_id", "volumeID"),),
    "azure_disk": (("disk_name", "diskName"), ("disk_uri", "diskURI")),
    "azure_file": (("secret_name", "secretName"), ("share_name", "shareName")),
    "cephfs": (("monitors", "monitors"),),
    "cinder": (("volume_id", "volumeID"),),
    "config_map": (("name", "name"),),
    "csi": (("driver", "driver"),),
    "ephemeral": (("volume_claim_template", "volumeClaimTemplate"),),
    "flex_volume": (("driver", "driver"),),
    "gce_persistent_disk": (("pd_name", "pdName"),),
    "git_repo": (("repository", "repository"),),
    "glusterfs": (("endpoints", "endpoints"), ("path", "path")),
    "host_path": (("path", "path"),),
    "image": (("reference", "reference"), ("pull_policy", "pullPolicy")),
    "iscsi": (("target_portal", "targetPortal"), ("iqn", "iqn")),
    "nfs": (("server", "server"), ("path", "path")),
    "persistent_volume_claim": (("claim_name", "claimName"),),
    "photon_persistent_disk": (("pd_id", "pdID"),),
    "portworx_volume": (("volume_id", "volumeID"),),
    "quobyte": (("registry", "registry"), ("volume", "volume")),
    "rbd": (("monitors", "monitors"), ("image", "image")),
    "scale_io": (("gateway", "gateway"), ("system", "system"), ("volume_name", "volumeName")),
    "secret": (("secret_name", "secretName"),),
    "storageos": (("volume_name", "volumeName"),),
    "vsphere_volume": (("volume_path", "volumePath"),),
}
_INITIATOR = re.compile(
    r"iqn\.\d{4}-\d{2}\.[a-z0-9]+(?:[-.][a-z0-9]+)*(?::[^,;*&$|\s]+)?|eui\.[A-Fa-f0-9]{16}|naa\.[A-Fa-f0-9]{16}"
    r"(?:[A-Fa-f0-9]{16})?"
)


def validate_volumes(pod: Pod, found: Findings) -> Mapping[str | None, Volume]:
    """Check spec.volumes and answer them by name, for those who refer to them."""
    volumes: dict[str | None, Volume] = {}
    made = {f"{pod.metadata.name}-{volume.name}" for volume in pod.spec.volumes if volume.ephemeral is not None}
    for i, volume in enumerate(pod.spec.volumes):
        at = f"spec.volumes[{i}]"
        if found.required(f"{at}.name", volume.name):
            found.check(f"{at}.name", names.dns_label(volume.name or ""))
            if volume.name in volumes:
                found.add(f"{at}.name", f"is used twice: {show(volume.name)}")
            volumes.setdefault(volume.name, volume)
        _validate_source(volume, at, found)
        if volume.ephemeral is not None and len(f"{pod.metadata.name}-{volume.name}") > names.MAX_SUBDOMAIN:
            found.add(f"{at}.name", f"POD-VOLUME, its claim's name, must be at most {names.MAX_SUBDOMAIN} characters")
        claim = volume.persistent_volume_claim
        if claim is not None and claim.claim_name in made:
            found.add(f"{at}.persistentVolumeClaim.claimName", "must not be the claim of an ephemeral volume")
    return volumes


def _validate_source(volume: Volume, at: str, found: Findings) -> None:
    chosen = [field for field in SOURCES if getattr(volume, field) is not None]
    if not chosen:
        found.add(at, "must have a source such as emptyDir or hostPath")
    elif len(chosen) > 1:
        found.add(at, f"must have only one source, not {' and '.join(SOURCES[field] for field in chosen)}")
    for field in chosen:
        source, path = getattr(volume, field), f"{at}.{SOURCES[field]}"
        for name, shown in REQUIRED.get(field, ()):
            value = getattr(source, name)
            if value is None or value == "" or value == []:
                found.add(f"{path}.{shown}", "required")
        check = CHECKS.get(field)
        if check is not None:
            check(source, path, found)
    iscsi = volume.iscsi
    # The node makes an interface of that name, and the kernel cuts longer ones.
    if iscsi is not None and iscsi.initiator_name and len(f"{volume.name}:{iscsi.target_portal}") > 64:
        found.add(f"{at}.name", "NAME:TARGETPORTAL must be at most 64 characters with an initiatorName")


def _empty_dir(source: EmptyDirVolumeSource, at: str, found: Findings) -> None:
    if source.size_limit is None:
        return
    amount = parse_amount(source.size_limit)
    if amount is None:
        found.add(f"{at}.sizeLimit", f"must be a quantity such as 64Mi, not {show(source.size_limit)}")
    elif amount < ZERO:
        found.add(f"{at}.sizeLimit", f"must not be negative, not {show(amount)}")


def _host_path(source: HostPathVolumeSource, at: str, found: Findings) -> None:
    found.check(f"{at}.path", names.no_backsteps(source.path or ""))
    found.choice(f"{at}.type", source.type, HOST_PATH_TYPES)


def _nfs(source: NFSVolumeSource, at: str, found: Findings) -> None:
    if source.path and not source.path.startswith("/"):
        found.add(f"{at}.path", f"must be an absolute path, not {show(source.path)}")


def _iscsi(source: ISCSIVolumeSource, at: str, found: Findings) -> None:
    for name, value in (("iqn", source.iqn), ("initiatorName", source.initiator_name)):
        if value and not _INITIATOR.fullmatch(value):
            found.add(f"{at}.{name}", f"must be an iqn., eui. or naa. name, not {show(value)}")
    found.between(f"{at}.lun", source.lun, 0, 255)
    if (source.chap_auth_discovery or source.chap_auth_session) and source.secret_ref is None:
        found.add(f"{at}.secretRef", "required with CHAP authentication")


def _fc(source: FCVolumeSource, at: str, found: Findings) -> None:
    if bool(source.target_wwns) == bool(source.wwids):
        found.add(at, "must have exactly one of targetWWNs, wwids")
    if source.target_wwns:
        if source.lun is None:
            found.add(f"{at}.lun", "required with targetWWNs")
        found.between(f"{at}.lun", source.lun, 0, 255)


def _partition(source: Any, at: str, found: Findings) -> None:
    found.between(f"{at}.partition", source.partition, 0, 255)


def _git_repo(source: GitRepoVolumeSource, at: str, found: Findings) -> None:
    found.check(f"{at}.directory", names.relative_path(source.directory or ""))


def _flocker(source: FlockerVolumeSource, at: str, found: Findings) -> None:
    if bool(source.dataset_name) == bool(source.dataset_uuid):
        found.add(at, "must have exactly one of datasetName, datasetUUID")
    if "/" in (source.dataset_name or ""):
        found.add(f"{at}.datasetName", f"must not contain a slash, not {show(source.dataset_name)}")


def _quobyte(source: QuobyteVolumeSource, at: str, found: Findings) -> None:
    if len(source.tenant or "") > 64:
        found.add(f"{at}.tenant", "must be at most 64 characters long")
    if source.registry and not all(":" in pair for pair in source.registry.split(",")):
        found.add(f"{at}.registry", f"must be host:port pairs with commas between, not {show(source.registry)}")


def _flex(source: FlexVolumeSource, at: str, found: Findings) -> None:
    for key in source.options:
        domain = "." + key.partition("/")[0].lower()
        if domain.endswith((".kubernetes.io", ".k8s.io")):
            found.add(key_path(f"{at}.options", key), "kubernetes.io and k8s.io are reserved")


def _azure_disk(source: AzureDiskVolumeSource, at: str, found: Findings) -> None:
    found.choice(f"{at}.cachingMode", source.caching_mode, ("None", "ReadOnly", "ReadWrite"))
    found.choice(f"{at}.kind", source.kind, ("Shared", "Dedicated", "Managed"))
    prefix = "/subscriptions/" if source.kind == "Managed" else "https://"
    if source.disk_uri and not source.disk_uri.startswith(prefix):
        found.add(f"{at}.diskURI", f"must begin with {prefix}, not {show(source.disk_uri)}")


def _storageos(source: StorageOSVolumeSource, at: str, found: Findings) -> None:
    for name, value in (("volumeName", source.volume_name), ("volumeNamespace", source.volume_namespace)):
        if value:
            found.check(f"{at}.{name}", names.dns_label(value))
    _secret_ref(source, at, found)


def _secret_ref(source: Any, at: str, found: Findings) -> None:
    if source.secret_ref is not None:
        found.required(f"{at}.secretRef.name", source.secret_ref.name)


def _csi(source: CSIVolumeSource, at: str, found: Findings) -> None:
    if source.driver:
        if len(source.driver) > 63:
            found.add(f"{at}.driver", f"must be at most 63 characters long, not {len(source.driver)}")
        found.check(f"{at}.driver", names.dns_subdomain(source.driver.lower()))
    secret = source.node_publish_secret_ref
    if secret is not None and found.required(f"{at}.nodePublishSecretRef.name", secret.name):
        found.check(f"{at}.nodePublishSecretRef.name", names.dns_subdomain(secret.name or ""))


def _image(source: ImageVolumeSource, at: str, found: Findings) -> None:
    if source.pull_policy:
        found.choice(f"{at}.pullPolicy", source.pull_policy, PULL_POLICIES)


def _ephemeral(source: Any, at: str, found: Findings) -> None:
    template: PersistentVolumeClaimTemplate | None = source.volume_claim_template
    if template is None:
        return
    at = f"{at}.volumeClaimTemplate"
    if template.metadata is not None:
        validate_labels(template.metadata.labels, f"{at}.metadata.labels", found)
        validate_annotations(template.metadata.annotations, f"{at}.metadata.annotations", found)
        if template.metadata.name or template.metadata.namespace:
            found.add(f"{at}.metadata", "only labels and annotations may be set")
    _claim_spec(template.spec or PersistentVolumeClaimSpec(), f"{at}.spec", found)


def _claim_spec(spec: PersistentVolumeClaimSpec, at: str, found: Findings) -> None:
    found.required(f"{at}.accessModes", spec.access_modes)
    for i, mode in enumerate(spec.access_modes):
        found.choice(f"{at}.accessModes[{i}]", mode, ACCESS_MODES)
    if "ReadWriteOncePod" in spec.access_modes and len(set(spec.access_modes)) > 1:
        found.add(f"{at}.accessModes", "ReadWriteOncePod must stand alone")
    validate_selector(spec.selector, f"{at}.selector", found)
    limits, requests = (spec.resources.limits, spec.resources.requests) if spec.resources is not None else ({}, {})
    for which, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            amount = parse_amount(value)
            if amount is None or amount <= ZERO:
                path = key_path(f"{at}.resources.{which}", name)
                found.add(path, f"must be a positive quantity such as 1Gi, not {show(value)}")
    if "storage" not in requests:
        found.add(f"{at}.resources.requests[storage]", "required")
    if spec.storage_class_name:
        found.check(f"{at}.storageClassName", names.dns_subdomain(spec.storage_class_name))
    found.choice(f"{at}.volumeMode", spec.volume_mode, ("Filesystem", "Block"))


CHECKS: dict[str, Callable[[Any, str, Findings], None]] = {
    "aws_elastic_block_store": _partition,
    "azure_disk": _azure_disk,
    "cinder": _secret_ref,
    "config_map": validate_key_files,
    "csi": _csi,
    "downward_api": validate_downward_volume,
    "empty_dir": _empty_dir,
    "ephemeral": _ephemeral,
    "fc": _fc,
    "flex_volume": _flex,
    "flocker": _flocker,
    "gce_persistent_disk": _partition,
    "git_repo": _git_repo,
    "host_path": _host_path,
    "image": _image,
    "iscsi": _iscsi,
    "nfs": _nfs,
    "projected": validate_projected,
    "quobyte": _quobyte,
    "secret": validate_key_files,
    "storageos": _storageos,
}
