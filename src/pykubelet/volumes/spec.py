"""VolumeSpec: one volume of one pod after its kind and its claim, if any, are resolved.

Kinds this agent does not support are refused here by name, so that none is silently left out.
"""

from __future__ import annotations

import re

from msgspec import Struct

from pykubelet.api.types import CSIPersistentVolumeSource, FlexVolumeSource, LocalVolumeSource, Volume
from pykubelet.volumes.csi.migration import migrated_inline
from pykubelet.volumes.errors import VolumeProblem

EMPTY_DIR = "kubernetes.io/empty-dir"
HOST_PATH = "kubernetes.io/host-path"
CONFIG_MAP = "kubernetes.io/configmap"
SECRET = "kubernetes.io/secret"
DOWNWARD_API = "kubernetes.io/downward-api"
PROJECTED = "kubernetes.io/projected"
LOCAL = "kubernetes.io/local-volume"
NFS = "kubernetes.io/nfs"
ISCSI = "kubernetes.io/iscsi"
FC = "kubernetes.io/fc"
IMAGE = "kubernetes.io/image"
CSI = "kubernetes.io/csi"

PLUGINS = {
    "empty_dir": EMPTY_DIR,
    "host_path": HOST_PATH,
    "config_map": CONFIG_MAP,
    "secret": SECRET,
    "downward_api": DOWNWARD_API,
    "projected": PROJECTED,
    "nfs": NFS,
    "iscsi": ISCSI,
    "fc": FC,
    "image": IMAGE,
    "csi": CSI,
}
OWN_PLUGINS = frozenset((*PLUGINS.values(), LOCAL))
"""Names that no FlexVolume driver can have."""
CLAIMED = ("persistent_volume_claim", "ephemeral")
LONGEST_DRIVER = 255
_DRIVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,126}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,126})?")
_GIT_REPO = (
    "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the "
    "feature-gate `GitRepoVolumeDriver`"
)


class VolumeSpec(Struct, frozen=True, kw_only=True):
    name: str
    """Its name in the pod."""
    folder: str
    """Its name on disk: the persistent volume's name when there is one, else `name`."""
    plugin: str
    volume: Volume
    """The source, also for persistent volumes, whose sources have the same shape."""
    local: LocalVolumeSource | None = None
    """A kind that exists only as a persistent volume."""
    csi: CSIPersistentVolumeSource | None = None
    """A CSI persistent volume; an inline one is in `volume`."""
    read_only: bool = False
    block: bool = False
    """Used as a block device, not as a filesystem."""
    persistent: str = ""
    """Name of the persistent volume, if it is one."""
    claim: tuple[str, str] | None = None
    """Namespace and name of its claim."""
    mount_options: tuple[str, ...] = ()
    access_modes: tuple[str, ...] = ()
    gid: int | None = None
    """From the annotation pv.beta.kubernetes.io/gid."""
    secret_namespace: str = ""
    """Namespace of secrets that the source names, if not the pod's."""
    size_bytes: int | None = None
    migrated: bool = False
    """Translated from an in-tree kind by CSI migration."""
    attached: tuple[str, ...] = ()
    """Its unique name, or candidates for it, when only that is known of a volume of an earlier run."""


def server_of(spec: VolumeSpec) -> str:
    """The server that a volume of the network is from, as its source names it; empty for the others."""
    if spec.volume.nfs is not None:
        return spec.volume.nfs.server or ""
    return (spec.volume.iscsi.target_portal or "") if spec.volume.iscsi is not None else ""


def qualified_plugin(spec: VolumeSpec) -> str:
    """The plugin as metrics name it: with the driver, when it is CSI."""
    source = spec.csi or spec.volume.csi
    return f"{spec.plugin}:{source.driver}" if source is not None else spec.plugin


def flex_plugin(source: FlexVolumeSource) -> str:
    """The plugin of a flexVolume is its driver, whose name becomes part of paths."""
    driver = source.driver or ""
    if _DRIVER.fullmatch(driver) is None or driver in OWN_PLUGINS:
        raise VolumeProblem(f"flexVolume.driver {driver[:LONGEST_DRIVER]!r} cannot be the name of a driver")
    return driver


class VolumeUsage(Struct, frozen=True, kw_only=True):
    """One volume in the shape of the summary's VolumeStats."""

    name: str
    capacity_bytes: int
    used_bytes: int = 0
    available_bytes: int = 0
    inodes: int = 0
    inodes_free: int = 0
    inodes_used: int = 0
    claim: tuple[str, str] | None = None
    """Namespace and name of its claim."""
    on_node_disk: bool = False
    """Whether it counts as the pod's local ephemeral storage."""
    abnormal: bool | None = None
    """Whether its driver finds that something is wrong with it; None when that is not known."""
    condition: str = ""
    """The driver's words about that."""
    complete: bool = True
    """False: usage is a lower bound, the walk is still under way."""


def kind_of(volume: Volume) -> str:
    """The field of the source that is set. A volume without any is an emptyDir, as the API defaults it."""
    for field in volume.__struct_fields__:
        if field != "name" and getattr(volume, field) is not None:
            return field
    return "empty_dir"


def wire_name(volume: Volume, field: str) -> str:
    names = dict(zip(volume.__struct_fields__, volume.__struct_encode_fields__, strict=True))
    return names[field]


def is_claimed(volume: Volume) -> bool:
    return kind_of(volume) in CLAIMED


def spec_of(volume: Volume, *, namespace: str = "", block: bool = False) -> VolumeSpec:
    """The spec of a volume without a claim; refuses unsupported kinds. `namespace` is the pod's."""
    name, kind = volume.name, kind_of(volume)
    if (stands_for_it := migrated_inline(volume, namespace)) is not None:
        return VolumeSpec(
            name=name,
            folder=(stands_for_it.metadata.name or "").replace("/", "~"),
            plugin=CSI,
            volume=Volume(name=name),
            csi=stands_for_it.spec.csi,
            read_only=bool(getattr(getattr(volume, kind), "read_only", False)),
            access_modes=tuple(stands_for_it.spec.access_modes),
            migrated=True,
        )
    if kind == "git_repo":
        raise VolumeProblem(_GIT_REPO)
    plugin = flex_plugin(volume.flex_volume) if volume.flex_volume is not None else PLUGINS.get(kind)
    if plugin is None:
        raise VolumeProblem(f"volumes of kind {wire_name(volume, kind)} are not supported by this agent")
    source = getattr(volume, kind)
    return VolumeSpec(
        name=name,
        folder=name,
        plugin=plugin,
        volume=volume,
        read_only=bool(getattr(source, "read_only", False)),
        block=block,
    )
