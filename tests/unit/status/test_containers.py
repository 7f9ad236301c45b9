"""Container statuses, from the runtime and from what was told before."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pykubelet.api.types import (
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ImageVolumeSource,
    ImageVolumeStatus,
    Pod,
    PodCondition,
    PodStatus,
    ResourceRequirements,
    Volume,
    VolumeMount,
    VolumeStatus,
)
from pykubelet.model import runtime_status as rt
from pykubelet.model.problems import PullFailed
from pykubelet.status.containers import bare_id
from pykubelet.status.generate import StatusInputs, generate_pod_status
from tests.builders import (
    NOW,
    a_container,
    a_container_status,
    a_pod,
    a_runtime_status,
    a_sidecar,
    an_ephemeral_container,
    at,
    ns,
)

CREATED, RUNNING = rt.ContainerState.CREATED, rt.ContainerState.RUNNING
EXITED, UNKNOWN = rt.ContainerState.EXITED, rt.ContainerState.UNKNOWN
CRASHED = PullFailed(reason="CrashLoopBackOff", text="back-off 10s")


def status_of(pod: Pod, *runs: rt.ContainerStatus, **rest: Any) -> PodStatus:
    runtime = a_runtime_status(pod, *runs)
    return generate_pod_status(StatusInputs(pod=pod, runtime=runtime, now=NOW, probes={}, **rest))


def app(pod: Pod, *runs: rt.ContainerStatus, old: ContainerStatus | None = None, **rest: Any) -> ContainerStatus:
    previous = PodStatus(container_statuses=[old]) if old is not None else None
    return status_of(pod, *runs, previous=previous, **rest).container_statuses[0]


def ran(**fields: Any) -> ContainerStatus:
    """What was told about `app` while it ran."""
    state = ContainerState(running=ContainerStateRunning(started_at=at(NOW - 60)))
    values: dict[str, Any] = {"container_id": "containerd://app-0", "restart_count": 0, "state": state}
    return ContainerStatus(name="app", **{**values, **fields})


def had_ended(code: int = 1, **fields: Any) -> ContainerStatus:
    return ran(state=ContainerState(terminated=ContainerStateTerminated(exit_code=code)), **fields)


# --- nothing known yet


@pytest.mark.parametrize(("init", "reason"), [([], "ContainerCreating"), ([a_container("i")], "PodInitializing")])
def test_a_container_not_created_yet_waits(init: list[Any], reason: str) -> None:
    status = app(a_pod(init=init))
    assert status.state == ContainerState(waiting=ContainerStateWaiting(reason=reason))
    assert (status.image, status.image_id, status.container_id) == ("busybox:1", "", None)
    assert (status.ready, status.started, status.restart_count) == (False, False, 0)
    assert status.last_state == ContainerState()


def test_statuses_come_in_a_fixed_order() -> None:
    pod = a_pod(
        containers=[a_container("z"), a_container("a")],
        init=[a_container("y"), a_sidecar("b")],
        ephemeral=[an_ephemeral_container("x"), an_ephemeral_container("c")],
    )
    status = status_of(pod, a_container_status(pod, "c"))
    assert [s.name for s in status.container_statuses] == ["a", "z"]
    assert [s.name for s in status.init_container_statuses] == ["y", "b"]
    assert [s.name for s in status.ephemeral_container_statuses] == ["c", "x"]
    assert status.ephemeral_container_statuses[0].state.running is not None  # type: ignore[union-attr]


def test_volume_mounts_are_listed_with_their_read_only_mode() -> None:
    mounts = [
        VolumeMount(name="rw", mount_path="/rw"),
        VolumeMount(name="ro", mount_path="/ro", read_only=True),
        VolumeMount(name="rro", mount_path="/rro", read_only=True, recursive_read_only="Enabled"),
        VolumeMount(
            name="p", mount_path="/p", read_only=True, recursive_read_only="IfPossible",
            mount_propagation="HostToContainer",
        ),
    ]  # fmt: skip
    pod = a_pod(containers=[a_container(volume_mounts=mounts)])

    def modes(supported: bool, *runs: rt.ContainerStatus) -> list[str | None]:
        return [m.recursive_read_only for m in app(pod, *runs, recursive_read_only=supported).volume_mounts]

    assert modes(True) == [None, "Disabled", "Enabled", "Disabled"]
    assert modes(False) == [None, "Disabled", "Disabled", "Disabled"]
    assert modes(True, a_container_status(pod)) == modes(True)


@pytest.mark.parametrize("on", [True, False])
def test_images_of_volumes_are_named(on: bool) -> None:
    mounts = [VolumeMount(name="data", mount_path="/data"), VolumeMount(name="tmp", mount_path="/tmp")]
    pod = a_pod(containers=[a_container(volume_mounts=mounts)])
    pod.spec.volumes = [Volume(name="data", image=ImageVolumeSource(reference="data:1")), Volume(name="tmp")]
    mounted = (
        rt.MountRecord(container_path="/data", host_path="", image="sha256:1"),
        rt.MountRecord(container_path="/tmp", host_path="/x"),
    )
    run = replace(a_container_status(pod), mounts=mounted)
    first = app(pod, run, shows_image_refs=on)
    shown = {each.name: each.volume_status for each in first.volume_mounts}
    named = VolumeStatus(image=ImageVolumeStatus(image_ref="sha256:1"))
    assert shown == {"data": named if on else None, "tmp": None}
    assert app(pod, run, old=first, shows_image_refs=on).volume_mounts == first.volume_mounts
    assert [each.volume_status for each in app(pod, shows_image_refs=on).volume_mounts] == [None, None]


# --- states the runtime reports


def test_a_running_container() -> None:
    pod = a_pod()
    user = rt.ContainerUser(uid=1, gid=2, supplemental_groups=(2, 3))
    status = app(pod, a_container_status(pod, restarts=2, user=user))
    assert status.state == ContainerState(running=ContainerStateRunning(started_at=at(NOW - 58)))
    assert status.container_id == "containerd://app-2" and bare_id(status.container_id) == "app-2"
    assert (status.image, status.image_id, status.restart_count) == ("busybox:1", "sha256:busybox:1", 2)
    assert (status.ready, status.started) == (True, True)
    assert status.user is not None and status.user.linux is not None
    assert (status.user.linux.uid, status.user.linux.supplemental_groups) == (1, [2, 3])


def test_an_ended_container_with_its_messages() -> None:
    pod = a_pod()
    run = a_container_status(pod, "app", EXITED, exit_code=2, message="oci error")
    assert app(pod, run, messages={"app-0": "last words"}).state == ContainerState(
        terminated=ContainerStateTerminated(
            exit_code=2,
            reason="Error",
            message="oci error: last words",
            started_at=at(NOW - 60),
            finished_at=at(NOW - 10),
            container_id="containerd://app-0",
        )
    )


def test_messages_share_twelve_kilobytes_between_the_containers() -> None:
    pod = a_pod(containers=[a_container(), a_container("b"), a_container("c")])
    status = app(pod, a_container_status(pod, "app", EXITED), messages={"app-0": "ä" * 4000})
    assert status.state is not None and status.state.terminated is not None
    assert len((status.state.terminated.message or "").encode()) == 4096


@pytest.mark.parametrize("state", [CREATED, UNKNOWN])
def test_a_container_created_or_in_unknown_state_waits(state: rt.ContainerState) -> None:
    pod = a_pod()
    assert app(pod, a_container_status(pod, "app", state)).state == ContainerState(
        waiting=ContainerStateWaiting(reason="ContainerCreating")
    )


def test_a_running_container_that_becomes_unknown_has_ended() -> None:
    pod = a_pod()
    status = app(pod, a_container_status(pod, "app", UNKNOWN), old=ran(restart_count=3))
    assert status.state is not None and status.state.terminated is not None
    end = status.state.terminated
    assert (end.reason, end.exit_code) == ("ContainerStatusUnknown", 137)
    assert end.message == "The container could not be located when the pod was terminated"
    assert status.restart_count == 4


def test_the_run_before_becomes_the_last_state() -> None:
    pod = a_pod()
    runs = [
        a_container_status(pod, restarts=2),
        a_container_status(pod, "app", EXITED, restarts=1, exit_code=7),
        a_container_status(pod, "app", EXITED, restarts=0, exit_code=9),
    ]
    status = app(pod, *runs)
    assert status.last_state is not None and status.last_state.terminated is not None
    assert status.last_state.terminated.exit_code == 7
    assert status.restart_count == 2


# --- what was told before


def test_an_end_told_before_stays_when_the_runtime_forgot_the_container() -> None:
    old = had_ended(3, restart_count=5, image="busybox:0", ready=False, last_state=ContainerState())
    status = app(a_pod(), old=old)
    assert status.state == old.state
    assert (status.restart_count, status.image, status.container_id) == (5, "busybox:0", "containerd://app-0")


def test_counts_and_last_state_survive_while_waiting() -> None:
    last = ContainerState(terminated=ContainerStateTerminated(exit_code=1))
    waiting = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
    status = app(a_pod(), old=ran(state=waiting, last_state=last, restart_count=4))
    assert (status.restart_count, status.last_state) == (4, last)


def test_the_last_state_survives_when_the_runtime_removed_the_run_before() -> None:
    pod = a_pod()
    last = ContainerState(terminated=ContainerStateTerminated(exit_code=5))
    status = app(pod, a_container_status(pod), old=ran(last_state=last))
    assert status.last_state == last


def test_an_end_told_before_becomes_last_state_of_the_new_run() -> None:
    pod = a_pod()
    status = app(pod, a_container_status(pod, restarts=1), old=had_ended(6))
    assert status.last_state is not None and status.last_state.terminated is not None
    assert status.last_state.terminated.exit_code == 6
    assert status.restart_count == 1


@pytest.mark.parametrize(("told", "counted", "shown"), [(0, 1, 1), (3, 0, 4), (3, 3, 4), (3, 5, 5)])
def test_the_restart_count_never_falls(told: int, counted: int, shown: int) -> None:
    pod = a_pod()
    run = a_container_status(pod, restarts=counted, id="new")
    assert app(pod, run, old=had_ended(restart_count=told)).restart_count == shown
    assert app(pod, run, old=ran(restart_count=told)).restart_count == max(told, counted)


@pytest.mark.parametrize(("deleted", "count"), [(False, 1), (True, 0)])
def test_a_container_that_vanished_while_running_has_ended(deleted: bool, count: int) -> None:
    status = app(a_pod(deleted=deleted), old=ran())
    assert status.state == ContainerState(waiting=ContainerStateWaiting(reason="ContainerCreating"))
    assert status.last_state is not None and status.last_state.terminated is not None
    end = status.last_state.terminated
    assert (end.reason, end.exit_code) == ("ContainerStatusUnknown", 137)
    assert end.message == (
        "The container could not be located when the pod was deleted.  The container used to be Running"
    )
    assert status.restart_count == count


def test_a_vanished_container_keeps_the_last_state_it_had() -> None:
    last = ContainerState(terminated=ContainerStateTerminated(exit_code=1))
    status = app(a_pod(), old=ran(last_state=last, restart_count=2))
    assert (status.last_state, status.restart_count) == (last, 2)


# --- init containers


def init_status(pod: Pod, *runs: rt.ContainerStatus, **rest: Any) -> ContainerStatus:
    return status_of(pod, *runs, **rest).init_container_statuses[0]


@pytest.mark.parametrize("state", [CREATED, RUNNING, EXITED])
def test_a_forgotten_init_container_of_an_initialised_pod_has_completed(state: rt.ContainerState) -> None:
    pod = a_pod(init=[a_container("i")])
    status = init_status(pod, a_container_status(pod, "app", state), failures={"i": CRASHED})
    assert status.state is not None and status.state.terminated is not None
    assert (status.state.terminated.reason, status.state.terminated.exit_code) == ("Completed", 0)
    assert status.ready is True


def test_a_forgotten_sidecar_waits_to_be_started_again() -> None:
    pod = a_pod(init=[a_sidecar("i")])
    status = init_status(pod, a_container_status(pod))
    assert status.state == ContainerState(waiting=ContainerStateWaiting(reason="PodInitializing"))


@pytest.mark.parametrize(("code", "waits"), [(0, False), (1, True)])
def test_a_completed_init_container_is_never_shown_as_waiting(code: int, waits: bool) -> None:
    pod = a_pod(init=[a_container("i")])
    status = init_status(pod, a_container_status(pod, "i", EXITED, exit_code=code), failures={"i": CRASHED})
    assert status.state is not None
    assert (status.state.waiting is not None) is waits
    assert status.ready is (code == 0)


# --- why a container cannot start


def test_a_crash_loop_shows_as_waiting_with_the_end_as_last_state() -> None:
    pod = a_pod()
    run = a_container_status(pod, "app", EXITED, exit_code=1)
    status = app(pod, run, failures={"app": CRASHED})
    assert status.state == ContainerState(
        waiting=ContainerStateWaiting(reason="CrashLoopBackOff", message="back-off 10s")
    )
    assert status.last_state is not None and status.last_state.terminated is not None
    assert status.last_state.terminated.exit_code == 1


def test_a_failed_pull_replaces_the_default_reason() -> None:
    failure = PullFailed(reason="ErrImagePull", text="not found")
    status = app(a_pod(), failures={"app": failure})
    assert status.state == ContainerState(waiting=ContainerStateWaiting(reason="ErrImagePull", message="not found"))


@pytest.mark.parametrize(
    ("policy", "state", "code"), [("Always", RUNNING, 0), ("Never", EXITED, 1), ("OnFailure", EXITED, 0)]
)
def test_a_failure_does_not_hide_a_state_that_is_final(policy: str, state: rt.ContainerState, code: int) -> None:
    pod = a_pod(restart_policy=policy)
    status = app(pod, a_container_status(pod, "app", state, exit_code=code), failures={"app": CRASHED})
    assert status.state is not None and status.state.waiting is None


# --- restart of all containers


def restarting_pod() -> Pod:
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=[42])
    rules = [ContainerRestartRule(action="RestartAllContainers", exit_codes=codes)]
    return a_pod(containers=[a_container(restart_policy="Never", restart_policy_rules=rules)])


@pytest.mark.parametrize("old", [ran(restart_count=1), had_ended(42, restart_count=1)])
def test_a_container_removed_to_start_over_waits_with_that_reason(old: ContainerStatus) -> None:
    begun = [PodCondition(type="AllContainersRestarting", status="True")]
    previous = PodStatus(container_statuses=[old], conditions=begun)
    status = status_of(restarting_pod(), previous=previous).container_statuses[0]
    message = "The container is removed because RestartAllContainers in place"
    reason = "RestartingAllContainers"
    assert status.state == ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))
    assert status.last_state == ContainerState(
        terminated=ContainerStateTerminated(reason=reason, message=message, exit_code=137)
    )
    assert status.restart_count == 2


def test_an_unknown_container_during_a_restart_of_all_names_it_as_reason() -> None:
    pod = restarting_pod()
    begun = [PodCondition(type="AllContainersRestarting", status="True")]
    previous = PodStatus(container_statuses=[ran()], conditions=begun)
    status = status_of(pod, a_container_status(pod, "app", UNKNOWN), previous=previous).container_statuses[0]
    assert status.state is not None and status.state.terminated is not None
    assert status.state.terminated.reason == "RestartingAllContainers"


# --- resources


def resources(cpu: str, memory: str) -> dict[str, Any]:
    return {"cpu": cpu, "memory": memory}


def limited(cpu: str = "500m", memory: str = "128Mi") -> Pod:
    wanted = ResourceRequirements(requests=resources("250m", "64Mi"), limits=resources(cpu, memory))
    return a_pod(containers=[a_container(resources=wanted)])


def in_force(**fields: int) -> rt.ContainerResources:
    values: dict[str, Any] = {
        "cpu_shares": 256,
        "cpu_quota": 50000,
        "cpu_period": 100000,
        "memory_limit_bytes": 128 << 20,
    }
    return rt.ContainerResources(**{**values, **fields})


def test_resources_in_force_that_equal_the_spec_keep_its_spelling() -> None:
    pod = limited(cpu="0.5", memory="134217728")
    status = app(pod, a_container_status(pod, resources=in_force()))
    assert status.resources == pod.spec.containers[0].resources
    assert status.allocated_resources == resources("250m", "64Mi")


def test_resources_in_force_are_shown_when_they_differ() -> None:
    pod = limited()
    run = a_container_status(pod, resources=in_force(cpu_quota=100000, cpu_shares=512, memory_limit_bytes=256 << 20))
    actuated = {"app": ResourceRequirements(requests={"memory": "32Mi"})}
    status = app(pod, run, actuated=actuated)
    assert status.resources == ResourceRequirements(requests=resources("500m", "32Mi"), limits=resources("1", "256Mi"))


def test_amounts_too_small_for_the_kernel_keep_the_spec() -> None:
    wanted = ResourceRequirements(requests={"cpu": "1m"}, limits={"cpu": "5m"})
    pod = a_pod(containers=[a_container(resources=wanted)])
    run = a_container_status(pod, resources=in_force(cpu_shares=2, cpu_quota=1000, memory_limit_bytes=0))
    assert app(pod, run).resources == wanted


def test_what_the_runtime_does_not_report_stays_as_told_for_the_same_run() -> None:
    pod = limited()
    told = ResourceRequirements(requests=resources("1", "1Gi"), limits=resources("2", "2Gi"))
    assert app(pod, a_container_status(pod), old=ran(resources=told)).resources == told
    spec = pod.spec.containers[0].resources
    assert app(pod, a_container_status(pod, id="new"), old=ran(resources=told)).resources == spec
    assert app(pod, a_container_status(pod)).resources == spec


def test_a_stopped_container_shows_what_is_allocated() -> None:
    pod = limited()
    run = a_container_status(pod, "app", EXITED, resources=in_force(cpu_shares=2048), finished_at=ns(NOW))
    assert app(pod, run).resources == pod.spec.containers[0].resources
