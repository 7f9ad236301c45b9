"""Streams through the server to a real containerd: exec, attach, port-forward, logs, by SPDY and by WebSocket."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from msgspec.structs import replace

from pykubelet.api.types import ContainerState as ToldState
from pykubelet.api.types import ContainerStateRunning, PodStatus
from pykubelet.api.types import ContainerStatus as ToldContainer
from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.clients.http.spdy import SpdyConnection, SpdyStream
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.container_keys import (
    CONTAINER_NAME_LABEL,
    POD_NAME_LABEL,
    POD_NAMESPACE_LABEL,
    POD_UID_LABEL,
)
from pykubelet.wire import cri_pb2 as cri
from tests.bed.certificates import Pair
from tests.bed.runtime import BUSYBOX, TESTSERVER, BedContainerd
from tests.builders import a_container, a_pod
from tests.unit.server.support import FakePods, RawClient, ServedNode, connected
from tests.unit.server.support import serving as running_server

pytestmark = pytest.mark.node

UID = "uid-streams"
MEGABYTE = 1024 * 1024
SPDY = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "Content-Length": "0"}


@dataclass
class Served:
    port: int
    context: ssl.SSLContext
    folder: Path

    @asynccontextmanager
    async def spdy(self, path: str, protocol: str) -> AsyncIterator[SpdyConnection]:
        async with connected(self.port, self.context) as client:
            client.send("POST", path, {**SPDY, "X-Stream-Protocol-Version": protocol})
            status, headers = await client.head()
            assert (status, headers["x-stream-protocol-version"]) == (101, protocol), await rest(client)
            connection = SpdyConnection(client.reader, client.writer)
            async with TaskSet("client") as tasks:
                tasks.spawn(connection.run(), name="client reading")
                yield connection

    @asynccontextmanager
    async def exec(self, query: str, *names: str) -> AsyncIterator[dict[str, SpdyStream]]:
        path = f"/exec/default/streams/main?{query}"
        async with self.spdy(path, "v4.channel.k8s.io") as connection:
            yield {name: await connection.open({"streamType": name}) for name in ("error", *names)}


async def rest(client: RawClient) -> bytes:
    return await client.reader.read(1000)


async def read_all(stream: SpdyStream) -> bytes:
    found = bytearray()
    while block := await stream.read():
        found += block
    return bytes(found)


@asynccontextmanager
async def served(
    containerd: BedContainerd,
    folder: Path,
    image: str,
    *command: str,
    settings: dict[str, Any] | None = None,
    user: str = "ada",
    serving: Pair | None = None,
) -> AsyncIterator[Served]:
    """A pod of one container `main` on the real runtime, and the server in front of it."""
    client = GrpcCriClient(containerd.endpoint, clock=SystemClock())
    labels = {POD_NAME_LABEL: "streams", POD_NAMESPACE_LABEL: "default", POD_UID_LABEL: UID}
    box = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="streams", namespace="default", uid=UID),
        log_directory=str(folder),
        labels=labels,
    )
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"),
        image=cri.ImageSpec(image=image, user_specified_image=image),
        command=command,
        labels={**labels, CONTAINER_NAME_LABEL: "main"},
        log_path="main.log",
        stdin=True,
    )
    sandbox = await client.run_pod_sandbox(box)
    try:
        container = await client.create_container(sandbox, config, box)
        await client.start_container(container)
        running = ToldState(running=ContainerStateRunning(started_at=datetime.now(UTC)))
        told = ToldContainer(name="main", state=running, container_id=f"containerd://{container}")
        world = ServedNode(folder)
        world.pods = FakePods(a_pod("streams", uid=UID, containers=[a_container("main", stdin=True)]))
        world.pods.statuses = {UID: PodStatus(container_statuses=[told])}
        world.reviewer.everything = {user}
        world.settings = replace(world.settings, **(settings or {}))
        world.serving = serving or world.serving
        world.runtime = client
        # Nothing here is meant to be waited for as long as that: an answer that never comes must not hold up the run.
        async with asyncio.timeout(300), running_server(world.server()) as port:
            yield Served(port, world.client_context(world.ca.issue("ada")), folder)
    finally:
        for each in await client.list_containers(sandbox_id=sandbox):
            await client.stop_container(each.id, 0)
        await client.stop_pod_sandbox(sandbox)
        await client.remove_pod_sandbox(sandbox)
        await client.close()


def exit_code(status: bytes) -> int:
    told = json.loads(status)
    if told["status"] == "Success":
        return 0
    assert told["reason"] == "NonZeroExitCode", told
    return int(told["details"]["causes"][0]["message"])


async def test_exec_gives_output_and_exit_code(containerd: BedContainerd, tmp_path: Path) -> None:
    async with served(containerd, tmp_path, BUSYBOX, "sleep", "1000") as node:
        query = "command=sh&command=-c&command=echo%20out%3Becho%20err%20%3E%262%3Bexit%207&output=1&error=1"
        async with node.exec(query, "stdout", "stderr") as streams:
            out, err, status = await asyncio.gather(*(read_all(streams[n]) for n in ("stdout", "stderr", "error")))
        assert (out, err, exit_code(status)) == (b"out\n", b"err\n", 7)
        async with node.exec("command=true&output=1", "stdout") as streams:
            assert exit_code(await read_all(streams["error"])) == 0


async def test_exec_pipes_a_lot_both_ways(containerd: BedContainerd, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(MEGABYTE) * 30
    async with (
        served(containerd, tmp_path, BUSYBOX, "sleep", "1000") as node,
        node.exec("command=cat&input=1&output=1", "stdin", "stdout") as streams,
    ):
        reading = asyncio.create_task(read_all(streams["stdout"]))
        for at in range(0, len(data), MEGABYTE):
            await streams["stdin"].write(data[at : at + MEGABYTE])
        await streams["stdin"].finish()
        received = await reading
        assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
        assert exit_code(await read_all(streams["error"])) == 0


async def test_a_terminal_is_resized(containerd: BedContainerd, tmp_path: Path) -> None:
    async with served(containerd, tmp_path, BUSYBOX, "sleep", "1000") as node:
        # The runtime tells nobody when the size is set: the program waits for it.
        script = "until stty size | grep -q '43 132'; do sleep 0.1; done; stty size"
        query = f"command=sh&command=-c&command={quote(script)}&input=1&output=1&tty=1"
        async with node.exec(query, "stdin", "stdout", "resize") as streams:
            await streams["resize"].write(b'{"Width":132,"Height":43}\n')
            assert b"43 132" in await read_all(streams["stdout"])


async def test_attach_sees_what_the_container_prints(containerd: BedContainerd, tmp_path: Path) -> None:
    async with served(containerd, tmp_path, BUSYBOX, "sh", "-c", "while read x; do echo got $x; done") as node:
        path = "/attach/default/streams/main?input=1&output=1&error=1"
        async with node.spdy(path, "v4.channel.k8s.io") as connection:
            names = ("error", "stdin", "stdout", "stderr")
            streams = {name: await connection.open({"streamType": name}) for name in names}
            await streams["stdin"].write(b"one\n")
            assert await streams["stdout"].read() == b"got one\n"


async def forward(connection: SpdyConnection, number: int, request: bytes) -> bytes:
    headers = {"port": "8080", "requestID": str(number)}
    error = await connection.open({**headers, "streamType": "error"}, finished=True)
    data = await connection.open({**headers, "streamType": "data"})
    await data.write(request)
    answer = await data.read()
    await data.finish()  # as the local client's end does; containerd waits a second for it otherwise
    answer += await read_all(data)
    assert await read_all(error) == b""
    return answer


async def listening(node: Served) -> None:
    async with asyncio.timeout(60):
        while "listening" not in (node.folder / "main.log").read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_port_forward_serves_many_connections(containerd: BedContainerd, tmp_path: Path) -> None:
    request = b"GET /hostname HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with served(containerd, tmp_path, TESTSERVER) as node:
        await listening(node)
        async with node.spdy("/portForward/default/streams", "portforward.k8s.io") as connection:
            for batch in range(2):
                answers = await asyncio.gather(*(forward(connection, batch * 20 + n, request) for n in range(20)))
                assert all(answer.startswith(b"HTTP/1") and b"200" in answer[:20] for answer in answers)


async def test_port_forward_through_a_websocket_tunnel(containerd: BedContainerd, tmp_path: Path) -> None:
    request = b"GET /hostname HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with served(containerd, tmp_path, TESTSERVER) as node, aiohttp.ClientSession() as session:
        await listening(node)
        url = f"https://127.0.0.1:{node.port}/portForward/default/streams"
        protocol = "SPDY/3.1+portforward.k8s.io"
        async with session.ws_connect(url, ssl=node.context, protocols=[protocol]) as socket:
            assert socket.protocol == protocol
            reader = asyncio.StreamReader()
            connection = SpdyConnection(reader, Outbox(socket))  # type: ignore[arg-type]

            async def receive() -> None:
                async for message in socket:
                    reader.feed_data(message.data)
                reader.feed_eof()

            async with TaskSet("client") as tasks:
                tasks.spawn(receive(), name="receiving")
                tasks.spawn(connection.run(), name="reading")
                assert b"200" in (await forward(connection, 1, request))[:20]


class Outbox:
    """A stream writer that puts what it gets into WebSocket messages."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._pending = socket, b""

    def write(self, data: bytes) -> None:
        self._pending += data

    async def drain(self) -> None:
        data, self._pending = self._pending, b""
        await self._socket.send_bytes(data)


