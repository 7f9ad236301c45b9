"""A token bucket for the registry rate."""

from __future__ import annotations

from pykubelet.kit.clock import Clock


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up; a rate of 0 never refuses."""

    def __init__(self, *, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = max(1, burst)
        self._clock = clock
        self._tokens = float(self._burst)
        self._filled_at: float | None = None

    def take(self) -> bool:
        """Take a token if there is one; never waits."""
        if self._rate <= 0:
            return True
        now = self._clock.monotonic()
        if self._filled_at is not None:
            self._tokens = min(float(self._burst), self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
