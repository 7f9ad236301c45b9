"""Calls of the runtime as spans: upstream's names and attributes, and their context for the other side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pykubelet.clients.cri import calls
from pykubelet.clients.cri.connection import Connection
from pykubelet.clients.grpc_connection import code_name
from pykubelet.kit import tracing
from pykubelet.kit.clock import SystemClock
from pykubelet.model.errors import CriNotFound
from pykubelet.wire import cri_pb2 as pb
from tests.recorded_spans import attributes_of, id_of, recorded_spans, trace_of
from tests.unit.clients.plugins.serving import serving, stream, unary

pytestmark = pytest.mark.real_loop

SERVICE = "runtime.v1.RuntimeService"


class Runtime:
    """Notes the metadata of each call."""

    def __init__(self) -> None:
        self.metadata: list[dict[str, Any]] = []

    def services(self) -> dict[str, dict[str, Any]]:
        methods = {
            "RunPodSandbox": unary(self.run, pb.RunPodSandboxRequest),
            "RemovePodSandbox": unary(self.remove, pb.RemovePodSandboxRequest),
            "GetContainerEvents": stream(self.events, pb.GetEventsRequest),
        }
        return {SERVICE: methods}

    def _note(self, context: Any) -> None:
        self.metadata.append({key: value for key, value in context.invocation_metadata() if key.startswith("trace")})

    async def run(self, request: Any, context: Any) -> pb.RunPodSandboxResponse:
        self._note(context)
        return pb.RunPodSandboxResponse(pod_sandbox_id="s1")

    async def remove(self, request: Any, context: Any) -> pb.RemovePodSandboxResponse:
        self._note(context)
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such sandbox")
        raise AssertionError

    async def events(self, request: Any, context: Any) -> AsyncIterator[pb.ContainerEventResponse]:
        self._note(context)
        yield pb.ContainerEventResponse(container_id="c1")
        yield pb.ContainerEventResponse(container_id="c2")


async def test_a_call_is_a_span_and_the_runtime_gets_its_context(tmp_path: Path) -> None:
    socket, runtime = tmp_path / "r.sock", Runtime()
    request = pb.RunPodSandboxRequest(runtime_handler="kata")
    async with serving(socket, runtime.services()):
        connection = Connection(f"unix://{socket}", clock=SystemClock())
        with recorded_spans() as spans:
            with tracing.span("syncPod"):
                await connection.call(calls.RUN_POD_SANDBOX, request, timeout=5)
            with pytest.raises(CriNotFound):
                await connection.call(calls.REMOVE_POD_SANDBOX, pb.RemovePodSandboxRequest(), timeout=5)
        await connection.call(calls.RUN_POD_SANDBOX, request, timeout=5)
        await connection.close()
    called = spans.one(f"{SERVICE}/RunPodSandbox")
    assert spans.parent_of(called) == "syncPod" and called.kind.name == "CLIENT"
    assert attributes_of(called) == {
        "rpc.method": f"{SERVICE}/RunPodSandbox",
        "rpc.system.name": "grpc",
        "server.address": str(socket),
        "rpc.response.status_code": "OK",
    }
    assert called.status.is_unset
    sizes = [request.ByteSize(), pb.RunPodSandboxResponse(pod_sandbox_id="s1").ByteSize()]
    assert [dict(event.attributes or {}) for event in called.events] == [
        {
            "rpc.message.type": kind,
            "rpc.message.id": 1,
            "rpc.message.compressed_size": size,
            "rpc.message.uncompressed_size": size,
        }
        for kind, size in zip(("SENT", "RECEIVED"), sizes, strict=True)
    ]
    failed = spans.one(f"{SERVICE}/RemovePodSandbox")
    assert attributes_of(failed)["rpc.response.status_code"] == "NotFound"
    assert (failed.status.is_ok, failed.status.description) == (False, "no such sandbox")
    assert runtime.metadata == [
        {"traceparent": f"00-{trace_of(called):032x}-{id_of(called):016x}-01"},
        {"traceparent": f"00-{trace_of(failed):032x}-{id_of(failed):016x}-01"},
        {},  # off
    ]


async def test_a_stream_is_a_span_but_no_parent_of_what_its_reader_does(tmp_path: Path) -> None:
    socket, runtime = tmp_path / "r.sock", Runtime()
    async with serving(socket, runtime.services()):
        connection = Connection(f"unix://{socket}", clock=SystemClock())
        with recorded_spans() as spans:
            async for event in connection.stream(calls.GET_CONTAINER_EVENTS, pb.GetEventsRequest()):
                with tracing.span(f"saw {event.container_id}"):
                    pass
        await connection.close()
    assert spans.names == ["saw c1", "saw c2", f"{SERVICE}/GetContainerEvents"]
    assert [spans.parent_of(span) for span in spans] == ["", "", ""]
    assert runtime.metadata[0]["traceparent"].split("-")[2] == f"{id_of(spans[2]):016x}"


def test_status_codes_have_the_names_of_go() -> None:
    assert {code_name(code) for code in grpc.StatusCode} == {
        *("OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists"),
        *("PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented"),
        *("Internal", "Unavailable", "DataLoss", "Unauthenticated"),
    }
