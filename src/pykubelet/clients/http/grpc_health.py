"""The gRPC health question (grpc.health.v1.Health/Check), in plain text, with upstream's words for the answers.

The two messages are small enough to be written by hand. The gRPC library is imported at the first question: a
node without such probes on another runtime socket need not pay for it here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pykubelet.clients.http.port import HealthProblem
from pykubelet.model.http import VERSION, go_duration, join_host_port

if TYPE_CHECKING:
    import grpc.aio

METHOD: Final = "/grpc.health.v1.Health/Check"
STATUS_NAMES: Final = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
SERVING: Final = 1


async def check_health(host: str, port: int, service: str, *, timeout: int) -> None:
    import grpc.aio

    address = join_host_port(host, port)
    options = [
        ("grpc.primary_user_agent", f"kube-probe/{VERSION}"),
        ("grpc.enable_http_proxy", 0),
        # Else the library shares connections, and their back-off, between probes of one address.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(_target(host, port), options=options) as channel:
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await channel.channel_ready()
        except TimeoutError as error:
            raise HealthProblem(
                f'timeout: failed to connect service "{address}" within {go_duration(timeout)}: '
                "context deadline exceeded"
            ) from error
        status = await _ask(channel, service, deadline - asyncio.get_running_loop().time(), timeout)
    if status != SERVING:
        raise HealthProblem(f'service unhealthy (responded with "{STATUS_NAMES.get(status, str(status))}")')


async def _ask(channel: grpc.aio.Channel, service: str, left: float, timeout: int) -> int:
    import grpc

    call = channel.unary_unary(METHOD, request_serializer=health_request, response_deserializer=health_status)
    try:
        return int(await call(service, timeout=max(left, 0.001)))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise HealthProblem(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "
                f"{error.details()}"
            ) from error
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise HealthProblem(f"timeout: health rpc did not complete within {go_duration(timeout)}") from error
        code = error.code().name.title().replace("_", "")
        raise HealthProblem(
            f"error: health rpc probe failed: rpc error: code = {code} desc = {error.details()}"
        ) from error


def _target(host: str, port: int) -> str:
    return f"ipv6:{join_host_port(host, port)}" if ":" in host else f"dns:///{join_host_port(host, port)}"


def health_request(service: str) -> bytes:
    """HealthCheckRequest: field 1, the service's name."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def health_status(data: bytes) -> int:
    """HealthCheckResponse: field 1, a status number; other fields are read over. Raises ValueError."""
    position, status = 0, 0
    while position < len(data):
        key, position = _read_varint(data, position)
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, position = _read_varint(data, position)
            status = value if field == 1 else status
        elif kind == 2:
            length, position = _read_varint(data, position)
            position += length
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError(f"health answer has a field of unknown kind {kind}")
    return status


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        number |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return number, position
    raise ValueError("health answer is cut short")
