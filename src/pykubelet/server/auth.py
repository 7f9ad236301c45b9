"""Who a caller is: client certificate, bearer token, or nobody.

Methods are asked in upstream's order: certificate, Authorization header, WebSocket bearer protocol, anonymous.
Credentials that are there but wrong are an error (401) even when anonymous callers are allowed.
Does not cover: verifying a certificate's chain, which the TLS handshake did (tls.py), and rights (authz.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from pykubelet.api.types import TokenReviewStatus
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import ApiError, PykubeletError
from pykubelet.server.admission import Turns
from pykubelet.server.answers_cache import AnswersCache
from pykubelet.server.calls import Call, Refused
from pykubelet.server.reviews import Reviewer
from pykubelet.settings.schema_server import Authentication

logger = logging.getLogger(__name__)

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
REVIEWS_AT_ONCE = 4
"""Strangers can make up tokens without end, and each is a question to the API server, which the node has to share."""
WEBSOCKET_BEARER = "base64url.bearer.authorization.k8s.io."


class NoAuthentication(PykubeletError):
    """Nobody could ever call: the settings name no usable way to say who one is."""


class User(Struct, frozen=True, kw_only=True):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS = User(name="system:anonymous", groups=(UNAUTHENTICATED,))


class PeerCertificate(Struct, frozen=True, kw_only=True):
    """What counts of a client certificate that the handshake verified."""

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


def bearer_token(call: Call) -> str:
    """The token of a request; empty when it has none."""
    scheme, _, token = call.header("authorization").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    for word in call.header("sec-websocket-protocol").split(","):
        if word.strip().startswith(WEBSOCKET_BEARER):
            return _decoded(word.strip().removeprefix(WEBSOCKET_BEARER))
    return ""


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        raise Refused(401, "Unauthorized") from None


def without_credentials(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers as they may travel on to the runtime: who the caller was is not the runtime's business."""
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
        self._turns = Turns(REVIEWS_AT_ONCE)
        self._tokens: AnswersCache[User | None] = AnswersCache(clock=clock, keep=lambda _: ttl)

    async def identify(self, call: Call, certificate: PeerCertificate | None) -> User:
        """Raises Refused 401 for wrong or missing credentials, and when nobody could be asked."""
        if certificate is not None:
            if certificate.common_name and certificate.expires > self._clock.now():
                return User(
                    name=certificate.common_name,
                    groups=(*_without_authenticated(certificate.organizations), AUTHENTICATED),
                )
            failed = True
        else:
            failed = False
        if self._reviewer is not None and (token := bearer_token(call)):
            user = await self._by_token(self._reviewer, token, call.address)
            if user is not None:
                return user
            failed = True
        if self._anonymous and not failed:
            return ANONYMOUS
        raise Refused(401, "Unauthorized")

    async def _by_token(self, reviewer: Reviewer, token: str, address: str) -> User | None:
        async def ask() -> User | None:
            async with self._turns.turn(address):
                return user_of(await reviewer.token_review(token))

        try:
            # The token itself is not kept in memory longer than its request.
            key = hashlib.sha256(token.encode()).digest()
        except UnicodeEncodeError:
            return None  # bytes that are no text: nobody's token, and nothing that could be asked about
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
