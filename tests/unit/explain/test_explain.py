"""Putting findings together: precedence, one cause a container, the pod's state, texts and JSON."""

from __future__ import annotations

from pathlib import Path

from pykubelet.explain.document import troubleshooting
from pykubelet.explain.facts import NodeFacts
from pykubelet.explain.texts import span
from pykubelet.explain.view import Explanation
from pykubelet.model.problems import NotAdmitted, Shortage
from pykubelet.recorder import Step
from tests.builders import NOW, a_container, a_pod
from tests.unit.explain.making import (
    Worker,
    crashed,
    ended,
    entry,
    explained,
    facts,
    failed,
    only,
    running,
    waiting,
)

ROOT = Path(__file__).parents[3]


def test_a_ready_pod_is_healthy_and_says_so() -> None:
    found = explained(facts(running(), phase="Running", ready=True, life=[entry(Step.SEEN), entry(Step.START, "app")]))
    assert (found.healthy, found.state, found.causes) == (True, "healthy", ())
    assert "Every container runs and is ready" in found.to_text()


def test_a_pod_that_has_done_its_work_is_done() -> None:
    assert explained(facts(phase="Succeeded")).state == "done"


def test_two_containers_with_two_troubles_are_both_told() -> None:
    two = [a_container("app"), a_container("side")]
    told = [crashed(ended(1)), waiting("ErrImageNeverPull", "", "side")]
    found = explained(facts(*told, containers=two))
    assert {(view.subject, view.id) for view in found.causes} == {("app", "crash-loop"), ("side", "image-never-pulled")}
    assert found.state == "stuck", "what needs a person comes before what the agent goes on trying"


def test_an_old_crash_is_a_note_and_a_fresh_one_is_not() -> None:
    def after(seconds: float) -> Explanation:
        told = running(ago=seconds, restart_count=1, last_state=crashed(ended(1, ago=seconds)).last_state)
        return explained(facts(told, phase="Running", ready=True))

    assert (after(5).state, after(5).healthy) == ("restarting", False)
    assert (after(120).state, after(120).healthy) == ("healthy", True)
    assert [view.id for view in after(120).causes] == ["crash-loop"]
    assert after(1000).causes == ()


def test_out_of_memory_without_a_restart_has_failed_for_good() -> None:
    told = crashed(ended(137, reason="OOMKilled"))
    told.state = told.last_state
    found = explained(facts(told, phase="Failed", pod=a_pod(restart_policy="Never")))
    assert (found.causes[0].id, found.state) == ("out-of-memory", "failed")
    assert "not started again" in found.to_text()


def test_a_dead_runtime_hides_no_trouble_of_a_container() -> None:
    down = NodeFacts(runtime_up=False, runtime_problem="gone")
    found = explained(facts(crashed(ended(1)), node=down))
    assert [view.id for view in found.causes] == ["runtime-down", "crash-loop"]


def test_the_general_failure_is_only_told_when_nothing_else_is() -> None:
    worker = Worker(failures=2, last_error="app: CrashLoopBackOff")
    assert only(facts(crashed(ended(1)), worker=worker)).id == "crash-loop"


def test_a_pod_of_another_namespace_gets_commands_that_work() -> None:
    view = only(facts(crashed(ended(1)), pod=a_pod(namespace="shop")))
    assert "`pykubelet logs -n shop web -c app`" in view.advice[0]


def test_a_static_pod_goes_by_the_name_of_its_manifest() -> None:
    about = facts(crashed(ended(1)), pod=a_pod("web-node1", static=True, node_name="node1"))
    assert explained(about).pod == "default/web"
    assert "logs web -c app" in only(about).advice[0]


def test_json_and_back() -> None:
    found = explained(
        facts(crashed(ended(1)), life=[entry(Step.SEEN), failed(Step.PROBE, "app/liveness", "no", repeats=3)])
    )
    assert Explanation.from_json(found.to_json()) == found


def test_the_timeline_has_durations_and_repeats() -> None:
    life = [
        entry(Step.SEEN, ago=10),
        entry(Step.SANDBOX, ago=9, seconds=0.25),
        failed(Step.PULL, "busybox:1", "no such host", ago=8, seconds=2.0),
        failed(Step.PROBE, "app/readiness", "503", ago=5, repeats=4, last_at=NOW),
    ]
    text = explained(facts(life=life)).to_text()
    assert "+1.00 s  making the sandbox: done in 250 ms" in text
    assert "+2.00 s  getting the image (busybox:1): failed after 2 s — no such host" in text
    assert "again 4×" in text


def test_a_critical_pod_that_found_no_victim_is_told_what_is_missing() -> None:
    message = "Pod was rejected: … no set of running pods found to reclaim resources: [(res: cpu, q: 4998000), ]"
    short_of = Shortage(resource="cpu", missing=4998000, preempting=True)
    cause = NotAdmitted(reason="UnexpectedAdmissionError", text=message, short_of=short_of)
    life = [failed(Step.ADMISSION, "", message, reason=cause.reason, cause=cause)]
    view = only(facts(phase="Failed", reason="UnexpectedAdmissionError", message=message, life=life))
    assert view.id == "node-short"
    assert "too little cpu: 4998 cores are missing" in view.chain[1]


def test_spans_are_short() -> None:
    given = [0.04, 0.42, 5.0, 12.7, 60, 185, 7800, 90000, -3]
    assert [span(each) for each in given] == [
        "40 ms", "420 ms", "5 s", "12 s", "1 min", "3 min 5 s", "2 h 10 min", "1 d 1 h", "0 s",
    ]  # fmt: skip


def test_the_page_says_what_the_table_says() -> None:
    written = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert written == troubleshooting(), "run: python -m pykubelet.explain.document > docs/troubleshooting.md"


def test_a_start_that_failed_stays_the_cause_while_the_next_one_waits() -> None:
    end = ended(128, reason="StartError", message="error mounting x: not a directory")
    view = only(facts(crashed(end)))
    assert view.id == "create-failed"
    assert "the runtime said: error mounting x: not a directory" in view.chain
