"""Comparing statuses, illegal moves, the last status of a pod, single probe outcomes."""

from __future__ import annotations

from typing import Any

import msgspec
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
    PodResourceClaimStatus,
    PodStatus,
    ResourceRequirements,
)
from pykubelet.status.changes import (
    check_transition,
    statuses_equal,
    terminate_statuses,
    with_container_ready,
    with_container_started,
)
from tests.builders import NOW, a_container, a_pod, a_sidecar, at

RUNS = ContainerState(running=ContainerStateRunning())
WAITS = ContainerState(waiting=ContainerStateWaiting())


def end(code: int = 0) -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(exit_code=code))


def of(name: str, state: ContainerState, **fields: Any) -> ContainerStatus:
    return ContainerStatus(name=name, state=state, **fields)


# --- equality


def base(**fields: Any) -> PodStatus:
    condition = PodCondition(type="Ready", status="True", last_transition_time=at(1))
    values: dict[str, Any] = {"phase": "Running", "conditions": [condition], "container_statuses": [of("app", RUNS)]}
    return PodStatus(**{**values, **fields})


def ready(status: str = "True", **fields: Any) -> list[PodCondition]:
    return [PodCondition(type="Ready", status=status, **fields)]


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        (base(), True),
        (base(phase="Failed"), False),
        (base(conditions=ready(last_transition_time=at(9), observed_generation=4)), True),
        (base(conditions=ready("False")), False),
        (base(conditions=ready(reason="R")), False),
        (base(conditions=ready(message="M")), False),
        (base(conditions=ready(message="")), True),
        (base(conditions=[]), False),
        (base(conditions=[*ready(), PodCondition(type="example.com/x", status="True")]), True),
        (base(conditions=[*ready(), PodCondition(type="DisruptionTarget", status="True")]), False),
        (base(resource_claim_statuses=[PodResourceClaimStatus(name="c")]), True),
        (base(container_statuses=[of("app", end())]), False),
        (base(container_statuses=[of("app", RUNS, last_state=ContainerState())]), True),
        (base(container_statuses=[of("app", RUNS, restart_count=1)]), False),
        (base(message=""), True),
        (base(start_time=at(3)), False),
        (base(observed_generation=3), False),
    ],
)
def test_which_differences_count(other: PodStatus, equal: bool) -> None:
    assert statuses_equal(base(), other) is equal
    assert statuses_equal(other, base()) is equal


def test_quantities_are_equal_by_amount() -> None:
    def with_cpu(text: str) -> PodStatus:
        amount = {"cpu": text}
        resources = ResourceRequirements(requests=dict(amount), limits=dict(amount))
        return base(container_statuses=[of("app", RUNS, allocated_resources=amount, resources=resources)])

    assert statuses_equal(with_cpu("1"), with_cpu("1000m"))
    assert not statuses_equal(with_cpu("1"), with_cpu("2"))


# --- illegal moves


@pytest.mark.parametrize(
    ("policy", "code", "own", "allowed"),
    [
        ("Always", 0, None, True),
        ("OnFailure", 1, None, True),
        ("OnFailure", 0, None, False),
        ("Never", 0, None, False),
        ("Never", 1, None, False),
        ("Never", 1, "OnFailure", True),
        ("Never", 0, "OnFailure", False),
        ("OnFailure", 1, "Never", True),
    ],
)
@pytest.mark.parametrize("init", [False, True])
def test_an_ended_container_may_come_back_only_if_it_restarts(
    policy: str, code: int, own: str | None, allowed: bool, init: bool
) -> None:
    container = a_container("c", restart_policy=own)
    before, after = [of("c", end(code))], [of("c", RUNS)]
    if init:
        pod = a_pod(init=[container], restart_policy=policy)
        old, new = PodStatus(init_container_statuses=before), PodStatus(init_container_statuses=after)
    else:
        pod = a_pod(containers=[container], restart_policy=policy)
        old, new = PodStatus(container_statuses=before), PodStatus(container_statuses=after)
    kind = "init container" if init else "container"
    expected = f"terminated {kind} c attempted illegal transition to non-terminated state"
    assert check_transition(pod, old, new) == (None if allowed else expected)
    assert check_transition(pod, old, old) is None
    assert check_transition(pod, new, old) is None


def test_sidecars_and_pods_that_restart_all_may_always_come_back() -> None:
    old = PodStatus(init_container_statuses=[of("s", end())], container_statuses=[of("app", RUNS)])
    new = PodStatus(init_container_statuses=[of("s", WAITS)], container_statuses=[of("app", RUNS)])
    assert check_transition(a_pod(init=[a_sidecar("s")], restart_policy="Never"), old, new) is None
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=[1])
    rules = [ContainerRestartRule(action="RestartAllContainers", exit_codes=codes)]
    pod = a_pod(
        containers=[a_container(restart_policy="Never", restart_policy_rules=rules)],
        init=[a_container("s")],
        restart_policy="Never",
    )
    assert check_transition(pod, old, new) is None


def test_a_container_no_longer_in_the_spec_is_not_judged() -> None:
    old, new = PodStatus(container_statuses=[of("x", end())]), PodStatus(container_statuses=[of("x", RUNS)])
    assert check_transition(a_pod(restart_policy="Never"), old, new) is None


# --- the last status


def ends(statuses: list[ContainerStatus]) -> list[str | None]:
    """Reason of each end; None for containers that have not ended."""
    found = [s.state.terminated if s.state else None for s in statuses]
    return [(e.reason or "known") if e else None for e in found]


