"""The status cache: what counts as newer."""

from __future__ import annotations

import pytest

from pykubelet.model.errors import CallTimedOut
from pykubelet.model.runtime_status import PodRuntimeStatus, SandboxStatus
from pykubelet.pleg.cache import NEVER, PodStatusCache


def a_status(uid: str = "u1", at: float = 1.0, *, empty: bool = False) -> PodRuntimeStatus:
    box = SandboxStatus(id="s1", pod_uid=uid, pod_name="web", pod_namespace="default")
    return PodRuntimeStatus(uid=uid, name="web", sandboxes=() if empty else (box,), observed_at=at)


def test_unknown_pod_is_empty_as_of_the_last_relist() -> None:
    cache = PodStatusCache()
    assert cache.age_of("u1") == NEVER
    cache.relisted(5.0, changed=())
    assert cache.get("u1") == PodRuntimeStatus(uid="u1", observed_at=5.0)
    assert cache.age_of("u1") == 5.0


def test_an_older_result_changes_nothing() -> None:
    cache = PodStatusCache()
    cache.set(a_status(at=3.0))
    cache.set(a_status(at=2.0, empty=True))
    cache.set_error("u1", CallTimedOut("late"), observed_at=2.5)
    assert cache.get("u1") == a_status(at=3.0)


def test_error_is_raised_and_the_last_good_status_stays() -> None:
    cache = PodStatusCache()
    cache.set(a_status(at=1.0))
    cache.set_error("u1", CallTimedOut("stuck"), observed_at=2.0)
    with pytest.raises(CallTimedOut, match="stuck"):
        cache.get("u1")
    assert cache.last_known("u1") == a_status(at=1.0)
    cache.set(a_status(at=3.0))
    assert cache.get("u1").observed_at == 3.0


def test_relist_makes_unchanged_pods_newer_and_changed_ones_wait() -> None:
    cache = PodStatusCache()
    cache.set(a_status("u1", 1.0))
    cache.set(a_status("u2", 1.0))
    cache.relisted(10.0, changed=["u2"])
    assert (cache.age_of("u1"), cache.age_of("u2")) == (10.0, 1.0)
    cache.set(a_status("u2", 9.0))  # begun before that relist
    assert cache.age_of("u2") == 9.0
    cache.set(a_status("u2", 10.0))
    assert cache.age_of("u2") == 10.0


def test_relist_drops_what_is_empty_anyway() -> None:
    cache = PodStatusCache()
    cache.set(a_status("u1", 1.0, empty=True))
    cache.set(a_status("u2", 20.0, empty=True))
    cache.set(a_status("u3", 1.0))
    cache.relisted(10.0, changed=())
    assert cache.uids() == ("u2", "u3")


def test_deleted_pod_is_unknown() -> None:
    cache = PodStatusCache()
    cache.set(a_status())
    cache.delete("u1")
    assert cache.get("u1").sandboxes == ()


def test_a_status_is_as_new_as_its_listing() -> None:
    cache = PodStatusCache()
    cache.set(a_status(at=2.0))
    assert cache.age_of("u1") == 2.0
    cache.set(a_status("other", at=9.0))
    assert cache.age_of("u1") == 2.0


def test_a_relist_makes_unchanged_and_unknown_pods_as_new_as_itself() -> None:
    cache = PodStatusCache()
    cache.set(a_status(at=2.0))
    cache.relisted(5.0, changed=())
    assert (cache.age_of("u1"), cache.age_of("none")) == (5.0, 5.0)
    assert cache.get("none") == PodRuntimeStatus(uid="none", observed_at=5.0)


def test_a_changed_pod_is_not_newer_before_it_was_inspected() -> None:
    cache = PodStatusCache()
    cache.set(a_status(at=0.2))
    cache.relisted(0.5, changed=["u1"])
    assert cache.age_of("u1") == 0.2
    cache.set(a_status(at=0.5))
    assert cache.age_of("u1") == 0.5


def test_a_failed_inspection_is_raised_to_whoever_reads() -> None:
    cache = PodStatusCache()
    cache.set_error("u1", CallTimedOut("stuck"), observed_at=1.0)
    with pytest.raises(CallTimedOut):
        cache.get("u1")


@pytest.mark.parametrize("up", [True, False])
def test_a_pod_that_cannot_be_inspected_is_as_the_listing_says(up: bool) -> None:
    cache = PodStatusCache()
    assert not cache.is_down("u1"), "nobody looked"
    cache.relisted(5.0, changed=["u1"], up=["u1"] if up else [])
    assert cache.is_down("u1") is not up
    cache.set_error("u1", CallTimedOut("stuck"), observed_at=5.0)
    assert cache.is_down("u1") is not up
    cache.set(a_status(at=6.0, empty=True))
    assert cache.is_down("u1")
