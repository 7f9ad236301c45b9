"""Memory is given back at most once in a while, however many request it."""

from __future__ import annotations

from pykubelet.kit.memory import Release


def test_a_thousand_requests_are_one_release() -> None:
    release = Release(every=5.0)
    assert release(100.0)
    assert not any(release(100.0 + step / 1000) for step in range(1000))
    assert release(105.0) and not release(109.9)
