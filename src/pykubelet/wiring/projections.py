"""What projected volumes get from the API server beyond objects and tokens: trust bundles and pod certificates.

Both belong to API groups that clusters have off by default, and stand behind gates here, as upstream.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from pykubelet.api.types import LabelSelector, Pod, PodCertificateProjection
from pykubelet.clients.kube.port import KubeClient
from pykubelet.clients.kube.readers import TrustBundleWatcher
from pykubelet.kit import tasks
from pykubelet.kit.clock import Clock
from pykubelet.model.events import EventSink
from pykubelet.settings.gates import Gates
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import Credentials, PodCertificates, TrustBundles
from pykubelet.volumes.pod_certificates import PodCertificateKeeper

BUNDLE_GATE = "ClusterTrustBundleProjection"
CERTIFICATE_GATE = "PodCertificateRequest"


class _Off:
    """Says which gate is off."""

    async def by_name(self, name: str) -> str | None:
        raise VolumeProblem(f"clusterTrustBundle sources need the feature gate {BUNDLE_GATE}")

    async def by_signer(self, signer: str, selector: LabelSelector | None) -> str:
        raise VolumeProblem(f"clusterTrustBundle sources need the feature gate {BUNDLE_GATE}")

    async def credentials(self, pod: Pod, volume: str, index: int, source: PodCertificateProjection) -> Credentials:
        raise VolumeProblem(f"podCertificate sources need the feature gate {CERTIFICATE_GATE}")

    def forget(self, uid: str) -> None:
        """Nothing is kept."""


class _Certificates:
    """In the words of volumes."""

    def __init__(self, keeper: PodCertificateKeeper) -> None:
        self._keeper = keeper

    async def credentials(self, pod: Pod, volume: str, index: int, source: PodCertificateProjection) -> Credentials:
        found = await self._keeper.credentials(pod, volume, index, source)
        return Credentials(key_pem=found.key_pem, chain_pem=found.chain_pem)

    def forget(self, uid: str) -> None:
        self._keeper.forget(uid)


class Projections(Struct, kw_only=True):
    trust: TrustBundles
    certificates: PodCertificates
    services: list[tasks.Service] = field(default_factory=list)
    watcher: TrustBundleWatcher | None = None

    def listen(self, told: Callable[[str], None]) -> None:
        """Tell `told` the name of a bundle that changed."""
        if self.watcher is not None:
            self.watcher.on_change = told


def projections(
    gates: Gates, *, kube: KubeClient, clock: Clock, events: EventSink, node: Callable[[], tuple[str, str]]
) -> Projections:
    off = _Off()
    made = Projections(trust=off, certificates=off)
    if gates.enabled(BUNDLE_GATE):
        made.watcher = TrustBundleWatcher(kube=kube, clock=clock)
        made.trust, made.services = made.watcher, [made.watcher]
    if gates.enabled(CERTIFICATE_GATE):
        made.certificates = _Certificates(PodCertificateKeeper(kube=kube, clock=clock, events=events, node=node))
    return made
