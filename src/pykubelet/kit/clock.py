"""Time as a dependency.

The only module that may ask the system for the time or sleep. Production code gets a `Clock`; tests run
on an event loop whose time jumps (tests/clock_loop.py), so `SystemClock` built on loop time serves both.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

CLOCK_STEP = 1.0
"""A wall time further in the future than this was read before the clock was set back; less is rounding or slewing."""


class Clock(Protocol):
    def now(self) -> float:
        """Wall time in unix seconds, for timestamps people see."""
        ...

    def now_ns(self) -> int:
        """Wall time in unix nanoseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring and ordering."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """Monotonic time is the running event loop's; wall time is the system's."""

    def now(self) -> float:
        return time.time()

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class LoopClock(SystemClock):
    """Wall time that moves with loop time from a fixed start; for tests and simulations."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start

    def now(self) -> float:
        return self._start + self.monotonic()

    def now_ns(self) -> int:
        return int(self.now() * 1_000_000_000)

    def step(self, seconds: float) -> None:
        """Set wall time forward or back; monotonic time goes on as it was."""
        self._start += seconds


class ThreadDeadline:
    """So many real seconds from now, for work in a thread: loop time is not readable there."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def has_passed(self) -> bool:
        return time.monotonic() >= self._at


def utc(seconds: float) -> datetime:
    """Unix seconds as an aware UTC datetime, cut to whole seconds as metav1.Time is on the wire."""
    return datetime.fromtimestamp(int(seconds), UTC)


def utc_from_ns(nanoseconds: int) -> datetime:
    """Unix nanoseconds as an aware UTC datetime of whole seconds."""
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
