"""Refuses hot loops in tests with jumping time.

Who does the same thing again and again while (virtual) time hardly passes spins: on a real node it would take a whole
core. Two nets: the loop itself counts its turns within one virtual second and names the tasks that took most of them
(`TurnCounter`); what has a name of its own, such as a pod's worker, a probe, or one call to a fake, is counted by that
name with a much lower limit (`note`). Either ends the test at once with `HotLoop`, which no code under test can catch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Protocol

WINDOW = 1.0
"""Seconds of virtual time within which repetitions count."""
MOST_TURNS = 5_000
"""Turns of the loop within a window; the busiest scenario needs 230."""
WATCHED_TURNS = 500
"""Turns over which the guilty tasks are found, once there were too many."""
MOST_REPETITIONS = 40
"""Times that one named thing may happen within a window; the busiest honest thing happens 24 times."""


class HotLoop(BaseException):
    """Something runs again and again without time passing. No `except Exception` hides it."""


class RefusingLoop(Protocol):
    def refuse(self, message: str) -> None: ...

    def repeated(self, who: str) -> int: ...


def note(who: str) -> None:
    """`who` did what it does once more; with ordinary time, or in a thread, nothing is counted."""
    loop: Any = asyncio._get_running_loop()
    if hasattr(loop, "refuse"):
        counting: RefusingLoop = loop
        if (times := counting.repeated(who)) > MOST_REPETITIONS:
            message = f"hot loop: {who} happened {times} times within {WINDOW:g} virtual second"
            counting.refuse(message)
            if times > 2 * MOST_REPETITIONS:  # it never lets the loop have a turn
                raise HotLoop(message)


class TurnCounter:
    """Turns of the loop in the current window, and who took them once they are too many."""

    def __init__(self) -> None:
        self.turns = 0
        self._since = 0.0
        self._names: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()

    def turn(self, now: float, ready: Any) -> str:
        """One more turn with these callbacks; the complaint, or empty."""
        self._forget_old(now)
        self.turns += 1
        if self.turns <= MOST_TURNS:
            return ""
        self._names.update(name_of(handle) for handle in ready)
        if self.turns <= MOST_TURNS + WATCHED_TURNS:
            return ""
        most = ", ".join(f"{name} ({times} steps)" for name, times in self._names.most_common(3))
        turns, self.turns = self.turns, 0
        return f"hot loop: {turns} turns within {WINDOW:g} virtual second; of the last {WATCHED_TURNS}: {most}"

    def repeated(self, now: float, who: str) -> int:
        self._forget_old(now)
        self._repeated[who] += 1
        return self._repeated[who]

    def _forget_old(self, now: float) -> None:
        if now - self._since >= WINDOW:
            self._since, self.turns = now, 0
            self._names.clear()
            self._repeated.clear()


def name_of(handle: asyncio.Handle) -> str:
    """The task behind a callback of the loop, or the callback."""
    callback: Any = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()!r}"
    return f"callback {getattr(callback, '__qualname__', callback)}"
