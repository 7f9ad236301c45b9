"""Pure decisions about CSI volumes: access modes, what a driver is told of the pod, whose job fsGroup is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.api.types import CSIDriverSpec, Pod
from pykubelet.model.pod import name_of, namespace_of, uid_of
from pykubelet.volumes.csi.records import PERSISTENT
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.spec import VolumeSpec

STAGE_UNSTAGE = "STAGE_UNSTAGE_VOLUME"
MULTI_WRITER = "SINGLE_NODE_MULTI_WRITER"
MOUNT_GROUP = "VOLUME_MOUNT_GROUP"
EXPAND = "EXPAND_VOLUME"
STATS = "GET_VOLUME_STATS"

POD_INFO = "csi.storage.k8s.io"
TOKENS_KEY = f"{POD_INFO}/serviceAccount.tokens"

_UNCERTAIN = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"})


def is_final(code: str) -> bool:
    """Whether a failed call surely left nothing behind; otherwise the volume may be mounted all the same."""
    return code not in _UNCERTAIN


def access_mode(modes: Sequence[str], capabilities: frozenset[str]) -> str:
    """Only the first mode counts; none is the same as ReadWriteOnce."""
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


def pod_info(driver: CSIDriverSpec | None, pod: Pod, *, ephemeral: bool) -> Mapping[str, str]:
    """What the driver asked to know of the pod."""
    if driver is None or not driver.pod_info_on_mount:
        return {}
    return {
        f"{POD_INFO}/pod.name": name_of(pod),
        f"{POD_INFO}/pod.namespace": namespace_of(pod),
        f"{POD_INFO}/pod.uid": uid_of(pod),
        f"{POD_INFO}/serviceAccount.name": pod.spec.service_account_name or "",
        f"{POD_INFO}/ephemeral": "true" if ephemeral else "false",
    }


def applies_fs_group(
    driver: CSIDriverSpec | None, spec: VolumeSpec, fs_type: str, capabilities: frozenset[str]
) -> bool:
    """Whether the agent, not the driver, gives the volume to the pod's fsGroup."""
    if MOUNT_GROUP in capabilities or spec.read_only:
        return False
    match (driver.fs_group_policy if driver is not None else None) or "ReadWriteOnceWithFSType":
        case "None":
            return False
        case "File":
            return True
        case _:
            if not fs_type:
                return False
            return spec.csi is None or "ReadWriteOnce" in spec.access_modes or "ReadWriteOncePod" in spec.access_modes


def check_lifecycle(driver: CSIDriverSpec | None, name: str, mode: str) -> None:
    """A volume written in the pod needs a driver that says it can do them, others one that does not say otherwise."""
    refused = f'volume mode "{mode}" not supported by driver {name}'
    if driver is None:
        if mode != PERSISTENT:
            raise VolumeProblem(f"{refused} (no CSIDriver object)")
        return
    modes = driver.volume_lifecycle_modes or [PERSISTENT]
    if mode not in modes:
        shown = " ".join(f'"{each}"' for each in modes)
        raise VolumeProblem(f"{refused} (only supports [{shown}])")
