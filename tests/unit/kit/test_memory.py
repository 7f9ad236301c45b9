"""Memory is given back at most once in a while, however many request it; code that is unloaded works on."""

from __future__ import annotations

import json
from pathlib import Path

from pykubelet.kit.memory import Release, unchanged_parts, unload_code


def test_a_thousand_requests_are_one_release() -> None:
    release = Release(every=5.0)
    assert release(100.0)
    assert not any(release(100.0 + step / 1000) for step in range(1000))
    assert release(105.0) and not release(109.9)


def code_kib() -> int:
    """Resident machine code of files, from the kernel."""
    total, is_code = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            is_code = rest[0] == "r-xp" and rest[-1].startswith("/")
        elif first == "Rss:" and is_code:
            total += int(rest[0])
    return total


def test_code_is_unloaded_and_comes_back() -> None:
    before = code_kib()
    unload_code()
    assert code_kib() < before
    assert json.loads(json.dumps({"the code": ["that", "is", "needed"]})) == {"the code": ["that", "is", "needed"]}


def mapping(place: str, rights: str, path: str, anonymous: int) -> str:
    return f"{place} {rights} 00000000 fe:00 1   {path}\nRss:   8 kB\nAnonymous:   {anonymous} kB\nVmFlags: rd ex\n"


def test_only_parts_of_libraries_that_nobody_changed_are_unloaded() -> None:
    listed = [
        mapping("1000-2000", "r-xp", "/usr/lib/libssl.so.3", 0),
        mapping("2000-3000", "r--p", "/usr/lib/libssl.so.3", 0),
        mapping("3000-4000", "r--p", "/usr/lib/libssl.so.3", 4),  # the loader wrote addresses
        mapping("4000-5000", "rw-p", "/usr/lib/libssl.so.3", 0),
        mapping("5000-6000", "r--p", "/usr/lib/locale/locale-archive", 0),
        mapping("6000-7000", "rw-p", "", 8),
        mapping("7000-8000", "r-xp", "[vdso]", 0),
        mapping("8000-9000", "r-xp", "/opt/with blank/x.so", 0),
    ]
    assert unchanged_parts("".join(listed)) == [(0x1000, 0x2000), (0x2000, 0x3000), (0x8000, 0x9000)]
