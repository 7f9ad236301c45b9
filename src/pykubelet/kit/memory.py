"""Keep the C library from holding on to memory that bursts needed and idleness does not.

glibc gives every thread an arena of its own and returns freed memory late; an agent that starts fifty pods once
and then idles for days would keep the peak. Elsewhere than on glibc both calls do nothing.
"""

from __future__ import annotations

import ctypes
import gc

M_ARENA_MAX = -8
ARENAS = 2


def limit_arenas() -> None:
    """Few arenas for all threads: ours wait for disks and runtimes, they do not compete for malloc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)


def freeze_start_up() -> None:
    """What start-up made stays for good: spare the collector from walking it again and again."""
    gc.enable()
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Return freed memory to the system; takes about a millisecond."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
