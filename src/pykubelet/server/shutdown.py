"""The local route by which a command on this machine has all pods ended in order: POST /local/shutdown.

The answer comes when the sequence is through. Without periods in the query those of the settings count, and without
those 30 seconds, 10 of them for critical pods. DELETE takes it back. Only the local socket has these routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from pykubelet.node.shutdown import ShutdownOutcome, Turn, two_turns
from pykubelet.server.calls import Answer, Call, Refused, Reply
from pykubelet.server.routing import PROXY, Route
from pykubelet.settings.kinds import WrongValue, duration_of

USUAL = two_turns(30.0, 10.0)


class ShutdownSequence(Protocol):
    @property
    def shutting_down(self) -> bool: ...

    async def shut_down(self, turns: Sequence[Turn]) -> ShutdownOutcome: ...

    def cancel(self) -> None: ...


class ShutdownRoutes:
    def __init__(self, *, manager: ShutdownSequence, turns: Sequence[Turn]) -> None:
        """`turns`: what the settings say."""
        self._manager = manager
        self._turns = turns

    def routes(self) -> list[Route]:
        path = "/local/shutdown"
        return [
            Route(pattern=path, handler=self.begin, access=PROXY, methods=("POST",), long_running=True),
            Route(pattern=path, handler=self.cancel, access=PROXY, methods=("DELETE",)),
        ]

    async def begin(self, call: Call) -> Reply:
        outcome = await self._manager.shut_down(self._asked(call))
        return Answer.json(msgspec.json.encode(outcome) + b"\n")

    def _asked(self, call: Call) -> Sequence[Turn]:
        if not call.has("grace"):
            if call.has("graceCritical"):
                raise Refused(400, "graceCritical needs grace")
            return self._turns or USUAL
        whole, critical = _seconds(call, "grace"), _seconds(call, "graceCritical") if call.has("graceCritical") else 0.0
        if critical > whole:
            raise Refused(400, f"graceCritical {critical:g}s must not exceed grace {whole:g}s")
        return two_turns(whole, critical)

    async def cancel(self, call: Call) -> Reply:
        was = self._manager.shutting_down
        self._manager.cancel()
        return Answer.json(msgspec.json.encode({"cancelled": was}) + b"\n")


def _seconds(call: Call, name: str) -> float:
    try:
        seconds = duration_of(call.get(name))
    except WrongValue as error:
        raise Refused(400, f"{name}: {error}") from error
    if seconds < 0:
        raise Refused(400, f"{name}: must not be negative")
    return seconds
