"""CPU in use right now, from two readings of a counter that only grows.

Readings closer together than a second are too short to divide by; the last rate stands then. After ten seconds a
reading becomes the new base, so the rate is of the last one to ten seconds, or since the reading before if nobody
asked for longer.
"""

from __future__ import annotations

from collections.abc import Container

SHORTEST_NS = 1_000_000_000
LONGEST_NS = 10_000_000_000


class CpuRates:
    def __init__(self) -> None:
        self._bases: dict[str, tuple[int, int]] = {}
        self._rates: dict[str, int] = {}

    def update(self, key: str, time_ns: int, cpu_ns: int) -> int | None:
        """Nanoseconds of CPU per second; None after only one reading."""
        base = self._bases.get(key)
        if base is None or time_ns < base[0] or cpu_ns < base[1]:  # new, or the group was made anew
            self._bases[key] = (time_ns, cpu_ns)
            self._rates.pop(key, None)
            return None
        passed = time_ns - base[0]
        if passed >= SHORTEST_NS:
            self._rates[key] = (cpu_ns - base[1]) * 1_000_000_000 // passed
        if passed >= LONGEST_NS:
            self._bases[key] = (time_ns, cpu_ns)
        return self._rates.get(key)

    def keep(self, keys: Container[str]) -> None:
        """Forget all others."""
        for key in [key for key in self._bases if key not in keys]:
            del self._bases[key]
            self._rates.pop(key, None)
