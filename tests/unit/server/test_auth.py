"""Who a caller is and what it may do, with answers remembered for their time and no longer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pykubelet.api.types import TokenReview, TokenReviewStatus, UserInfo
from pykubelet.kit.clock import LoopClock
from pykubelet.model.errors import ApiDown, Forbidden
from pykubelet.server.auth import (
    ANONYMOUS,
    REVIEWS_AT_ONCE,
    AlwaysAllow,
    Authenticator,
    NoAuthentication,
    NoAuthorization,
    PeerCertificate,
    Reviewer,
    User,
    bearer_token,
    make_authorizer,
    peer_certificate,
    without_credentials,
)
from pykubelet.server.requests import Refused, Request
from pykubelet.settings.schema_server import (
    AnonymousAuthentication,
    Authentication,
    Authorization,
    WebhookAuthentication,
)
from tests.unit.server.support import FakeReviewer

TOKEN = Request(headers=[("authorization", "Bearer t1")])
ADA = User(name="ada", groups=("g", "system:authenticated"))


def authenticator(reviewer: FakeReviewer | None, *, anonymous: bool = False, webhook: bool = True) -> Authenticator:
    settings = Authentication(
        anonymous=AnonymousAuthentication(enabled=anonymous), webhook=WebhookAuthentication(enabled=webhook)
    )
    return Authenticator(settings=settings, reviewer=reviewer, clock=LoopClock())


async def refused(awaitable: Any) -> int:
    with pytest.raises(Refused) as caught:
        await awaitable
    return caught.value.status


async def test_a_token_is_asked_about_once_per_its_time() -> None:
    reviewer = FakeReviewer(tokens={"t1": "ada"})
    auth = authenticator(reviewer)
    assert await auth.identify(TOKEN, None) == ADA
    assert await asyncio.gather(*(auth.identify(TOKEN, None) for _ in range(5))) == [ADA] * 5
    assert reviewer.requested == ["token t1"]
    reviewer.tokens = {}
    await LoopClock().sleep(119)
    assert await auth.identify(TOKEN, None) == ADA
    await LoopClock().sleep(2)
    assert await refused(auth.identify(TOKEN, None)) == 401
    reviewer.tokens = {"t1": "ada"}
    assert await refused(auth.identify(TOKEN, None)) == 401, "a no is remembered, too"
    await LoopClock().sleep(121)
    assert await auth.identify(TOKEN, None) == ADA


async def test_callers_at_the_same_time_share_one_question() -> None:
    reviewer = FakeReviewer(tokens={"t1": "ada"})
    auth = authenticator(reviewer)
    assert await asyncio.gather(*(auth.identify(TOKEN, None) for _ in range(5))) == [ADA] * 5
    assert reviewer.requested == ["token t1"]


async def test_a_failure_is_not_remembered() -> None:
    reviewer = FakeReviewer(tokens={"t1": "ada"}, failure=ApiDown("away"))
    auth = authenticator(reviewer)
    assert await refused(auth.identify(TOKEN, None)) == 401
    reviewer.failure = None
    assert await auth.identify(TOKEN, None) == ADA


async def test_anonymous_is_for_those_without_credentials_only() -> None:
    assert await authenticator(FakeReviewer(), anonymous=True).identify(Request(), None) == ANONYMOUS
    assert await refused(authenticator(FakeReviewer(), anonymous=True).identify(TOKEN, None)) == 401
    assert await refused(authenticator(FakeReviewer()).identify(Request(), None)) == 401
    assert await authenticator(None, anonymous=True, webhook=False).identify(TOKEN, None) == ANONYMOUS


async def test_a_certificate_counts_until_it_expires() -> None:
    auth = authenticator(FakeReviewer())
    certificate = PeerCertificate(common_name="ada", organizations=("a", "b"), expires=LoopClock().now() + 10)
    user = await auth.identify(Request(), certificate)
    assert user == User(name="ada", groups=("a", "b", "system:authenticated"))
    await LoopClock().sleep(11)
    assert await refused(auth.identify(Request(), certificate)) == 401


def test_no_way_to_authenticate_is_an_error_at_the_start() -> None:
    with pytest.raises(NoAuthentication, match="no authentication method configured"):
        authenticator(None, webhook=False)
    with pytest.raises(NoAuthentication, match=r"authentication\.webhook\.enabled needs an API server"):
        authenticator(None)
    with pytest.raises(NoAuthorization, match=r"authorization\.mode Webhook needs an API server"):
        make_authorizer(settings=Authorization(), reviewer=None, node_name="n", clock=LoopClock())
    with pytest.raises(NoAuthorization, match="'RBAC' is neither"):
        settings = Authorization(mode="RBAC")
        make_authorizer(settings=settings, reviewer=FakeReviewer(), node_name="n", clock=LoopClock())


def test_names_in_a_certificate() -> None:
    subject = ((("organizationName", "a"),), (("organizationName", "b"),), (("commonName", "ada"),))
    found = peer_certificate({"subject": subject, "notAfter": "x"}, lambda text: 5.0)
    assert found == PeerCertificate(common_name="ada", organizations=("a", "b"), expires=5.0)
    assert peer_certificate({}, lambda text: 5.0) is None


def test_where_a_token_may_be() -> None:
    word = base64.urlsafe_b64encode(b"secret?").decode().rstrip("=")
    offer = f"base64url.bearer.authorization.k8s.io.{word}, v5.channel.k8s.io"
    assert bearer_token(Request(headers=[("sec-websocket-protocol", offer)])) == "secret?"
    assert bearer_token(Request(headers=[("authorization", "bearer  abc ")])) == "abc"
    assert bearer_token(Request(headers=[("authorization", "Basic abc")])) == ""
    assert bearer_token(Request()) == ""
    with pytest.raises(Refused):
        bearer_token(Request(headers=[("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.~ä")]))
    kept = without_credentials([("authorization", "Bearer x"), ("sec-websocket-protocol", offer), ("a", "b")])
    assert kept == [("sec-websocket-protocol", "v5.channel.k8s.io"), ("a", "b")]


async def test_rights_are_asked_in_order_and_remembered() -> None:
    reviewer = FakeReviewer(rights={("ada", "get", "proxy")})
    authorizer = make_authorizer(settings=Authorization(), reviewer=reviewer, node_name="n", clock=LoopClock())
    await authorizer.check(ADA, "GET", ("pods", "proxy"))
    await authorizer.check(ADA, "GET", ("pods", "proxy"))
    assert reviewer.requested == ["ada get pods", "ada get proxy"]
    await LoopClock().sleep(31)
    await authorizer.check(ADA, "GET", ("pods", "proxy"))
    assert reviewer.requested[2:] == ["ada get pods"], "a yes lasts longer than a no"
    reviewer.rights = set()
    await LoopClock().sleep(280)
    with pytest.raises(Refused, match=r"verb=get, resource=nodes, subresource\(s\)=\[pods proxy\]"):
        await authorizer.check(ADA, "GET", ("pods", "proxy"))


async def test_other_methods_are_other_rights() -> None:
    reviewer = FakeReviewer(rights={("ada", "get", "proxy")})
    authorizer = make_authorizer(settings=Authorization(), reviewer=reviewer, node_name="n", clock=LoopClock())
    for method, verb in {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "HEAD": ""}.items():
        with pytest.raises(Refused, match=f"verb={verb}, "):
            await authorizer.check(ADA, method, ("proxy",))


async def test_when_nobody_can_be_asked_nobody_may() -> None:
    reviewer = FakeReviewer(failure=ApiDown("away"))
    authorizer = make_authorizer(settings=Authorization(), reviewer=reviewer, node_name="n", clock=LoopClock())
    assert await refused(authorizer.check(ADA, "GET", ("proxy",))) == 500
    assert await refused(AlwaysAllow().check(ADA, "GET", ())) == 403
    assert isinstance(
        make_authorizer(settings=Authorization(mode="AlwaysAllow"), reviewer=None, node_name="n", clock=LoopClock()),
        AlwaysAllow,
    )


class Server:
    """Fails a few times, then answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.tries = 0

    async def create(self, obj: Any, *, dry_run: bool = False) -> Any:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        assert isinstance(obj, TokenReview)
        status = TokenReviewStatus(authenticated=True, user=UserInfo(username=obj.spec.token))
        return TokenReview(status=status)