LOST = "ContainerStatusUnknown"


def test_containers_that_left_no_trace_count_as_failed() -> None:
    status = PodStatus(phase="Running", container_statuses=[of("a", RUNS), of("b", end(0)), of("c", WAITS)])
    done = terminate_statuses(a_pod(), status)
    assert ends(done.container_statuses) == [LOST, "known", LOST]
    assert done.container_statuses[0].state == ContainerState(
        terminated=ContainerStateTerminated(
            reason=LOST, exit_code=137, message="The container could not be located when the pod was terminated"
        )
    )
    assert done.phase == "Failed" and status.phase == "Running"
    assert ends(status.container_statuses) == [None, "known", None]


@pytest.mark.parametrize(
    ("phase", "static", "last"),
    [
        ("Pending", False, "Failed"),
        ("Running", False, "Failed"),
        (None, False, "Failed"),
        ("Succeeded", False, "Succeeded"),
        ("Failed", False, "Failed"),
        ("Running", True, "Running"),
    ],
)
def test_the_last_phase(phase: str | None, static: bool, last: str) -> None:
    assert terminate_statuses(a_pod(static=static), PodStatus(phase=phase)).phase == last


@pytest.mark.parametrize(
    ("init", "regular", "init_ends", "regular_ends"),
    [
        ([of("i", WAITS), of("j", WAITS)], [of("app", WAITS)], [LOST, None], [None]),
        ([of("i", RUNS), of("j", WAITS)], [of("app", WAITS)], [LOST, None], [None]),
        ([of("i", end()), of("j", RUNS)], [of("app", WAITS)], ["known", LOST], [None]),
        ([of("i", end()), of("j", WAITS, last_state=end(1))], [of("app", WAITS)], ["known", LOST], [None]),
        ([of("i", end()), of("j", end(1))], [of("app", WAITS)], ["known", "known"], [None]),
        ([of("i", end()), of("j", end(0))], [of("app", WAITS)], ["known", "known"], [LOST]),
        ([of("i", end()), of("j", RUNS, last_state=end(0))], [of("app", WAITS)], ["known", LOST], [LOST]),
        ([of("i", end()), of("j", end())], [of("app", RUNS)], ["known", "known"], [LOST]),
        ([of("i", WAITS), of("j", WAITS)], [of("app", WAITS, last_state=end(1))], [LOST, None], [LOST]),
        ([], [of("app", WAITS)], [], [None]),
        ([of("i", end()), of("x", end())], [of("app", WAITS)], ["known", "known"], [None]),
    ],
)
def test_only_containers_that_may_have_run_are_ended(
    init: list[ContainerStatus],
    regular: list[ContainerStatus],
    init_ends: list[str | None],
    regular_ends: list[str | None],
) -> None:
    pod = a_pod(init=[a_container("i"), a_container("j")])
    done = terminate_statuses(pod, PodStatus(init_container_statuses=init, container_statuses=regular))
    assert ends(done.init_container_statuses) == init_ends
    assert ends(done.container_statuses) == regular_ends


@pytest.mark.parametrize(("started", "regular_end"), [(True, LOST), (False, None)])
def test_a_started_last_sidecar_means_initialised(started: bool, regular_end: str | None) -> None:
    status = PodStatus(init_container_statuses=[of("s", RUNS, started=started)], container_statuses=[of("app", WAITS)])
    assert ends(terminate_statuses(a_pod(init=[a_sidecar("s")]), status).container_statuses) == [regular_end]


# --- single outcomes


def shown(ready: bool) -> PodStatus:
    flag, kinds = ("True" if ready else "False"), ("Ready", "ContainersReady")
    return PodStatus(
        phase="Running",
        conditions=[PodCondition(type=t, status=flag, last_transition_time=at(1)) for t in kinds],
        container_statuses=[of("app", RUNS, container_id="containerd://app-0", ready=ready, started=False)],
        init_container_statuses=[of("s", RUNS, container_id="containerd://s-0", ready=True)],
    )


def test_a_readiness_outcome_changes_container_and_conditions() -> None:
    pod = a_pod(init=[a_sidecar("s")], generation=2)
    old = shown(False)
    before = msgspec.json.encode(old)
    new = with_container_ready(pod, old, "app-0", True, NOW)
    assert new is not None and new.container_statuses[0].ready is True
    assert [(c.type, c.status, c.last_transition_time) for c in new.conditions] == [
        ("Ready", "True", at(NOW)),
        ("ContainersReady", "True", at(NOW)),
    ]
    assert msgspec.json.encode(old) == before
    back = with_container_ready(pod, new, "s-0", False, NOW + 1)
    assert back is not None and back.init_container_statuses[0].ready is False
    assert back.conditions[0].message == "containers with unready status: [s]"


def test_an_outcome_that_changes_nothing_or_names_nobody_gives_nothing() -> None:
    pod = a_pod(init=[a_sidecar("s")])
    assert with_container_ready(pod, shown(True), "app-0", True, NOW) is None
    assert with_container_ready(pod, shown(True), "gone", False, NOW) is None
    assert with_container_started(shown(True), "app-0", False) is None


def test_a_startup_outcome_changes_the_container() -> None:
    new = with_container_started(shown(True), "app-0", True)
    assert new is not None and new.container_statuses[0].started is True


def test_missing_conditions_are_added() -> None:
    status = msgspec.structs.replace(shown(False), conditions=[])
    new = with_container_ready(a_pod(), status, "app-0", True, NOW)
    assert new is not None and [c.type for c in new.conditions] == ["Ready", "ContainersReady"]
