"""Callers who want to keep others out, over real sockets: they come from 127.0.0.2, everybody else from 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pykubelet.api.types import ContainerState, ContainerStateRunning, ContainerStatus, PodStatus
from pykubelet.model.runtime_status import ContainerRecord, SandboxRecord
from pykubelet.model.runtime_status import ContainerState as RuntimeState
from pykubelet.model.runtime_status import ContainerStatus as RuntimeContainer
from pykubelet.server import relay
from pykubelet.server.app import NodeServer
from pykubelet.server.listeners import Limits
from tests.builders import a_container, a_pod
from tests.unit.server.support import RawClient, ServedNode, connected, echo, get, serving, streaming_runtime

pytestmark = pytest.mark.real_loop

BAD = "127.0.0.2"
SPDY = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}


@pytest.fixture
def world(tmp_path: Path) -> ServedNode:
    world = ServedNode(tmp_path)
    world.reviewer.everything = {"ada", "bob"}
    world.reviewer.tokens = {"good": "bob"}
    return world


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for happens in threads and kernels
            await asyncio.sleep(0.02)


def under_way(server: NodeServer) -> int:
    front = server.listeners[0]._server
    return front._shares._count if front is not None else 0


@asynccontextmanager
async def from_bad(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[RawClient]:
    host = "127.0.0.1" if context is not None else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=host, local_addr=(BAD, 0), limit=1 << 20
    )
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


async def good_callers_are_served(port: int, world: ServedNode) -> None:
    """With a certificate and with a token, each within a second or two."""
    ada, nobody = world.client_context(world.ca.issue("ada")), world.client_context()
    for _ in range(3):
        async with asyncio.timeout(3):
            assert (await get(port, "/healthz", ada)).text == "ok"
            assert (await get(port, "/healthz", nobody, Authorization="Bearer good")).text == "ok"


async def test_a_thousand_callers_who_say_nothing(world: ServedNode) -> None:
    async with serving(world.server()) as port, contextlib.AsyncExitStack() as crowd:
        for _ in range(1200):
            await crowd.enter_async_context(from_bad(port))
        await good_callers_are_served(port, world)


async def test_a_crowd_that_is_through_with_its_handshakes(world: ServedNode) -> None:
    world.limits = Limits(pending_connections=30)
    async with serving(world.server()) as port, contextlib.AsyncExitStack() as crowd:
        for number in range(100):
            client = await crowd.enter_async_context(from_bad(port, world.client_context()))
            client.writer.write(b"GET /pods HTTP/1.1\r\nX-Slow: " if number % 2 else b"")
        await good_callers_are_served(port, world)


async def test_headers_without_end_are_bounded_together_and_in_time(world: ServedNode) -> None:
    world.limits = Limits(head=1.0, head_bytes=1 << 20, heads_bytes=4 << 20)
    server = world.server()
    async with serving(server) as port, contextlib.AsyncExitStack() as crowd:
        clients = []
        for _ in range(20):
            client = await crowd.enter_async_context(from_bad(port, world.client_context()))
            assert (await client.ask("GET", "/pods")).status == 401  # the first request is complete
            client.writer.write(b"GET /?" + b"a" * 900_000)
            with contextlib.suppress(ConnectionError):
                await client.writer.drain()
            clients.append(client)
            front = server.listeners[0]._server
            assert front is not None
            assert front._heads <= (4 << 20) + (1 << 20)
        await good_callers_are_served(port, world)
        async with asyncio.timeout(5):  # and none of them may wait for the idle timeout
            for client in clients:
                with contextlib.suppress(OSError):
                    assert await client.reader.read() == b""
        assert front._heads == 0


async def test_a_request_behind_another_has_no_more_time_either(world: ServedNode) -> None:
    world.limits = Limits(head=0.5)
    async with serving(world.server()) as port, connected(port, world.client_context()) as client:
        client.writer.write(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\nGET /pods HTTP/1.1\r\nX-Slow: ")
        assert (await client.answer()).status == 401
        async with asyncio.timeout(5):
            with contextlib.suppress(OSError):
                assert await client.reader.read() == b""


async def test_strangers_have_no_long_query_taken_apart(world: ServedNode) -> None:
    ada, query = world.client_context(world.ca.issue("ada")), "?" + "&" * 500_000
    async with serving(world.server()) as port:
        # Ten of these would take seconds if they were taken apart before anybody asks who calls.
        async with connected(port, world.client_context()) as client:
            assert (await client.ask("GET", "/containerLogs/a/b/c" + query)).status == 401
        answer = await get(port, "/containerLogs/a/b/c" + query, ada)
        assert (answer.status, answer.text) == (400, "the query may have 10000 parameters")
        assert (await get(port, "/" + "%41" * 10_000, ada)).status == 414
        for path in ("/containerLogs/a/\xff/c", "/containerLogs/a/%ff/c"):
            async with connected(port, ada) as client:
                client.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin-1"))
                assert (await client.answer()).status in (400, 404)


@contextmanager
def hellos(port: int, context: ssl.SSLContext) -> Iterator[Callable[[], int]]:
    """Threads that have handshakes begun, as fast as they can, without computing anything themselves."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    hello, stop, answered = outgoing.read(), threading.Event(), list[int]()

    def knock() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.socket() as caller:
                caller.settimeout(0.5)
                caller.bind((BAD, 0))
                caller.connect(("127.0.0.1", port))
                caller.sendall(hello)
                answered.append(len(caller.recv(65536)))

    threads = [threading.Thread(target=knock) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: len(answered)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


async def test_handshakes_without_end_are_computed_beside_the_loop(world: ServedNode) -> None:
    server = world.server()
    computed_in: set[int] = set()
    async with serving(server) as port:
        assert server.listeners[0]._tls is not None
        context = server.listeners[0]._tls.context()
        assert context is not None
        context.sni_callback = lambda *_: computed_in.add(threading.get_ident())
        with hellos(port, world.client_context()) as answered:
            await good_callers_are_served(port, world)
            await until(lambda: answered() >= 100)
    assert computed_in
    assert threading.get_ident() not in computed_in


def pod_with_a_log(world: ServedNode, namespace: str) -> Path:
    pod = a_pod("web", namespace=namespace, containers=[a_container("app")])
    uid, id = pod.metadata.uid or "", f"c-{namespace}"
    names = {"pod_uid": uid, "pod_name": "web", "pod_namespace": namespace}
    path = world.folder / f"{namespace}.log"
    path.write_bytes(b"2026-01-01T00:00:00Z stdout F hello\n")
    world.pods.known.append(pod)
    world.runtime.sandboxes.append(SandboxRecord(id=f"s-{namespace}", **names))
    world.runtime.containers.append(ContainerRecord(id=id, sandbox_id=f"s-{namespace}", name="app", **names))
    world.runtime.statuses[id] = RuntimeContainer(id=id, name="app", state=RuntimeState.RUNNING, log_path=str(path))
    told = ContainerStatus(name="app", container_id=f"x://{id}", state=ContainerState(running=ContainerStateRunning()))
    world.pods.statuses[uid] = PodStatus(container_statuses=[told])
    return path


async def followers(port: int, context: ssl.SSLContext, crowd: contextlib.AsyncExitStack, count: int) -> list[int]:
    """The statuses that so many `logs -f` get, each on its own connection."""
    statuses = []
    for _ in range(count):
        client = await crowd.enter_async_context(from_bad(port, context))
        client.send("GET", "/containerLogs/crowd/web/app?follow=true")
        statuses.append((await client.head())[0])
    return statuses


async def test_followers_of_one_namespace_leave_room_for_others(world: ServedNode) -> None:
    world.limits = Limits(requests=60, connections=5)
    ada = world.client_context(world.ca.issue("ada"))
    for namespace in ("crowd", "other"):
        pod_with_a_log(world, namespace)
    async with streaming_runtime(echo) as (world.runtime.url, _):
        async with serving(world.server()) as port, contextlib.AsyncExitStack() as crowd:
            statuses = await followers(port, ada, crowd, 80)
            assert (statuses.count(200), statuses.count(429)) == (30, 50)
            await good_callers_are_served(port, world)
            assert (await get(port, "/containerLogs/other/web/app", ada)).text == "hello\n"
            assert (await get(port, "/metrics", ada)).status == 200
            async with connected(port, ada) as client:
                client.send("POST", "/exec/other/web/app?command=cat&input=1&output=1", SPDY)
                assert (await client.head())[0] == 101
                client.writer.write(b"ping")
                assert await client.reader.readexactly(4) == b"ping"
        async with serving(world.server()) as port, connected(port, ada) as client:
            assert (await client.ask("GET", "/containerLogs/crowd/web/app")).text == "hello\n"


@pytest.mark.parametrize("path", ["/containerLogs/crowd/web/app?follow=true", "/metrics/probes"])
async def test_a_caller_who_takes_nothing_ends(world: ServedNode, path: str) -> None:
    await takes_nothing(world, path)


async def takes_nothing(world: ServedNode, path: str = "/metrics/probes") -> None:
    world.limits = Limits(stalled_flow=0.5, stalled_answer=0.5)
    world.probe_metrics = lambda: "x" * 20_000_000
    ada = world.client_context(world.ca.issue("ada"))
    log = pod_with_a_log(world, "crowd")
    log.write_bytes((b"2026-01-01T00:00:00Z stdout F " + b"x" * 1000 + b"\n") * 20_000)
    server = world.server()
    async with serving(server) as port, connected(port, ada) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send("GET", path)
        await until(lambda: under_way(server) > 0)
        await until(lambda: under_way(server) == 0)
        front = server.listeners[0]._server
        await until(lambda: front is not None and len(front) == 0)
        client.writer.transport.abort()


async def test_a_large_answer_arrives_whole(world: ServedNode) -> None:
    text = "".join(f"{number}\n" for number in range(200_000))
    world.probe_metrics = lambda: text
    ada = world.client_context(world.ca.issue("ada"))
    async with serving(world.server()) as port, connected(port, ada) as client:
        assert (await client.ask("GET", "/metrics/probes")).text == text
        assert (await client.ask("GET", "/healthz")).text == "ok"


async def test_a_patient_websocket_is_not_asked_whether_it_lives(world: ServedNode) -> None:
    """While one side waits for the other nobody reads answers to pings; the kernel asks instead."""
    assert relay._socket("v5.channel.k8s.io")._heartbeat is None
    server = world.server()
    async with serving(server):
        listening = server.listeners[0]._socket
        assert listening is not None
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15


async def test_guessing_tokens_costs_the_guesser_time(world: ServedNode) -> None:
    async with serving(world.server()) as port, connected(port, world.client_context()) as client:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(2):
            assert (await client.ask("GET", "/pods", {"Authorization": "Bearer bad"})).status == 401
        assert loop.time() - begun >= 1.0
        assert (await client.ask("GET", "/pods", {"Authorization": "Bearer good"})).status == 200


@pytest.mark.parametrize(
    "scenario",
    [
        test_a_crowd_that_is_through_with_its_handshakes,
        test_headers_without_end_are_bounded_together_and_in_time,
        test_handshakes_without_end_are_computed_beside_the_loop,
        test_followers_of_one_namespace_leave_room_for_others,
        takes_nothing,
    ],
)
def test_the_loop_of_production_does_the_same(
    scenario: Callable[[ServedNode], Coroutine[Any, Any, None]], world: ServedNode
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario(world))
