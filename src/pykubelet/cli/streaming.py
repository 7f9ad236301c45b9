"""Streams to a container over the node's server: SPDY, as kubectl speaks it, on the local socket or over HTTPS.

Covers: the upgrade, the four streams of exec and its exit status, one pair of streams a forwarded connection.
Does not cover: the terminal (exec.py) and local ports (port_forward.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import msgspec

from pykubelet.cli.client import NodeClient, Target
from pykubelet.cli.problems import CommandFailed
from pykubelet.clients.http.http1 import read_body, read_upgrade_head
from pykubelet.clients.http.spdy import SpdyConnection, SpdyStream
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.http import HttpProblem

CONNECT_TIMEOUT = 10.0
BLOCK = 64 * 1024
EXEC_PROTOCOL, FORWARD_PROTOCOL = "v4.channel.k8s.io", "portforward.k8s.io"


async def _dial(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(CONNECT_TIMEOUT):
        if not target.url:
            return await asyncio.open_unix_connection(str(target.socket), limit=BLOCK)
        host, port = target.host()
        return await asyncio.open_connection(host, port, ssl=target.context(), limit=BLOCK)


@asynccontextmanager
async def spdy(
    node: NodeClient, path: str, query: Sequence[tuple[str, str]], protocol: str
) -> AsyncIterator[tuple[SpdyConnection, asyncio.Task[None]]]:
    """An upgraded connection for the length of the block, and the task that ends with it. Raises CommandFailed."""
    try:
        reader, writer = await _dial(node.target)
    except (OSError, TimeoutError) as error:
        raise node.unreachable(error) from error
    try:
        await _upgrade(node, reader, writer, path, query, protocol)
        connection = SpdyConnection(reader, writer)
        async with TaskSet("stream", on_error=lambda error: None) as tasks:
            reading = tasks.spawn(connection.run(), name="stream reading")
            yield connection, reading
    finally:
        writer.close()


async def _upgrade(
    node: NodeClient,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    path: str,
    query: Sequence[tuple[str, str]],
    protocol: str,
) -> None:
    target = path + (f"?{urlencode(query)}" if query else "")
    lines = [f"POST {target} HTTP/1.1", "Host: node", "Connection: Upgrade", "Upgrade: SPDY/3.1", "Content-Length: 0"]
    lines += [f"X-Stream-Protocol-Version: {protocol}", *(f"{k}: {v}" for k, v in node.headers().items())]
    try:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()
        _, status, headers = await read_upgrade_head(reader)
        if status != 101:
            body = await read_body(reader, headers, BLOCK)
            raise CommandFailed(body.decode(errors="replace").strip() or f"the node answered {status}")
    except (OSError, HttpProblem) as error:
        raise CommandFailed(f"the node broke off: {error}") from error


def exit_status(raw: bytes) -> int:
    """What the error stream's last word means for our exit. Raises CommandFailed for the node's own trouble."""
    if not raw:
        return 0
    try:
        said = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        raise CommandFailed(raw.decode(errors="replace").strip()) from None
    if said.get("status") == "Success":
        return 0
    if said.get("reason") == "NonZeroExitCode":
        causes = (said.get("details") or {}).get("causes") or []
        for cause in causes:
            if cause.get("reason") == "ExitCode":
                return int(cause.get("message") or 1)
    raise CommandFailed(said.get("message") or "the command could not be run")


async def read_all(stream: SpdyStream, limit: int = 64 * 1024) -> bytes:
    found = bytearray()
    while len(found) < limit and (block := await stream.read()):
        found += block
    return bytes(found)
