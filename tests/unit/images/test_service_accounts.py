"""Service accounts for plugins: read from the API server, tokens bound to pod and account."""

from __future__ import annotations

import pytest

from pykubelet.api.types import ObjectMeta, ServiceAccount, TokenRequest, TokenRequestStatus
from pykubelet.images.provider import ServiceAccounts
from pykubelet.kit.clock import LoopClock
from pykubelet.model.errors import NotFound
from tests.fakes.fake_kube import FakeKube
from tests.unit.images.making import a_pulling_pod


class Tokens:
    def __init__(self) -> None:
        self.requested: list[tuple[str, str, TokenRequest]] = []

    async def token(self, namespace: str, service_account: str, request: TokenRequest) -> TokenRequest:
        self.requested.append((namespace, service_account, request))
        return TokenRequest(status=TokenRequestStatus(token="t"))


async def test_account_and_token() -> None:
    kube, tokens = FakeKube(LoopClock()), Tokens()
    made = await kube.create(ServiceAccount(metadata=ObjectMeta(name="acc", namespace="default")))
    accounts = ServiceAccounts(client=kube, tokens=tokens)
    account = await accounts.account("default", "acc")
    assert account.metadata.uid == made.metadata.uid
    assert await accounts.token(a_pulling_pod(), account, "aud") == "t"
    [(namespace, name, request)] = tokens.requested
    assert (namespace, name, request.metadata.uid) == ("default", "acc", made.metadata.uid)
    bound = request.spec.bound_object_ref
    assert bound is not None and (bound.kind, bound.name, bound.uid) == ("Pod", "web", "uid-web")
    assert request.spec.audiences == ["aud"] and request.spec.expiration_seconds is None
    with pytest.raises(NotFound):
        await accounts.account("default", "gone")
