"""Objects that volumes and dynamic resources read from the API server.

Claims, persistent volumes, their secrets and attachments are read anew each time, since an old answer could mount the
wrong disk; a node may read only those its own pods use. CSIDriver and ClusterTrustBundle objects are watched from the
first use on: a node without such volumes has no such watch. Certificates of several bundles are put together, each
once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping

from pykubelet.api.times import format_time
from pykubelet.api.types import (
    BoundObjectReference,
    ClusterTrustBundle,
    CSIDriver,
    CSIDriverSpec,
    LabelSelector,
    LabelSelectorRequirement,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    ResourceResourceClaim,
    ResourceSlice,
    Secret,
    TokenRequest,
    TokenRequestSpec,
    VolumeAttachment,
)
from pykubelet.clients.kube.patch import claim_status_patch
from pykubelet.clients.kube.port import KubeClient, PatchType
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.clients.kube.tokens import TokenManager
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import NotFound, PykubeletError
from pykubelet.model.pod import name_of, namespace_of, uid_of


class PodTokens:
    """Tokens of a pod's service account, bound to the pod: they are void when it is gone."""

    def __init__(self, tokens: TokenManager) -> None:
        self._tokens = tokens

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> str:
        return (await self.answer(pod, audience, expiration_seconds)).status.token or ""

    async def answer(self, pod: Pod, audience: str, expiration_seconds: int) -> TokenRequest:
        """The whole TokenRequest, for callers that need the expiry."""
        bound = BoundObjectReference(api_version="v1", kind="Pod", name=name_of(pod), uid=uid_of(pod))
        request = TokenRequest(
            spec=TokenRequestSpec(
                audiences=[audience] if audience else [], expiration_seconds=expiration_seconds, bound_object_ref=bound
            )
        )
        account = pod.spec.service_account_name or "default"
        return await self._tokens.token(namespace_of(pod), account, request)

    def forget(self, uid: str) -> None:
        self._tokens.forget_pod(uid)


class ClaimReader:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        try:
            return await self._client.get(PersistentVolumeClaim, name, namespace)
        except NotFound:
            return None

    async def volume(self, name: str) -> PersistentVolume | None:
        try:
            return await self._client.get(PersistentVolume, name)
        except NotFound:
            return None

    async def secret(self, namespace: str, name: str) -> Secret | None:
        try:
            return await self._client.get(Secret, name, namespace)
        except NotFound:
            return None


class KubeCsiObjects:
    name = "csi drivers"

    def __init__(
        self, *, client: KubeClient, drivers: Reflector[CSIDriver], tokens: PodTokens, claims: ClaimReader
    ) -> None:
        self._client = client
        self._drivers = drivers
        self._tokens = tokens
        self._claims = claims
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        await self._wanted.wait()
        await self._drivers.run()

    async def known(self) -> None:
        self._wanted.set()
        await self._drivers.wait_synced()

    def driver(self, name: str) -> CSIDriverSpec | None:
        found = self._drivers.get(name)
        return found.spec if found is not None else None

    async def attachment(self, name: str) -> VolumeAttachment | None:
        try:
            return await self._client.get(VolumeAttachment, name)
        except NotFound:
            return None

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> tuple[str, str]:
        status = (await self._tokens.answer(pod, audience, expiration_seconds)).status
        return status.token or "", format_time(status.expiration_timestamp) if status.expiration_timestamp else ""

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return await self._claims.claim(namespace, name)

    async def volume(self, name: str) -> PersistentVolume | None:
        return await self._claims.volume(name)

    async def secret(self, namespace: str, name: str) -> Secret | None:
        return await self._claims.secret(namespace, name)

    async def claim_status(self, claim: PersistentVolumeClaim, changed: PersistentVolumeClaim) -> PersistentVolumeClaim:
        body = claim_status_patch(claim, changed.status)
        if body is None:
            return claim
        return await self._client.patch(
            PersistentVolumeClaim,
            claim.metadata.name or "",
            body,
            patch_type=PatchType.STRATEGIC,
            namespace=claim.metadata.namespace or "",
            subresource="status",
        )


class KubeClaimObjects:
    def __init__(self, client: KubeClient, node_name: str) -> None:
        self._client = client
        self._node_name = node_name

    async def resource_claim(self, namespace: str, name: str) -> ResourceResourceClaim | None:
        try:
            return await self._client.get(ResourceResourceClaim, name, namespace)
        except NotFound:
            return None

    async def delete_slices(self, driver: str) -> None:
        selector = f"spec.nodeName={self._node_name}" + (f",spec.driver={driver}" if driver else "")
        page = await self._client.list(ResourceSlice, field_selector=selector)
        for each in page.items:
            try:
                await self._client.delete(ResourceSlice, each.metadata.name or "", uid=each.metadata.uid or "")
            except NotFound:
                continue


FIRST_READ_WITHIN = 10.0
_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class BundlesUnavailable(PykubeletError):
    """The bundles could not be read in time."""


class TrustBundleWatcher:
    name = "trust bundles"

    def __init__(self, *, kube: KubeClient, clock: Clock, on_change: Callable[[str], None] = lambda name: None) -> None:
        """`on_change` is called with the name of a bundle."""
        self._live = Reflector(
            client=kube,
            query=Query(kind=ClusterTrustBundle),
            clock=clock,
            on_change=lambda change: on_change(change.object.metadata.name or ""),
        )
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        await self._wanted.wait()
        await self._live.run()

    async def by_name(self, name: str) -> str | None:
        await self._synced()
        found = self._live.get(name)
        return None if found is None else joined([found])

    async def by_signer(self, signer: str, selector: LabelSelector | None) -> str:
        await self._synced()
        return joined(
            each
            for each in self._live.all()
            if each.spec.signer_name == signer and selects(selector, each.metadata.labels)
        )

    async def _synced(self) -> None:
        self._wanted.set()
        if not await self._live.wait_synced(FIRST_READ_WITHIN):
            raise BundlesUnavailable(f"cluster trust bundles could not be read within {FIRST_READ_WITHIN:g} s")


def joined(bundles: Iterable[ClusterTrustBundle]) -> str:
    """Every certificate once, in an order that depends on nothing but the certificates."""
    blocks = {block for bundle in bundles for block in _BLOCK.findall(bundle.spec.trust_bundle or "")}
    return "".join(f"{block}\n" for block in sorted(blocks))


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """No selector selects nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(_holds(each, labels) for each in selector.match_expressions)


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key or "")
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
