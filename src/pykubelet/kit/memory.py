"""Keep the C library from holding on to memory that bursts needed and idleness does not.

glibc gives every thread an arena of its own and returns freed memory late; an agent that starts fifty pods once
and then idles for days would keep the peak. Elsewhere than on glibc both calls do nothing.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
from pathlib import Path

M_ARENA_MAX = -8
ARENAS = 2
MADV_DONTNEED = 4


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
        unload_code()
        return True


RELEASE_EVERY = 5.0
release_unused = Release(RELEASE_EVERY)
"""The one of this process: what it does costs milliseconds, and a process may have a thousand agents (hollow nodes)."""


def give_back() -> None:
    """Return freed memory to the system; takes about a millisecond."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def unload_code() -> None:
    """Let go of parts of libraries that start-up or a burst ran through; what is needed comes back by itself.

    Those pages are the files' own, in the page cache; gRPC and TLS have megabytes of code and constants that an idle
    agent never looks at. A library with a page that was changed, as the loader does where it puts addresses in, keeps
    that whole part.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return
    loaded = Path("/proc/self/maps").read_text().splitlines()
    for begin, end in _parts_of(tuple(line for line in loaded if ".so" in line)):
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_DONTNEED)


@functools.lru_cache(maxsize=1)
def _parts_of(libraries: tuple[str, ...]) -> list[tuple[int, int]]:
    """For these libraries as they are mapped. The kernel's long list, page by page, takes time in a large process."""
    return unchanged_parts(Path("/proc/self/smaps").read_text())


def unchanged_parts(smaps: str) -> list[tuple[int, int]]:
    """The mappings of libraries, from the kernel's list, that cannot be written to and have no page of their own."""
    found: list[tuple[int, int]] = []
    place = ""
    for line in smaps.splitlines():
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(":"):
            is_library = len(rest) == 5 and rest[0] in ("r-xp", "r--p") and ".so" in rest[4]
            place = first if is_library else ""
        elif first == "Anonymous:" and place and rest[0] == "0":
            begin, end = (int(address, 16) for address in place.split("-"))
            found.append((begin, end))
    return found
