"""The whole server over real sockets and TLS: who gets in, what is refused, what cannot bring it down."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from msgspec import structs
from msgspec.structs import replace

from pykubelet.server.listeners import CannotListen, Limits, LocalAddress
from pykubelet.server.routes import Offers, main_routes
from tests.bed.certificates import Authority
from tests.unit.server.support import (
    RawClient,
    ServedNode,
    connected,
    echo,
    get,
    serving,
    streaming_runtime,
    with_a_pod,
)

pytestmark = pytest.mark.real_loop


@pytest.fixture
def world(tmp_path: Path) -> ServedNode:
    return ServedNode(tmp_path)


async def test_who_gets_in(world: ServedNode) -> None:
    world.reviewer.rights = {("ada", "get", "pods"), ("bob", "get", "healthz")}
    world.reviewer.tokens = {"good": "bob"}
    ada = world.client_context(world.ca.issue("ada", ["staff"]))
    nobody = world.client_context()
    async with serving(world.server()) as port:
        assert (await get(port, "/pods", nobody)).status == 401
        assert (await get(port, "/pods", nobody)).text == "Unauthorized"
        allowed = await get(port, "/pods", ada)
        assert (allowed.status, allowed.headers["content-type"]) == (200, "application/json")
        assert allowed.text == '{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}\n'
        denied = await get(port, "/metrics", ada)
        assert (denied.status, denied.text) == (
            403,
            "Forbidden (user=ada, verb=get, resource=nodes, subresource(s)=[metrics])\n",
        )
        assert (await get(port, "/healthz", nobody, Authorization="Bearer good")).text == "ok"
        assert (await get(port, "/healthz", nobody, Authorization="Bearer bad")).status == 401


async def test_a_certificate_of_a_stranger_is_refused(world: ServedNode, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    pending = world.client_context(Authority(folder, "other").issue("ada"))
    async with serving(world.server()) as port:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await get(port, "/pods", pending)


async def test_without_rights_every_route_is_forbidden(world: ServedNode) -> None:
    server = world.server()
    context = world.client_context(world.ca.issue("eve"))
    async with serving(server) as port, connected(port, context) as client:
        routes = main_routes(world.handlers(), Offers())
        assert len(routes) > 25
        for route in routes:
            path = route.pattern.replace(":*}", "}").replace("{", "").replace("}", "")
            for method in route.methods:
                answer = await client.ask("GET" if method == "*" else method, path)
                assert answer.status == 403, (method, path, answer)
        assert (await client.ask("GET", "/no/such/path")).status == 403
        assert (await client.ask("HEAD", "/pods")).status == 403


async def test_paths_that_are_not_there(world: ServedNode) -> None:
    world.reviewer.everything = {"ada"}
    context = world.client_context(world.ca.issue("ada"))
    async with serving(world.server()) as port, connected(port, context) as client:
        assert (await client.ask("GET", "/")).status == 404
        assert (await client.ask("GET", "/nothing")).status == 404
        assert (await client.ask("PUT", "/pods")).status == 405
        assert (await client.ask("DELETE", "/healthz")).status == 200
        assert (await client.ask("GET", "/stats/summary")).status == 503
        assert (await client.ask("PUT", "/debug/flags/v", body=b"4")).text == (
            "successfully set klog.logging.verbosity to 4"
        )
        assert (await client.ask("PUT", "/debug/flags/v", body=b"4" * 100)).status == 413


async def test_read_only_and_health_servers(world: ServedNode) -> None:
    world.settings = replace(world.settings, enable_server=False, read_only_port=1, healthz_port=1)
    server = world.server()
    for listener in server.listeners:
        listener.address = structs.replace(listener.address, port=0)  # type: ignore[type-var]
    async with serving(server) as read_only:
        health = server.listeners[1].port
        assert (await get(read_only, "/pods")).status == 200
        assert (await get(read_only, "/metrics/probes")).status == 200
        for path in ("/exec/ns/pod/c", "/logs/", "/runningpods/", "/run/ns/pod/c", "/debug/pprof/"):
            answer = await get(read_only, path)
            assert (answer.status, answer.text) == (405, "Debug endpoints are disabled.\n"), path
        assert (await get(read_only, "/configz")).status == 404
        assert (await get(health, "/healthz")).text == "ok"
        assert (await get(health, "/healthz/ping")).text == "ok"
        assert (await get(health, "/healthz/syncloop")).status == 404
        assert (await get(health, "/pods")).status == 404


async def test_a_second_agent_does_not_take_the_local_socket_away(world: ServedNode, tmp_path: Path) -> None:
    path = tmp_path / "run" / "pykubelet.sock"
    world.settings = replace(world.settings, enable_server=False)
    before = os.umask(0o002)
    try:
        with socket.socket(socket.AF_UNIX) as killed:  # leaves its file behind
            path.parent.mkdir()
            killed.bind(str(path))
        async with serving(world.server(local_socket=path)):
            assert path.stat().st_mode & 0o777 == 0o600, "whatever the mask of the process"
            with pytest.raises(CannotListen, match="another agent with the same root folder runs"):
                world.server(local_socket=path).open()
            reader, writer = await asyncio.open_unix_connection(str(path))
            client = RawClient(reader, writer)
            assert (await client.ask("GET", "/healthz")).text == "ok"
            writer.close()
        assert not path.exists()
        async with serving(world.server(local_socket=path)):
            assert path.exists()
    finally:
        os.umask(before)


async def test_the_local_socket_needs_no_certificate(world: ServedNode, tmp_path: Path) -> None:
    path = tmp_path / "run" / "pykubelet.sock"
    world.settings = replace(world.settings, enable_server=False)
    world.explain = lambda namespace, name: {"pod": f"{namespace}/{name}"} if name == "web" else None
    server = world.server(local_socket=path)
    assert server.listeners[0].address == LocalAddress(path)
    async with serving(server):
        assert path.stat().st_mode & 0o777 == 0o600
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /explain/ns/web HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readline()
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readline() == b'{"pod":"ns/web"}\n'
        writer.close()
        await writer.wait_closed()
    assert not path.exists()


async def test_an_address_that_is_taken_is_said(world: ServedNode) -> None:
    world.settings = replace(world.settings, enable_server=False, healthz_port=1)
    first, second = world.server(), world.server()
    first.listeners[0].address = structs.replace(first.listeners[0].address, port=0)  # type: ignore[type-var]
    async with serving(first) as port:
        second.listeners[0].address = structs.replace(second.listeners[0].address, port=port)  # type: ignore[type-var]
        with pytest.raises(CannotListen, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
            second.open()


async def test_certificates_are_read_again_without_a_restart(world: ServedNode) -> None:
    world.reviewer.everything = {"ada"}
    ada = world.ca.issue("ada")
    async with serving(world.server()) as port:
        async with connected(port, world.client_context(ada)) as client:
            before = client.writer.get_extra_info("peercert")["serialNumber"]
            fresh = world.ca.issue("server2", hosts=["127.0.0.1"])
            shutil.copy(fresh.key, world.serving.key)
            shutil.copy(fresh.certificate, world.serving.certificate)
            async with connected(port, world.client_context(ada)) as second:
                assert second.writer.get_extra_info("peercert")["serialNumber"] != before
                assert (await second.ask("GET", "/healthz")).status == 200
            assert (await client.ask("GET", "/healthz")).status == 200  # serving files changed, not the CA
        world.serving.certificate.write_text("garbage")
        async with connected(port, world.client_context(ada)) as third:
            assert (await third.ask("GET", "/healthz")).status == 200


async def test_a_ca_that_was_taken_away_is_forgotten_on_open_connections(world: ServedNode, tmp_path: Path) -> None:
    world.reviewer.everything = {"ada"}
    bundle = tmp_path / "clients.crt"
    shutil.copy(world.ca.pair.certificate, bundle)
    x509 = replace(world.settings.authentication.x509, client_ca_file=str(bundle))
    world.settings = replace(world.settings, authentication=replace(world.settings.authentication, x509=x509))
    context = world.client_context(world.ca.issue("ada"))
    other = tmp_path / "other"
    other.mkdir()
    async with serving(world.server()) as port, connected(port, context) as client:
        assert (await client.ask("GET", "/healthz")).status == 200
        shutil.copy(Authority(other, "other").pair.certificate, bundle)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.ask("GET", "/healthz")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await get(port, "/healthz", context)


async def test_slow_callers_are_cut_and_make_room(world: ServedNode) -> None:
    world.reviewer.everything = {"ada"}
    world.limits = Limits(pending_connections=20, head=0.3)
    nobody, ada = world.client_context(), world.client_context(world.ca.issue("ada"))
    async with serving(world.server()) as port:
        slow = []
        for _ in range(40):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=nobody)
            writer.write(b"GET /pods HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            slow.append((reader, writer))
        assert (await get(port, "/healthz", ada)).status == 200
        async with asyncio.timeout(5):
            for reader, writer in slow:
                with contextlib.suppress(OSError):
                    assert await reader.read() == b""
                writer.close()


async def test_headers_that_are_too_large(world: ServedNode) -> None:
    world.limits = Limits(head_bytes=8192)
    async with serving(world.server()) as port:
        for request, expected in (
            (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
            (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
            (b"GET / HTTP/1.1\r\n" + b"A: bbbbbbbbbb\r\n" * 90 * 8 + b"\r\n", 431),
            (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 400),
            (b"\x16\x03\x01 not http at all\r\n\r\n", 400),
        ):
            async with connected(port, world.client_context()) as client:
                client.writer.write(request)
                status, _ = await client.head()
                assert status == expected
                assert b"Traceback" not in await client.reader.read()


EXEC = "/exec/default/web/app?command=cat&command=a%20b&input=1&output=1"
SPDY = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}


async def test_exec_joins_the_caller_to_the_runtime(world: ServedNode) -> None:
    data = random.Random(1).randbytes(8 * 1024 * 1024)
    async with streaming_runtime(echo) as (url, heads):
        with_a_pod(world, url)
        context = world.client_context(world.ca.issue("ada"))
        async with serving(world.server()) as port, connected(port, context) as client:
            client.send("POST", EXEC, {**SPDY, "Authorization": "Bearer secret", "Content-Length": "0"})
            status, headers = await client.head()
            assert (status, headers["upgrade"]) == (101, "SPDY/3.1")

            async def write() -> None:
                client.writer.write(data)
                await client.writer.drain()

            _, received = await asyncio.gather(write(), client.reader.readexactly(len(data)))
            assert received == data
        assert ("exec", "c1", ("cat", "a b"), {"tty": False, "stdin": True, "stdout": True, "stderr": False}) in (
            world.runtime.calls
        )
        head = heads[0].decode().lower()
        assert head.startswith("post /exec/token-1 http/1.1\r\nhost: 127.0.0.1:")
        assert "secret" not in head
        assert "x-stream-protocol-version: v4.channel.k8s.io" in head


async def test_what_the_runtime_said_last_arrives_although_the_caller_is_slow(world: ServedNode) -> None:
    data = random.Random(2).randbytes(4 * 1024 * 1024)

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    async with streaming_runtime(pour) as (url, _):
        with_a_pod(world, url)
        context = world.client_context(world.ca.issue("ada"))
        async with serving(world.server()) as port, connected(port, context) as client:
            client.send("POST", EXEC, SPDY)
            assert (await client.head())[0] == 101
            received = bytearray()
            while block := await client.reader.read(50_000):
                received += block
                await asyncio.sleep(0.001)
            assert bytes(received) == data


async def test_an_idle_stream_ends(world: ServedNode) -> None:
    world.settings = replace(world.settings, streaming_connection_idle_timeout=0.1)
    async with streaming_runtime(echo) as (url, _):
        with_a_pod(world, url)
        context = world.client_context(world.ca.issue("ada"))
        async with serving(world.server()) as port, connected(port, context) as client:
            client.send("POST", EXEC, SPDY)
            assert (await client.head())[0] == 101
            async with asyncio.timeout(5):
                assert await client.reader.read() == b""


async def test_malformed_upgrades(world: ServedNode) -> None:
    with_a_pod(world, "http://127.0.0.1:1/exec/gone")
    context = world.client_context(world.ca.issue("ada"))
    async with serving(world.server()) as port:
        cases = [
            ("POST", EXEC, {}, 400, "Upgrade request required"),
            ("POST", EXEC, {"Connection": "Upgrade", "Upgrade": "h2c"}, 400, "unknown protocol"),
            ("POST", EXEC, {"Connection": "keep-alive", "Upgrade": "SPDY/3.1"}, 400, "Upgrade request required"),
            ("POST", "/exec/default/web/app?command=ls", SPDY, 400, "at least 1 of stdin, stdout, stderr"),
            ("POST", "/exec/default/nope/app?command=ls&output=1", SPDY, 404, "pod does not exist"),
            ("POST", "/exec/default/web/nope?command=ls&output=1", SPDY, 500, 'container not found ("nope")'),
            ("POST", "/exec/default/web/other-uid/app?command=ls&output=1", SPDY, 404, "pod not found"),
            ("POST", EXEC, SPDY, 502, "error dialing backend"),
        ]
        for method, path, headers, status, text in cases:
            async with connected(port, context) as client:
                answer = await client.ask(method, path, headers)
                assert (answer.status, text in answer.text) == (status, True), (path, answer)


async def test_what_the_runtime_refuses_is_passed_on(world: ServedNode) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 11\r\nContent-Type: text/plain\r\n\r\nno token 12")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        with_a_pod(world, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/exec/t")
        context = world.client_context(world.ca.issue("ada"))
        async with serving(world.server()) as port, connected(port, context) as client:
            answer = await client.ask("POST", EXEC, SPDY)
            assert (answer.status, answer.text) == (404, "no token 12")
            assert (await client.ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize(
    "scenario",
    [
        test_who_gets_in,
        test_exec_joins_the_caller_to_the_runtime,
        test_what_the_runtime_said_last_arrives_although_the_caller_is_slow,
        test_an_idle_stream_ends,
        test_certificates_are_read_again_without_a_restart,
        test_slow_callers_are_cut_and_make_room,
    ],
)
def test_the_loop_of_production_does_the_same(
    scenario: Callable[[ServedNode], Coroutine[Any, Any, None]], world: ServedNode
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario(world))


WORDS = """pods logs exec default web app .. %2e%2e healthz metrics containerLogs run %00 ä debug flags v
stats summary attach portForward"""
EXPECTED = {(503, "stats"), (500, "run"), (500, "attach"), (500, "exec")}


async def test_random_requests_never_break_it(world: ServedNode, caplog: pytest.LogCaptureFixture) -> None:
    with_a_pod(world, "http://127.0.0.1:1/exec/gone")
    (world.folder / "log").mkdir()
    dice = random.Random(3)
    words = [*WORDS.split(), ""]
    context = world.client_context(world.ca.issue("ada"))
    async with serving(world.server()) as port:
        for _ in range(200):
            path = "/" + "/".join(dice.choices(words, k=dice.randrange(6)))
            names = dice.choices(["tailLines", "port", "input", "follow"], k=2)
            query = "&".join(f"{name}={dice.choice(['1', '-1', 'x', '%ff'])}" for name in names)
            method = dice.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS", "BREW"])
            async with connected(port, context) as client:
                request = f"{method} {path}?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                client.writer.write(request.encode())
                status, _ = await client.head()
                body = await client.reader.read()
            assert status < 500 or (status, path.split("/")[1]) in EXPECTED, (method, path, status, body)
            assert b"Traceback" not in body
    assert "unexpectedly" not in caplog.text


@pytest.mark.parametrize("number", [errno.EPERM, errno.EHOSTUNREACH, errno.EPROTO, errno.EMFILE])
def test_a_caller_that_cannot_be_accepted_ends_nothing(world: ServedNode, number: int) -> None:
    """Linux hands errors of the new connection to whoever accepts it."""

    class Listening:
        def accept(self) -> None:
            raise OSError(number, os.strerror(number))

    listener = world.server().listeners[0]
    assert listener._accept(cast(Any, Listening()), cast(Any, None)) is False


def test_a_listening_socket_that_is_none_any_more_is_an_error(world: ServedNode) -> None:
    class Closed:
        def accept(self) -> None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    with pytest.raises(OSError, match="Bad file descriptor"):
        world.server().listeners[0]._accept(cast(Any, Closed()), cast(Any, None))
