"""When a probe is asked, and what its answers add up to: one row per rule."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import (
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodCondition,
    PodStatus,
    Probe,
)
from pykubelet.model.pod import ProbeKind, ProbeOutcome
from pykubelet.probes.decide import (
    Act,
    Step,
    Tally,
    container_status,
    first_outcome,
    holds_after,
    next_step,
)
from tests.builders import NOW, a_container, a_pod, at

LIVE, READY, START = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP
GOOD, BAD, UNKNOWN = ProbeOutcome.SUCCESS, ProbeOutcome.FAILURE, ProbeOutcome.UNKNOWN
RUNS = ContainerState(running=ContainerStateRunning(started_at=at(NOW - 5)))
WAITS = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))


def ended(code: int) -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(exit_code=code))


def reported(state: ContainerState | None = RUNS, started: bool | None = True, **fields: Any) -> ContainerStatus:
    return ContainerStatus(name="app", container_id="containerd://c1", state=state, started=started, **fields)


def step(kind: ProbeKind, seen: ContainerStatus, **given: Any) -> Step:
    container = given.pop("container", a_container())
    values: dict[str, Any] = {
        "kind": kind,
        "probe": Probe(),
        "pod": a_pod(containers=[container]),
        "container": container,
        "status": PodStatus(),
        "reported": seen,
        "on_hold": False,
        "now": NOW,
    }
    return next_step(**{**values, **given})


@pytest.mark.parametrize(
    ("kind", "started", "act"),
    [
        (LIVE, True, Act.PROBE),
        (READY, True, Act.PROBE),
        (START, True, Act.WAIT),
        (LIVE, False, Act.WAIT),
        (READY, None, Act.WAIT),
        (START, False, Act.PROBE),
        (START, None, Act.PROBE),
    ],
)
def test_startup_comes_first_and_only_first(kind: ProbeKind, started: bool | None, act: Act) -> None:
    assert step(kind, reported(started=started)) == Step(act)


def test_on_hold_waits_whatever_else() -> None:
    assert step(LIVE, reported(), on_hold=True) == Step(Act.WAIT)
    assert step(START, reported(ended(1)), on_hold=True) == Step(Act.WAIT)


@pytest.mark.parametrize(("delay", "expected"), [(5, Step(Act.PROBE)), (6, Step(Act.WAIT, 1.0)), (0, Step(Act.PROBE))])
def test_initial_delay_counts_from_the_container_start(delay: int, expected: Step) -> None:
    assert step(LIVE, reported(), probe=Probe(initial_delay_seconds=delay)) == expected


def test_a_clock_that_is_set_back_does_not_begin_the_initial_delay_anew() -> None:
    probe = Probe(initial_delay_seconds=6)
    assert step(LIVE, reported(), probe=probe, now=NOW - 3600, seen_running=5) == Step(Act.WAIT, 1.0)
    assert step(LIVE, reported(), probe=probe, now=NOW - 3600, seen_running=6) == Step(Act.PROBE)


@pytest.mark.parametrize(
    ("policy", "code", "act"),
    [
        ("Always", 0, Act.FAIL),
        ("OnFailure", 1, Act.FAIL),
        ("OnFailure", 0, Act.FAIL_AND_END),
        ("Never", 1, Act.FAIL_AND_END),
    ],
)
def test_an_ended_container_is_a_failure(policy: str, code: int, act: Act) -> None:
    assert step(LIVE, reported(ended(code)), pod=a_pod(restart_policy=policy)) == Step(act)


def test_an_ended_container_comes_back_by_its_own_rule_or_with_all_others() -> None:
    rule = ContainerRestartRule(
        action="Restart", exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=[42])
    )
    ruled = a_container(restart_policy="Never", restart_policy_rules=[rule])
    never = a_pod(restart_policy="Never")
    assert step(LIVE, reported(ended(42)), pod=never, container=ruled).act is Act.FAIL
    assert step(LIVE, reported(ended(1)), pod=never, container=ruled).act is Act.FAIL_AND_END
    all_restart = PodStatus(conditions=[PodCondition(type="AllContainersRestarting", status="True")])
    assert step(LIVE, reported(ended(1)), pod=never, status=all_restart).act is Act.FAIL


@pytest.mark.parametrize("state", [None, WAITS, ContainerState()])
def test_a_container_about_to_start_is_not_ready_but_no_liveness_failure(state: ContainerState | None) -> None:
    assert step(READY, reported(state)).act is Act.FAIL
    assert step(LIVE, reported(state)).act is Act.WAIT
    assert step(START, reported(state)).act is Act.WAIT


def test_deletion_quiets_all_but_readiness() -> None:
    pod = a_pod(deleted=True)
    assert step(LIVE, reported(), pod=pod).act is Act.PASS_AND_END
    assert step(START, reported(started=False), pod=pod).act is Act.PASS_AND_END
    assert step(READY, reported(), pod=pod).act is Act.PROBE


def test_the_status_of_a_container_needs_an_id() -> None:
    none = ContainerStatus(name="app")
    init = ContainerStatus(name="side", container_id="x://1")
    status = PodStatus(container_statuses=[none], init_container_statuses=[init])
    assert container_status(status, "app") is None
    assert container_status(status, "side") is init
    assert container_status(status, "other") is None


@pytest.mark.parametrize(
    ("kind", "sidecar", "ready", "started", "outcome"),
    [
        (READY, False, False, False, BAD),
        (READY, False, False, True, BAD),
        (READY, False, True, True, None),
        (LIVE, False, False, False, GOOD),
        (LIVE, False, True, True, GOOD),
        (START, False, False, False, UNKNOWN),
        (START, False, True, True, None),
        (START, True, False, True, GOOD),
        (START, True, False, False, UNKNOWN),
    ],
)
def test_before_the_first_answer(
    kind: ProbeKind, sidecar: bool, ready: bool, started: bool, outcome: ProbeOutcome | None
) -> None:
    """What was told of this very container, before a restart of the agent that is, stands."""
    before = ContainerStatus(name="app", container_id="x://1", ready=ready, started=started)
    assert first_outcome(kind, before, sidecar=sidecar, older=False) is outcome
    older = outcome if outcome is GOOD else None
    assert first_outcome(kind, before, sidecar=sidecar, older=True) is older


@pytest.mark.parametrize(
    ("outcomes", "published"),
    [
        ([BAD, BAD, BAD], [False, False, True]),
        ([BAD, BAD, GOOD, BAD, BAD, BAD], [False, False, False, False, False, True]),
        ([GOOD, GOOD, GOOD], [False, True, True]),
    ],
)
def test_thresholds_count_equal_outcomes_in_a_row(outcomes: list[ProbeOutcome], published: list[bool]) -> None:
    tally = Tally(Probe(success_threshold=2, failure_threshold=3))
    assert [tally.add(outcome) for outcome in outcomes] == published


def test_what_ends_asking_until_there_is_a_new_container() -> None:
    assert [holds_after(LIVE, BAD), holds_after(START, BAD), holds_after(START, GOOD)] == [True] * 3
    assert [holds_after(LIVE, GOOD), holds_after(READY, BAD), holds_after(READY, GOOD)] == [False] * 3
