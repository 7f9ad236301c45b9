"""/healthz and its single checks: is this agent well, in upstream's words.

A check is a name and a function that gives the problem, or nothing. Reasons are logged, not told: the answer goes
to callers who may know only that something is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pykubelet.server.calls import Answer, Call, Refused, Reply

logger = logging.getLogger(__name__)


class HealthCheck(Struct, frozen=True):
    name: str
    problem: Callable[[], str]
    """Empty when all is well. Must be quick."""


PING = HealthCheck("ping", lambda: "")
LOG = HealthCheck("log", lambda: "")
"""Upstream looks whether its log buffer is stuck; ours has none."""


class HealthRoutes:
    def __init__(self, checks: Iterable[HealthCheck]) -> None:
        self.checks: Sequence[HealthCheck] = tuple(checks)

    def problems(self) -> dict[str, str]:
        """Check name to problem, all checks, well or not."""
        return {check.name: _ask(check) for check in self.checks}

    async def all(self, call: Call) -> Reply:
        excluded = set(call.all("exclude"))
        lines, failed = [], []
        for check in self.checks:
            if check.name in excluded:
                excluded.discard(check.name)
                lines.append(f"[+]{check.name} excluded: ok")
            elif problem := _ask(check):
                failed.append((check.name, problem))
                lines.append(f"[-]{check.name} failed: reason withheld")
            else:
                lines.append(f"[+]{check.name} ok")
        if excluded:
            unknown = ", ".join(f'"{name[:40]}"' for name in sorted(excluded))
            lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}")
        if failed:
            logger.error("health check failed", extra={"checks": "; ".join(f"{name}: {why}" for name, why in failed)})
            return Answer.text("\n".join([*lines, "healthz check failed"]) + "\n", 500)
        if call.has("verbose"):
            return Answer.text("\n".join([*lines, "healthz check passed"]) + "\n")
        return Answer.text("ok")

    async def one(self, call: Call) -> Reply:
        name = call.params["check"]
        check = next((each for each in self.checks if each.name == name), None)
        if check is None:
            raise Refused(404, "404 page not found\n")
        if problem := _ask(check):
            logger.error("health check failed", extra={"checks": f"{name}: {problem}"})
            return Answer.text(f"internal server error: {name} check failed: reason withheld\n", 500)
        return Answer.text("ok")


def _ask(check: HealthCheck) -> str:
    try:
        return check.problem()
    except Exception as error:  # a check that breaks is a check that fails
        logger.exception("health check broke", extra={"check": check.name})
        return f"{type(error).__name__}: {error}"
