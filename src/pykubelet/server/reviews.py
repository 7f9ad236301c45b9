"""Asking the API server who a token belongs to and what somebody may do.

`Reviewer` is what authentication and authorization need; `KubeReviewer` asks through the API client and tries
again when the server is busy or away, as upstream does (500 ms, growing by half, five attempts).
Does not cover: remembering answers (answers_cache.py).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from pykubelet.api.types import (
    ApiStruct,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    SubjectAccessReviewStatus,
    TokenReview,
    TokenReviewSpec,
    TokenReviewStatus,
)
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import ApiDown, ApiServerError, TooManyRequests

K = TypeVar("K", bound=ApiStruct)
T = TypeVar("T")

ATTEMPTS = 5
FIRST_PAUSE = 0.5
GROWTH = 1.5
JITTER = 0.2


class Reviewer(Protocol):
    """Raises only ApiError and its children."""

    async def token_review(self, token: str, audiences: Sequence[str] = ()) -> TokenReviewStatus: ...

    async def access_review(self, spec: SubjectAccessReviewSpec) -> SubjectAccessReviewStatus: ...


class Creates(Protocol):
    """The one verb of the API client that reviews need."""

    async def create(self, obj: K, *, dry_run: bool = False) -> K: ...


class KubeReviewer:
    def __init__(self, *, kube: Creates, clock: Clock) -> None:
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
        pause = FIRST_PAUSE
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await ask()
            except (ApiDown, ApiServerError, TooManyRequests) as error:
                if attempt == ATTEMPTS:
                    raise
                wait = getattr(error, "retry_after", None) or pause * (1 + JITTER * random.random())
            await self._clock.sleep(wait)
            pause *= GROWTH
        raise AssertionError("unreachable")
