"""References of a pod to other API objects, which a static pod may not have: nobody could resolve them.

Covers: service account, secrets, config maps, claims, CSI drivers, trust bundles, certificates, endpoints.
Does not cover: whether the objects exist.
"""

from collections.abc import Collection, Iterator

from pykubelet.api.types import Container, EphemeralContainer, Pod, Volume, VolumeProjection
from pykubelet.api.validation.findings import FieldError
from pykubelet.api.validation.security import every_container

# Kinds of volumes that reach for an API object: field, name in the manifest, resource.
VOLUMES = (
    ("config_map", "configMap", "configmaps"),
    ("secret", "secret", "secrets"),
    ("csi", "csi", "csidrivers"),
    ("glusterfs", "glusterfs", "endpoints"),
    ("persistent_volume_claim", "persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "ephemeral", "persistentvolumeclaims"),
    ("azure_file", "azureFile", "secrets"),
)
# Kinds of volumes that are fine by themselves but may name a secret.
SECRET_REFS = (
    ("cephfs", "cephfs"),
    ("cinder", "cinder"),
    ("flex_volume", "flexVolume"),
    ("iscsi", "iscsi"),
    ("rbd", "rbd"),
    ("scale_io", "scaleIO"),
    ("storageos", "storageos"),
)
PROJECTIONS = (
    ("config_map", "configMap", "configmaps"),
    ("secret", "secret", "secrets"),
    ("service_account_token", "serviceAccountToken", "serviceaccounts"),
    ("cluster_trust_bundle", "clusterTrustBundle", "clustertrustbundles"),
    ("pod_certificate", "podCertificate", "podcertificates"),
)


NEVER_IN_STATIC_PODS = frozenset(("clustertrustbundles", "resourceclaims"))
"""Refused with gate PreventStaticPodAPIReferences off, too."""


def api_references(pod: Pod, *, only: Collection[str] | None = None) -> list[FieldError]:
    """Every such reference, as `static pods may not reference <resource>` at its field; `only` to these resources."""
    return [
        FieldError(path=path, message=f"static pods may not reference {resource}")
        for path, resource in _references(pod)
        if only is None or resource in only
    ]


def _references(pod: Pod) -> Iterator[tuple[str, str]]:
    if pod.spec.service_account_name:
        yield "spec.serviceAccountName", "serviceaccounts"
    for i, secret in enumerate(pod.spec.image_pull_secrets):
        if secret.name:
            yield f"spec.imagePullSecrets[{i}]", "secrets"
    for at, container in every_container(pod.spec):
        yield from _of_container(container, at)
    for i, _ in enumerate(pod.spec.resource_claims):
        yield f"spec.resourceClaims[{i}]", "resourceclaims"
    for i, volume in enumerate(pod.spec.volumes):
        yield from _of_volume(volume, f"spec.volumes[{i}]")


def _of_container(container: Container | EphemeralContainer, at: str) -> Iterator[tuple[str, str]]:
    for i, source in enumerate(container.env_from):
        if source.config_map_ref is not None:
            yield f"{at}.envFrom[{i}].configMapRef", "configmaps"
        if source.secret_ref is not None:
            yield f"{at}.envFrom[{i}].secretRef", "secrets"
    for i, variable in enumerate(container.env):
        if variable.value_from is None:
            continue
        if variable.value_from.config_map_key_ref is not None:
            yield f"{at}.env[{i}].valueFrom.configMapKeyRef", "configmaps"
        if variable.value_from.secret_key_ref is not None:
            yield f"{at}.env[{i}].valueFrom.secretKeyRef", "secrets"


def _of_volume(volume: Volume, at: str) -> Iterator[tuple[str, str]]:
    for field, name, resource in VOLUMES:
        if getattr(volume, field) is not None:
            yield f"{at}.{name}", resource
    for field, name in SECRET_REFS:
        source = getattr(volume, field)
        if source is not None and source.secret_ref is not None:
            yield f"{at}.{name}.secretRef", "secrets"
    for i, projection in enumerate(volume.projected.sources if volume.projected is not None else ()):
        yield from _of_projection(projection, f"{at}.projected.sources[{i}]")


def _of_projection(projection: VolumeProjection, at: str) -> Iterator[tuple[str, str]]:
    for field, name, resource in PROJECTIONS:
        if getattr(projection, field) is not None:
            yield f"{at}.{name}", resource
