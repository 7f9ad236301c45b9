"""Authentication and authorization of callers.

Authentication: client certificate, Authorization header, WebSocket bearer protocol, anonymous, in upstream's order.
Credentials that are present but wrong are an error (401) even when anonymous callers are allowed. Authorization:
everything (AlwaysAllow), or what the API server's SubjectAccessReview says about this node's Node object: verb
from the HTTP method, subresource from the route; of several subresources the first allowed one is enough.
Does not cover: verifying a certificate's chain, which the TLS handshake did (tls.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct, field

from pykubelet.api.types import (
    ApiStruct,
    ResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    SubjectAccessReviewStatus,
    TokenReview,
    TokenReviewSpec,
    TokenReviewStatus,
)
from pykubelet.clients.kube.port import KubeClient
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import Recent
from pykubelet.kit.sharing import SingleFlight
from pykubelet.model.errors import ApiDown, ApiError, ApiServerError, PykubeletError, TooManyRequests
from pykubelet.server.admission import FairSlots
from pykubelet.server.requests import Refused, Request
from pykubelet.settings.schema_server import Authentication, Authorization

logger = logging.getLogger(__name__)

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
REVIEWS_AT_ONCE = 4
"""Unauthenticated callers can make up any number of tokens, and each costs a request to the API server."""
WEBSOCKET_BEARER = "base64url.bearer.authorization.k8s.io."


class NoAuthentication(PykubeletError):
    """The settings name no usable way to authenticate."""


class User(Struct, frozen=True, kw_only=True):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS = User(name="system:anonymous", groups=(UNAUTHENTICATED,))


class PeerCertificate(Struct, frozen=True, kw_only=True):
    """The relevant facts of a client certificate that the handshake verified."""

    common_name: str
    organizations: tuple[str, ...] = ()
    expires: float = field(default=float("inf"))
    """Unix seconds. A connection may live longer than the certificate it was opened with."""


def peer_certificate(parsed: Mapping[str, Any] | None, expiry: Callable[[str], float]) -> PeerCertificate | None:
    """From the form in which Python's ssl gives the peer's certificate; None without one."""
    if not parsed:
        return None
    names: dict[str, list[str]] = {}
    for relative in parsed.get("subject", ()):
        for key, value in relative:
            names.setdefault(key, []).append(value)
    common = names.get("commonName", [])
    return PeerCertificate(
        # Of several the last one counts, as in Go.
        common_name=common[-1] if common else "",
        organizations=tuple(names.get("organizationName", ())),
        expires=expiry(parsed["notAfter"]) if "notAfter" in parsed else float("inf"),
    )


def bearer_token(request: Request) -> str:
    """The token of a request; empty when it has none."""
    scheme, _, token = request.header("authorization").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    for word in request.header("sec-websocket-protocol").split(","):
        if word.strip().startswith(WEBSOCKET_BEARER):
            return _decoded(word.strip().removeprefix(WEBSOCKET_BEARER))
    return ""


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        raise Refused(401, "Unauthorized") from None


def without_credentials(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers for the runtime, without the caller's credentials."""
    kept: list[tuple[str, str]] = []
    for name, value in headers:
        if name == "authorization":
            continue
        if name == "sec-websocket-protocol":
            words = [word.strip() for word in value.split(",")]
            value = ", ".join(word for word in words if word and not word.startswith(WEBSOCKET_BEARER))
            if not value:
                continue
        kept.append((name, value))
    return kept


class Authenticator:
    def __init__(self, *, settings: Authentication, reviewer: Reviewer | None, clock: Clock) -> None:
        if settings.webhook.enabled and reviewer is None:
            raise NoAuthentication(
                "authentication.webhook.enabled needs an API server to ask (--kubeconfig); "
                "without one set it to false and name authentication.x509.clientCAFile"
            )
        if not (settings.x509.client_ca_file or settings.webhook.enabled or settings.anonymous.enabled):
            raise NoAuthentication(
                "no authentication method configured: set authentication.x509.clientCAFile, "
                "authentication.webhook.enabled or authentication.anonymous.enabled"
            )
        self._reviewer = reviewer if settings.webhook.enabled else None
        self._anonymous = settings.anonymous.enabled
        self._clock = clock
        ttl = settings.webhook.cache_ttl
        self._slots = FairSlots(REVIEWS_AT_ONCE)
        self._tokens: ReviewCache[User | None] = ReviewCache(clock=clock, keep=lambda _: ttl)

    async def identify(self, request: Request, certificate: PeerCertificate | None) -> User:
        """Raises Refused 401 for wrong or missing credentials, and when the API server could not be asked."""
        if certificate is not None:
            if certificate.common_name and certificate.expires > self._clock.now():
                return User(
                    name=certificate.common_name,
                    groups=(*_without_authenticated(certificate.organizations), AUTHENTICATED),
                )
            failed = True
        else:
            failed = False
        if self._reviewer is not None and (token := bearer_token(request)):
            user = await self._by_token(self._reviewer, token, request.address)
            if user is not None:
                return user
            failed = True
        if self._anonymous and not failed:
            return ANONYMOUS
        raise Refused(401, "Unauthorized")

    async def _by_token(self, reviewer: Reviewer, token: str, address: str) -> User | None:
        async def ask() -> User | None:
            async with self._slots.slot(address):
                return user_of(await reviewer.token_review(token))

        try:
            # The token itself is not kept in memory longer than its request.
            key = hashlib.sha256(token.encode()).digest()
        except UnicodeEncodeError:
            return None  # bytes that are no text cannot be a token
        try:
            return await self._tokens.get(key, ask)
        except ApiError as error:
            logger.warning("a bearer token could not be checked", extra={"error": str(error)})
            return None


