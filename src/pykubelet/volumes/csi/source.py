"""One CSI volume of one pod, read from whichever place it was written in: the pod itself or a persistent volume."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from pykubelet.volumes.csi.records import EPHEMERAL, PERSISTENT, VolumeRecord, attachment_name, inline_handle
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.spec import VolumeSpec

SecretName = tuple[str, str]
"""Namespace and name."""


class CsiSource(Struct, frozen=True, kw_only=True):
    driver: str
    handle: str
    fs_type: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    ephemeral: bool = False
    publish_secret: SecretName | None = None
    stage_secret: SecretName | None = None
    expand_secret: SecretName | None = None

    def record(self, spec: VolumeSpec, node: str) -> VolumeRecord:
        return VolumeRecord(
            spec_name=spec.folder,
            handle=self.handle,
            driver=self.driver,
            node=node,
            attachment=attachment_name(self.handle, self.driver, node),
            lifecycle=EPHEMERAL if self.ephemeral else PERSISTENT,
        )


def source_of(spec: VolumeSpec, uid: str, namespace: str) -> CsiSource:
    persistent, inline = spec.csi, spec.volume.csi
    if persistent is not None:
        return CsiSource(
            driver=persistent.driver or "",
            handle=persistent.volume_handle or "",
            fs_type=persistent.fs_type or "",
            attributes=persistent.volume_attributes,
            publish_secret=_reference(persistent.node_publish_secret_ref),
            stage_secret=_reference(persistent.node_stage_secret_ref),
            expand_secret=_reference(persistent.node_expand_secret_ref),
        )
    if inline is None:
        raise VolumeProblem(f"volume {spec.name} has no csi source")
    secret = inline.node_publish_secret_ref
    return CsiSource(
        driver=inline.driver or "",
        handle=inline_handle(uid, spec.name),
        fs_type=inline.fs_type or "",
        attributes=inline.volume_attributes,
        ephemeral=True,
        publish_secret=(namespace, secret.name or "") if secret is not None else None,
    )


def _reference(secret: object | None) -> SecretName | None:
    if secret is None:
        return None
    return getattr(secret, "namespace", None) or "", getattr(secret, "name", None) or ""
