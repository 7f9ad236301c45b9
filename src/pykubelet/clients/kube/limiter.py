"""The client-side rate limit: so many requests a second, a burst above that, everybody waits their turn.

A token bucket whose tokens may go negative: a caller takes its token at once and sleeps until the bucket would have
had it, so that waiters are served in the order they came.
"""

from __future__ import annotations

import asyncio

from pykubelet.kit.clock import Clock

DEFAULT_QPS = 5.0
DEFAULT_BURST = 10


class RateLimiter:
    """`qps` below zero means no limit, zero the usual default of a Kubernetes client."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        self._qps = qps if qps != 0 else DEFAULT_QPS
        self._burst = max(1, burst or DEFAULT_BURST)
        self._clock = clock
        self._tokens = float(self._burst)
        self._updated: float | None = None

    async def take(self) -> float:
        """Wait for a turn; returns the seconds waited."""
        if self._qps < 0:
            return 0.0
        self._refill()
        self._tokens -= 1.0
        if self._tokens >= 0:
            return 0.0
        wait = -self._tokens / self._qps
        try:
            await self._clock.sleep(wait)
        except asyncio.CancelledError:
            self._tokens += 1.0  # the turn was not used
            raise
        return wait

    def try_take(self) -> bool:
        """Take a token if there is one now."""
        if self._qps < 0:
            return True
        self._refill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _refill(self) -> None:
        now = self._clock.monotonic()
        if self._updated is not None:
            self._tokens = min(float(self._burst), self._tokens + (now - self._updated) * self._qps)
        self._updated = now