def user_of(status: TokenReviewStatus) -> User | None:
    if not status.authenticated or status.user is None or not status.user.username:
        return None
    extra = tuple(sorted((key, tuple(values)) for key, values in status.user.extra.items()))
    return User(
        name=status.user.username,
        uid=status.user.uid or "",
        groups=(*_without_authenticated(status.user.groups), AUTHENTICATED),
        extra=extra,
    )


def _without_authenticated(groups: Sequence[str]) -> list[str]:
    return [group for group in groups if group != AUTHENTICATED]


VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class NoAuthorization(PykubeletError):
    """The settings ask for a way to authorize that cannot work."""


class Authorizer(Protocol):
    async def check(self, user: User, method: str, access: tuple[str, ...]) -> None:
        """Returns when allowed; raises Refused (403, or 500 when it could not be found out)."""
        ...


class AlwaysAllow:
    async def check(self, user: User, method: str, access: tuple[str, ...]) -> None:
        if not access:
            raise Refused(403, "Forbidden")


class WebhookAuthorizer:
    def __init__(self, *, settings: Authorization, reviewer: Reviewer, node_name: str, clock: Clock) -> None:
        self._reviewer = reviewer
        self._node_name = node_name
        yes, no = settings.webhook.cache_authorized_ttl, settings.webhook.cache_unauthorized_ttl
        self._answers: ReviewCache[bool] = ReviewCache(clock=clock, keep=lambda allowed: yes if allowed else no)

    async def check(self, user: User, method: str, access: tuple[str, ...]) -> None:
        verb = VERBS.get(method, "")
        for subresource in access:
            try:
                ask = partial(self._ask, user, verb, subresource)
                allowed = await self._answers.get((user, verb, subresource), ask)
            except ApiError as error:
                logger.warning(
                    "a caller's rights could not be checked",
                    extra={"user": user.name, "verb": verb, "subresource": subresource, "error": str(error)},
                )
                raise Refused(
                    500,
                    f"Authorization error (user={user.name}, verb={verb}, resource=nodes, subresource={subresource})",
                ) from error
            if allowed:
                return
        raise Refused(
            403,
            f"Forbidden (user={user.name}, verb={verb}, resource=nodes, subresource(s)=[{' '.join(access)}])\n",
        )

    async def _ask(self, user: User, verb: str, subresource: str) -> bool:
        status = await self._reviewer.access_review(
            SubjectAccessReviewSpec(
                user=user.name,
                uid=user.uid or None,
                groups=list(user.groups),
                extra={key: list(values) for key, values in user.extra},
                resource_attributes=ResourceAttributes(
                    verb=verb, version="v1", resource="nodes", subresource=subresource, name=self._node_name
                ),
            )
        )
        if status.evaluation_error:
            logger.warning(
                "the API server had trouble judging a caller's rights",
                extra={"user": user.name, "error": status.evaluation_error},
            )
        return bool(status.allowed) and not status.denied


def make_authorizer(*, settings: Authorization, reviewer: Reviewer | None, node_name: str, clock: Clock) -> Authorizer:
    if settings.mode == "AlwaysAllow":
        return AlwaysAllow()
    if settings.mode != "Webhook":
        raise NoAuthorization(f"authorization.mode {settings.mode!r} is neither AlwaysAllow nor Webhook")
    if reviewer is None:
        raise NoAuthorization(
            "authorization.mode Webhook needs an API server to ask (--kubeconfig); without one use AlwaysAllow"
        )
    return WebhookAuthorizer(settings=settings, reviewer=reviewer, node_name=node_name, clock=clock)


K = TypeVar("K", bound=ApiStruct)
T = TypeVar("T")

ATTEMPTS = 5
FIRST_PAUSE = 0.5
GROWTH = 1.5
JITTER = 0.2


class Reviewer:
    """Asks the API server; tries again while it is busy or away, as upstream does. Raises only ApiError."""

    def __init__(self, *, kube: KubeClient, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def token_review(self, token: str, audiences: Sequence[str] = ()) -> TokenReviewStatus:
        review = TokenReview(
            api_version="authentication.k8s.io/v1",
            kind="TokenReview",
            spec=TokenReviewSpec(token=token, audiences=list(audiences)),
        )
        return (await self._patiently(lambda: self._kube.create(review))).status

    async def access_review(self, spec: SubjectAccessReviewSpec) -> SubjectAccessReviewStatus:
        review = SubjectAccessReview(api_version="authorization.k8s.io/v1", kind="SubjectAccessReview", spec=spec)
        return (await self._patiently(lambda: self._kube.create(review))).status

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        pauses = Backoff(FIRST_PAUSE, factor=GROWTH)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await ask()
            except (ApiDown, ApiServerError, TooManyRequests) as error:
                if attempt == ATTEMPTS:
                    raise
                pause = jittered(pauses.next(), JITTER)
                wait = error.retry_after or pause
            await self._clock.sleep(wait)
        raise AssertionError("unreachable")


V = TypeVar("V")


class ReviewCache(Generic[V]):
    def __init__(self, *, clock: Clock, keep: Callable[[V], float], size: int = 4096) -> None:
        """`keep(answer)` is for how many seconds an answer holds; 0 is not at all."""
        self._clock = clock
        self._keep = keep
        self._known: Recent[Hashable, tuple[float, V]] = Recent(size)
        self._asking: SingleFlight[V] = SingleFlight()

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        found = self._known.get(key)
        if found is not None and found[0] > self._clock.monotonic():
            return found[1]
        return await self._asking.run(key, lambda: self._ask(key, ask))

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        answer = await ask()
        seconds = self._keep(answer)
        if seconds > 0:
            self._known.put(key, (self._clock.monotonic() + seconds, answer))
        return answer
