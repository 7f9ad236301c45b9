"""Reading the small files of /proc and /sys quickly, and the formats they share.

Thousands are read per scrape, so this goes below `open()`: no buffers, no decoding, no path objects. A file that is
not there, or goes while it is read, is empty: stats are about things that may end at any moment.
"""

from __future__ import annotations

import os

from pykubelet.model.stats import Pressure, PressureLine

CHUNK = 16384
WHOLE_BELOW = 2048
"""The kernel returns line files a page at a time; a read this short was the last one."""
UNLIMITED = 1 << 62
"""cgroup v1 writes "no limit" as a number near 2^63."""


NO_PRESSURE = PressureLine(avg10=0.0, avg60=0.0, avg300=0.0, total=0)


def read_small(path: str) -> bytes:
    """The content, or b'' when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(descriptor, CHUNK)
        if len(data) < WHOLE_BELOW:
            return data
        parts = [data]
        while data := os.read(descriptor, CHUNK):
            parts.append(data)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def number(path: str) -> int | None:
    """A file that holds one number; None for 'max', nothing or nonsense."""
    data = read_small(path)
    try:
        return int(data)
    except ValueError:
        return None


def limit(path: str) -> int | None:
    """The same for limits, where huge means none."""
    found = number(path)
    return found if found is not None and 0 <= found < UNLIMITED else None


def pairs(path: str) -> dict[bytes, bytes]:
    """A file of `name value` lines."""
    words = read_small(path).split()
    return dict(zip(words[::2], words[1::2], strict=False))


def pressure(path: str) -> Pressure | None:
    """A PSI file. Old kernels give no `full` line for cpu; it counts as zero then, as the kernel does for the root."""
    words = read_small(path).split()
    if len(words) < 5 or words[0] != b"some":
        return None
    try:
        some = _line(words)
        return Pressure(some=some, full=_line(words[5:]) if len(words) >= 10 else NO_PRESSURE)
    except ValueError:
        return None


def _line(words: list[bytes]) -> PressureLine:
    """`some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, by place: this is read hundreds of times per scrape."""
    return PressureLine(
        avg10=float(words[1][6:]), avg60=float(words[2][6:]), avg300=float(words[3][7:]), total=int(words[4][6:])
    )
