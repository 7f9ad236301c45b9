"""kubectl's words for pods: status, readiness, ages, and names people type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pykubelet.api.types import ContainerState, ContainerStateRunning, ContainerStateTerminated, PodCondition, PodStatus
from pykubelet.api.types import ContainerStateWaiting as Waiting
from pykubelet.api.types import ContainerStatus as Told
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.pods import age_text, container_of, find, ready_text, restarts, status_text
from tests.builders import NOW, a_container, a_pod, a_sidecar, at

NOW_TIME = datetime.fromtimestamp(NOW, UTC)


def told(name: str = "app", *, ready: bool = False, started: bool | None = None, **state: object) -> Told:
    return Told(name=name, ready=ready, started=started, state=ContainerState(**state))  # type: ignore[arg-type]


RUNNING = ContainerStateRunning(started_at=at(NOW))
DONE = ContainerStateTerminated(exit_code=0, reason="Completed")


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (PodStatus(phase="Pending"), "Pending"),
        (PodStatus(phase="Failed", reason="Evicted"), "Evicted"),
        (PodStatus(phase="Running", container_statuses=[told(ready=True, running=RUNNING)]), "Running"),
        (PodStatus(phase="Pending", container_statuses=[told(waiting=Waiting(reason="ErrImagePull"))]), "ErrImagePull"),
        (PodStatus(phase="Succeeded", container_statuses=[told(terminated=DONE)]), "Completed"),
        (
            PodStatus(
                phase="Running", container_statuses=[told(terminated=ContainerStateTerminated(exit_code=2, signal=9))]
            ),
            "Signal:9",
        ),
        (
            PodStatus(phase="Running", container_statuses=[told(terminated=ContainerStateTerminated(exit_code=2))]),
            "ExitCode:2",
        ),
        (
            PodStatus(
                phase="Running",
                conditions=[PodCondition(type="Ready", status="True")],
                container_statuses=[told("a", terminated=DONE), told("b", ready=True, running=RUNNING)],
            ),
            "Running",
        ),
    ],
)
def test_status_column(status: PodStatus, shown: str) -> None:
    assert status_text(a_pod(status=status)) == shown


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"running": RUNNING}, "Init:0/2"),
        ({"terminated": ContainerStateTerminated(exit_code=1, reason="Error")}, "Init:Error"),
        ({"waiting": Waiting(reason="CrashLoopBackOff")}, "Init:CrashLoopBackOff"),
        ({"waiting": Waiting(reason="PodInitializing")}, "Init:0/2"),
        ({"terminated": DONE}, "Init:1/2"),
    ],
)
def test_status_column_while_init_containers_run(state: dict[str, object], shown: str) -> None:
    second = told("side", waiting=Waiting(reason="PodInitializing"))
    status = PodStatus(phase="Pending", init_container_statuses=[told("prepare", **state), second])
    assert status_text(a_pod(init=[a_container("prepare"), a_sidecar()], status=status)) == shown


def test_started_sidecars_count_as_containers() -> None:
    status = PodStatus(
        phase="Running",
        init_container_statuses=[told("side", ready=True, started=True, running=RUNNING)],
        container_statuses=[told(ready=True, running=RUNNING)],
    )
    pod = a_pod(init=[a_sidecar()], status=status)
    assert (status_text(pod), ready_text(pod)) == ("Running", "2/2")


def test_a_pod_that_is_deleted_is_terminating() -> None:
    status = PodStatus(phase="Running", container_statuses=[told(ready=True, running=RUNNING)])
    assert status_text(a_pod(deleted=True, status=status)) == "Terminating"


def test_restarts_have_a_time() -> None:
    last = ContainerState(terminated=ContainerStateTerminated(exit_code=1, finished_at=at(NOW - 5)))
    one = Told(name="app", ready=True, restart_count=3, last_state=last)
    assert restarts(a_pod(status=PodStatus(container_statuses=[one]))) == (3, at(NOW - 5))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(5, "5s"), (119, "119s"), (185, "3m5s"), (900, "15m"), (10800, "3h"), (12000, "3h20m"), (100000, "27h"),
     (270000, "3d3h"), (900000, "10d"), (80000000, "2y")],
)  # fmt: skip
def test_ages(seconds: int, shown: str) -> None:
    assert age_text(NOW_TIME - timedelta(seconds=seconds), NOW_TIME) == shown


def test_names() -> None:
    static = a_pod("web-node1", static=True, node_name="node1")
    pods = [static, a_pod("web", namespace="shop"), a_pod("plain-node1", node_name="node1")]
    assert find(pods, "default", "web") is static
    assert find(pods, "default", "web-node1") is static
    with pytest.raises(CommandFailed, match=r'"plain" not found in namespace default$'):
        find(pods, "default", "plain")
    with pytest.raises(CommandFailed, match="there is one in namespace shop"):
        find([pods[1]], "default", "web")


def test_which_container_is_meant() -> None:
    pod = a_pod(containers=[a_container("a"), a_container("b")], init=[a_container("i")])
    assert container_of(pod, None) == "a"
    assert container_of(pod, "i") == "i"
    pod.metadata.annotations["kubectl.kubernetes.io/default-container"] = "b"
    assert container_of(pod, None) == "b"
    with pytest.raises(CommandFailed, match="it has i, a, b"):
        container_of(pod, "x")
