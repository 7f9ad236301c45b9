"""Service accounts and their tokens for credential plugins, from the API server.

The account is read anew each time: its annotations decide what a plugin gives. Tokens are bound to the pod and to
this very account, and kept by whoever makes them.
"""

from __future__ import annotations

from typing import Protocol

from pykubelet.api.types import (
    BoundObjectReference,
    ObjectMeta,
    Pod,
    ServiceAccount,
    TokenRequest,
    TokenRequestSpec,
)
from pykubelet.clients.kube.port import KubeClient
from pykubelet.model.pod import name_of, namespace_of, uid_of


class TokenSource(Protocol):
    async def token(self, namespace: str, service_account: str, request: TokenRequest, /) -> TokenRequest:
        """A valid token, the one at hand while it is good. Raises PykubeletError."""
        ...


class ApiServiceAccounts:
    def __init__(self, *, client: KubeClient, tokens: TokenSource) -> None:
        self._client = client
        self._tokens = tokens

    async def account(self, namespace: str, name: str) -> ServiceAccount:
        return await self._client.get(ServiceAccount, name, namespace)

    async def token(self, pod: Pod, account: ServiceAccount, audience: str) -> str:
        bound = BoundObjectReference(api_version="v1", kind="Pod", name=name_of(pod), uid=uid_of(pod))
        request = TokenRequest(
            metadata=ObjectMeta(uid=account.metadata.uid),
            spec=TokenRequestSpec(audiences=[audience], bound_object_ref=bound),
        )
        answer = await self._tokens.token(namespace_of(pod), account.metadata.name or "", request)
        return answer.status.token or ""
