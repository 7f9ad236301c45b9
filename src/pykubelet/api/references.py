"""References of a pod: the one list of fields that name another API object.

What watches these objects (clients/kube/references.py), waits for them (volumes/desired_state.py) or refuses them
(manifest.py) takes them from here, so all agree. Does not cover what a persistent volume names, such as the secrets
of its source: no pod names these, and they are read from the API server when the volume is mounted.
"""

from collections.abc import Iterator

from msgspec import Struct

from pykubelet.api.types import Container, EphemeralContainer, Pod, Volume, VolumeProjection
from pykubelet.api.validation.security import every_container

# Volume sources that name one object: field, name in the manifest, kind, field of the object's name.
_SOURCES = (
    ("config_map", "configMap", "ConfigMap", "name"),
    ("secret", "secret", "Secret", "secret_name"),
    ("csi", "csi", "CSIDriver", "driver"),
    ("glusterfs", "glusterfs", "Endpoints", "endpoints"),
    ("azure_file", "azureFile", "Secret", "secret_name"),
)
# Volume sources that may name a secret: field, name in the manifest, field of the reference, its name in the manifest.
_SECRET_REFS = (
    ("cephfs", "cephfs", "secret_ref", "secretRef"),
    ("cinder", "cinder", "secret_ref", "secretRef"),
    ("csi", "csi", "node_publish_secret_ref", "nodePublishSecretRef"),
    ("flex_volume", "flexVolume", "secret_ref", "secretRef"),
    ("iscsi", "iscsi", "secret_ref", "secretRef"),
    ("rbd", "rbd", "secret_ref", "secretRef"),
    ("scale_io", "scaleIO", "secret_ref", "secretRef"),
    ("storageos", "storageos", "secret_ref", "secretRef"),
)
_CLUSTER_SCOPED = frozenset(("CSIDriver", "ClusterTrustBundle"))


class Reference(Struct, frozen=True, kw_only=True):
    kind: str
    namespace: str
    """The pod's; empty for cluster-scoped objects."""
    name: str
    """Empty where the field gives none: of trust bundles by signer, any may be meant."""
    at: str
    """The field that refers."""
    in_volume: bool = False

    @property
    def resource(self) -> str:
        return self.kind.lower().removesuffix("s") + "s"


def pod_references(pod: Pod) -> Iterator[Reference]:
    """Yield every reference of the pod, in the order of its fields."""
    namespace = pod.metadata.namespace or ""

    def reference(kind: str, name: str | None, at: str) -> Reference:
        return Reference(kind=kind, namespace=namespace, name=name or "", at=at)

    if pod.spec.service_account_name:
        yield reference("ServiceAccount", pod.spec.service_account_name, "spec.serviceAccountName")
    for i, secret in enumerate(pod.spec.image_pull_secrets):
        if secret.name:
            yield reference("Secret", secret.name, f"spec.imagePullSecrets[{i}]")
    for at, container in every_container(pod.spec):
        for kind, name, field in _of_container(container):
            yield reference(kind, name, f"{at}.{field}")
    for i, claim in enumerate(pod.spec.resource_claims):
        yield reference("ResourceClaim", claim.resource_claim_name, f"spec.resourceClaims[{i}]")
    for i, volume in enumerate(pod.spec.volumes):
        yield from volume_references(pod, volume, f"spec.volumes[{i}]")


def volume_references(pod: Pod, volume: Volume, at: str = "") -> Iterator[Reference]:
    """Yield every reference of one volume of the pod; `at` is the volume's field."""
    namespace = pod.metadata.namespace or ""
    for kind, name, field in _of_volume(pod, volume):
        scope = "" if kind in _CLUSTER_SCOPED else namespace
        yield Reference(kind=kind, namespace=scope, name=name or "", at=f"{at}.{field}", in_volume=True)


def claim_name(pod: Pod, volume: Volume) -> str:
    """The claim of a volume; empty when it has none."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name or ""
    if volume.ephemeral is not None:
        return f"{pod.metadata.name or ''}-{volume.name}"
    return ""


_Named = tuple[str, str | None, str]
"""Kind, name and field of a reference."""


def _of_container(container: Container | EphemeralContainer) -> Iterator[_Named]:
    for i, source in enumerate(container.env_from):
        if source.config_map_ref is not None:
            yield "ConfigMap", source.config_map_ref.name, f"envFrom[{i}].configMapRef"
        if source.secret_ref is not None:
            yield "Secret", source.secret_ref.name, f"envFrom[{i}].secretRef"
    for i, variable in enumerate(container.env):
        if variable.value_from is None:
            continue
        if variable.value_from.config_map_key_ref is not None:
            yield "ConfigMap", variable.value_from.config_map_key_ref.name, f"env[{i}].valueFrom.configMapKeyRef"
        if variable.value_from.secret_key_ref is not None:
            yield "Secret", variable.value_from.secret_key_ref.name, f"env[{i}].valueFrom.secretKeyRef"


def _of_volume(pod: Pod, volume: Volume) -> Iterator[_Named]:
    for field, written, kind, name_field in _SOURCES:
        source = getattr(volume, field)
        if source is not None:
            yield kind, getattr(source, name_field), written
    if volume.persistent_volume_claim is not None:
        yield "PersistentVolumeClaim", claim_name(pod, volume), "persistentVolumeClaim"
    if volume.ephemeral is not None:
        yield "PersistentVolumeClaim", claim_name(pod, volume), "ephemeral"
    for field, written, reference, written_reference in _SECRET_REFS:
        source = getattr(volume, field)
        secret = getattr(source, reference) if source is not None else None
        if secret is not None:
            yield "Secret", secret.name, f"{written}.{written_reference}"
    for i, projection in enumerate(volume.projected.sources if volume.projected is not None else ()):
        for kind, name, field in _of_projection(pod, projection):
            yield kind, name, f"projected.sources[{i}].{field}"


def _of_projection(pod: Pod, source: VolumeProjection) -> Iterator[_Named]:
    if source.config_map is not None:
        yield "ConfigMap", source.config_map.name, "configMap"
    if source.secret is not None:
        yield "Secret", source.secret.name, "secret"
    if source.service_account_token is not None:
        yield "ServiceAccount", pod.spec.service_account_name or "default", "serviceAccountToken"
    if source.cluster_trust_bundle is not None:
        yield "ClusterTrustBundle", source.cluster_trust_bundle.name, "clusterTrustBundle"
    if source.pod_certificate is not None:
        # Named as upstream's refusal does; the request behind it gets its name from the agent.
        yield "PodCertificate", "", "podCertificate"
