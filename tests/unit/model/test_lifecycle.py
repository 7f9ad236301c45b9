"""Questions the plan and the status share."""

from __future__ import annotations

from pykubelet.api.types import (
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    PodStatus,
)
from pykubelet.model import runtime_status as rt
from pykubelet.model.lifecycle import any_regular_in_active_sandbox, newest_exited, wants_restart_all
from tests.builders import a_container, a_container_status, a_pod, a_runtime_status, a_sandbox_status

EXITED = rt.ContainerState.EXITED


def test_back_off_counts_from_the_newest_run_that_ended() -> None:
    pod = a_pod()
    runs = [
        a_container_status(pod, restarts=2, state=rt.ContainerState.CREATED),
        a_container_status(pod, "app", EXITED, restarts=1),
        a_container_status(pod, "app", EXITED, restarts=0),
    ]
    found = newest_exited(a_runtime_status(pod, *runs), "app")
    assert found is not None and found.id == "app-1"
    assert newest_exited(a_runtime_status(pod, *runs), "other") is None


def test_containers_of_an_older_sandbox_do_not_count_as_active() -> None:
    pod = a_pod()
    boxes = [a_sandbox_status(pod, attempt=1), a_sandbox_status(pod, ready=False)]
    old = a_container_status(pod, "app", EXITED, sandbox_id="web-box0")
    new = a_container_status(pod, sandbox_id="web-box1")
    assert not any_regular_in_active_sandbox(pod, a_runtime_status(pod, old, sandboxes=boxes))
    assert any_regular_in_active_sandbox(pod, a_runtime_status(pod, new, old, sandboxes=boxes))
    lost = [a_sandbox_status(pod, attempt=1, ready=False)]
    assert not any_regular_in_active_sandbox(pod, a_runtime_status(pod, new, sandboxes=lost))


def test_an_exit_code_told_before_still_asks_for_a_restart_of_all() -> None:
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=[42])
    rules = [ContainerRestartRule(action="RestartAllContainers", exit_codes=codes)]
    pod = a_pod(containers=[a_container(restart_policy="Never", restart_policy_rules=rules)])
    state = ContainerState(terminated=ContainerStateTerminated(exit_code=42))
    told = PodStatus(container_statuses=[ContainerStatus(name="app", state=state)])
    runtime = a_runtime_status(pod, a_container_status(pod, "app", EXITED, exit_code=1))
    assert wants_restart_all(pod, runtime, told)
    assert not wants_restart_all(pod, runtime, PodStatus())
