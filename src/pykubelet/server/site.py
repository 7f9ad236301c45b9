"""One server's answer to a request: find the route, find out who calls, check the right, do it, count it.

The order is upstream's: unknown paths are checked like known ones, so strangers learn nothing. Whatever goes wrong
becomes an answer here; details of our own mistakes go to the log, never to the caller.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.server.auth import Authenticator, PeerCertificate, User
from pykubelet.server.authz import Authorizer
from pykubelet.server.calls import Admit, Answer, Call, Refused, Reply, Upgraded
from pykubelet.server.metrics import RequestMetrics, method_label, path_label
from pykubelet.server.routing import Match, Router

logger = logging.getLogger(__name__)

NOT_FOUND = Answer.text("404 page not found\n", 404)
WRONG_METHOD = Answer.text("405: Method Not Allowed\n", 405)


class Gate(Struct, frozen=True):
    """Who may enter. A site without one is open to everybody who can reach it."""

    authenticator: Authenticator
    authorizer: Authorizer


class Site:
    def __init__(
        self, *, router: Router, gate: Gate | None, metrics: RequestMetrics, server_type: str, clock: Clock
    ) -> None:
        self.router = router
        self._gate = gate
        self._metrics = metrics
        self._server_type = server_type
        self._clock = clock
        self._heads = frozenset(_heads(router))

    async def answer(self, call: Call, certificate: PeerCertificate | None, admit: Admit) -> Reply:
        match = self.router.find(call.method, call.path)
        long_running = "true" if match.route is not None and match.route.long_running else "false"
        labels = (long_running, method_label(call.method), path_label(call.path, self._heads), self._server_type)
        begun = self._clock.monotonic()
        self._metrics.begin(labels)
        try:
            reply = await self._guarded(call, certificate, match, admit)
            if isinstance(reply, Upgraded) and call.header("upgrade").lower() == "websocket":
                self._metrics.websocket(labels[2])
            return reply
        finally:
            self._metrics.end(labels, self._clock.monotonic() - begun)

    async def _guarded(self, call: Call, certificate: PeerCertificate | None, match: Match, admit: Admit) -> Reply:
        try:
            if self._gate is not None:
                user = await self._gate.authenticator.identify(call, certificate)
                await self._gate.authorizer.check(user, call.method, match.access)
                _note(call, user)
                admit(_tenant(match, user))
            if match.route is None:
                return NOT_FOUND if match.status == 404 else WRONG_METHOD
            return await match.route.handler(replace(call, params=match.params or {}))
        except Refused as refusal:
            if refusal.status >= 500:
                logger.warning("a request failed", extra={"path": call.path[:200], "problem": refusal.text[:500]})
            return Answer(status=refusal.status, body=refusal.text.encode(), headers=refusal.headers)
        except (PykubeletError, OSError) as error:
            status = 503 if isinstance(error, RuntimeDown) else 500
            kind = "the runtime" if isinstance(error, CriError) else "the agent"
            logger.warning("a request failed", extra={"path": call.path[:200], "problem": str(error), "in": kind})
            return Answer.text(f"Internal Error: {error}\n", status)
        except asyncio.CancelledError:
            raise
        except Exception:  # one request's trouble; the server serves on
            logger.exception("a request failed unexpectedly", extra={"path": call.path[:200]})
            return Answer.text("Internal Error: see the agent's log\n", 500)


def _tenant(match: Match, user: User) -> str:
    """Whose share of the requests under way this one takes. The API server calls for everybody, as one user."""
    namespace = (match.params or {}).get("namespace")
    return f"namespace {namespace}" if namespace else f"user {user.name}"


def _note(call: Call, user: User) -> None:
    logger.debug("request", extra={"method": call.method, "path": call.path[:200], "user": user.name})


def _heads(router: Router) -> list[str]:
    """First segments that may appear as a label; two of them for the metrics paths."""
    found = []
    for pattern in router.patterns():
        parts = pattern.strip("/").split("/")
        found.append(parts[0])
        if parts[0] == "metrics" and len(parts) > 1:
            found.append("/".join(parts[:2]))
    return found
