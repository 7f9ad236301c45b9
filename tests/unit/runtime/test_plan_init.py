"""Init containers and sidecars: every row of the table in docs/states.md."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import ContainerResizePolicy, Pod, Probe, ResourceRequirements
from pykubelet.model.pod import ProbeKey, ProbeKind, ProbeOutcome
from pykubelet.model.problems import KillCause
from pykubelet.model.runtime_status import ContainerState, ContainerStatus
from pykubelet.runtime.plan import PlanInputs, PodPlan, plan_pod
from tests.builders import a_container, a_container_status, a_pod, a_runtime_status, a_sidecar
from tests.unit.runtime.test_plan import names

CREATED, RUNNING = ContainerState.CREATED, ContainerState.RUNNING
EXITED, UNKNOWN = ContainerState.EXITED, ContainerState.UNKNOWN


def plan(pod: Pod, *runs: ContainerStatus, probes: dict[ProbeKey, ProbeOutcome] | None = None, **rest: Any) -> PodPlan:
    inputs = PlanInputs(pod=pod, runtime=a_runtime_status(pod, *runs), probes=probes or {}, **rest)
    return plan_pod(inputs)


def told(*outcomes: tuple[ProbeKind, str, ProbeOutcome]) -> dict[ProbeKey, ProbeOutcome]:
    return {(kind, container_id): value for kind, container_id, value in outcomes}


# --- regular init containers


def test_without_any_trace_the_first_init_container_starts() -> None:
    pod = a_pod(init=[a_container("i1"), a_container("i2")])
    made = plan(pod)
    assert names(made.start_init) == ["i1"] and made.start_regular == ()


@pytest.mark.parametrize(
    ("state", "exit_code", "reason", "policy", "starts", "kills_pod"),
    [
        (CREATED, 0, "", "Never", ["i1"], False),
        (RUNNING, 0, "", "Never", [], False),
        (EXITED, 0, "Completed", "Never", ["i2"], False),
        (EXITED, 1, "Error", "Always", ["i1"], False),
        (EXITED, 1, "Error", "OnFailure", ["i1"], False),
        (EXITED, 1, "Error", "Never", [], True),
        (EXITED, 0, "OOMKilled", "Always", ["i1"], False),
        (EXITED, 0, "OOMKilled", "Never", [], True),
        (UNKNOWN, 0, "", "Always", ["i1"], False),
        (UNKNOWN, 0, "", "Never", [], True),
    ],
)
def test_one_init_container_decides_what_comes_next(
    state: ContainerState, exit_code: int, reason: str, policy: str, starts: list[str], kills_pod: bool
) -> None:
    pod = a_pod(init=[a_container("i1"), a_container("i2")], restart_policy=policy)
    made = plan(pod, a_container_status(pod, "i1", state, exit_code=exit_code, reason=reason))
    assert names(made.start_init) == starts
    assert made.kill_pod is kills_pod
    assert made.start_regular == ()
    assert [k.cause for k in made.kill] == ([KillCause.UNKNOWN] if state is UNKNOWN and not kills_pod else [])


def test_a_regular_container_created_in_the_sandbox_before_says_nothing_about_this_one() -> None:
    """The machine went down between creating and starting it; upstream starts it without the init container then."""
    pod = a_pod(init=[a_container("i1")], containers=[a_container("web")])
    here = plan(pod, a_container_status(pod, "web", CREATED))
    assert (names(here.start_init), names(here.start_regular)) == ([], ["web"])
    before = plan(pod, a_container_status(pod, "web", CREATED, sandbox_id="old-box"))
    assert (names(before.start_init), names(before.start_regular)) == (["i1"], [])


def test_a_containers_own_policy_decides_about_a_failed_init_container() -> None:
    pod = a_pod(init=[a_container("i", restart_policy="OnFailure")], restart_policy="Never")
    assert names(plan(pod, a_container_status(pod, "i", EXITED, exit_code=1)).start_init) == ["i"]
    pod = a_pod(init=[a_container("i", restart_policy="Never")], restart_policy="Always")
    assert plan(pod, a_container_status(pod, "i", EXITED, exit_code=1)).kill_pod
    assert plan(pod, a_container_status(pod, "i", UNKNOWN)).kill_pod


def test_a_failed_init_container_of_a_deleted_pod_ends_the_pod() -> None:
    pod = a_pod(init=[a_container("i")], deleted=True)
    assert plan(pod, a_container_status(pod, "i", EXITED, exit_code=1)).kill_pod


def test_the_last_trace_counts_when_earlier_ones_were_removed() -> None:
    pod = a_pod(init=[a_container("i1"), a_container("i2"), a_container("i3")])
    assert names(plan(pod, a_container_status(pod, "i2", EXITED)).start_init) == ["i3"]


def test_after_the_last_init_container_the_regular_ones_start() -> None:
    pod = a_pod(init=[a_container("i1"), a_container("i2")])
    made = plan(pod, a_container_status(pod, "i2", EXITED), a_container_status(pod, "i1", EXITED))
    assert made.start_init == () and names(made.start_regular) == ["app"]


@pytest.mark.parametrize("state", [CREATED, RUNNING])
def test_once_initialised_a_failed_init_container_is_not_looked_at(state: ContainerState) -> None:
    pod = a_pod(init=[a_container("i")], restart_policy="Never")
    app = a_container_status(pod, "app", state)
    made = plan(pod, app, a_container_status(pod, "i", EXITED, exit_code=1))
    assert made.start_init == () and not made.kill_pod
    assert plan(pod, app).start_init == ()


def test_an_exited_regular_container_does_not_show_that_the_pod_is_initialised() -> None:
    # After a reboot the old sandbox's containers are all still listed as exited.
    pod = a_pod(init=[a_container("i")])
    assert names(plan(pod, a_container_status(pod, "app", EXITED)).start_init) == ["i"]


def test_a_running_init_container_can_be_resized_in_place() -> None:
    wanted = ResourceRequirements(limits={"cpu": "2"})
    pod = a_pod(init=[a_container("i", resources=wanted)])
    made = plan(pod, a_container_status(pod, "i"), actuated={"i": ResourceRequirements(limits={"cpu": "1"})})
    assert names(made.resize) == ["i"] and made.kill == ()


# --- sidecars


@pytest.mark.parametrize(
    ("state", "exit_code", "starts"),
    [(CREATED, 0, ["s"]), (EXITED, 0, ["s"]), (EXITED, 1, ["s"]), (UNKNOWN, 0, ["s"]), (RUNNING, 0, ["i"])],
)
def test_a_sidecar_is_kept_running_and_lets_the_next_one_start(
    state: ContainerState, exit_code: int, starts: list[str]
) -> None:
    pod = a_pod(init=[a_sidecar("s"), a_container("i")], restart_policy="Never")
    made = plan(pod, a_container_status(pod, "s", state, exit_code=exit_code))
    assert names(made.start_init) == starts
    assert [k.message for k in made.kill] == (
        ['Init container is in "unknown" state, try killing it before restart'] if state is UNKNOWN else []
    )
    assert not made.kill_pod


def test_a_started_last_sidecar_means_that_the_pod_is_initialised() -> None:
    pod = a_pod(init=[a_container("i"), a_sidecar("s")])
    made = plan(pod, a_container_status(pod, "s"), a_container_status(pod, "i", EXITED))
    assert made.start_init == () and names(made.start_regular) == ["app"]


@pytest.mark.parametrize(
    ("startup", "next_starts", "replaced"),
    [
        (None, False, False),
        (ProbeOutcome.UNKNOWN, False, False),
        (ProbeOutcome.FAILURE, False, True),
        (ProbeOutcome.SUCCESS, True, False),
    ],
)
def test_a_startup_probe_gates_what_follows_the_sidecar(
    startup: ProbeOutcome | None, next_starts: bool, replaced: bool
) -> None:
    pod = a_pod(init=[a_sidecar("s", startup_probe=Probe())])
    outcomes = told((ProbeKind.STARTUP, "s-0", startup)) if startup else told()
    made = plan(pod, a_container_status(pod, "s"), probes=outcomes)
    assert names(made.start_regular) == (["app"] if next_starts else [])
    assert names(made.start_init) == (["s"] if replaced else [])
    expected = [("Init container s failed startup probe", KillCause.STARTUP)] if replaced else []
    assert [(k.message, k.cause) for k in made.kill] == expected


def test_a_failing_sidecar_is_replaced_while_the_next_one_starts() -> None:
    pod = a_pod(init=[a_sidecar("s", liveness_probe=Probe()), a_container("i")])
    failure = told((ProbeKind.LIVENESS, "s-0", ProbeOutcome.FAILURE))
    made = plan(pod, a_container_status(pod, "s"), probes=failure)
    assert names(made.start_init) == ["s", "i"]
    assert [(k.message, k.cause) for k in made.kill] == [("Init container s failed liveness probe", KillCause.LIVENESS)]


def test_a_changed_sidecar_is_replaced() -> None:
    pod = a_pod(init=[a_sidecar("s")])
    old = a_container_status(pod, a_sidecar("s", image="busybox:0"))
    made = plan(pod, a_container_status(pod, "app"), old)
    assert names(made.start_init) == ["s"]
    assert [(k.message, k.cause) for k in made.kill] == [("Init container s definition changed", KillCause.CHANGED)]


def test_a_sidecar_that_is_resized_by_restart_starts_again() -> None:
    policy = [ContainerResizePolicy(resource_name="cpu", restart_policy="RestartContainer")]
    pod = a_pod(init=[a_sidecar("s", resources=ResourceRequirements(limits={"cpu": "2"}), resize_policy=policy)])
    actuated = {"s": ResourceRequirements(limits={"cpu": "1"})}
    made = plan(pod, a_container_status(pod, "app"), a_container_status(pod, "s"), actuated=actuated)
    assert names(made.start_init) == ["s"] and made.kill[0].cause is KillCause.RESIZE


def test_missing_and_ended_sidecars_of_an_initialised_pod_start_in_order() -> None:
    pod = a_pod(init=[a_sidecar("s1"), a_container("i"), a_sidecar("s2"), a_sidecar("s3")])
    made = plan(
        pod,
        a_container_status(pod, "app"),
        a_container_status(pod, "s3"),
        a_container_status(pod, "s2", EXITED, exit_code=1),
    )
    assert names(made.start_init) == ["s1", "s2"]
    assert made.start_regular == () and not made.kill_pod


def test_sidecars_before_the_current_init_container_are_kept_running() -> None:
    pod = a_pod(init=[a_sidecar("s1"), a_sidecar("s2"), a_container("i")])
    made = plan(pod, a_container_status(pod, "i"), a_container_status(pod, "s2", EXITED))
    assert names(made.start_init) == ["s1", "s2"] and made.start_regular == ()


def test_a_missing_sidecar_after_the_last_trace_waits_for_its_turn() -> None:
    pod = a_pod(init=[a_container("i"), a_sidecar("s")])
    assert plan(pod, a_container_status(pod, "i")).start_init == ()
