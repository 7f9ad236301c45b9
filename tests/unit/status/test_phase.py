"""The phase table: each row of container states and what it means for the pod."""

from __future__ import annotations

import pytest

from pykubelet.api.types import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
)
from pykubelet.status.conditions import pod_phase
from tests.builders import a_container, a_pod, a_sidecar

NONE = ContainerState()


def runs(name: str, started: bool | None = True) -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning())
    return ContainerStatus(name=name, state=state, last_state=NONE, started=started)


def ended(name: str, code: int = 0, reason: str | None = None) -> ContainerStatus:
    state = ContainerState(terminated=ContainerStateTerminated(exit_code=code, reason=reason))
    return ContainerStatus(name=name, state=state, last_state=NONE)


def waits(name: str, after: int | None = None) -> ContainerStatus:
    """Waiting, for the first time or after having ended with `after`."""
    last = ContainerState(terminated=ContainerStateTerminated(exit_code=after)) if after is not None else NONE
    return ContainerStatus(name=name, state=ContainerState(waiting=ContainerStateWaiting()), last_state=last)


def odd(name: str) -> ContainerStatus:
    """A status that says nothing."""
    return ContainerStatus(name=name, state=NONE, last_state=NONE)


@pytest.mark.parametrize(
    ("policy", "statuses", "phase"),
    [
        ("Always", [], "Pending"),
        ("Always", [waits("a"), waits("b")], "Pending"),
        ("Always", [runs("a"), waits("b")], "Pending"),
        ("Always", [runs("a")], "Pending"),
        ("Always", [runs("a"), odd("b")], "Pending"),
        ("Always", [runs("a"), runs("b")], "Running"),
        ("Always", [runs("a"), ended("b", 1)], "Running"),
        ("Always", [runs("a"), waits("b", after=1)], "Running"),
        ("Always", [ended("a"), ended("b")], "Running"),
        ("Always", [waits("a", after=1), waits("b", after=0)], "Running"),
        ("OnFailure", [ended("a"), ended("b")], "Succeeded"),
        ("OnFailure", [ended("a"), ended("b", 1)], "Running"),
        ("OnFailure", [ended("a"), waits("b", after=1)], "Running"),
        ("Never", [ended("a"), ended("b")], "Succeeded"),
        ("Never", [ended("a"), ended("b", 1)], "Failed"),
        ("Never", [ended("a"), waits("b", after=1)], "Failed"),
        ("Never", [ended("a"), odd("b")], "Pending"),
        ("Never", [ended("a"), ended("b", 137, "RestartingAllContainers")], "Running"),
    ],
)
def test_regular_containers(policy: str, statuses: list[ContainerStatus], phase: str) -> None:
    pod = a_pod(containers=[a_container("a"), a_container("b")], restart_policy=policy)
    assert pod_phase(pod, statuses, terminal=False, initialised=True) == phase


@pytest.mark.parametrize(
    ("static", "codes", "phase"),
    [(False, (0, 0), "Succeeded"), (False, (0, 1), "Failed"), (True, (0, 1), "Running")],
)
def test_a_pod_being_ended_takes_an_end_phase_unless_static(static: bool, codes: tuple[int, int], phase: str) -> None:
    pod = a_pod(containers=[a_container("a"), a_container("b")], static=static)
    statuses = [ended("a", codes[0]), ended("b", codes[1])]
    assert pod_phase(pod, statuses, terminal=True, initialised=True) == phase


@pytest.mark.parametrize(
    ("policy", "statuses", "phase"),
    [
        ("Always", [waits("app")], "Pending"),
        ("Always", [waits("i"), waits("app")], "Pending"),
        ("Always", [runs("i"), waits("app")], "Pending"),
        ("Always", [odd("i"), runs("app")], "Pending"),
        ("Always", [ended("i"), runs("app")], "Running"),
        ("Always", [ended("i"), waits("app")], "Pending"),
        ("Always", [ended("i", 1), waits("app")], "Pending"),
        ("Always", [waits("i", after=1), waits("app")], "Pending"),
        ("OnFailure", [ended("i", 1), waits("app")], "Pending"),
        ("Never", [ended("i", 1), waits("app")], "Failed"),
        ("Never", [waits("i", after=1), waits("app")], "Failed"),
        ("Never", [ended("i", 137, "RestartingAllContainers"), waits("app")], "Pending"),
    ],
)
def test_init_containers(policy: str, statuses: list[ContainerStatus], phase: str) -> None:
    pod = a_pod(init=[a_container("i")], restart_policy=policy)
    assert pod_phase(pod, statuses, terminal=False, initialised=False) == phase


@pytest.mark.parametrize(
    ("statuses", "initialised", "phase"),
    [
        ([runs("app")], True, "Pending"),
        ([runs("s", started=False), waits("app")], False, "Pending"),
        ([runs("s"), waits("app")], False, "Pending"),
        ([runs("s"), runs("app")], True, "Running"),
        ([runs("s", started=False), runs("app")], True, "Running"),
        ([runs("s", started=None), ended("app")], False, "Pending"),
        ([waits("s"), runs("app")], True, "Pending"),
        ([waits("s", after=1), runs("app")], True, "Running"),
        ([ended("s", 1), runs("app")], True, "Running"),
        ([ended("s", 1), ended("app")], True, "Succeeded"),
        ([odd("s"), runs("app")], True, "Pending"),
        ([runs("s"), ended("app")], True, "Running"),
    ],
)
def test_sidecars(statuses: list[ContainerStatus], initialised: bool, phase: str) -> None:
    pod = a_pod(init=[a_sidecar("s")], restart_policy="Never")
    assert pod_phase(pod, statuses, terminal=False, initialised=initialised) == phase


def test_rules_of_a_container_make_its_end_a_pause() -> None:
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=[42])
    container: Container = a_container(
        restart_policy="Never", restart_policy_rules=[ContainerRestartRule(action="Restart", exit_codes=codes)]
    )
    pod = a_pod(containers=[container], restart_policy="Never")
    assert pod_phase(pod, [ended("app", 42)], terminal=False, initialised=True) == "Running"
    assert pod_phase(pod, [ended("app", 41)], terminal=False, initialised=True) == "Failed"
