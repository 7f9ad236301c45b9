"""Probe workers in jumping time: periods, thresholds, holds, restarts, the end."""

from __future__ import annotations

from typing import Any

from pykubelet.api.types import Container, ExecAction, PodStatus, Probe
from pykubelet.kit.log import current_pod
from pykubelet.model.errors import CriError
from pykubelet.model.pod import ProbeKind, ProbeOutcome
from pykubelet.model.runtime_status import ExecResult
from pykubelet.recorder import Outcome
from tests.builders import a_container, a_pod, a_sidecar
from tests.unit.probes.fixture import ProbesFixture, fails

LIVE, READY, START = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP
GOOD, BAD, UNKNOWN = ProbeOutcome.SUCCESS, ProbeOutcome.FAILURE, ProbeOutcome.UNKNOWN


def a_probe(word: str, **fields: Any) -> Probe:
    return Probe(exec=ExecAction(command=[word]), **fields)


def live(**fields: Any) -> Container:
    return a_container(liveness_probe=a_probe("live", **fields))


def ready(**fields: Any) -> Container:
    return a_container(readiness_probe=a_probe("ready", **fields))


async def test_a_container_is_probed_the_moment_it_runs_and_then_on_its_period() -> None:
    bench = ProbesFixture(a_pod(containers=[ready(period_seconds=10)]))
    async with bench.up():
        await bench.clock.sleep(3.3)
        assert bench.requested == []
        bench.runs()
        await bench.clock.sleep(30)
    assert bench.times("ready") == [3.3, 13.3, 23.3, 33.3]
    assert bench.changes == [(3.3, "readiness", "c1", "failure"), (3.3, "readiness", "c1", "success")]


async def test_initial_delay_ends_exactly() -> None:
    bench = ProbesFixture(a_pod(containers=[live(initial_delay_seconds=7, period_seconds=5)]))
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(15)
    assert bench.times("live") == [7.0, 12.0]


async def test_containers_older_than_the_agent_are_spread_and_keep_their_state() -> None:
    bench = ProbesFixture(a_pod(containers=[ready(period_seconds=10)]), spread=0.7)
    async with bench.up():
        bench.runs(ago=100, was_ready=True)
        await bench.clock.sleep(6)
        assert bench.outcome(READY) is None
        await bench.clock.sleep(12)
    assert bench.times("ready") == [7.0, 17.0]
    assert bench.changes == [(7.0, "readiness", "c1", "success")]


async def test_an_agent_that_is_up_for_long_spreads_nothing() -> None:
    bench = ProbesFixture(a_pod(containers=[ready(period_seconds=10)]), age=60)
    async with bench.up():
        bench.runs(ago=100)
        await bench.clock.sleep(1)
    assert bench.times("ready") == [0.0]


async def test_liveness_fails_after_its_threshold_and_then_holds_still() -> None:
    bench = ProbesFixture(a_pod(containers=[live(period_seconds=2, failure_threshold=3)]))
    bench.script = fails
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(3)
        assert bench.outcome(LIVE) is GOOD
        await bench.clock.sleep(60)
        assert bench.outcome(LIVE) is BAD
    assert bench.times("live") == [0.0, 2.0, 4.0]
    assert bench.events.texts == ["Warning Unhealthy spec.containers{app}: Liveness probe failed: sick"] * 3


async def test_a_new_container_begins_anew() -> None:
    bench = ProbesFixture(a_pod(containers=[live(period_seconds=2, failure_threshold=2)]))
    bench.script = fails
    async with bench.up():
        bench.runs("c1")
        await bench.clock.sleep(5)
        assert bench.outcome(LIVE, "c1") is BAD
        bench.ends("c1")
        await bench.clock.sleep(1)
        bench.runs("c2")
        await bench.clock.sleep(1)
        assert bench.outcome(LIVE, "c1") is None
        assert bench.outcome(LIVE, "c2") is GOOD
        await bench.clock.sleep(2)
        assert bench.outcome(LIVE, "c2") is BAD


async def test_failures_of_a_container_that_died_do_not_count_for_the_next() -> None:
    bench = ProbesFixture(a_pod(containers=[live(period_seconds=2, failure_threshold=3)]))
    bench.script = fails
    async with bench.up():
        bench.runs("c1")
        await bench.clock.sleep(3)
        bench.runs("c2")
        await bench.clock.sleep(3)
        assert bench.outcome(LIVE, "c2") is GOOD


