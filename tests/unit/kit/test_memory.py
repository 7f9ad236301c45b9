"""Memory is given back at most once in a while, however many request it; code that is unloaded works on."""

from __future__ import annotations

import json
from pathlib import Path

from pykubelet.kit.memory import Release, unload_code


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
