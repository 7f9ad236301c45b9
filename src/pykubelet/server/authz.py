"""What a caller may do: everything, or what the API server's SubjectAccessReview says.

Every question is about this node's Node object: verb from the HTTP method, subresource from the route. Several
subresources are tried in order and the first yes wins. Nothing is allowed that nobody said yes to.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from pykubelet.api.types import ResourceAttributes, SubjectAccessReviewSpec
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import ApiError, PykubeletError
from pykubelet.server.answers_cache import AnswersCache
from pykubelet.server.auth import User
from pykubelet.server.calls import Refused
from pykubelet.server.reviews import Reviewer
from pykubelet.settings.schema_server import Authorization

logger = logging.getLogger(__name__)

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
        self._answers: AnswersCache[bool] = AnswersCache(clock=clock, keep=lambda allowed: yes if allowed else no)

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
