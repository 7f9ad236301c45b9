"""The whole status: conditions, end phases, readiness, addresses, times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pykubelet.api.types import (
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    HostIP,
    Pod,
    PodCondition,
    PodIP,
    PodReadinessGate,
    PodStatus,
    Probe,
    ResourceRequirements,
)
from pykubelet.model import runtime_status as rt
from pykubelet.model.pod import ProbeKey, ProbeKind, ProbeOutcome
from pykubelet.status.conditions import containers_ready_condition, find_condition, initialized_condition
from pykubelet.status.generate import DEADLINE_EXCEEDED, StatusInputs, generate_pod_status
from tests.builders import (
    NOW,
    a_container,
    a_container_status,
    a_pod,
    a_runtime_status,
    a_sandbox_status,
    a_sidecar,
    at,
)

RUNNING, EXITED = rt.ContainerState.RUNNING, rt.ContainerState.EXITED


def generate(pod: Pod, *runs: rt.ContainerStatus, **rest: Any) -> PodStatus:
    runtime = rest.pop("runtime", None) or a_runtime_status(pod, *runs)
    values: dict[str, Any] = {"now": NOW, "probes": {}, **rest}
    return generate_pod_status(StatusInputs(pod=pod, runtime=runtime, **values))


def told(kind: ProbeKind, container_id: str, outcome: ProbeOutcome) -> dict[ProbeKey, ProbeOutcome]:
    return {(kind, container_id): outcome}


def condition(status: PodStatus, kind: str) -> tuple[str | None, str | None, str | None]:
    found = find_condition(status.conditions, kind)
    assert found is not None, f"no condition {kind}"
    return found.status, found.reason, found.message


# --- the usual life


def test_a_pod_not_started_yet() -> None:
    pod = a_pod(generation=3)
    status = generate(pod, runtime=a_runtime_status(pod, sandboxes=[]))
    assert (status.phase, status.qos_class, status.observed_generation) == ("Pending", "BestEffort", 3)
    assert status.start_time == at(NOW)
    unready = ("False", "ContainersNotReady", "containers with unready status: [app]")
    assert [(c.type, c.status, c.reason, c.message) for c in status.conditions] == [
        ("PodReadyToStartContainers", "False", None, None),
        ("Initialized", "True", None, None),
        ("Ready", *unready),
        ("ContainersReady", *unready),
        ("PodScheduled", "True", None, None),
    ]
    assert all(c.last_transition_time == at(NOW) and c.observed_generation == 3 for c in status.conditions)


def test_a_running_pod() -> None:
    pod = a_pod()
    status = generate(pod, a_container_status(pod))
    assert status.phase == "Running"
    assert {c.type: c.status for c in status.conditions} == dict.fromkeys(
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"], "True"
    )


def test_nothing_that_was_given_is_changed() -> None:
    previous = generate(a_pod(), a_container_status(a_pod()))
    previous.conditions.append(PodCondition(type="DisruptionTarget", status="True"))
    pod = a_pod(status=msgspec.convert(msgspec.to_builtins(previous), PodStatus))
    before = msgspec.json.encode((pod, previous))
    generate(pod, a_container_status(pod, "app", EXITED, exit_code=1), previous=previous, now=NOW + 9)
    assert msgspec.json.encode((pod, previous)) == before


def test_times_of_conditions_change_only_with_their_status() -> None:
    pod = a_pod()
    first = generate(pod, runtime=a_runtime_status(pod, sandboxes=[]))
    later = generate(pod, a_container_status(pod), previous=first, now=NOW + 5)
    times = {c.type: c.last_transition_time for c in later.conditions}
    assert times["PodScheduled"] == times["Initialized"] == at(NOW)
    assert times["Ready"] == times["ContainersReady"] == at(NOW + 5)
    assert later.start_time == at(NOW)


def test_the_start_time_known_to_the_api_server_is_kept() -> None:
    assert generate(a_pod(status=PodStatus(start_time=at(NOW - 999)))).start_time == at(NOW - 999)


def test_the_observed_generation_never_falls() -> None:
    assert generate(a_pod(generation=2), previous=PodStatus(observed_generation=5)).observed_generation == 5


def test_the_qos_class_is_computed_once() -> None:
    equal = ResourceRequirements(requests={"cpu": 1, "memory": "1Gi"}, limits={"cpu": 1, "memory": "1Gi"})
    pod = a_pod(containers=[a_container(resources=equal)])
    assert generate(pod).qos_class == "Guaranteed"
    pod.status.qos_class = "Burstable"
    assert generate(pod).qos_class == "Burstable"


# --- conditions


def test_initialisation_in_progress() -> None:
    pod = a_pod(init=[a_container("i1"), a_sidecar("s")])
    status = generate(pod, a_container_status(pod, "i1"))
    assert condition(status, "Initialized") == (
        "False",
        "ContainersNotInitialized",
        "containers with incomplete status: [i1 s]",
    )
    assert condition(status, "ContainersReady")[2] == "containers with unready status: [s app]"


def test_initialisation_done() -> None:
    pod = a_pod(init=[a_container("i1"), a_sidecar("s")])
    status = generate(pod, a_container_status(pod, "s"), a_container_status(pod, "i1", EXITED))
    assert condition(status, "Initialized") == ("True", None, None)
    assert status.phase == "Pending"


def test_a_restarting_sidecar_does_not_take_initialisation_back() -> None:
    pod = a_pod(init=[a_sidecar("s")])
    status = generate(pod, a_container_status(pod), a_container_status(pod, "s", EXITED, exit_code=1))
    assert condition(status, "Initialized") == ("True", None, None)
    assert status.phase == "Running"


def test_once_initialised_always_initialised() -> None:
    pod = a_pod(init=[a_container("i")])
    previous = PodStatus(conditions=[PodCondition(type="Initialized", status="True")])
    assert condition(generate(pod, previous=previous), "Initialized") == ("True", None, None)


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "PodCompleted"), (1, "Failed", "PodFailed")])
def test_conditions_of_an_ended_pod(code: int, phase: str, reason: str) -> None:
    pod = a_pod(restart_policy="Never")
    status = generate(pod, a_container_status(pod, "app", EXITED, exit_code=code))
    assert status.phase == phase
    assert condition(status, "Ready") == condition(status, "ContainersReady") == ("False", reason, None)
    assert condition(status, "Initialized") == ("True", "PodCompleted" if code == 0 else None, None)


def test_a_pod_without_containers_is_never_ready() -> None:
    status = generate(a_pod(containers=[]))
    assert condition(status, "ContainersReady") == ("False", "UnknownContainerStatuses", None)


def test_containers_without_a_status_are_named_as_unknown() -> None:
    pod = a_pod(init=[a_container("i"), a_sidecar("s")], containers=[a_container("a"), a_container("b")])
    ready = containers_ready_condition(pod, [ContainerStatus(name="b", ready=False)], "Running")
    expected = "containers with unknown status: [s a], containers with unready status: [b]"
    assert (ready.status, ready.reason, ready.message) == ("False", "ContainersNotReady", expected)
    started = [ContainerStatus(name="s", started=True)]
    initialised = initialized_condition(pod, started, "Pending", was_initialised=False)
    assert initialised.message == "containers with unknown status: [i]"
    nothing = initialized_condition(pod, [], "Pending", was_initialised=False)
    assert (nothing.status, nothing.reason) == ("False", "UnknownContainerStatuses")


@pytest.mark.parametrize(
    ("gates", "present", "expected"),
    [
        (["x"], {"x": "True"}, ("True", None, None)),
        (
            ["x", "y"],
            {"y": "False"},
            (
                "False",
                "ReadinessGatesNotReady",
                'corresponding condition of pod readiness gate "x" does not exist., '
                'the status of pod readiness gate "y" is not "True", but False',
            ),
        ),
    ],
)
def test_readiness_gates(gates: list[str], present: dict[str, str], expected: tuple[str, str, str]) -> None:
    conditions = [PodCondition(type=kind, status=value) for kind, value in present.items()]
    pod = a_pod(
        readiness_gates=[PodReadinessGate(condition_type=gate) for gate in gates],
        status=PodStatus(conditions=conditions),
    )
    status = generate(pod, a_container_status(pod))
    assert condition(status, "Ready") == expected
    assert condition(status, "ContainersReady") == ("True", None, None)
    assert [c for c in status.conditions if c.type in present] == conditions


def test_conditions_of_others_stay_and_a_noted_disruption_wins() -> None:
    theirs = PodCondition(type="example.com/x", status="True", last_transition_time=at(1))
    stale = PodCondition(type="DisruptionTarget", status="False", last_transition_time=at(1))
    pod = a_pod(status=PodStatus(conditions=[theirs, stale, PodCondition(type="Ready", status="True")]))
    noted = PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
    status = generate(pod, previous=PodStatus(conditions=[noted]))
    assert status.conditions[0] == theirs
    assert condition(status, "DisruptionTarget") == ("True", "TerminationByKubelet", None)
    assert [c.type for c in status.conditions].count("DisruptionTarget") == 1
    assert [c.type for c in status.conditions].count("Ready") == 1


def test_resize_conditions_are_passed_on_as_given() -> None:
    resize = PodCondition(type="PodResizePending", status="True", reason="Deferred", last_transition_time=at(5))
    old = PodCondition(type="PodResizeInProgress", status="True")
    status = generate(a_pod(status=PodStatus(conditions=[old])), resize_conditions=(resize,))
    assert [c for c in status.conditions if (c.type or "").startswith("PodResize")] == [resize]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("exit asks", ("True", "RestartAllContainersStarted", "container exited with restart policy rule")),
        ("begun", ("True", "RestartAllContainersStarted", "container exited with restart policy rule")),
        ("cleaned up", ("False", None, None)),
        ("other exit", ("False", None, None)),
        ("failed", ("False", "PodFailed", None)),
    ],
)
def test_restart_of_all_containers(case: str, expected: tuple[str, str | None, str | None]) -> None:
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=[42])
    rules = [ContainerRestartRule(action="RestartAllContainers", exit_codes=codes)]
    pod = a_pod(
        containers=[a_container(restart_policy="Never", restart_policy_rules=rules), a_container("b")],
        restart_policy="Never",
    )
    told_before = generate(pod, a_container_status(pod, "app", EXITED, exit_code=42)).container_statuses
    conditions = [PodCondition(type="AllContainersRestarting", status="True")]
    begun = PodStatus(conditions=conditions, container_statuses=told_before)
    running = a_container_status(pod, "b")
    exited = a_container_status(pod, "app", EXITED, exit_code=42)
    status = {
        "exit asks": lambda: generate(pod, exited, running),
        "begun": lambda: generate(pod, running, previous=begun),
        "cleaned up": lambda: generate(pod, previous=begun),
        "other exit": lambda: generate(pod, a_container_status(pod, "app", EXITED, exit_code=1), running),
        "failed": lambda: generate(pod, exited, running, override=DEADLINE_EXCEEDED),
    }[case]()
    assert condition(status, "AllContainersRestarting") == expected
    assert status.phase == {"failed": "Failed", "cleaned up": "Pending"}.get(case, "Running")


def test_pods_without_such_a_rule_do_not_have_the_condition() -> None:
    assert find_condition(generate(a_pod()).conditions, "AllContainersRestarting") is None


def test_the_sandbox_decides_whether_containers_may_start() -> None:
    pod = a_pod()
    lost = a_runtime_status(pod, sandboxes=[a_sandbox_status(pod, ready=False)])
    assert condition(generate(pod), "PodReadyToStartContainers")[0] == "True"
    assert condition(generate(pod, runtime=lost), "PodReadyToStartContainers")[0] == "False"


# --- end phases


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
@pytest.mark.parametrize("teller", ["agent", "api"])
def test_a_pod_never_leaves_an_end_phase(phase: str, teller: str) -> None:
    ended = PodStatus(phase=phase, reason="Evicted", message="why")
    pod = a_pod(status=ended if teller == "api" else None)
    status = generate(pod, a_container_status(pod), previous=ended if teller == "agent" else None)
    assert (status.phase, status.reason, status.message) == (phase, "Evicted", "why")


def test_reason_and_message_belong_to_the_phase() -> None:
    pod = a_pod()
    pending = PodStatus(phase="Pending", reason="R", message="M")
    assert generate(pod, previous=pending).reason == "R"
    assert generate(pod, a_container_status(pod), previous=pending).reason is None


def test_a_passed_deadline_fails_the_pod() -> None:
    pod = a_pod()
    status = generate(pod, a_container_status(pod), override=DEADLINE_EXCEEDED)
    assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")
    assert status.message == "Pod was active on the node longer than the specified deadline"
    assert condition(status, "Ready") == ("False", "PodFailed", None)


def test_the_api_servers_end_phase_beats_a_deadline() -> None:
    pod = a_pod(status=PodStatus(phase="Succeeded"))
    assert generate(pod, override=DEADLINE_EXCEEDED).phase == "Succeeded"


def test_a_pod_being_ended_shows_how_its_containers_ended() -> None:
    pod = a_pod()
    run = a_container_status(pod, "app", EXITED, exit_code=0)
    assert generate(pod, run).phase == "Running"
    assert generate(pod, run, terminal=True).phase == "Succeeded"


# --- started and ready


@pytest.mark.parametrize(
    ("probes", "outcome", "started", "ready"),
    [
        ({}, None, True, True),
        ({"startup_probe": Probe()}, None, False, False),
        ({"startup_probe": Probe()}, (ProbeKind.STARTUP, ProbeOutcome.UNKNOWN), False, False),
        ({"startup_probe": Probe()}, (ProbeKind.STARTUP, ProbeOutcome.SUCCESS), True, True),
        ({"readiness_probe": Probe()}, None, True, False),
        ({"readiness_probe": Probe()}, (ProbeKind.READINESS, ProbeOutcome.FAILURE), True, False),
        ({"readiness_probe": Probe()}, (ProbeKind.READINESS, ProbeOutcome.SUCCESS), True, True),
        (
            {"readiness_probe": Probe(), "startup_probe": Probe()},
            (ProbeKind.READINESS, ProbeOutcome.SUCCESS),
            False,
            False,
        ),
    ],
)
@pytest.mark.parametrize("kind", ["regular", "sidecar"])
def test_started_and_ready_follow_the_probes(
    kind: str, probes: dict[str, Any], outcome: tuple[ProbeKind, ProbeOutcome] | None, started: bool, ready: bool
) -> None:
    if kind == "regular":
        pod = a_pod(containers=[a_container("c", **probes)])
    else:
        pod = a_pod(init=[a_sidecar("c", **probes)])
    results = told(outcome[0], "c-0", outcome[1]) if outcome else {}
    status = generate(pod, a_container_status(pod, "c"), probes=results)
    made = (status.container_statuses if kind == "regular" else status.init_container_statuses)[0]
    assert (made.started, made.ready) == (started, ready)


def test_a_container_that_does_not_run_is_neither_started_nor_ready() -> None:
    pod = a_pod()
    made = generate(pod, a_container_status(pod, "app", EXITED)).container_statuses[0]
    assert (made.started, made.ready) == (False, False)


def running_before(container_id: str, started: bool) -> PodStatus:
    state = ContainerState(running=ContainerStateRunning())
    told_before = ContainerStatus(name="app", container_id=container_id, started=started, state=state)
    return PodStatus(container_statuses=[told_before])


@pytest.mark.parametrize(
    ("container_id", "was_started", "started"),
    [("containerd://app-0", True, True), ("containerd://app-0", False, False), ("containerd://old", True, False)],
)
def test_started_survives_a_restart_of_the_agent_for_the_same_run(
    container_id: str, was_started: bool, started: bool
) -> None:
    before = running_before(container_id, was_started)
    pod = a_pod(containers=[a_container(startup_probe=Probe())], status=before)
    assert generate(pod, a_container_status(pod)).container_statuses[0].started is started


@pytest.mark.parametrize(
    ("container_id", "was_ready", "outcome", "ready"),
    [
        ("containerd://app-0", True, None, True),
        ("containerd://app-0", False, None, False),
        ("containerd://app-0", True, ProbeOutcome.FAILURE, False),
        ("containerd://old", True, None, False),
    ],
)
def test_ready_survives_a_restart_of_the_agent_until_the_first_outcome(
    container_id: str, was_ready: bool, outcome: ProbeOutcome | None, ready: bool
) -> None:
    before = running_before(container_id, started=True)
    before.container_statuses[0].ready = was_ready
    pod = a_pod(containers=[a_container(readiness_probe=Probe())], status=before)
    results = told(ProbeKind.READINESS, "app-0", outcome) if outcome else {}
    status = generate(pod, a_container_status(pod), probes=results)
    assert status.container_statuses[0].ready is ready


# --- addresses


@pytest.mark.parametrize(
    ("ips", "prefers_ipv6", "shown"),
    [
        ((), False, []),
        (("10.0.0.1",), False, ["10.0.0.1"]),
        (("fd00::0:1", "10.0.0.1", "10.0.0.2"), False, ["10.0.0.1", "fd00::1"]),
        (("10.0.0.1", "fd00::1"), True, ["fd00::1", "10.0.0.1"]),
        (("nonsense", "10.0.0.1"), False, ["10.0.0.1"]),
    ],
)
def test_pod_addresses_follow_the_nodes_family(ips: tuple[str, ...], prefers_ipv6: bool, shown: list[str]) -> None:
    pod = a_pod()
    status = generate(pod, runtime=a_runtime_status(pod, ips=ips), prefers_ipv6=prefers_ipv6)
    assert status.pod_ips == [PodIP(ip=ip) for ip in shown]
    assert status.pod_ip == (shown[0] if shown else None)
    assert (status.host_ip, status.host_ips) == (None, [])


def test_a_host_network_pod_has_the_nodes_addresses() -> None:
    pod = a_pod(host_network=True)
    status = generate(pod, host_ips=("192.0.2.1", "2001:db8::1"))
    assert status.host_ip == status.pod_ip == "192.0.2.1"
    assert status.host_ips == [HostIP(ip="192.0.2.1"), HostIP(ip="2001:db8::1")]
    assert status.pod_ips == [PodIP(ip="192.0.2.1"), PodIP(ip="2001:db8::1")]


def test_other_pods_keep_their_own_addresses() -> None:
    status = generate(a_pod(), host_ips=("192.0.2.1",))
    assert (status.host_ip, status.pod_ip) == ("192.0.2.1", "10.0.0.5")
