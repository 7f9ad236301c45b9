"""Start failures and probe outcomes: kept with the pod's record, and no longer."""

from __future__ import annotations

from pykubelet.model.pod import ProbeKind, ProbeOutcome
from pykubelet.model.problems import PullFailed
from pykubelet.pods.table import PodTable
from tests.builders import a_pod

SUCCESS, FAILURE = ProbeOutcome.SUCCESS, ProbeOutcome.FAILURE


def test_only_another_outcome_is_a_change() -> None:
    table = PodTable()
    readiness = (ProbeKind.READINESS, "c")
    changes = [table.set_probe_outcome("u", readiness, each) for each in (FAILURE, FAILURE, SUCCESS)]
    assert changes == [True, False, True]
    assert table.set_probe_outcome("u", (ProbeKind.LIVENESS, "c"), SUCCESS)


def test_outcomes_are_forgotten_one_by_one() -> None:
    table = PodTable()
    for kind in ProbeKind:
        table.set_probe_outcome("u", (kind, "c"), SUCCESS)
    table.forget_probe_outcome("u", (ProbeKind.STARTUP, "c"))
    assert table.probe_outcomes("u") == {(ProbeKind.LIVENESS, "c"): SUCCESS, (ProbeKind.READINESS, "c"): SUCCESS}
    for kind in ProbeKind:
        table.forget_probe_outcome("u", (kind, "c"))
    assert table.probe_outcomes("u") == {} and len(table) == 0
    assert ProbeKind.READINESS.title == "Readiness"


def test_a_failure_is_kept_until_the_container_starts() -> None:
    table = PodTable()
    failure = PullFailed(container="app", text="no such image")
    table.start_failed("uid", failure)
    table.start_failed("uid", PullFailed(container="other"))
    assert table.start_failures("uid")["app"] == failure
    assert table.start_failures("uid2") == {}
    table.start_succeeded("uid", "app")
    table.start_succeeded("uid", "app")
    assert list(table.start_failures("uid")) == ["other"]


def test_results_go_with_the_pod_and_its_worker() -> None:
    table, pod = PodTable(), a_pod("web")
    table.put(pod)
    table.start_failed(pod.metadata.uid or "", PullFailed(container="app"))
    table.set_probe_outcome(pod.metadata.uid or "", (ProbeKind.LIVENESS, "c"), SUCCESS)
    table.drop_unknown()
    assert table.start_failures(pod.metadata.uid or "")
    table.remove(pod)
    table.drop_unknown()
    assert len(table) == 0
