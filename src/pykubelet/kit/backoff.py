"""Exponential back-off, for one thing or per key, on injected time.

Delays are deterministic; jitter is added only where asked, from an injected random source. Crash-loop
back-off, which hangs on container exit times rather than on failures seen here, has its own rules in
`runtime/backoff.py` and uses `BackoffTable` for the numbers.
"""

from __future__ import annotations

import random

from msgspec import Struct, field

MOST_STEPS = 64


def jittered(seconds: float, factor: float = 0.5, source: random.Random | None = None) -> float:
    """`seconds` stretched by a random part of `factor`: 10 becomes 10..15 with the default."""
    return seconds * (1.0 + factor * (source or random).random())


class Backoff(Struct):
    """Delays for one repeated failure: initial, doubled each time, up to a maximum."""

    initial: float
    maximum: float
    factor: float = 2.0
    failures: int = 0

    def next(self) -> float:
        # Whoever fails for hours counts beyond what a float can hold as a power.
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

    `now` is whatever timeline the caller uses, as long as it is one and the same.
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

    def advance(self, key: str, now: float) -> float:
        """Note a failure at `now`; the delay doubles unless the last one is long past."""
        entry = self._entries.get(key)
        if entry is None or now - entry.updated > self.reset_after:
            entry = self._entries[key] = _Entry(self.initial, now)
        else:
            entry.delay = min(self.maximum, entry.delay * self.factor)
            entry.updated = now
        return entry.delay

    def updated(self, key: str) -> float | None:
        entry = self._entries.get(key)
        return entry.updated if entry else None

    def is_waiting(self, key: str, now: float) -> bool:
        """Whether the delay that began with the last failure is still running at `now`."""
        return self.remaining(key, now) > 0

    def remaining(self, key: str, now: float) -> float:
        entry = self._entries.get(key)
        return max(0.0, entry.updated + entry.delay - now) if entry else 0.0

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)

    def collect(self, now: float, quiet: float | None = None) -> None:
        """Drop entries without a failure for `quiet` seconds; twice the maximum delay if not given."""
        longest = 2 * self.maximum if quiet is None else quiet
        stale = [key for key, entry in self._entries.items() if now - entry.updated > longest]
        for key in stale:
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)