async def test_readiness_comes_and_goes_by_its_thresholds() -> None:
    bench = ProbesFixture(a_pod(containers=[ready(period_seconds=1, success_threshold=2, failure_threshold=2)]))
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(4.5)
        bench.script = fails
        await bench.clock.sleep(4)
    assert [(when, outcome) for when, _, _, outcome in bench.changes] == [
        (0.0, "failure"),
        (1.0, "success"),
        (6.0, "failure"),
    ]


async def test_startup_gates_the_others_and_ends_with_its_success() -> None:
    container = a_container(
        startup_probe=a_probe("start", period_seconds=3),
        liveness_probe=a_probe("live", period_seconds=10),
        readiness_probe=a_probe("ready", period_seconds=10),
    )
    bench = ProbesFixture(a_pod(containers=[container]))
    bench.script = lambda word: ExecResult(exit_code=0 if bench.clock.monotonic() > 5 else 1)
    async with bench.up():
        bench.runs(started=False)
        await bench.clock.sleep(4)
        assert {word for _, word in bench.requested} == {"start"}
        await bench.clock.sleep(3)
        assert bench.outcome(START) is GOOD
        bench.runs(started=True, ago=7)
        await bench.clock.sleep(15)
    assert bench.times("start") == [0.0, 3.0, 6.0]
    assert bench.times("live") == bench.times("ready") == [7.0, 17.0]


async def test_startup_that_gives_up_is_a_failure_and_holds() -> None:
    container = a_container(startup_probe=a_probe("start", period_seconds=1, failure_threshold=2))
    bench = ProbesFixture(a_pod(containers=[container]))
    bench.script = fails
    async with bench.up():
        bench.runs(started=False)
        await bench.clock.sleep(0.5)
        assert bench.outcome(START) is UNKNOWN
        await bench.clock.sleep(9)
        assert bench.outcome(START) is BAD
    assert bench.times("start") == [0.0, 1.0]


async def test_a_slow_probe_drops_ticks_but_keeps_the_grid() -> None:
    bench = ProbesFixture(a_pod(containers=[live(period_seconds=2)]))
    bench.takes = 5
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(4.5)
        bench.takes = 0
        await bench.clock.sleep(6)
    assert bench.times("live") == [0.0, 5.0, 6.0, 8.0, 10.0]


async def test_an_error_changes_nothing_and_is_told() -> None:
    bench = ProbesFixture(a_pod(containers=[live(period_seconds=2, failure_threshold=1)]))
    bench.script = lambda word: CriError("no such exec")
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(1)
        assert bench.outcome(LIVE) is GOOD
    assert bench.times("live") == [0.0, 0.0, 0.0]
    assert bench.events.texts == [
        "Warning Unhealthy spec.containers{app}: Liveness probe errored and resulted in unknown state: no such exec"
    ]


async def test_a_bug_in_a_probe_does_not_end_probing() -> None:
    bench = ProbesFixture(a_pod(containers=[live(period_seconds=2)]))
    bench.script = lambda word: ZeroDivisionError("bug")
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(3)
    assert bench.times("live") == [0.0, 2.0]


async def test_a_container_that_ends_is_not_ready_at_once() -> None:
    bench = ProbesFixture(a_pod(containers=[ready()]))
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(2)
        assert bench.outcome(READY) is GOOD
        bench.ends()
        await bench.clock.sleep(0.1)
        assert bench.outcome(READY) is BAD
        await bench.clock.sleep(60)
    assert len(bench.times("ready")) == 1


async def test_what_never_restarts_is_left_alone_until_it_does() -> None:
    bench = ProbesFixture(a_pod(containers=[ready()], restart_policy="Never"))
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(1)
        bench.ends()
        await bench.clock.sleep(100)
        assert len(bench.times("ready")) == 1
        bench.runs("c2")
        await bench.clock.sleep(1)
        assert bench.outcome(READY, "c2") is GOOD


async def test_deletion_ends_liveness_with_a_good_word() -> None:
    bench = ProbesFixture(a_pod(containers=[live(period_seconds=1, failure_threshold=1)]))
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(1.5)
        bench.script = fails
        bench.manager.add_pod(a_pod(containers=bench.pod.spec.containers, deleted=True))
        await bench.clock.sleep(10)
        assert bench.outcome(LIVE) is GOOD
    assert bench.times("live") == [0.0, 1.0]


