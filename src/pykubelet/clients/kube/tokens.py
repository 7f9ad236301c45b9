"""Service account tokens: requested once, shared, renewed before they end.

A token is renewed when it is older than 24 h or less than a fifth of its life is left, some seconds early at random.
While renewing fails the old one serves until it is really over.
"""

from __future__ import annotations

import asyncio
import logging
import random

from msgspec import Struct, field

from pykubelet.api.types import BoundObjectReference, TokenRequest
from pykubelet.clients.kube.port import KubeClient
from pykubelet.clients.kube.reflector import QUICK_DELAYS
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import ApiError, Forbidden, NotFound, PykubeletError

logger = logging.getLogger(__name__)

LONGEST_USE = 24 * 3600.0
LEFT_OVER = 0.2
JITTER = 10.0
CLEAN_PERIOD = 60.0
DEFAULT_LIFE = 3600

Key = tuple[str, str, tuple[str, ...], int, tuple[str, str, str]]


class TokenUnavailable(PykubeletError):
    """No valid token can be had now."""


class _Kept(Struct):
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    answer: TokenRequest | None = None
    jitter: float = 0.0


class TokenManager:
    name = "tokens"

    def __init__(self, *, kube: KubeClient, clock: Clock, source: random.Random | None = None) -> None:
        self._kube = kube
        self._clock = clock
        self._source = source or random.Random()
        self._kept: dict[Key, _Kept] = {}

    async def token(self, namespace: str, service_account: str, request: TokenRequest) -> TokenRequest:
        """A valid token for this request, the one at hand while it is good; TokenUnavailable when none can be had."""
        key = _key(namespace, service_account, request)
        kept = self._kept.setdefault(key, _Kept())
        async with kept.lock:
            if kept.answer is not None and self._clock.now() < self._due(kept):
                return kept.answer
            try:
                answer = await self._ask(namespace, service_account, request)
            except ApiError as error:
                if kept.answer is not None and self._clock.now() < _expiry(kept.answer):
                    logger.warning(
                        "cannot renew token, the old one is still good",
                        extra={"namespace": namespace, "service_account": service_account, "error": str(error)},
                    )
                    return kept.answer
                raise TokenUnavailable(f"failed to fetch token: {error}") from error
            kept.answer, kept.jitter = answer, self._source.random() * JITTER
            return answer

    async def _ask(self, namespace: str, service_account: str, request: TokenRequest) -> TokenRequest:
        for delay in QUICK_DELAYS:
            try:
                return await self._kube.create_token(namespace, service_account, request)
            except (Forbidden, NotFound):
                # The server's check may not know the pod yet, or that it is bound to our node.
                await self._clock.sleep(delay)
        return await self._kube.create_token(namespace, service_account, request)

    def due(self, namespace: str, service_account: str, request: TokenRequest) -> float | None:
        """When the token of this request should be renewed, in unix seconds; None when there is none."""
        kept = self._kept.get(_key(namespace, service_account, request))
        return self._due(kept) if kept is not None and kept.answer is not None else None

    def forget_pod(self, uid: str) -> None:
        """Drop the tokens bound to a pod that is gone."""
        for key in [key for key in self._kept if key[4][2] == uid]:
            del self._kept[key]

    async def run(self) -> None:
        while True:
            await self._clock.sleep(CLEAN_PERIOD)
            now = self._clock.now()
            for key, kept in list(self._kept.items()):
                over = kept.answer is None or now >= _expiry(kept.answer)
                if over and not kept.lock.locked():
                    del self._kept[key]

    def _due(self, kept: _Kept) -> float:
        assert kept.answer is not None
        life = kept.answer.spec.expiration_seconds or DEFAULT_LIFE
        expiry = _expiry(kept.answer)
        return min(expiry - life + LONGEST_USE, expiry - life * LEFT_OVER) - kept.jitter


def _expiry(answer: TokenRequest) -> float:
    moment = answer.status.expiration_timestamp
    return moment.timestamp() if moment is not None else 0.0


def _key(namespace: str, service_account: str, request: TokenRequest) -> Key:
    bound = request.spec.bound_object_ref or BoundObjectReference()
    return (
        namespace,
        service_account,
        tuple(request.spec.audiences),
        request.spec.expiration_seconds or 0,
        (bound.kind or "", bound.name or "", bound.uid or ""),
    )
