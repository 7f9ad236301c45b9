"""CRI messages become our values: nothing lost that the values have, nothing invented that was absent."""

from __future__ import annotations

import pytest

from pykubelet.clients.cri import convert
from pykubelet.model.runtime_status import (
    ContainerResources,
    ContainerState,
    ContainerUser,
    EventKind,
    MountRecord,
    NamespaceMode,
    SandboxState,
)
from pykubelet.wire import cri_pb2 as pb

LABELS = {
    "io.kubernetes.pod.uid": "u",
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "ns",
    "io.kubernetes.container.name": "app",
}
META = pb.PodSandboxMetadata(name="web", namespace="ns", uid="u", attempt=2)


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (pb.CONTAINER_CREATED, ContainerState.CREATED),
        (pb.CONTAINER_RUNNING, ContainerState.RUNNING),
        (pb.CONTAINER_EXITED, ContainerState.EXITED),
        (pb.CONTAINER_UNKNOWN, ContainerState.UNKNOWN),
        (99, ContainerState.UNKNOWN),
    ],
)
def test_container_states(number: int, state: ContainerState) -> None:
    assert convert.container_state(number) is state


def test_a_sandbox_with_two_addresses() -> None:
    status = convert.sandbox_status(
        pb.PodSandboxStatus(
            id="s",
            metadata=META,
            state=pb.SANDBOX_NOTREADY,
            created_at=5,
            network=pb.PodSandboxNetworkStatus(ip="10.0.0.1", additional_ips=[pb.PodIP(ip="fd00::1")]),
            labels=LABELS,
        )
    )
    assert status.ips == ("10.0.0.1", "fd00::1")
    assert (status.state, status.network_mode) == (SandboxState.NOT_READY, NamespaceMode.POD)
    assert (status.pod_name, status.pod_namespace, status.pod_uid, status.attempt) == ("web", "ns", "u", 2)
    assert status.labels == LABELS and status.annotations == {}


def test_a_host_network_sandbox_has_no_addresses() -> None:
    item = pb.PodSandboxStatus(id="s", metadata=META)
    item.linux.namespaces.options.network = pb.NODE
    status = convert.sandbox_status(item)
    assert (status.ips, status.network_mode) == ((), NamespaceMode.NODE)


def test_a_record_takes_its_pod_from_labels_and_a_stranger_has_none() -> None:
    ours = convert.container_record(pb.Container(id="c", pod_sandbox_id="s", labels=LABELS))
    assert (ours.pod_uid, ours.pod_name, ours.pod_namespace, ours.name) == ("u", "web", "ns", "app")
    stranger = convert.container_record(pb.Container(id="x", metadata=pb.ContainerMetadata(name="n")))
    assert (stranger.pod_uid, stranger.name) == ("", "")


def test_a_full_container_status() -> None:
    item = pb.ContainerStatus(
        id="c",
        metadata=pb.ContainerMetadata(name="app", attempt=3),
        state=pb.CONTAINER_EXITED,
        exit_code=137,
        reason="OOMKilled",
        image=pb.ImageSpec(image="web:1"),
        mounts=[
            pb.Mount(container_path="/a", host_path="/b", readonly=True),
            pb.Mount(container_path="/i", image=pb.ImageSpec(image="sha256:1")),
        ],
        stop_signal=pb.SIGUSR1,
    )
    item.resources.linux.cpu_shares = 100
    item.user.linux.uid = 7
    item.user.linux.supplemental_groups.extend([1, 2])
    status = convert.container_status(item)
    assert (status.name, status.attempt, status.exit_code, status.reason) == ("app", 3, 137, "OOMKilled")
    assert status.mounts == (
        MountRecord(container_path="/a", host_path="/b", readonly=True),
        MountRecord(container_path="/i", host_path="", image="sha256:1"),
    )
    assert status.resources == ContainerResources(cpu_shares=100)
    assert status.user == ContainerUser(uid=7, gid=0, supplemental_groups=(1, 2))
    assert (status.image, status.stop_signal) == ("web:1", "SIGUSR1")


def test_what_a_runtime_does_not_report_is_none() -> None:
    status = convert.container_status(pb.ContainerStatus(id="c"))
    assert status.resources is None and status.user is None and status.stop_signal == ""


def test_an_image_user_of_zero_is_not_no_user() -> None:
    assert convert.image(pb.Image(id="i", uid=pb.Int64Value(value=0))).uid == 0
    assert convert.image(pb.Image(id="i", username="www")).uid is None


def test_an_event_of_an_unknown_kind_is_no_event() -> None:
    assert convert.container_event(pb.ContainerEventResponse(container_event_type=42)) is None  # type: ignore[arg-type]
    event = convert.container_event(pb.ContainerEventResponse(container_id="c"))
    assert event is not None and event.kind is EventKind.CREATED


def test_no_filter_is_an_empty_one() -> None:
    assert convert.sandbox_filter(pod_uid=None, id=None, ready_only=False) == pb.PodSandboxFilter()
    nothing = convert.container_filter(pod_uid=None, id=None, sandbox_id=None, running_only=False)
    assert nothing == pb.ContainerFilter()
    assert convert.image_filter(None) is None


@pytest.mark.parametrize(
    ("info", "image"),
    [
        ({"info": '{"pid": 7, "image": "registry.k8s.io/pause:3.10"}'}, "registry.k8s.io/pause:3.10"),
        ({"info": '{"image": 3}'}, ""),
        ({"info": "[]"}, ""),
        ({"info": "not json"}, ""),
        ({}, ""),
    ],
)
def test_the_image_of_a_sandbox(info: dict[str, str], image: str) -> None:
    assert convert.sandbox_image(info) == image
