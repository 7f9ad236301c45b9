"""Pure decisions about CSI volumes: the volume source, access modes, pod info, tokens, and who applies fsGroup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from pykubelet.api.types import CSIDriverSpec, Pod
from pykubelet.model.pod import name_of, namespace_of, uid_of
from pykubelet.volumes.csi.records import EPHEMERAL, PERSISTENT, VolumeRecord, attachment_name, inline_handle
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.spec import VolumeSpec

STAGE_UNSTAGE = "STAGE_UNSTAGE_VOLUME"
MULTI_WRITER = "SINGLE_NODE_MULTI_WRITER"
MOUNT_GROUP = "VOLUME_MOUNT_GROUP"
EXPAND = "EXPAND_VOLUME"
STATS = "GET_VOLUME_STATS"
CONDITION = "VOLUME_CONDITION"

POD_INFO = "csi.storage.k8s.io"
TOKENS_KEY = f"{POD_INFO}/serviceAccount.tokens"

_UNCERTAIN = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"})


def is_final(code: str) -> bool:
    """Whether a failed call certainly had no effect; otherwise the volume may be mounted nevertheless."""
    return code not in _UNCERTAIN


def access_mode(modes: Sequence[str], capabilities: frozenset[str]) -> str:
    """Of several modes the first counts; none means ReadWriteOnce."""
    single = MULTI_WRITER in capabilities
    match modes[0] if modes else "ReadWriteOnce":
        case "ReadWriteOnce":
            return "SINGLE_NODE_MULTI_WRITER" if single else "SINGLE_NODE_WRITER"
        case "ReadOnlyMany":
            return "MULTI_NODE_READER_ONLY"
        case "ReadWriteMany":
            return "MULTI_NODE_MULTI_WRITER"
        case "ReadWriteOncePod":
            return "SINGLE_NODE_SINGLE_WRITER" if single else "SINGLE_NODE_WRITER"
        case other:
            raise VolumeProblem(f"access mode {other} is not known")


def pod_info(driver: CSIDriverSpec, pod: Pod, *, ephemeral: bool) -> Mapping[str, str]:
    """The pod's identity, if the driver requests it."""
    if not driver.pod_info_on_mount:
        return {}
    return {
        f"{POD_INFO}/pod.name": name_of(pod),
        f"{POD_INFO}/pod.namespace": namespace_of(pod),
        f"{POD_INFO}/pod.uid": uid_of(pod),
        f"{POD_INFO}/serviceAccount.name": pod.spec.service_account_name or "",
        f"{POD_INFO}/ephemeral": "true" if ephemeral else "false",
    }


def applies_fs_group(driver: CSIDriverSpec, spec: VolumeSpec, fs_type: str, capabilities: frozenset[str]) -> bool:
    """Whether the agent, not the driver, applies the pod's fsGroup."""
    if MOUNT_GROUP in capabilities or spec.read_only:
        return False
    match driver.fs_group_policy or "ReadWriteOnceWithFSType":
        case "None":
            return False
        case "File":
            return True
        case _:
            if not fs_type:
                return False
            return spec.csi is None or "ReadWriteOnce" in spec.access_modes or "ReadWriteOncePod" in spec.access_modes


def check_lifecycle(driver: CSIDriverSpec | None, name: str, mode: str) -> None:
    """An inline volume needs a driver that declares support, a persistent one a driver that does not exclude it."""
    refused = f'volume mode "{mode}" not supported by driver {name}'
    if driver is None:
        if mode != PERSISTENT:
            raise VolumeProblem(f"{refused} (no CSIDriver object)")
        return
    modes = driver.volume_lifecycle_modes or [PERSISTENT]
    if mode not in modes:
        shown = " ".join(f'"{each}"' for each in modes)
        raise VolumeProblem(f"{refused} (only supports [{shown}])")


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

    @property
    def key(self) -> tuple[str, str]:
        return self.driver, self.handle

    def record(self, spec: VolumeSpec, node: str, label: str = "") -> VolumeRecord:
        return VolumeRecord(
            spec_name=spec.folder,
            handle=self.handle,
            driver=self.driver,
            node=node,
            attachment=attachment_name(self.handle, self.driver, node),
            lifecycle=EPHEMERAL if self.ephemeral else PERSISTENT,
            label=label,
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
