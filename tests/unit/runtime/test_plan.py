"""The plan of a pod: one test or table row per decision."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import (
    Container,
    ContainerResizePolicy,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    Pod,
    ResourceRequirements,
)
from pykubelet.model.pod import ProbeKey, ProbeKind, ProbeOutcome
from pykubelet.model.problems import KillCause
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, NamespaceMode, PodRuntimeStatus
from pykubelet.runtime.plan import ContainerReset, PlanInputs, PodPlan, plan_pod
from tests.builders import (
    a_container,
    a_container_status,
    a_pod,
    a_runtime_status,
    a_sandbox_status,
    a_sidecar,
    an_ephemeral_container,
)

CREATED, RUNNING = ContainerState.CREATED, ContainerState.RUNNING
EXITED, UNKNOWN = ContainerState.EXITED, ContainerState.UNKNOWN


def plan(
    pod: Pod, runtime: PodRuntimeStatus, probes: dict[ProbeKey, ProbeOutcome] | None = None, **rest: Any
) -> PodPlan:
    return plan_pod(PlanInputs(pod=pod, runtime=runtime, probes=probes or {}, **rest))


def names(containers: tuple[Any, ...]) -> list[str]:
    return [container.name for container in containers]


def outcome(
    kind: ProbeKind, status: ContainerStatus, value: ProbeOutcome = ProbeOutcome.FAILURE
) -> dict[ProbeKey, ProbeOutcome]:
    return {(kind, status.id): value}


def rule(action: str, *codes: int, operator: str = "In") -> ContainerRestartRule:
    exit_codes = ContainerRestartRuleOnExitCodes(operator=operator, values=list(codes))
    return ContainerRestartRule(action=action, exit_codes=exit_codes)


# --- sandbox


def test_a_new_pod_gets_a_sandbox_and_all_its_containers() -> None:
    pod = a_pod(containers=[a_container("a"), a_container("b")])
    made = plan(pod, a_runtime_status(pod, sandboxes=[]))
    assert made.create_sandbox and made.kill_pod
    assert (made.attempt, made.sandbox_id) == (0, "")
    assert names(made.start_regular) == ["a", "b"]


def test_a_new_pod_with_init_containers_starts_only_the_first_of_them() -> None:
    pod = a_pod(init=[a_container("i1"), a_container("i2")])
    made = plan(pod, a_runtime_status(pod, sandboxes=[]))
    assert names(made.start_init) == ["i1"] and made.start_regular == ()


def test_a_running_pod_is_left_alone() -> None:
    pod = a_pod()
    made = plan(pod, a_runtime_status(pod, a_container_status(pod)))
    assert made.is_idle and made.sandbox_id == "web-box0"


@pytest.mark.parametrize(
    ("case", "old_id"),
    [
        ("not ready", "web-box0"),
        ("two ready", "web-box1"),
        ("other network", ""),
        ("no address", "web-box0"),
    ],
)
def test_an_unusable_sandbox_is_replaced(case: str, old_id: str) -> None:
    pod = a_pod()
    boxes = {
        "not ready": [a_sandbox_status(pod, ready=False)],
        "two ready": [a_sandbox_status(pod, attempt=1), a_sandbox_status(pod)],
        "other network": [a_sandbox_status(pod, network_mode=NamespaceMode.NODE)],
        "no address": [a_sandbox_status(pod, ips=())],
    }[case]
    made = plan(pod, a_runtime_status(pod, a_container_status(pod), sandboxes=boxes))
    assert made.kill_pod and made.create_sandbox
    assert (made.attempt, made.sandbox_id) == (boxes[0].attempt + 1, old_id)
    assert names(made.start_regular) == ["app"]


def test_a_host_network_sandbox_needs_no_address() -> None:
    pod = a_pod(host_network=True)
    assert plan(pod, a_runtime_status(pod, a_container_status(pod))).is_idle


@pytest.mark.parametrize(
    ("policy", "ends", "creates"),
    [
        ("Always", [(EXITED, 0)], True),
        ("OnFailure", [(EXITED, 1)], True),
        ("OnFailure", [(EXITED, 0)], False),
        ("Never", [(EXITED, 0)], False),
        ("Never", [(EXITED, 1)], False),
        ("Never", [], True),
    ],
)
def test_a_lost_sandbox_comes_back_only_if_something_is_left_to_run(
    policy: str, ends: list[tuple[ContainerState, int]], creates: bool
) -> None:
    pod = a_pod(restart_policy=policy)
    ended = [a_container_status(pod, "app", state, exit_code=code) for state, code in ends]
    made = plan(pod, a_runtime_status(pod, *ended, sandboxes=[a_sandbox_status(pod, ready=False)]))
    assert made.kill_pod
    assert made.create_sandbox is creates
    assert names(made.start_regular) == (["app"] if creates else [])


def test_a_new_sandbox_starts_only_containers_that_have_not_succeeded() -> None:
    pod = a_pod(
        containers=[a_container("done"), a_container("failed"), a_container("again", restart_policy="Always")],
        restart_policy="OnFailure",
    )
    ended = [
        a_container_status(pod, "done", EXITED, exit_code=0),
        a_container_status(pod, "failed", EXITED, exit_code=1),
        a_container_status(pod, "again", EXITED, exit_code=0),
    ]
    made = plan(pod, a_runtime_status(pod, *ended, sandboxes=[a_sandbox_status(pod, ready=False)]))
    assert names(made.start_regular) == ["failed", "again"]


def test_an_uninitialised_pod_with_nothing_to_start_still_gets_its_sandbox() -> None:
    # Only its state is unknown: nobody can say that the container ever was created.
    pod = a_pod(init=[a_container("i")], containers=[])
    made = plan(pod, a_runtime_status(pod, sandboxes=[a_sandbox_status(pod, ready=False)]))
    assert made.create_sandbox and names(made.start_init) == ["i"]


# --- regular containers


@pytest.mark.parametrize(
    ("policy", "state", "exit_code", "starts"),
    [
        ("Always", EXITED, 0, True),
        ("Always", EXITED, 1, True),
        ("OnFailure", EXITED, 0, False),
        ("OnFailure", EXITED, 1, True),
        ("Never", EXITED, 0, False),
        ("Never", EXITED, 1, False),
        ("Never", CREATED, 0, True),
        ("Never", UNKNOWN, 0, True),
    ],
)
def test_a_stopped_container_starts_again_by_policy(
    policy: str, state: ContainerState, exit_code: int, starts: bool
) -> None:
    pod = a_pod(containers=[a_container("a"), a_container("b")], restart_policy=policy)
    stopped = a_container_status(pod, "a", state, exit_code=exit_code)
    made = plan(pod, a_runtime_status(pod, stopped, a_container_status(pod, "b")))
    assert names(made.start_regular) == (["a"] if starts else [])
    assert made.stopped == (stopped.id,)
    assert not made.kill_pod


@pytest.mark.parametrize(
    ("container", "exit_code", "starts"),
    [
        (a_container("a", restart_policy="Always"), 0, True),
        (a_container("a", restart_policy="OnFailure"), 0, False),
        (a_container("a", restart_policy="OnFailure"), 3, True),
        (a_container("a", restart_policy="Never", restart_policy_rules=[rule("Restart", 42)]), 42, True),
        (a_container("a", restart_policy="Never", restart_policy_rules=[rule("Restart", 42)]), 1, False),
        (
            a_container("a", restart_policy="Never", restart_policy_rules=[rule("Restart", 0, operator="NotIn")]),
            1,
            True,
        ),
    ],
)
def test_a_containers_own_policy_and_rules_beat_the_pods(container: Container, exit_code: int, starts: bool) -> None:
    pod = a_pod(containers=[container, a_container("b")], restart_policy="Never")
    stopped = a_container_status(pod, "a", EXITED, exit_code=exit_code)
    made = plan(pod, a_runtime_status(pod, stopped, a_container_status(pod, "b")))
    assert names(made.start_regular) == (["a"] if starts else [])


def test_a_missing_container_is_started() -> None:
    pod = a_pod(containers=[a_container("a"), a_container("b")])
    assert names(plan(pod, a_runtime_status(pod, a_container_status(pod, "b"))).start_regular) == ["a"]


def test_a_container_in_unknown_state_is_killed_before_it_starts_again() -> None:
    pod = a_pod()
    lost = a_container_status(pod, "app", UNKNOWN)
    (kill,) = plan(pod, a_runtime_status(pod, lost)).kill
    assert (kill.id, kill.cause) == (lost.id, KillCause.UNKNOWN)
    assert kill.message == 'Container is in "unknown" state, try killing it before restart'


def test_a_pod_being_deleted_starts_nothing() -> None:
    pod = a_pod(deleted=True)
    made = plan(pod, a_runtime_status(pod, a_container_status(pod, "app", EXITED, exit_code=1)))
    assert made.kill_pod and made.start_regular == ()


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_changed_container_is_replaced_whatever_the_policy(policy: str) -> None:
    pod = a_pod(restart_policy=policy)
    running = a_container_status(pod, a_container(image="busybox:0"))
    made = plan(pod, a_runtime_status(pod, running))
    assert [(k.message, k.cause) for k in made.kill] == [
        ("Container app definition changed, will be restarted", KillCause.CHANGED)
    ]
    assert names(made.start_regular) == ["app"]


@pytest.mark.parametrize(
    ("kind", "reason"), [(ProbeKind.LIVENESS, KillCause.LIVENESS), (ProbeKind.STARTUP, KillCause.STARTUP)]
)
@pytest.mark.parametrize(
    ("pod_policy", "own_policy", "restarts"),
    [
        ("Always", None, True),
        ("OnFailure", None, True),
        ("Never", None, False),
        ("Never", "OnFailure", True),
        ("Always", "Never", False),
    ],
)
def test_a_failed_probe_kills_and_the_policy_decides_about_a_restart(
    kind: ProbeKind, reason: KillCause, pod_policy: str, own_policy: str | None, restarts: bool
) -> None:
    pod = a_pod(containers=[a_container(restart_policy=own_policy), a_container("b")], restart_policy=pod_policy)
    running = a_container_status(pod)
    made = plan(pod, a_runtime_status(pod, running, a_container_status(pod, "b")), outcome(kind, running))
    (kill,) = made.kill
    assert kill.cause is reason
    assert kill.message == f"Container app failed {kind.value} probe" + (", will be restarted" if restarts else "")
    assert names(made.start_regular) == (["app"] if restarts else [])


@pytest.mark.parametrize("value", [ProbeOutcome.SUCCESS, ProbeOutcome.UNKNOWN])
def test_other_outcomes_keep_the_container(value: ProbeOutcome) -> None:
    pod = a_pod()
    running = a_container_status(pod)
    assert plan(pod, a_runtime_status(pod, running), outcome(ProbeKind.LIVENESS, running, value)).is_idle


def test_a_readiness_failure_kills_nothing() -> None:
    pod = a_pod()
    running = a_container_status(pod)
    assert plan(pod, a_runtime_status(pod, running), outcome(ProbeKind.READINESS, running)).is_idle


def test_a_pod_with_nothing_kept_and_nothing_to_start_is_killed_with_its_sidecars() -> None:
    pod = a_pod(init=[a_sidecar()], restart_policy="Never")
    ended = a_container_status(pod, "app", EXITED)
    sidecar_gone = a_container_status(pod, "side", EXITED, exit_code=1)
    alive = a_container_status(pod, "side")
    assert plan(pod, a_runtime_status(pod, ended, alive)).kill_pod
    made = plan(pod, a_runtime_status(pod, ended, sidecar_gone))
    assert made.start_init == (a_sidecar(),)  # exited containers do not show that the pod is initialised
    assert not made.kill_pod


def test_the_newest_run_counts() -> None:
    pod = a_pod()
    runs = [a_container_status(pod, restarts=1), a_container_status(pod, "app", EXITED, exit_code=1)]
    assert plan(pod, a_runtime_status(pod, *runs)).is_idle


# --- ephemeral containers


def test_ephemeral_containers_start_once_even_before_the_pod_is_initialised() -> None:
    pod = a_pod(init=[a_container("i")], ephemeral=[an_ephemeral_container("d1"), an_ephemeral_container("d2")])
    gone = a_container_status(pod, "d1", EXITED, exit_code=1)
    made = plan(pod, a_runtime_status(pod, a_container_status(pod, "i"), gone))
    assert names(made.start_ephemeral) == ["d2"]


# --- restart of all containers


def test_restarting_all_removes_everything_and_its_cause_last() -> None:
    asks = [rule("RestartAllContainers", 42)]
    pod = a_pod(
        init=[a_container("i"), a_container("i-source", restart_policy="Never", restart_policy_rules=asks)],
        containers=[a_container("source", restart_policy="Never", restart_policy_rules=asks), a_container("b")],
    )
    runs = [
        a_container_status(pod, "source", EXITED, exit_code=42),
        a_container_status(pod, "b"),
        a_container_status(pod, "b", EXITED, id="b-old", exit_code=1),
        a_container_status(pod, "i", EXITED),
        a_container_status(pod, "i-source", EXITED, exit_code=42),
    ]
    made = plan(pod, a_runtime_status(pod, *runs), restart_all=True)
    assert [(r.id, r.kill) for r in made.reset] == [
        ("b-0", True),
        ("b-old", False),
        ("i-0", False),
        ("source-0", False),
        ("i-source-0", False),
    ]
    assert isinstance(made.reset[0], ContainerReset)
    assert not made.kill_pod and made.kill == () and made.start_regular == ()


def test_restarting_all_happens_before_a_lost_sandbox_is_replaced() -> None:
    pod = a_pod()
    runtime = a_runtime_status(pod, a_container_status(pod), sandboxes=[a_sandbox_status(pod, ready=False)])
    made = plan(pod, runtime, restart_all=True)
    assert made.create_sandbox and made.kill_pod and names(made.reset) == ["app"] and made.start_regular == ()


# --- resize


def cpu(request: str, limit: str) -> ResourceRequirements:
    return ResourceRequirements(requests={"cpu": request}, limits={"cpu": limit})


@pytest.mark.parametrize(
    ("actuated", "policy", "resized", "restarted"),
    [
        (None, None, (), False),
        ({}, None, (), False),
        ({"app": cpu("0.1", "1000m")}, None, (), False),
        ({"app": cpu("50m", "1")}, None, ("cpu",), False),
        ({"app": cpu("100m", "2")}, "NotRequired", ("cpu",), False),
        ({"app": cpu("100m", "2")}, "RestartContainer", ("cpu",), True),
        ({"app": ResourceRequirements(limits={"memory": "1Gi"})}, None, ("memory", "cpu"), False),
    ],
)
def test_a_resize_is_done_in_place_or_by_a_restart(
    actuated: dict[str, ResourceRequirements] | None,
    policy: str | None,
    resized: tuple[str, ...],
    restarted: bool,
) -> None:
    policies = [ContainerResizePolicy(resource_name="cpu", restart_policy=policy)] if policy else []
    pod = a_pod(containers=[a_container(resources=cpu("100m", "1"), resize_policy=policies)])
    made = plan(pod, a_runtime_status(pod, a_container_status(pod)), actuated=actuated)
    assert [r.resources for r in made.resize] == ([resized] if resized else [])
    assert names(made.start_regular) == (["app"] if restarted else [])
    expected = ["Container app resize requires restart"] if restarted else []
    assert [k.message for k in made.kill] == expected
    assert all(k.cause is KillCause.RESIZE for k in made.kill)
    assert not made.kill_pod
