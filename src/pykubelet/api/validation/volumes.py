"""Volumes of a pod: exactly one source each, and what each kind of source needs.

Covers the files that the agent writes itself: secret, configMap, downwardAPI and projected.
Does not cover: mounts (containers.py).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pykubelet.api.pod_resources import parse_amount
from pykubelet.api.quantity import ZERO
from pykubelet.api.types import (
    AzureDiskVolumeSource,
    ClusterTrustBundleProjection,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    CSIVolumeSource,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    FCVolumeSource,
    FlexVolumeSource,
    FlockerVolumeSource,
    GitRepoVolumeSource,
    HostPathVolumeSource,
    ImageVolumeSource,
    ISCSIVolumeSource,
    KeyToPath,
    NFSVolumeSource,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimTemplate,
    Pod,
    PodCertificateProjection,
    ProjectedVolumeSource,
    QuobyteVolumeSource,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    StorageOSVolumeSource,
    Volume,
    VolumeProjection,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.env import validate_field_ref, validate_resource_ref
from pykubelet.api.validation.findings import Findings, key_path, show
from pykubelet.api.validation.names import validate_annotations, validate_labels, validate_selector

MAX_MODE = 0o777
VOLUME_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.uid",
)
MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 2**32
KEY_TYPES = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
MIN_CERTIFICATE_SECONDS = 3600
MAX_CERTIFICATE_SECONDS = 91 * 24 * 3600
MAX_OWN_CERTIFICATE_SECONDS = 24 * 3600
PROJECTED_SOURCES = {
    field: name
    for field, name in zip(VolumeProjection.__struct_fields__, VolumeProjection.__struct_encode_fields__, strict=True)
}


def validate_key_files(source: SecretVolumeSource | ConfigMapVolumeSource, at: str, found: Findings) -> None:
    _validate_mode(source.default_mode, f"{at}.defaultMode", found)
    _validate_items(source.items, at, found)


def validate_downward_volume(source: DownwardAPIVolumeSource, at: str, found: Findings) -> None:
    _validate_mode(source.default_mode, f"{at}.defaultMode", found)
    for i, file in enumerate(source.items):
        _validate_downward_file(file, f"{at}.items[{i}]", found)


def validate_projected(source: ProjectedVolumeSource, at: str, found: Findings) -> None:
    _validate_mode(source.default_mode, f"{at}.defaultMode", found)
    written: dict[str, str] = {}
    for i, projection in enumerate(source.sources):
        path = f"{at}.sources[{i}]"
        chosen = [name for field, name in PROJECTED_SOURCES.items() if getattr(projection, field) is not None]
        if len(chosen) != 1:
            found.add(path, f"must have exactly one source, not {' and '.join(chosen) or 'none'}")
        for target, where in _validate_projection(projection, path, found):
            if target and target in written:
                found.add(where, f"{show(target)} is already written by {written[target]}")
            written.setdefault(target, where)


def _validate_projection(source: VolumeProjection, at: str, found: Findings) -> list[tuple[str, str]]:
    """Check one source and answer the files it will write, with the paths of the fields saying so."""
    files: list[tuple[str, str]] = []
    keyed: tuple[tuple[str, SecretProjection | ConfigMapProjection | None], ...] = (
        ("secret", source.secret),
        ("configMap", source.config_map),
    )
    for name, keys in keyed:
        if keys is not None:
            found.required(f"{at}.{name}.name", keys.name)
            files += _validate_items(keys.items, f"{at}.{name}", found)
    if source.downward_api is not None:
        for i, file in enumerate(source.downward_api.items):
            path = f"{at}.downwardAPI.items[{i}]"
            _validate_downward_file(file, path, found)
            files.append((file.path or "", f"{path}.path"))
    if source.service_account_token is not None:
        _validate_token(source.service_account_token, f"{at}.serviceAccountToken", found)
    if source.cluster_trust_bundle is not None:
        bundle = source.cluster_trust_bundle
        _validate_trust_bundle(bundle, f"{at}.clusterTrustBundle", found)
        files.append((bundle.path or "", f"{at}.clusterTrustBundle.path"))
    if source.pod_certificate is not None:
        files += _validate_certificate(source.pod_certificate, f"{at}.podCertificate", found)
    return files


def _validate_mode(mode: int | None, path: str, found: Findings) -> None:
    if mode is not None and not 0 <= mode <= MAX_MODE:
        found.add(path, f"must be 0..0777 (octal), not {show(mode)}")


def _validate_path(value: str | None, path: str, found: Findings) -> None:
    if found.required(path, value):
        found.check(path, names.projected_path(value or ""))


def _validate_items(items: Sequence[KeyToPath], at: str, found: Findings) -> list[tuple[str, str]]:
    for i, item in enumerate(items):
        path = f"{at}.items[{i}]"
        found.required(f"{path}.key", item.key)
        _validate_path(item.path, f"{path}.path", found)
        _validate_mode(item.mode, f"{path}.mode", found)
    return [(item.path or "", f"{at}.items[{i}].path") for i, item in enumerate(items)]


def _validate_downward_file(file: DownwardAPIVolumeFile, at: str, found: Findings) -> None:
    _validate_path(file.path, f"{at}.path", found)
    _validate_mode(file.mode, f"{at}.mode", found)
    if (file.field_ref is None) == (file.resource_field_ref is None):
        found.add(at, "must have exactly one of fieldRef, resourceFieldRef")
    if file.field_ref is not None:
        validate_field_ref(file.field_ref, f"{at}.fieldRef", VOLUME_FIELDS, found)
    if file.resource_field_ref is not None:
        validate_resource_ref(file.resource_field_ref, f"{at}.resourceFieldRef", found, container_required=True)


def _validate_token(token: ServiceAccountTokenProjection, at: str, found: Findings) -> None:
    found.between(f"{at}.expirationSeconds", token.expiration_seconds, MIN_TOKEN_SECONDS, MAX_TOKEN_SECONDS)
    _validate_path(token.path, f"{at}.path", found)


def _validate_trust_bundle(bundle: ClusterTrustBundleProjection, at: str, found: Findings) -> None:
    if (bundle.name is None) == (bundle.signer_name is None):
        found.add(at, "must have exactly one of name, signerName")
    elif bundle.name is not None:
        # The bundles of a signer are called SIGNER:NAME with the signer's slash as a colon.
        found.check(f"{at}.name", names.dns_subdomain(bundle.name.rpartition(":")[2]))
        if bundle.label_selector is not None:
            found.add(f"{at}.labelSelector", "must not be set together with name")
    else:
        _validate_signer(bundle.signer_name, f"{at}.signerName", found)
        validate_selector(bundle.label_selector, f"{at}.labelSelector", found)
    _validate_path(bundle.path, f"{at}.path", found)


def _validate_signer(name: str | None, path: str, found: Findings) -> None:
    if not found.required(path, name):
        return
    domain, slash, rest = (name or "").partition("/")
    if not slash or not rest or names.dns_subdomain(domain) is not None or "." not in domain:
        found.add(path, f"must be a signer such as example.com/name, not {show(name)}")


def _validate_certificate(certificate: PodCertificateProjection, at: str, found: Findings) -> list[tuple[str, str]]:
    _validate_signer(certificate.signer_name, f"{at}.signerName", found)
    if found.required(f"{at}.keyType", certificate.key_type):
        found.choice(f"{at}.keyType", certificate.key_type, KEY_TYPES)
    own = (certificate.signer_name or "").startswith("kubernetes.io/")
    found.between(
        f"{at}.maxExpirationSeconds",
        certificate.max_expiration_seconds,
        MIN_CERTIFICATE_SECONDS,
        MAX_OWN_CERTIFICATE_SECONDS if own else MAX_CERTIFICATE_SECONDS,
    )
    for key in certificate.user_annotations:
        complaint = names.qualified_name(key.lower())
        if complaint is None and "/" not in key:
            complaint = f"must have a domain, not {show(key)}"
        if complaint is not None:
            found.add(key_path(f"{at}.userAnnotations", key), f"the key {complaint}")
    files = [
        (value, f"{at}.{name}")
        for name, value in (
            ("credentialBundlePath", certificate.credential_bundle_path),
            ("keyPath", certificate.key_path),
            ("certificateChainPath", certificate.certificate_chain_path),
        )
        if value
    ]
    if not files:
        found.add(at, "must have one of credentialBundlePath, keyPath, certificateChainPath")
    for value, path in files:
        found.check(path, names.projected_path(value))
    return files


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
            found.check(f"{at}.name", names.dns_label(volume.name))
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
