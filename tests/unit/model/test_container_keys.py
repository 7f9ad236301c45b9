"""Labels and annotations of containers, as every kubelet must write and read them."""

from __future__ import annotations

import msgspec
import pytest

from pykubelet.api.types import ContainerPort, ExecAction, Lifecycle, LifecycleHandler
from pykubelet.model import container_keys as keys
from pykubelet.model.runtime_status import ContainerState, ContainerStatus
from tests.builders import a_container, a_container_status, a_pod


def test_the_hash_is_the_go_kubelets() -> None:
    assert keys.container_hash(a_container("test_container", "foo/image:v1")) == "8e45cbd0"


def test_the_hash_changes_with_name_and_image_only() -> None:
    base = keys.container_hash(a_container("a", "i"))
    assert keys.container_hash(a_container("a", "i", command=["x"])) == base
    assert keys.container_hash(a_container("b", "i")) != base
    assert keys.container_hash(a_container("a", "j")) != base


def test_what_is_written_can_be_read_back() -> None:
    hook = LifecycleHandler(exec=ExecAction(command=["sync"]))
    container = a_container(
        termination_message_path="/dev/end",
        termination_message_policy="FallbackToLogsOnError",
        lifecycle=Lifecycle(pre_stop=hook),
        ports=[ContainerPort(name="http", container_port=80)],
    )
    pod = a_pod(containers=[container], deleted=True, grace=7)
    status = a_container_status(pod, "app", ContainerState.EXITED, restarts=3, exit_code=1)
    assert not keys.definition_changed(container, status)
    assert keys.restart_count_of(status) == 3
    assert status.annotations[keys.TERMINATION_MESSAGE_PATH_KEY] == "/dev/end"
    assert keys.falls_back_to_logs(status)
    assert keys.deletion_grace_of(status) == 7 and keys.termination_grace_of(status) == 7
    assert msgspec.json.decode(status.annotations[keys.PRE_STOP_KEY], type=LifecycleHandler) == hook
    [port] = msgspec.json.decode(status.annotations[keys.PORTS_KEY], type=list[ContainerPort])
    assert port.container_port == 80
    assert status.labels[keys.POD_UID_LABEL] == "uid-web" and status.labels[keys.CONTAINER_NAME_LABEL] == "app"


def test_what_is_not_set_is_not_written() -> None:
    pod = a_pod(grace=None)
    written = keys.container_annotations(pod, pod.spec.containers[0], 0)
    assert set(written) == {
        keys.HASH_KEY,
        keys.RESTART_COUNT_KEY,
        keys.TERMINATION_MESSAGE_PATH_KEY,
        keys.TERMINATION_MESSAGE_POLICY_KEY,
    }


def test_a_container_of_someone_else_reads_as_empty() -> None:
    odd = {keys.RESTART_COUNT_KEY: "many", keys.DELETION_GRACE_KEY: ""}
    status = ContainerStatus(id="x", name="x", annotations=odd)
    assert keys.restart_count_of(status) == 0
    assert keys.deletion_grace_of(status) is None and keys.hash_of(status) == ""


@pytest.mark.parametrize(
    ("policy", "exit_code", "reason", "falls_back"),
    [
        ("FallbackToLogsOnError", 1, "Error", True),
        ("FallbackToLogsOnError", 0, "Completed", False),
        ("FallbackToLogsOnError", 128, "ContainerCannotRun", False),
        ("File", 1, "Error", False),
    ],
)
def test_when_the_log_serves_as_termination_message(policy: str, exit_code: int, reason: str, falls_back: bool) -> None:
    pod = a_pod(containers=[a_container(termination_message_policy=policy)])
    status = a_container_status(pod, "app", ContainerState.EXITED, exit_code=exit_code, reason=reason)
    assert keys.falls_back_to_logs(status) is falls_back
