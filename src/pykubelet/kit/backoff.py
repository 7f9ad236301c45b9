"""Exponential back-off, for one thing or per key, on injected time.

Delays are deterministic; jitter is added only where requested, from an injected random source.
"""

from __future__ import annotations

import math
import random

from msgspec import Struct, field

MOST_STEPS = 64


def jittered(seconds: float, factor: float = 0.5, source: random.Random | None = None) -> float:
    """`seconds` stretched by a random part of `factor`: 10 becomes 10..15 with the default."""
    return seconds * (1.0 + factor * (source or random).random())


class Backoff(Struct):
    """Delays for one repeated failure: initial, doubled each time, up to a maximum."""

    initial: float
    maximum: float = math.inf
    factor: float = 2.0
    failures: int = 0

    def next(self) -> float:
        # After hours of failures the power would exceed what a float can hold.
        delay = min(self.maximum, self.initial * self.factor ** min(self.failures, MOST_STEPS))
        self.failures += 1
        return delay

    def reset(self) -> None:
        self.failures = 0


class _Entry(Struct):
    delay: float
    updated: float


class BackoffTable(Struct):
    """Per-key delays that double with each `advance` and are forgotten after a quiet time.

    All times are of one timeline, which the caller chooses.
    """

    initial: float
    maximum: float
    reset_after: float
    factor: float = 2.0
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def delay(self, key: str) -> float:
        """The delay in force for the key; 0 when it never failed."""
        entry = self._entries.get(key)
        return entry.delay if entry else 0.0

    def is_quiet(self, key: str, until: float) -> bool:
        """Whether nothing failed for so long before `until` that the next delay is the first one again."""
        entry = self._entries.get(key)
        return entry is None or until - entry.updated > self.reset_after

    def advance(self, key: str, now: float, *, quiet_until: float | None = None) -> float:
        """Note a failure at `now`; the delay doubles unless it was quiet until then, or until the given time."""
        entry = self._entries.get(key)
        if entry is None or self.is_quiet(key, now if quiet_until is None else quiet_until):
            entry = self._entries[key] = _Entry(self.initial, now)
        else:
            entry.delay = min(self.maximum, entry.delay * self.factor)
            entry.updated = now
        return entry.delay

    def is_waiting(self, key: str, now: float) -> bool:
        """Whether the delay that began with the last failure is still running at `now`."""
        return self.remaining(key, now) > 0

    def remaining(self, key: str, now: float) -> float:
        entry = self._entries.get(key)
        return max(0.0, entry.updated + entry.delay - now) if entry else 0.0

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)

    def collect(self, now: float) -> None:
        """Drop entries that have been quiet for long."""
        for key in [key for key in self._entries if self.is_quiet(key, now)]:
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)
