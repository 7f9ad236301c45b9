"""The gRPC client against a scripted server: deadlines, errors, reconnect, start check, streams."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.clients.cri.connection import operation_metrics, socket_of
from pykubelet.clients.grpc_connection import target_of
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.model import errors
from pykubelet.model.runtime_status import ContainerEvent, EventKind
from pykubelet.wire import containerd_events_pb2 as task_pb
from pykubelet.wire import containerd_events_service_pb2 as events_pb
from pykubelet.wire import cri_pb2 as pb
from tests.unit.clients.cri.grpc_runtime import ScriptedEvents, ScriptedRuntime, serving

pytestmark = pytest.mark.real_loop

Code = grpc.StatusCode


@pytest.fixture
def socket() -> Iterator[Path]:
    """Socket paths may have 107 characters at most; pytest's folders can be longer."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "cri.sock"


def client(endpoint: str, **settings: object) -> GrpcCriClient:
    return GrpcCriClient(endpoint, clock=SystemClock(), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.NOT_FOUND, errors.CriNotFound),
        (Code.ALREADY_EXISTS, errors.CriAlreadyExists),
        (Code.UNAVAILABLE, errors.RuntimeDown),
        (Code.DEADLINE_EXCEEDED, errors.CallTimedOut),
        (Code.UNIMPLEMENTED, errors.Unimplemented),
        (Code.INVALID_ARGUMENT, errors.InvalidArgument),
        (Code.UNKNOWN, errors.CriError),
        (Code.INTERNAL, errors.CriError),
        (Code.RESOURCE_EXHAUSTED, errors.Exhausted),
    ],
)
async def test_codes_become_our_errors_with_the_runtimes_words(
    socket: Path, code: grpc.StatusCode, kind: type[errors.CriError]
) -> None:
    runtime = ScriptedRuntime()
    runtime.answers["ContainerStatus"] = (code, "what the runtime said")
    async with serving(socket, runtime) as endpoint, client(endpoint) as cri:
        with pytest.raises(errors.CriError) as caught:
            await cri.container_status("c")
    assert type(caught.value) is kind
    assert str(caught.value) == "what the runtime said"


async def test_a_runtime_still_starting_counts_as_down(socket: Path) -> None:
    runtime = ScriptedRuntime()
    runtime.answers["Status"] = (Code.UNKNOWN, "server is not initialized yet")
    async with serving(socket, runtime) as endpoint, client(endpoint) as cri:
        with pytest.raises(errors.RuntimeDown):
            await cri.status()


async def test_deadlines_are_the_kubelets(socket: Path) -> None:
    runtime = ScriptedRuntime()
    runtime.answers |= {
        "RunPodSandbox": pb.RunPodSandboxResponse(pod_sandbox_id="s"),
        "StopContainer": pb.StopContainerResponse(),
        "ExecSync": pb.ExecSyncResponse(),
        "PullImage": pb.PullImageResponse(image_ref="r"),
        "CheckpointContainer": pb.CheckpointContainerResponse(),
        "ListContainers": pb.ListContainersResponse(),
        "GetContainerEvents": [],
    }
    left: dict[str, float | None] = {}
    async with serving(socket, runtime) as endpoint, client(endpoint, request_timeout=100.0) as cri:
        await cri.list_containers()
        await cri.run_pod_sandbox(pb.PodSandboxConfig())
        await cri.stop_container("c", 30)
        await cri.pull_image(pb.ImageSpec(image="i"))
        await cri.exec_sync("c", ["true"], 7)
        left["exec"] = runtime.time_left["ExecSync"]
        await cri.exec_sync("c", ["true"])
        left["exec without limit"] = runtime.time_left["ExecSync"]
        await cri.checkpoint_container("c", "/x", 300)
        left["long checkpoint"] = runtime.time_left["CheckpointContainer"]
        await cri.checkpoint_container("c", "/x", 3)
        left["short checkpoint"] = runtime.time_left["CheckpointContainer"]
        with pytest.raises(errors.Unimplemented):
            await anext(cri.container_events())
    left |= {name: runtime.time_left[name] for name in ("ListContainers", "RunPodSandbox", "StopContainer")}
    left |= {name: runtime.time_left[name] for name in ("PullImage", "GetContainerEvents")}
    seconds = {name: round(value / 10) * 10 if value and value < 1e6 else None for name, value in left.items()}
    assert seconds == {
        "ListContainers": 100,
        "RunPodSandbox": 200,
        "StopContainer": 130,
        "exec": 110,
        "exec without limit": None,
        "long checkpoint": 300,
        "short checkpoint": 100,
        "PullImage": None,
        "GetContainerEvents": None,
    }