async def test_websocket_v5_is_translated(containerd: BedContainerd, tmp_path: Path) -> None:
    data = random.Random(2).randbytes(4 * MEGABYTE)
    async with served(containerd, tmp_path, BUSYBOX, "sleep", "1000") as node, aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{node.port}/exec/default/streams/main?command=cat&input=1&output=1"
        async with session.ws_connect(url, ssl=node.context, protocols=["v5.channel.k8s.io"]) as socket:
            assert socket.protocol == "v5.channel.k8s.io"

            async def send() -> None:
                for at in range(0, len(data), 32768):
                    await socket.send_bytes(b"\0" + data[at : at + 32768])
                await socket.send_bytes(b"\xff\0")

            sending = asyncio.create_task(send())
            out, status = bytearray(), b""
            async for message in socket:
                if message.data[0] == 1:
                    out += message.data[1:]
                elif message.data[0] == 3:
                    status += message.data[1:]
            await sending
        assert hashlib.sha256(out).digest() == hashlib.sha256(data).digest()
        assert exit_code(status) == 0


async def test_websocket_v4_passes_through(containerd: BedContainerd, tmp_path: Path) -> None:
    async with served(containerd, tmp_path, BUSYBOX, "sleep", "1000") as node, aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{node.port}/exec/default/streams/main?command=echo&command=hi&output=1"
        async with session.ws_connect(url, ssl=node.context, protocols=["v4.channel.k8s.io"]) as socket:
            found: dict[int, bytes] = {}
            async for message in socket:
                found[message.data[0]] = found.get(message.data[0], b"") + message.data[1:]
        assert found[1] == b"hi\n"
        assert exit_code(found[3]) == 0


