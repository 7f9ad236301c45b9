"""The gRPC health question against real servers of the gRPC library, and its hand-written messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from pykubelet.clients.http.client import METHOD, check_health, health_request, health_status
from pykubelet.clients.http.port import HealthProblem
from tests.unit.clients.http.servers import serving_raw


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"", 0), (b"\x08\x01", 1), (b"\x08\x02", 2), (b"\x12\x02hi\x08\x01", 1), (b"\x1d\0\0\0\0\x08\x03", 3)],
)
def test_answers_are_read(data: bytes, status: int) -> None:
    assert health_status(data) == status


@pytest.mark.parametrize("data", [b"\x08", b"\x08\xff\xff", b"\x0b"])
def test_torn_answers_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="health answer"):
        health_status(data)


def test_requests_are_written() -> None:
    assert health_request("") == b""
    assert health_request("db") == b"\x0a\x02db"
    assert health_request("x" * 200) == b"\x0a\xc8\x01" + b"x" * 200


class Health(grpc.GenericRpcHandler):
    """Answers Check with a status number, or never."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        self.requested: list[bytes] = []
        self.agents: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != METHOD:
            return None
        self.agents += [str(value) for key, value in details.invocation_metadata if key == "user-agent"]
        return grpc.unary_unary_rpc_method_handler(self._check)

    async def _check(self, request: bytes, context: object) -> bytes:
        self.requested.append(request)
        if self.status is None:
            await asyncio.get_running_loop().create_future()
        return bytes([8, self.status or 0])


@asynccontextmanager
async def health_server(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[int]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@pytest.mark.real_loop
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
async def test_serving_is_success(host: str) -> None:
    handler = Health(1)
    async with health_server(handler) as port:
        await check_health(host, port, "db", timeout=5)
    assert handler.requested == [b"\x0a\x02db"]
    assert handler.agents[0].startswith("kube-probe/1.36 ")


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("handlers", "text"),
    [
        ([Health(2)], 'service unhealthy (responded with "NOT_SERVING")'),
        ([Health(3)], 'service unhealthy (responded with "SERVICE_UNKNOWN")'),
        ([], "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "),
        ([Health(None)], "timeout: health rpc did not complete within 1s"),
    ],
)
async def test_other_answers(handlers: list[Health], text: str) -> None:
    async with health_server(*handlers) as port:
        with pytest.raises(HealthProblem) as caught:
            await check_health("127.0.0.1", port, "", timeout=1)
    assert str(caught.value).startswith(text)


@pytest.mark.real_loop
async def test_nobody_there_and_somebody_else_there() -> None:
    with pytest.raises(HealthProblem) as caught:
        await check_health("127.0.0.1", 1, "", timeout=1)
    assert str(caught.value) == (
        'timeout: failed to connect service "127.0.0.1:1" within 1s: context deadline exceeded'
    )
    async with serving_raw(b"SSH-2.0-x\r\n") as port:
        with pytest.raises(HealthProblem, match=r"failed to connect|health rpc"):
            await check_health("127.0.0.1", port, "", timeout=1)