async def test_a_call_that_hangs_times_out(socket: Path) -> None:
    runtime = ScriptedRuntime()
    async with serving(socket, runtime) as endpoint, client(endpoint, request_timeout=0.2) as cri:
        runtime.answers["Status"] = "hang"
        with pytest.raises(errors.CallTimedOut):
            await cri.status()


@pytest.mark.parametrize(
    "answer",
    [
        (Code.DEADLINE_EXCEEDED, "failed to exec in container: timeout 1s exceeded: context deadline exceeded"),
        (Code.UNKNOWN, "command timed out"),
        (Code.UNKNOWN, "timeout 1s exceeded"),
    ],
)
async def test_an_exec_out_of_time_is_told_apart(socket: Path, answer: tuple[Code, str]) -> None:
    runtime = ScriptedRuntime()
    runtime.answers["ExecSync"] = answer
    async with serving(socket, runtime) as endpoint, client(endpoint) as cri:
        with pytest.raises(errors.ExecTimedOut):
            await cri.exec_sync("c", ["true"], 1)


async def test_other_exec_errors_stay_what_they_are(socket: Path) -> None:
    runtime = ScriptedRuntime()
    runtime.answers["ExecSync"] = (Code.NOT_FOUND, "no container; timeout unknown")
    async with serving(socket, runtime) as endpoint, client(endpoint) as cri:
        with pytest.raises(errors.CriNotFound):
            await cri.exec_sync("c", ["true"], 1)


async def test_stop_and_remove_of_what_is_gone_succeed(socket: Path) -> None:
    runtime = ScriptedRuntime()
    for name in ("StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer", "RemoveImage"):
        runtime.answers[name] = (Code.NOT_FOUND, "gone")
    async with serving(socket, runtime) as endpoint, client(endpoint) as cri:
        await cri.stop_pod_sandbox("s")
        await cri.remove_pod_sandbox("s")
        await cri.stop_container("c", 1)
        await cri.remove_container("c")
        await cri.remove_image("i")


@pytest.mark.parametrize("field", ["version", "runtime_name", "runtime_version", "runtime_api_version"])
async def test_connect_refuses_a_runtime_that_does_not_say_who_it_is(socket: Path, field: str) -> None:
    runtime = ScriptedRuntime()
    setattr(runtime.answers["Version"], field, "")
    async with serving(socket, runtime) as endpoint:
        with pytest.raises(errors.CriError, match=endpoint):
            await client(endpoint).connect()


async def test_connect_checks_the_image_socket_too(socket: Path) -> None:
    runtime = ScriptedRuntime()
    async with serving(socket, runtime) as endpoint:
        cri = client(endpoint, image_endpoint=f"unix://{socket}.other")
        with pytest.raises(errors.RuntimeDown):
            await cri.connect()


async def test_the_client_comes_back_when_the_runtime_does(socket: Path) -> None:
    cri = client(f"unix://{socket}")
    with pytest.raises(errors.RuntimeDown):
        await cri.connect()
    for _ in range(2):
        async with serving(socket, ScriptedRuntime()):
            async with asyncio.timeout(10):
                while True:
                    try:
                        await cri.version()
                        break
                    except errors.RuntimeDown:
                        await SystemClock().sleep(0.05)
        with pytest.raises(errors.RuntimeDown):
            await cri.version()
    await cri.close()


async def test_a_call_under_way_fails_when_the_runtime_dies(socket: Path) -> None:
    runtime = ScriptedRuntime()
    cri = client(f"unix://{socket}")
    async with serving(socket, runtime):
        await cri.connect()
        runtime.answers["Status"] = "hang"
        call = asyncio.ensure_future(cri.status())
        while "Status" not in runtime.requests:
            await SystemClock().sleep(0.01)
    with pytest.raises(errors.CriError):
        await call
    await cri.close()


async def test_closing_the_client_fails_a_call_under_way_and_cancels_no_caller(socket: Path) -> None:
    runtime = ScriptedRuntime()
    async with serving(socket, runtime) as endpoint:
        cri = client(endpoint)
        await cri.connect()
        runtime.answers["Status"] = "hang"
        call = asyncio.ensure_future(cri.status())
        while "Status" not in runtime.requests:
            await SystemClock().sleep(0.01)
        await cri.close()
        with pytest.raises(errors.RuntimeDown, match="is closed"):
            await call