async def test_termination_stops_all_but_readiness() -> None:
    container = a_container(liveness_probe=a_probe("live"), readiness_probe=a_probe("ready"))
    bench = ProbesFixture(a_pod(containers=[container]))
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(1)
        bench.manager.stop_for_termination(bench.pod)
        assert bench.outcome(LIVE) is None
        bench.script = fails
        await bench.clock.sleep(30)
        assert bench.outcome(READY) is BAD
        bench.manager.remove_pod("uid-web")
        assert bench.table.probe_outcomes("uid-web") == {}
        assert bench.manager.snapshot() == {}
    assert len(bench.times("live")) == 1


async def test_a_probe_under_way_is_given_up_with_its_pod() -> None:
    bench = ProbesFixture(a_pod(containers=[live()]))
    bench.takes = 100
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(1)
        bench.manager.keep_only([])
        await bench.clock.sleep(200)
        assert bench.changes == [(0.0, "liveness", "c1", "success")]
        assert bench.table.probe_outcomes("uid-web") == {}
        assert "live" not in bench.manager.metrics.expose()


async def test_a_pod_that_ended_is_probed_no_more() -> None:
    bench = ProbesFixture(a_pod(containers=[live(period_seconds=1)]))
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(0.5)
        bench.report(PodStatus(phase="Failed"))
        bench.manager.container_changed("uid-web")
        await bench.clock.sleep(30)
        assert bench.table.probe_outcomes("uid-web") == {}
    assert bench.times("live") == [0.0]


async def test_sidecars_have_probes_and_plain_init_containers_do_not() -> None:
    side = a_sidecar(readiness_probe=a_probe("side"))
    init = a_container("init", readiness_probe=a_probe("init"))
    bench = ProbesFixture(a_pod(init=[init, side]))
    bench.script = fails
    async with bench.up():
        bench.runs(name="init")
        bench.runs("s1", name="side")
        await bench.clock.sleep(1)
    assert [word for _, word in bench.requested] == ["side"]
    assert bench.events.texts == ["Warning Unhealthy spec.initContainers{side}: Readiness probe failed: sick"]


async def test_pods_added_before_the_manager_runs_are_probed_when_it_does() -> None:
    bench = ProbesFixture(a_pod(containers=[live()]))
    bench.runs()
    bench.manager.add_pod(bench.pod)
    async with bench.up():
        await bench.clock.sleep(1)
    assert bench.times("live") == [0.0]


async def test_metrics_and_the_record_of_the_pods_life() -> None:
    bench = ProbesFixture(a_pod(containers=[ready(period_seconds=1)]))
    bench.takes = 0.02
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(1.5)
        bench.script = fails
        await bench.clock.sleep(5)
        page = bench.manager.metrics.expose()
    labels = 'container="app",pod="web",namespace="default"'
    total = f'prober_probe_total{{probe_type="Readiness",result="%s",{labels},pod_uid="uid-web"}} %d'
    assert total % ("successful", 2) in page
    assert total % ("failed", 5) in page
    assert f'prober_probe_duration_seconds_count{{probe_type="Readiness",{labels}}} 2' in page
    life = bench.recorder.life("uid-web")
    assert life is not None
    assert [(e.subject, e.outcome, e.reason, e.message, e.repeats) for e in life.entries] == [
        ("app/readiness", Outcome.NOTED, "passed", "", 0),
        ("app/readiness", Outcome.FAILED, "failed", "sick", 4),
    ]


async def test_outputs_that_always_differ_do_not_flood_the_record() -> None:
    bench = ProbesFixture(a_pod(containers=[ready(period_seconds=1)]))
    bench.script = lambda word: ExecResult(stdout=str(bench.clock.monotonic()).encode(), exit_code=1)
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(300)
    life = bench.recorder.life("uid-web")
    assert life is not None
    assert len(life.entries) <= 3


async def test_what_a_probe_writes_names_its_own_pod_whoever_made_it_look() -> None:
    bench = ProbesFixture(a_pod(containers=[ready(period_seconds=10)]))
    named: list[str] = []

    def script(_: str) -> ExecResult:
        named.append(current_pod.get())
        return ExecResult()

    bench.script = script
    current_pod.set("default/other")
    async with bench.up():
        bench.runs()
        await bench.clock.sleep(15)
    assert named == ["default/web", "default/web"]
    assert current_pod.get() == "default/other"