async def test_logs_are_followed_until_the_end(containerd: BedContainerd, tmp_path: Path) -> None:
    script = "for n in 1 2 3 4 5; do echo line $n; sleep 0.1; done"
    async with (
        served(containerd, tmp_path, BUSYBOX, "sh", "-c", script) as node,
        connected(node.port, node.context) as client,
    ):
        answer = await client.ask("GET", "/containerLogs/default/streams/main?follow=true&timestamps=true")
        lines = answer.text.splitlines()
        assert [line.split(" ", 1)[1] for line in lines] == [f"line {n}" for n in range(1, 6)]
        answer = await client.ask("GET", "/containerLogs/default/streams/main?tailLines=2")
        assert answer.text == "line 4\nline 5\n"


async def test_a_runtime_without_checkpoints_says_so(containerd: BedContainerd, tmp_path: Path) -> None:
    async with (
        served(containerd, tmp_path, BUSYBOX, "sleep", "1000") as node,
        connected(node.port, node.context) as client,
    ):
        answer = await client.ask("POST", "/checkpoint/default/streams/main")
        assert answer.status == 500
        assert "checkpointing of default/streams/main failed (the container runtime does not offer it" in answer.text
        assert (await client.ask("POST", "/checkpoint/default/streams/nobody")).status == 404