async def test_every_call_is_measured_and_logged_once_without_its_content(
    socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    runtime = ScriptedRuntime()
    runtime.answers["PullImage"] = (Code.UNKNOWN, "no")
    caplog.set_level(logging.DEBUG, logger="pykubelet.clients.cri.connection")
    async with serving(socket, runtime) as endpoint, client(endpoint, observe=operation_metrics(registry)) as cri:
        with pytest.raises(errors.CriError):
            await cri.pull_image(pb.ImageSpec(image="i"), pb.AuthConfig(username="u", password="hunter2"))
    text = registry.expose()
    assert 'kubelet_runtime_operations_total{operation_type="pull_image"} 1' in text
    assert 'kubelet_runtime_operations_errors_total{operation_type="pull_image"} 1' in text
    assert 'kubelet_runtime_operations_errors_total{operation_type="version"}' not in text
    assert 'kubelet_runtime_operations_duration_seconds_count{operation_type="version"} 1' in text
    lines = [record for record in caplog.records if record.message == "cri call"]
    assert [record.__dict__["verb"] for record in lines] == ["version", "image_fs_info", "pull_image"]
    assert "hunter2" not in str([record.__dict__ for record in lines])


async def test_filters_reach_the_runtime(socket: Path) -> None:
    runtime = ScriptedRuntime()
    runtime.answers |= {
        "ListPodSandbox": pb.ListPodSandboxResponse(),
        "ListContainers": pb.ListContainersResponse(),
    }
    async with serving(socket, runtime) as endpoint, client(endpoint) as cri:
        await cri.list_pod_sandboxes(pod_uid="u", ready_only=True)
        await cri.list_containers(id="c", sandbox_id="s", running_only=True)
    sandboxes = runtime.requests["ListPodSandbox"].filter
    assert sandboxes.HasField("state") and sandboxes.state.state == pb.SANDBOX_READY
    assert dict(sandboxes.label_selector) == {"io.kubernetes.pod.uid": "u"}
    containers = runtime.requests["ListContainers"].filter
    assert (containers.id, containers.pod_sandbox_id) == ("c", "s")
    assert containers.state.state == pb.CONTAINER_RUNNING


async def test_events_come_from_the_cri_when_it_has_them(socket: Path) -> None:
    runtime = ScriptedRuntime()
    status = pb.PodSandboxStatus(metadata=pb.PodSandboxMetadata(uid="u"))
    stopped = pb.ContainerEventResponse(
        container_id="c", container_event_type=pb.CONTAINER_STOPPED_EVENT, pod_sandbox_status=status
    )
    runtime.answers["GetContainerEvents"] = [stopped, "hang"]
    async with (
        serving(socket, runtime) as endpoint,
        client(endpoint) as cri,
        aclosing(cri.container_events()) as events,
    ):
        event = await anext(events)
    assert (event.container_id, event.kind, event.pod_uid) == ("c", EventKind.STOPPED, "u")


@asynccontextmanager
async def telling(
    socket: Path, runtime: ScriptedRuntime, source: ScriptedEvents
) -> AsyncIterator[AsyncGenerator[ContainerEvent, None]]:
    """The events a client gets from containerd's own stream, none of which may take long."""
    async with (
        serving(socket, runtime, source) as endpoint,
        client(endpoint) as cri,
        asyncio.timeout(5),
        aclosing(cri.container_events()) as events,
    ):
        yield events


def task_ended(id: str) -> events_pb.Envelope:
    envelope = events_pb.Envelope(topic="/tasks/delete", namespace="k8s.io")
    envelope.event.value = task_pb.TaskDelete(container_id=id).SerializeToString()
    return envelope


def removed(id: str) -> events_pb.Envelope:
    envelope = events_pb.Envelope(topic="/containers/delete", namespace="k8s.io")
    envelope.event.value = task_pb.ContainerDelete(id=id).SerializeToString()
    return envelope


def container_in(state: pb.ContainerState) -> pb.ContainerStatusResponse:
    return pb.ContainerStatusResponse(status=pb.ContainerStatus(id="c", state=state))


async def test_events_come_from_containerd_when_the_cri_has_none(socket: Path) -> None:
    runtime = ScriptedRuntime()
    runtime.answers["ContainerStatus"] = container_in(pb.CONTAINER_EXITED)
    source = ScriptedEvents([task_ended("c"), "hang"])
    async with telling(socket, runtime, source) as events:
        event = await anext(events)
    assert (event.container_id, event.kind) == ("c", EventKind.STOPPED)
    assert source.metadata["containerd-namespace"] == "k8s.io"
    assert 'namespace=="k8s.io",topic=="/tasks/delete"' in source.filters


async def test_an_end_is_told_when_the_cri_sees_it_and_holds_up_nobody_else(socket: Path) -> None:
    runtime = ScriptedRuntime()
    runtime.answers["ContainerStatus"] = container_in(pb.CONTAINER_RUNNING)
    source = ScriptedEvents([task_ended("c"), removed("c"), removed("other"), "hang"])
    async with telling(socket, runtime, source) as events:
        first = await anext(events)
        runtime.answers["ContainerStatus"] = container_in(pb.CONTAINER_EXITED)
        rest = [await anext(events), await anext(events)]
    assert (first.container_id, first.kind) == ("other", EventKind.DELETED)
    assert [(e.container_id, e.kind) for e in rest] == [("c", EventKind.STOPPED), ("c", EventKind.DELETED)]


async def test_an_end_the_cri_never_sees_is_told_in_the_end(socket: Path) -> None:
    runtime = ScriptedRuntime()
    runtime.answers["ContainerStatus"] = container_in(pb.CONTAINER_RUNNING)
    source = ScriptedEvents([task_ended("c"), "hang"])
    async with telling(socket, runtime, source) as events:
        assert (await anext(events)).kind is EventKind.STOPPED


async def test_the_end_of_a_sandbox_is_looked_up_as_one(socket: Path) -> None:
    runtime = ScriptedRuntime()
    runtime.answers["ContainerStatus"] = (Code.NOT_FOUND, "no such container")
    status = pb.PodSandboxStatus(id="s", state=pb.SANDBOX_NOTREADY)
    runtime.answers["PodSandboxStatus"] = pb.PodSandboxStatusResponse(status=status)
    source = ScriptedEvents([task_ended("s"), "hang"])
    async with telling(socket, runtime, source) as events:
        assert (await anext(events)).container_id == "s"
    assert runtime.requests["PodSandboxStatus"].pod_sandbox_id == "s"


async def test_the_end_of_containerds_stream_is_an_error(socket: Path) -> None:
    async with serving(socket, ScriptedRuntime(), ScriptedEvents([])) as endpoint, client(endpoint) as cri:
        with pytest.raises(errors.RuntimeDown, match="ended"):
            await anext(cri.container_events())


async def test_a_stream_that_ends_at_once_is_none(socket: Path) -> None:
    """What CRI-O does unless it is told to make events: the stream is there and over."""
    runtime = ScriptedRuntime()
    runtime.answers["GetContainerEvents"] = []
    async with serving(socket, runtime) as endpoint, client(endpoint) as cri:
        with pytest.raises(errors.Unimplemented):
            await anext(cri.container_events())


async def test_a_stream_that_told_something_and_ends_is_broken(socket: Path) -> None:
    runtime = ScriptedRuntime()
    created = pb.ContainerEventResponse(container_id="c", container_event_type=pb.CONTAINER_CREATED_EVENT)
    runtime.answers["GetContainerEvents"] = [created]
    async with (
        serving(socket, runtime) as endpoint,
        client(endpoint) as cri,
        aclosing(cri.container_events()) as events,
    ):
        assert (await anext(events)).kind is EventKind.CREATED
        with pytest.raises(errors.RuntimeDown, match="ended"):
            await anext(events)


async def test_no_events_at_all_is_said_plainly(socket: Path) -> None:
    async with serving(socket, ScriptedRuntime()) as endpoint, client(endpoint) as cri:
        with pytest.raises(errors.Unimplemented):
            await anext(cri.container_events())


async def test_a_closed_client_may_be_used_again(socket: Path) -> None:
    async with serving(socket, ScriptedRuntime()) as endpoint:
        cri = client(endpoint)
        await cri.connect()
        await cri.close()
        await cri.close()
        await cri.connect()
        await cri.close()


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("unix:///run/containerd/containerd.sock", "unix:///run/containerd/containerd.sock"),
        ("/run/containerd/containerd.sock", "unix:///run/containerd/containerd.sock"),
        ("unix:///run/with space.sock", "unix:///run/with%20space.sock"),
    ],
)
def test_targets(endpoint: str, target: str) -> None:
    assert target_of(socket_of(endpoint)) == target


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:1", "unix://relative", "run/x.sock"])
def test_an_endpoint_that_is_no_socket_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(errors.CriError, match="container runtime endpoint"):
        socket_of(endpoint)
