"""Runtime statuses in the pod table: what counts as newer."""

from __future__ import annotations

import pytest

from pykubelet.model.errors import CallTimedOut
from pykubelet.model.runtime_status import PodRuntimeStatus, SandboxStatus
from pykubelet.pods.record import NEVER
from pykubelet.pods.table import PodTable


def a_status(uid: str = "u1", at: float = 1.0, *, empty: bool = False) -> PodRuntimeStatus:
    box = SandboxStatus(id="s1", pod_uid=uid, pod_name="web", pod_namespace="default")
    return PodRuntimeStatus(uid=uid, name="web", sandboxes=() if empty else (box,), observed_at=at)


def test_unknown_pod_is_empty_as_of_the_last_relist() -> None:
    table = PodTable()
    assert table.observed_at("u1") == NEVER
    table.relisted(5.0, changed=())
    assert table.runtime_status("u1") == PodRuntimeStatus(uid="u1", observed_at=5.0)
    assert table.observed_at("u1") == 5.0


def test_an_older_result_changes_nothing() -> None:
    table = PodTable()
    table.observe(a_status(at=3.0), {})
    table.observe(a_status(at=2.0, empty=True), {})
    table.observe_failure("u1", CallTimedOut("late"), started=2.5)
    assert table.runtime_status("u1") == a_status(at=3.0)


def test_error_is_raised_and_the_last_good_status_stays() -> None:
    table = PodTable()
    table.observe(a_status(at=1.0), {})
    table.observe_failure("u1", CallTimedOut("stuck"), started=2.0)
    assert str(table.observed("u1").error) == "stuck"
    assert table.runtime_status("u1") == a_status(at=1.0)
    table.observe(a_status(at=3.0), {})
    assert table.runtime_status("u1").observed_at == 3.0 and table.observed("u1").error is None


def test_relist_makes_unchanged_pods_newer_and_changed_ones_wait() -> None:
    table = PodTable()
    table.observe(a_status("u1", 1.0), {})
    table.observe(a_status("u2", 1.0), {})
    table.relisted(10.0, changed=["u2"])
    assert (table.observed_at("u1"), table.observed_at("u2")) == (10.0, 1.0)
    table.observe(a_status("u2", 9.0), {})  # begun before that relist
    assert table.observed_at("u2") == 9.0
    table.observe(a_status("u2", 10.0), {})
    assert table.observed_at("u2") == 10.0


def test_relist_drops_what_is_empty_anyway() -> None:
    table = PodTable()
    table.observe(a_status("u1", 1.0, empty=True), {})
    table.observe(a_status("u2", 20.0, empty=True), {})
    table.observe(a_status("u3", 1.0), {})
    table.relisted(10.0, changed=())
    assert [status.uid for status in table.runtime_statuses()] == ["u2", "u3"]


def test_a_status_is_as_new_as_its_listing() -> None:
    table = PodTable()
    table.observe(a_status(at=2.0), {})
    assert table.observed_at("u1") == 2.0
    table.observe(a_status("other", at=9.0), {})
    assert table.observed_at("u1") == 2.0


def test_a_relist_makes_unchanged_and_unknown_pods_as_new_as_itself() -> None:
    table = PodTable()
    table.observe(a_status(at=2.0), {})
    table.relisted(5.0, changed=())
    assert (table.observed_at("u1"), table.observed_at("none")) == (5.0, 5.0)
    assert table.runtime_status("none") == PodRuntimeStatus(uid="none", observed_at=5.0)


def test_a_changed_pod_is_not_newer_before_it_was_inspected() -> None:
    table = PodTable()
    table.observe(a_status(at=0.2), {})
    table.relisted(0.5, changed=["u1"])
    assert table.observed_at("u1") == 0.2
    table.observe(a_status(at=0.5), {})
    assert table.observed_at("u1") == 0.5


def test_a_failed_inspection_is_kept_for_readers() -> None:
    table = PodTable()
    table.observe_failure("u1", CallTimedOut("stuck"), started=1.0)
    assert isinstance(table.observed("u1").error, CallTimedOut)


@pytest.mark.parametrize("up", [True, False])
def test_a_pod_that_cannot_be_inspected_is_as_the_listing_says(up: bool) -> None:
    table = PodTable()
    assert not table.is_down("u1"), "before the first listing"
    table.relisted(5.0, changed=["u1"], up=["u1"] if up else [])
    assert table.is_down("u1") is not up
    table.observe_failure("u1", CallTimedOut("stuck"), started=5.0)
    assert table.is_down("u1") is not up
    table.observe(a_status(at=6.0, empty=True), {})
    assert table.is_down("u1")


def test_a_container_runs_as_the_listing_says_until_the_pod_is_inspected() -> None:
    table = PodTable()
    table.relisted(5.0, changed=["u1", "box"], up=["u1", "box"], running=["u1"])
    assert table.has_running_container("u1")
    assert not table.has_running_container("box"), "a sandbox is no container"
    assert not table.has_running_container("unknown")
    table.observe(a_status(at=6.0, empty=True), {})
    assert not table.has_running_container("u1")
