"""A CRI server on a unix socket that says what it is told; for tests of the client's own work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pykubelet.wire import containerd_events_service_pb2 as events_pb
from pykubelet.wire import cri_pb2 as pb
from tests.grpc_services import add_service


class ScriptedRuntime:
    """Answers by method name; a StatusCode pair aborts. Remembers requests and the time left for each."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "Version": pb.VersionResponse(
                version="0.1.0", runtime_name="scripted", runtime_version="1", runtime_api_version="v1"
            ),
            "ImageFsInfo": pb.ImageFsInfoResponse(),
        }
        self.requests: dict[str, Any] = {}
        self.time_left: dict[str, float | None] = {}
        self.authority = ""

    def __getattribute__(self, name: str) -> Any:
        if name[:1].isupper():
            streams = name.startswith("Stream") or name == "GetContainerEvents"
            # A partial of a coroutine function still looks like one to grpc; a lambda would not.
            return partial(ScriptedRuntime._stream if streams else ScriptedRuntime._answer, self, name)
        return super().__getattribute__(name)

    async def _answer(self, name: str, request: Any, context: Any) -> Any:
        self.requests[name] = request
        self.time_left[name] = context.time_remaining()
        answer = self.answers.get(name)
        if answer is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {name}")
        if answer == "hang":
            await asyncio.Event().wait()
        if isinstance(answer, tuple):
            await context.abort(*answer)
        return answer

    async def _stream(self, name: str, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        self.requests[name] = request
        self.time_left[name] = context.time_remaining()
        if name not in self.answers:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {name}")
        for answer in self.answers[name]:
            if answer == "hang":
                await asyncio.Event().wait()
            if isinstance(answer, tuple):
                await context.abort(*answer)
            yield answer


class ScriptedEvents:
    def __init__(self, envelopes: Sequence[events_pb.Envelope | str]) -> None:
        self.envelopes = envelopes
        self.filters: list[str] = []
        self.metadata: dict[str, str] = {}

    async def Subscribe(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        self.filters = list(request.filters)
        self.metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        for envelope in self.envelopes:
            if envelope == "hang":
                await asyncio.Event().wait()
            yield envelope


@asynccontextmanager
async def serving(socket: Path, runtime: ScriptedRuntime, events: ScriptedEvents | None = None) -> AsyncIterator[str]:
    """The runtime behind a socket, for as long as the block lasts; gives the endpoint."""
    server = grpc.aio.server()
    add_service(server, pb, "RuntimeService", runtime)
    add_service(server, pb, "ImageService", runtime)
    if events is not None:
        add_service(server, events_pb, "Events", events)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield f"unix://{socket}"
    finally:
        await server.stop(None)
        # stop() cancels the handlers and does not wait for them. Only the server's tasks, known by the names grpc
        # gives them: what the client leaves behind is for the test to find.
        handlers = {t for t in asyncio.all_tasks() if t.get_name().startswith(("rpc_task", "HandleExceptions["))}
        if handlers:
            await asyncio.wait(handlers, timeout=5)
