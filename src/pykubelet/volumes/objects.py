"""What volumes read from the API server and from other managers, as Protocols, with defaults for a node without one.

None means "there is no such object"; trouble with the API server is an error (any PykubeletError) and is retried.
Watchers call `VolumeManager.object_changed` when an object came or changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from pykubelet.api.types import (
    ConfigMap,
    CSIDriverSpec,
    LabelSelector,
    NodeSelector,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodCertificateProjection,
    ResourceFieldSelector,
    Secret,
    VolumeAttachment,
)
from pykubelet.clients.host.port import Quotas
from pykubelet.clients.plugins.port import CsiNodeInfo
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.selinux import SelinuxMounts


class References(Protocol):
    """Knows what pods themselves name; anything else is an error."""

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None: ...

    async def secret(self, namespace: str, name: str) -> Secret | None: ...


class Tokens(Protocol):
    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> str:
        """A token of the pod's service account bound to the pod, renewed in time by the callee; called at every
        refresh. Without an audience it is empty."""
        ...

    def forget(self, uid: str) -> None:
        """The pod's volumes are unmounted: drop its tokens."""
        ...


class TrustBundles(Protocol):
    async def by_name(self, name: str) -> str | None:
        """PEM of one bundle."""
        ...

    async def by_signer(self, signer: str, selector: LabelSelector | None) -> str:
        """PEM of all bundles of the signer that match; empty when none does."""
        ...


class Credentials(Struct, frozen=True, kw_only=True):
    key_pem: bytes
    chain_pem: bytes


class PodCertificates(Protocol):
    async def credentials(self, pod: Pod, volume: str, index: int, source: PodCertificateProjection) -> Credentials:
        """Key and certificates for one projection of one volume, requested when there are none yet."""
        ...

    def forget(self, uid: str) -> None:
        """The pod's volumes are unmounted: drop its keys."""
        ...


class Claims(Protocol):
    """Reads from the API server each time, never from a cache that could be old."""

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None: ...

    async def volume(self, name: str) -> PersistentVolume | None: ...

    async def secret(self, namespace: str, name: str) -> Secret | None:
        """A secret that a persistent volume names."""
        ...


class Downward(Protocol):
    """Fields of the pod as text; pure."""

    def field(self, pod: Pod, path: str) -> str: ...

    def resource(self, pod: Pod, selector: ResourceFieldSelector) -> str: ...


class Attachments(Protocol):
    async def wait_attached(self, pod: Pod, unique_name: str) -> str:
        """Wait until the Node's status lists the volume as attached; returns its device path."""
        ...


class CsiObjects(Claims, Protocol):
    async def known(self) -> None:
        """Wait until the CSIDriver objects have been listed."""
        ...

    def driver(self, name: str) -> CSIDriverSpec | None:
        """The CSIDriver object; None when there is none."""
        ...

    async def attachment(self, name: str) -> VolumeAttachment | None: ...

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> tuple[str, str]:
        """A token of the pod's service account and its expirationTimestamp."""
        ...

    async def claim_status(self, claim: PersistentVolumeClaim, changed: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """Patch the status of a claim; returns the claim as it is then."""
        ...


class CsiNodeUpdater(Protocol):
    """Updates this node's CSINode object."""

    async def add_driver(self, name: str, info: CsiNodeInfo) -> None: ...

    async def remove_driver(self, name: str) -> None: ...


class _Absent:
    """Without an API server there are no objects; what would be an empty file is refused."""

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        return None

    async def secret(self, namespace: str, name: str) -> Secret | None:
        return None

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return None

    async def volume(self, name: str) -> PersistentVolume | None:
        return None

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> str:
        raise VolumeProblem("service account tokens come from an API server, and this agent has none")

    def forget(self, uid: str) -> None:
        """Nothing is cached."""

    async def by_name(self, name: str) -> str | None:
        return None

    async def by_signer(self, signer: str, selector: LabelSelector | None) -> str:
        return ""

    async def credentials(self, pod: Pod, volume: str, index: int, source: PodCertificateProjection) -> Credentials:
        raise VolumeProblem("pod certificates come from an API server, and this agent has none")

    def field(self, pod: Pod, path: str) -> str:
        raise VolumeProblem(f"the field {path} is not known")

    def resource(self, pod: Pod, selector: ResourceFieldSelector) -> str:
        raise VolumeProblem(f"the resource {selector.resource} is not known")

    async def wait_attached(self, pod: Pod, unique_name: str) -> str:
        return ""


_ABSENT = _Absent()
BUNDLE_GATE, CERTIFICATE_GATE = "ClusterTrustBundleProjection", "PodCertificateRequest"


class GateOff:
    """Refuses sources of projected volumes whose feature gate is off."""

    async def by_name(self, name: str) -> str | None:
        raise VolumeProblem(f"clusterTrustBundle sources need the feature gate {BUNDLE_GATE}")

    async def by_signer(self, signer: str, selector: LabelSelector | None) -> str:
        raise VolumeProblem(f"clusterTrustBundle sources need the feature gate {BUNDLE_GATE}")

    async def credentials(self, pod: Pod, volume: str, index: int, source: PodCertificateProjection) -> Credentials:
        raise VolumeProblem(f"podCertificate sources need the feature gate {CERTIFICATE_GATE}")

    def forget(self, uid: str) -> None:
        return


class VolumeObjects(Struct, frozen=True, kw_only=True):
    references: References = field(default=_ABSENT)
    tokens: Tokens = field(default=_ABSENT)
    trust: TrustBundles = field(default=_ABSENT)
    certificates: PodCertificates = field(default=_ABSENT)
    claims: Claims = field(default=_ABSENT)
    downward: Downward = field(default=_ABSENT)
    attachments: Attachments = field(default=_ABSENT)
    csi: CsiObjects | None = None
    """None: no API server, and no CSI volumes."""
    csi_node: CsiNodeUpdater | None = None
    node_uid: Callable[[], str] = lambda: ""
    """Of this node's Node object; empty before it is known."""


class VolumeRules(Struct, frozen=True, kw_only=True):
    """What volumes need to know about this node."""

    allocatable_memory: Callable[[], int] = lambda: 0
    """Bytes pods may use; bounds memory volumes. 0 = unknown, no bound."""
    selinux: bool = False
    labels: SelinuxMounts = field(default_factory=SelinuxMounts)
    """How whole volumes are labelled by their mounts."""
    supports_recursive_read_only: Callable[[Pod], bool] = lambda pod: False
    """Whether the pod's runtime handler can make whole mount trees read-only."""
    fits_node: Callable[[NodeSelector], bool] = lambda selector: True
    """Whether a persistent volume's node affinity allows this node."""
    flex_drivers: Path = Path("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")
    """Folder of FlexVolume drivers."""
    controller_attaches: bool = True
    """Whether the control plane attaches volumes, not this agent."""
    refresh_period: float = 60.0
    """Seconds after which a sync refreshes content even if no object changed (tokens expire, watches may be off)."""
    wait_seconds: float = 123.0
    """How long a pod sync waits for mounts; upstream's 2m3s."""
    quotas: Quotas | None = None
    """Counts emptyDirs of pods in user namespaces (gate LocalStorageCapacityIsolationFSQuotaMonitoring)."""