async def test_a_busy_api_server_is_asked_again() -> None:
    server = Server(ApiDown("a"), ApiDown("b"))
    status = await Reviewer(kube=server, clock=LoopClock()).token_review("t")
    assert status.user is not None and (status.user.username, server.tries) == ("t", 3)
    server = Server(*[ApiDown("x")] * 9)
    with pytest.raises(ApiDown):
        await Reviewer(kube=server, clock=LoopClock()).token_review("t")
    assert server.tries == 5
    server = Server(Forbidden("no"))
    with pytest.raises(Forbidden):
        await Reviewer(kube=server, clock=LoopClock()).token_review("t")
    assert server.tries == 1


def test_users_differ_by_everything_that_counts() -> None:
    assert replace(ADA, extra=(("k", ("v",)),)) != ADA


async def test_a_token_that_is_no_text_is_nobody_s() -> None:
    reviewer = FakeReviewer(tokens={"t1": "ada"})
    for anonymous in (False, True):
        with pytest.raises(Refused) as refused:
            call = Request(headers=[("authorization", "Bearer " + b"t\xff".decode("utf-8", "surrogateescape"))])
            await authenticator(reviewer, anonymous=anonymous).identify(call, None)
        assert refused.value.status == 401
    assert reviewer.requested == []


async def test_made_up_tokens_leave_the_api_server_to_others() -> None:
    """Many of one address are asked about a few at a time, and another address has its turn among them."""

    class Slow(FakeReviewer):
        now, most = 0, 0

        async def token_review(self, token: str, audiences: Sequence[str] = ()) -> TokenReviewStatus:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(1)
            self.now -= 1
            return await super().token_review(token, audiences)

    reviewer, clock = Slow(tokens={"t1": "ada"}), LoopClock()
    asked = authenticator(reviewer)

    async def made_up(number: int) -> None:
        call = Request(headers=[("authorization", f"Bearer x{number}")], address="10.0.0.2")
        with pytest.raises(Refused):
            await asked.identify(call, None)

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(made_up(number))
        await asyncio.sleep(0.5)
        begun = clock.monotonic()
        assert await asked.identify(replace(TOKEN, address="10.0.0.1"), None) == ADA
        assert clock.monotonic() - begun < 3
    assert reviewer.most == REVIEWS_AT_ONCE
