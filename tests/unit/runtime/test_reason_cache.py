"""The memory of failed starts."""

from __future__ import annotations

from pykubelet.model.problems import PullFailed
from pykubelet.runtime.reason_cache import ReasonCache


def test_a_failure_is_kept_until_the_container_starts() -> None:
    cache = ReasonCache()
    failure = PullFailed(container="app", text="no such image")
    cache.failed("uid", failure)
    cache.failed("uid", PullFailed(container="other"))
    assert cache.get("uid", "app") == failure
    assert cache.get("uid2", "app") is None
    assert cache.of_pod("uid", ["app", "fine"]) == {"app": failure}
    cache.started("uid", "app")
    cache.started("uid", "app")
    assert cache.get("uid", "app") is None and len(cache) == 1


def test_the_entry_longest_untouched_goes_first() -> None:
    cache = ReasonCache(size=2)
    cache.failed("u", PullFailed(container="a"))
    cache.failed("u", PullFailed(container="b"))
    cache.get("u", "a")
    cache.failed("u", PullFailed(container="c"))
    assert cache.get("u", "b") is None
    assert cache.get("u", "a") is not None and cache.get("u", "c") is not None
