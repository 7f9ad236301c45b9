"""Lists as streams (gate CRIListStreaming) against a scripted server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.model import errors
from pykubelet.wire import cri_pb2 as pb
from tests.unit.clients.cri.grpc_runtime import ScriptedRuntime, serving

pytestmark = pytest.mark.real_loop

ALL = (
    *("StreamPodSandboxes", "StreamContainers", "StreamContainerStats", "StreamImages"),
    *("StreamPodSandboxStats", "StreamPodSandboxMetrics"),
)
UNARY = (
    *("ListPodSandbox", "ListContainers", "ListContainerStats", "ListImages"),
    *("ListPodSandboxStats", "ListPodSandboxMetrics"),
)


def a_runtime() -> ScriptedRuntime:
    """Each list has two items; as a stream each comes alone."""
    runtime = ScriptedRuntime()
    sandboxes = [pb.PodSandbox(id=id) for id in "ab"]
    containers = [pb.Container(id=id) for id in "ab"]
    stats = [pb.ContainerStats(attributes=pb.ContainerAttributes(id=id)) for id in "ab"]
    images = [pb.Image(id=id) for id in "ab"]
    pod_stats = [pb.PodSandboxStats(attributes=pb.PodSandboxAttributes(id=id)) for id in "ab"]
    metrics = [pb.PodSandboxMetrics(pod_sandbox_id=id) for id in "ab"]
    runtime.answers |= {
        "ListPodSandbox": pb.ListPodSandboxResponse(items=sandboxes),
        "ListContainers": pb.ListContainersResponse(containers=containers),
        "ListContainerStats": pb.ListContainerStatsResponse(stats=stats),
        "ListImages": pb.ListImagesResponse(images=images),
        "ListPodSandboxStats": pb.ListPodSandboxStatsResponse(stats=pod_stats),
        "ListPodSandboxMetrics": pb.ListPodSandboxMetricsResponse(pod_metrics=metrics),
        "StreamPodSandboxStats": [pb.StreamPodSandboxStatsResponse(pod_sandbox_stats=[one]) for one in pod_stats],
        "StreamPodSandboxMetrics": [pb.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=[one]) for one in metrics],
        "StreamPodSandboxes": [pb.StreamPodSandboxesResponse(pod_sandboxes=[one]) for one in sandboxes],
        "StreamContainers": [pb.StreamContainersResponse(containers=[one]) for one in containers],
        "StreamContainerStats": [pb.StreamContainerStatsResponse(container_stats=[one]) for one in stats],
        "StreamImages": [pb.StreamImagesResponse(images=[one]) for one in images],
    }
    return runtime


def a_client(endpoint: str, *, stream_lists: bool = True, request_timeout: float = 30.0) -> GrpcCriClient:
    return GrpcCriClient(endpoint, clock=SystemClock(), stream_lists=stream_lists, request_timeout=request_timeout)


async def all_lists(cri: GrpcCriClient) -> list[list[str]]:
    return [
        [each.id for each in await cri.list_pod_sandboxes()],
        [each.id for each in await cri.list_containers()],
        [each.attributes.id for each in await cri.list_container_stats()],
        [each.id for each in await cri.list_images()],
        [each.attributes.id for each in await cri.list_pod_sandbox_stats()],
        [each.pod_sandbox_id for each in await cri.list_pod_sandbox_metrics()],
    ]


def asked(runtime: ScriptedRuntime, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in runtime.requests]


async def test_lists_come_as_streams(tmp_path: Path) -> None:
    runtime = a_runtime()
    async with serving(tmp_path / "s", runtime) as endpoint, a_client(endpoint) as cri:
        assert await all_lists(cri) == [["a", "b"]] * 6
    assert asked(runtime, ALL) == [*ALL]
    assert asked(runtime, UNARY) == []
    left = runtime.time_left["StreamContainers"]
    assert left is not None and left <= 31.0


async def test_without_the_gate_lists_are_one_answer(tmp_path: Path) -> None:
    runtime = a_runtime()
    async with serving(tmp_path / "s", runtime) as endpoint, a_client(endpoint, stream_lists=False) as cri:
        assert await all_lists(cri) == [["a", "b"]] * 6
    assert asked(runtime, ALL) == []


async def test_a_runtime_that_cannot_stream_is_asked_for_one_answer_and_not_tried_again(tmp_path: Path) -> None:
    runtime = a_runtime()
    del runtime.answers["StreamPodSandboxes"], runtime.answers["StreamImages"]
    async with serving(tmp_path / "s", runtime) as endpoint, a_client(endpoint) as cri:
        assert await all_lists(cri) == [["a", "b"]] * 6
        assert asked(runtime, ALL) == ["StreamPodSandboxes", "StreamImages"]
        runtime.requests.clear()
        assert await all_lists(cri) == [["a", "b"]] * 6
    assert asked(runtime, ALL) == []


async def test_an_error_in_the_middle_is_an_error_of_the_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runtime = a_runtime()
    runtime.answers["StreamContainers"].append((grpc.StatusCode.INTERNAL, "broke off"))
    async with serving(tmp_path / "s", runtime) as endpoint, a_client(endpoint) as cri:
        with caplog.at_level(logging.ERROR), pytest.raises(errors.CriError, match="broke off"):
            await cri.list_containers()
        runtime.answers["StreamContainers"].pop()
        assert [each.id for each in await cri.list_containers()] == ["a", "b"]
    assert asked(runtime, UNARY) == []
    assert [record.getMessage() for record in caplog.records] == ["StreamContainers recv failed"]


async def test_a_stream_has_the_time_of_a_call(tmp_path: Path) -> None:
    runtime = a_runtime()
    runtime.answers["StreamContainers"].append("hang")
    async with serving(tmp_path / "s", runtime) as endpoint, a_client(endpoint, request_timeout=0.3) as cri:
        with pytest.raises(errors.CallTimedOut):
            await cri.list_containers()
    assert asked(runtime, UNARY) == []
