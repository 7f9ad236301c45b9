"""CPU lists such as `0-3,8,10-11`, the form the kernel and the configuration use.

Covers reading and writing them. Does not cover which CPUs exist (clients/host).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# More than any kernel is built for; keeps a typing error from filling the memory.
MAX_CPU = 65535

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPU numbers in the text; raises ValueError that says which part is wrong."""
    cpus: set[int] = set()
    if not text:
        return frozenset()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a CPU number or a range such as 0-3")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first or last > MAX_CPU:
            raise ValueError(f"{part!r} is not a range of CPU numbers up to {MAX_CPU}")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest text for these CPUs: {0, 1, 2, 5} -> 0-2,5."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
