"""Tokens are shared, renewed at 80 % of their life, and outlive a server that is away."""

from __future__ import annotations

import asyncio
import random

import pytest

from pykubelet.api.types import BoundObjectReference, ObjectMeta, ServiceAccount, TokenRequest, TokenRequestSpec
from pykubelet.clients.kube.tokens import TokenManager, TokenUnavailable
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import gather_all, running
from pykubelet.model.errors import Forbidden, NotFound
from tests.fakes.fake_kube import FakeKube


class TokensFixture:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        self.kube.add(ServiceAccount(metadata=ObjectMeta(name="default", namespace="shop")))
        self.tokens = TokenManager(kube=self.kube, clock=self.clock, source=random.Random(3))

    async def ask(self, *, life: int = 3600, uid: str = "u1", audience: str = "") -> str:
        answer = await self.tokens.token("shop", "default", a_request(life=life, uid=uid, audience=audience))
        return answer.status.token or ""


def a_request(*, life: int = 3600, uid: str = "u1", audience: str = "") -> TokenRequest:
    return TokenRequest(
        spec=TokenRequestSpec(
            audiences=[audience] if audience else [],
            expiration_seconds=life,
            bound_object_ref=BoundObjectReference(kind="Pod", api_version="v1", name="p", uid=uid),
        )
    )


async def test_equal_requests_share_a_token() -> None:
    bed = TokensFixture()
    tokens = await gather_all(*(bed.ask() for _ in range(5)))
    assert len(set(tokens)) == 1
    assert (
        len({await bed.ask(), await bed.ask(uid="u2"), await bed.ask(audience="vault"), await bed.ask(life=600)}) == 4
    )
    assert len(bed.kube.calls_of("token")) == 4


@pytest.mark.parametrize(
    ("life", "still_good", "renewed"),
    [(3600, 3600 * 0.8 - 11, 3600 * 0.8 + 1), (600, 600 * 0.8 - 11, 600 * 0.8 + 1), (7 * 86400, 86400 - 11, 86401)],
)
async def test_token_is_renewed_in_time(life: int, still_good: float, renewed: float) -> None:
    bed = TokensFixture()
    first = await bed.ask(life=life)
    due = bed.tokens.due("shop", "default", a_request(life=life))
    assert due is not None and bed.clock.now() + still_good <= due <= bed.clock.now() + renewed
    await asyncio.sleep(still_good)
    assert await bed.ask(life=life) == first
    await asyncio.sleep(renewed - still_good)
    assert await bed.ask(life=life) != first


async def test_old_token_serves_while_renewing_fails_until_it_is_over() -> None:
    bed = TokensFixture()
    first = await bed.ask()
    bed.kube.stop()
    await asyncio.sleep(3500)
    assert await bed.ask() == first
    await asyncio.sleep(101)
    with pytest.raises(TokenUnavailable, match="failed to fetch token: connection refused"):
        await bed.ask()
    bed.kube.start()
    assert await bed.ask() != first


async def test_tokens_of_a_pod_that_is_gone_are_forgotten() -> None:
    bed = TokensFixture()
    first = await bed.ask()
    bed.tokens.forget_pod("u1")
    assert await bed.ask() != first


async def test_expired_tokens_are_swept_out() -> None:
    bed = TokensFixture()
    async with running(bed.tokens):
        await bed.ask(life=600)
        await asyncio.sleep(700)
        assert bed.tokens.due("shop", "default", a_request(life=600)) is None


async def test_unknown_account_is_an_error_that_says_so() -> None:
    bed = TokensFixture()
    with pytest.raises(TokenUnavailable, match='serviceaccounts "nobody" not found'):
        await bed.tokens.token("shop", "nobody", a_request())


async def test_a_server_that_has_not_heard_of_the_pod_yet_is_asked_again_at_once() -> None:
    """We may be quicker than the part of the server that checks whether the pod is ours."""
    bed = TokensFixture()
    bed.kube.fail_next("token", NotFound('pod "p" not found'))
    bed.kube.fail_next("token", Forbidden("node requested token bound to a pod scheduled on a different node"))
    began = bed.clock.monotonic()
    assert await bed.ask()
    assert bed.clock.monotonic() - began < 0.2
    bed.kube.fail_next("token", Forbidden("never"), times=9)
    with pytest.raises(TokenUnavailable, match="never"):
        await bed.ask(uid="u2")
    assert bed.clock.monotonic() - began < 2
