"""Volumes whose files the agent writes itself: secret, configMap, downwardAPI and projected."""

from collections.abc import Sequence

from pykubelet.api.types import (
    ClusterTrustBundleProjection,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    KeyToPath,
    PodCertificateProjection,
    ProjectedVolumeSource,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    VolumeProjection,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.env import validate_field_ref, validate_resource_ref
from pykubelet.api.validation.findings import Findings, key_path, show
from pykubelet.api.validation.metadata import validate_selector

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
SOURCES = {
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
        chosen = [name for field, name in SOURCES.items() if getattr(projection, field) is not None]
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
