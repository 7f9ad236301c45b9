"""Keep the C library from holding on to memory that bursts needed and idleness does not.

glibc gives every thread an arena of its own and returns freed memory late; an agent that starts fifty pods once
and then idles for days would keep the peak. Elsewhere than on glibc both calls do nothing.
"""

from __future__ import annotations

import ctypes
import gc
import math

M_ARENA_MAX = -8
ARENAS = 2


def limit_arenas() -> None:
    """Few arenas for all threads: ours wait for disks and runtimes, they do not compete for malloc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)


def freeze_start_up() -> None:
    """What start-up made stays for good: spare the collector from walking it again and again."""
    gc.freeze()
    gc.enable()


class Release:
    """Gives unused memory of the process back to the system, at most once in a while, however many request it."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._last = -math.inf

    def __call__(self, now: float) -> bool:
        """Whether it was done; `now` is any time in seconds that never goes back."""
        if now - self._last < self._every:
            return False
        self._last = now
        give_back()
        return True


RELEASE_EVERY = 5.0
release_unused = Release(RELEASE_EVERY)
"""The one of this process: what it does costs milliseconds, and a process may have a thousand agents (hollow nodes)."""


def give_back() -> None:
    """Return freed memory to the system; takes about a millisecond."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
