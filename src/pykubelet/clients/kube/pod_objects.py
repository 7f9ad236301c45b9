"""What volumes of pods ask the API server for, in their own words: service account tokens, claims and volumes.

Claims and persistent volumes are read anew each time, since an old answer could mount the wrong disk. A node may
read only those its own pods use; the API server checks that.
"""

from __future__ import annotations

from pykubelet.api.types import (
    BoundObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    TokenRequest,
    TokenRequestSpec,
)
from pykubelet.clients.kube.port import KubeClient
from pykubelet.clients.kube.tokens import TokenManager
from pykubelet.model.errors import NotFound
from pykubelet.model.pod import name_of, namespace_of, uid_of


class PodTokens:
    """Tokens of a pod's service account, bound to the pod: they are void when it is gone."""

    def __init__(self, tokens: TokenManager) -> None:
        self._tokens = tokens

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> str:
        return (await self.answer(pod, audience, expiration_seconds)).status.token or ""

    async def answer(self, pod: Pod, audience: str, expiration_seconds: int) -> TokenRequest:
        """The whole answer, for who must know when the token ends."""
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
