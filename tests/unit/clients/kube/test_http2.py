"""How requests and watches use HTTP/2: which connections, which protocol, what is sent again, through which proxy."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import math
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import h2.settings
import pytest
from aiohttp import web

from pykubelet.clients.http2 import frames as wire
from pykubelet.clients.http2.session import NotProcessed
from pykubelet.clients.kube import dialing, exchanges
from pykubelet.clients.kube import transport as transport_module
from pykubelet.clients.kube.connections import Connections, ServerConnections, http2_health
from pykubelet.clients.kube.kubeconfig import ClusterEntry, Kubeconfig, UserEntry
from pykubelet.clients.kube.socks import ProxyRefused, login_message, target_address
from pykubelet.clients.kube.transport import Transport
from pykubelet.kit.clock import SystemClock
from pykubelet.model.errors import ApiDown, ApiServerError
from tests.bed.certificates import Authority
from tests.unit.clients.http2.servers import Asked, Handler, ok
from tests.unit.clients.http2.servers import serving as serving_http2
from tests.unit.clients.kube import api_server
from tests.unit.clients.kube.api_server import ApiServer, as_it_is, server_tls

pytestmark = pytest.mark.uvloop

CLOCK = SystemClock()
MAX_STREAMS = h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Callable[..., ssl.SSLContext]:
    pair = authority.issue("server", hosts=["127.0.0.1", "api.example"])

    def context(*protocols: str) -> ssl.SSLContext:
        made = server_tls(authority, pair)
        made.set_alpn_protocols(list(protocols))
        return made

    return context


@dataclass
class Bench:
    """A server, and clients that log in to it."""

    authority: Authority
    tls: Callable[..., ssl.SSLContext]
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)

    def server(self, handler: Handler, **options: Any) -> Any:
        return serving_http2(handler, tls=self.tls("h2"), **options)

    def connections(self, url: str, environ: dict[str, str] | None = None, **cluster: Any) -> ServerConnections:
        ca = self.authority.pair.certificate.read_bytes()
        config = Kubeconfig(cluster=ClusterEntry(server=url, ca_data=ca, **cluster), user=UserEntry(), source="test")
        made = ServerConnections(config, clock=CLOCK, environ=environ or {})
        self.closing.push_async_callback(made.close)
        return made

    def transport(self, url: str, environ: dict[str, str] | None = None, **cluster: Any) -> Transport:
        return Transport(self.connections(url, environ, **cluster), agent="test", qps=-1)


@pytest.fixture
def bench(authority: Authority, tls: Callable[..., ssl.SSLContext]) -> Bench:
    return Bench(authority, tls)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await CLOCK.sleep(0.005)


@asynccontextmanager
async def watching(transport: Transport, count: int) -> AsyncIterator[list[Any]]:
    """So many watches that have each heard their first line."""
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(aclosing(transport.stream(f"/watch/{number}", silence=30, read=as_it_is)))
            for number in range(count)
        ]
        assert await asyncio.gather(*map(anext, streams)) == [b"first"] * count
        yield streams


async def watch(asked: Asked) -> None:
    if asked.path.startswith("/watch"):
        asked.head()
        asked.say(b"first\n")
    else:
        await ok(asked)


async def test_all_clients_of_a_login_share_as_few_connections_as_the_server_allows(bench: Bench) -> None:
    async with bench.server(watch, settings={MAX_STREAMS: 250}) as server, bench.closing:
        connections = bench.connections(server.url)
        clients = [Transport(connections, agent="test", qps=-1) for _ in range(3)]
        async with watching(clients[0], 300):
            for client in clients:
                assert await client.request("POST", "/x", body=b"{}") == b"ok"
            assert len(server.open) == 2
        assert {len(peer.asked) > 200 for peer in server.peers} == {True, False}


async def test_connections_apart_are_of_the_same_login_and_end_by_themselves(bench: Bench) -> None:
    async with bench.server(watch) as server, bench.closing:
        common = bench.connections(server.url)
        await common.open()
        apart = common.apart()
        bench.closing.push_async_callback(apart.close)
        clients = [Transport(each, agent="test", qps=-1) for each in (common, apart, apart)]
        for client in clients:
            assert await client.request("GET", "/x") == b"ok"
        assert len(server.open) == 2
        await common.close()
        assert await clients[1].request("GET", "/x") == b"ok"
        await until(lambda: len(server.open) == 1)


async def test_first_300_watches_at_once_need_no_more_connections(bench: Bench) -> None:
    async with (
        bench.server(watch, settings={MAX_STREAMS: 250}) as server,
        bench.closing,
        watching(bench.transport(server.url), 300),
    ):
        assert len(server.open) == 2


async def test_server_that_lowers_its_limit_gets_what_it_refused_again(bench: Bench) -> None:
    async def refuse_some(asked: Asked) -> None:
        if len(server.requests) % 3 == 0 and len(server.requests) < 100:
            asked.reset(wire.REFUSED_STREAM)
        else:
            await ok(asked)

    async with bench.server(refuse_some) as server, bench.closing:
        transport = bench.transport(server.url)
        await asyncio.gather(*(transport.request("POST", "/x", body=b"{}") for _ in range(30)))
        async with asyncio.timeout(5), aclosing(transport.stream("/x", silence=5, read=as_it_is)) as stream:
            assert [line async for line in stream] == []


async def test_server_that_refuses_everything_is_down_and_is_not_hammered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(asked: Asked) -> None:
        asked.reset(wire.REFUSED_STREAM)

    monkeypatch.setattr(transport_module, "RETRIES", 4)
    async with bench.server(refuse) as server, bench.closing:
        transport = bench.transport(server.url)
        told: list[bool] = []
        for request in (
            transport.request("POST", "/x", body=b"{}"),
            anext(transport.stream("/x", silence=5, read=as_it_is, sent=told.append)),
        ):
            server.requests.clear()
            with pytest.raises(ApiDown, match="REFUSED_STREAM"):
                await request
            assert len(server.requests) == 5
        assert told == [True, False] * 4 + [True]
        assert len(server.peers) == 1


async def test_goodbye_moves_new_requests_to_a_new_connection_and_leaves_watches_alone(bench: Bench) -> None:
    async with bench.server(watch) as server, bench.closing:
        transport = bench.transport(server.url)
        async with watching(transport, 20) as streams:
            server.peers[0].goaway(2**31 - 1)
            server.peers[0].goaway(server.requests[-1].stream)
            await transport.request("GET", "/x")
            assert len(server.open) == 2
            for asked in server.requests[:20]:
                asked.say(b"second\n")
            assert await asyncio.gather(*map(anext, streams)) == [b"second"] * 20
        await until(lambda: len(server.open) == 1)


async def test_post_that_a_goodbye_leaves_out_is_sent_again(bench: Bench) -> None:
    async def goodbye(asked: Asked) -> None:
        if len(server.peers) == 1:
            asked.peer.goaway(asked.stream - 1)
        else:
            await ok(asked)

    async with bench.server(goodbye) as server, bench.closing:
        assert await bench.transport(server.url).request("POST", "/x", body=b"{}") == b"ok"
        assert [bytes(asked.body) for asked in server.requests] == [b"{}", b"{}"]


async def test_silent_server_ends_watches_and_the_next_request_connects_anew(bench: Bench) -> None:
    environ = {"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "1", "HTTP2_PING_TIMEOUT_SECONDS": "1"}
    async with bench.server(watch) as server, bench.closing:
        transport = bench.transport(server.url, environ)
        async with watching(transport, 3) as streams:
            server.peers[0].silent = True
            for stream in streams:
                with pytest.raises(ApiDown, match="no answer to a PING"):
                    await anext(stream)
        assert await transport.request("GET", "/x") == b"ok"


async def test_server_without_http2_is_asked_over_http1_until_it_learned_it(bench: Bench) -> None:
    async with bench.closing:
        old = ApiServer(api_server.ok, bench.tls("http/1.1"))
        await old.start()
        transport = bench.transport(old.url)
        for _ in range(3):
            assert await transport.request("GET", "/x") == b'{"ok": true}'
        await old.stop()
        with pytest.raises(ApiDown):
            await transport.request("GET", "/x")
        async with bench.server(ok, port=old.port) as new:
            assert await transport.request("GET", "/x") == b"ok"
            assert len(new.requests) == 1


async def test_http2_can_be_switched_off(bench: Bench) -> None:
    async with bench.closing, api_server.serving(api_server.ok, tls=bench.tls("h2", "http/1.1")) as server:
        transport = bench.transport(server.url, {"DISABLE_HTTP2": "1"})
        assert await transport.request("GET", "/x") == b'{"ok": true}'
        with pytest.raises(ApiDown):
            await bench.transport(server.url).request("GET", "/x")  # which shows that it would have been chosen


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (30, 15)),
        ({"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "5", "HTTP2_PING_TIMEOUT_SECONDS": "3"}, (5, 3)),
        ({"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "0", "HTTP2_PING_TIMEOUT_SECONDS": "0"}, (math.inf, 15)),
        ({"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "-1"}, (math.inf, 15)),
        ({"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "soon", "HTTP2_PING_TIMEOUT_SECONDS": ""}, (30, 15)),
        ({"DISABLE_HTTP2": ""}, (30, 15)),
        ({"DISABLE_HTTP2": "false"}, None),  # as everywhere: any text counts
    ],
)
def test_variables_that_all_kubernetes_clients_know(environ: dict[str, str], expected: tuple[int, int] | None) -> None:
    health = http2_health(environ)
    assert (None if health is None else (health.idle, health.answer)) == expected


async def test_many_who_wait_for_a_server_that_is_down_learn_it_from_one_attempt(bench: Bench) -> None:
    knocks = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal knocks
        knocks += 1
        await asyncio.sleep(0.2)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, bench.closing:
        transport = bench.transport(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        streams = [anext(transport.stream("/x", silence=5, read=as_it_is)) for _ in range(200)]
        async with asyncio.timeout(5):
            found = await asyncio.gather(*streams, return_exceptions=True)
        assert {type(each) for each in found} == {ApiDown}
        assert knocks == 1


async def test_server_that_is_away_is_not_knocked_at_for_each_request(bench: Bench) -> None:
    knocks = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal knocks
        knocks += 1
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, bench.closing:
        transport = bench.transport(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ends = CLOCK.monotonic() + 1.5
        asked = 0
        while CLOCK.monotonic() < ends:
            asked += 1
            with pytest.raises(ApiDown):
                await transport.request("POST", "/x", body=b"{}")
            await CLOCK.sleep(0.005)
        assert asked > 50
        assert 4 <= knocks <= 8, "at 0, about 0.06, 0.2, 0.4, 0.9 s"


async def test_number_of_connections_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(transport_module, "RETRIES", 1)
    async with bench.server(watch, settings={MAX_STREAMS: 1}) as server, bench.closing:
        transport = bench.transport(server.url)
        async with AsyncExitStack() as stack:
            for number in range(3):
                stream = await stack.enter_async_context(
                    aclosing(transport.stream(f"/watch/{number}", silence=5, read=as_it_is))
                )
                await anext(stream)
            with pytest.raises(ApiDown, match="none of 3 connections"):
                await transport.request("GET", "/x")
        assert await transport.request("GET", "/x") == b"ok"
        assert len(server.peers) == 3


async def test_many_goodbyes_do_not_use_up_the_connections(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MOST_CONNECTIONS", 3)

    async def goodbye(asked: Asked) -> None:
        await watch(asked)
        asked.peer.goaway(2**31 - 1)

    async with bench.server(goodbye) as server, bench.closing, AsyncExitStack() as stack:
        transport = bench.transport(server.url)
        streams = []
        for number in range(5):
            stream = transport.stream(f"/watch/{number}", silence=5, read=as_it_is)
            streams.append(await stack.enter_async_context(aclosing(stream)))
            assert await anext(stream) == b"first"
            await until(lambda: connections_of(transport)[-1].is_draining)
        await until(lambda: len(server.open) == 3)
        for stream in streams[:2]:
            with pytest.raises(ApiDown, match="too many connections"):
                await anext(stream)
        server.requests[2].say(b"second\n")
        assert await anext(streams[2]) == b"second"


def connections_of(transport: Transport) -> list[Any]:
    current: Any = transport._server._current
    return list(current._http2._open)


async def test_answers_and_events_without_end_are_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MOST_BODY", 3_000_000)
    monkeypatch.setattr(transport_module, "LONGEST_LINE", 3_000_000)

    async def endless(asked: Asked) -> None:
        asked.head()
        while asked.gone is None:
            await asked.pour(b"x" * 100_000)

    async with bench.server(endless) as server, bench.closing:
        transport = bench.transport(server.url)
        with pytest.raises(ApiServerError, match="more than 3000000 bytes"):
            await transport.request("GET", "/x")
        with pytest.raises(ApiServerError, match="more than 3000000 bytes"):
            await anext(transport.stream("/x", silence=5, read=as_it_is))
        await until(lambda: [asked.gone for asked in server.requests] == [wire.CANCEL, wire.CANCEL])


async def test_renewed_connections_let_requests_finish_and_take_no_new_ones(bench: Bench) -> None:
    release = asyncio.Event()

    async def wait(asked: Asked) -> None:
        if asked.path == "/slow":
            await release.wait()
        await watch(asked)

    async with bench.server(wait) as server, bench.closing:
        connections = bench.connections(server.url)
        transport = Transport(connections, agent="test", qps=-1)
        async with watching(transport, 2) as streams, asyncio.TaskGroup() as tasks:
            slow = tasks.create_task(transport.request("POST", "/slow", body=b"{}"))
            await until(lambda: len(server.requests) == 3)
            await connections.renew()
            for stream in streams:
                with pytest.raises(StopAsyncIteration):
                    await anext(stream)
            assert await transport.request("GET", "/x") == b"ok"
            assert len(server.open) == 2
            release.set()
            assert await slow == b"ok"
            await until(lambda: len(server.open) == 1)


# --- proxies ------------------------------------------------------------------------------------------


@dataclass
class Proxy:
    """A proxy that knows CONNECT only."""

    status: str = "200 Connection established"
    heads: list[str] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        writer.write(f"HTTP/1.1 {self.status}\r\nX: y\r\n\r\n".encode())
        if self.status.startswith("200"):
            host, _, port = head.split()[1].rpartition(":")
            assert host == "api.example"
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(port))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pipe(reader, far_writer))
                tasks.create_task(_pipe(far_reader, writer))
        writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


@asynccontextmanager
async def proxying(proxy: Proxy, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        proxy.port = server.sockets[0].getsockname()[1]
        yield proxy


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_http2_goes_through_the_proxy(bench: Bench, scheme: str) -> None:
    secure = bench.tls("http/1.1") if scheme == "https" else None
    async with bench.server(watch) as server, proxying(Proxy(), secure) as proxy:
        async with bench.closing:
            transport = bench.transport(
                f"https://api.example:{server.port}", proxy_url=f"{scheme}://me:p%40w@127.0.0.1:{proxy.port}"
            )
            async with watching(transport, 3):
                assert await transport.request("GET", "/x") == b"ok"
        await until(lambda: not server.open)
    (head,) = proxy.heads
    assert head.startswith(f"CONNECT api.example:{server.port} HTTP/1.1\r\nHost: api.example:{server.port}\r\n")
    assert base64.b64encode(b"me:p@w").decode() in head


@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "nonsense"])
async def test_proxy_that_refuses_is_named(bench: Bench, status: str) -> None:
    async with proxying(Proxy(status)) as proxy, bench.closing:
        transport = bench.transport("https://api.example:1", proxy_url=f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ApiDown, match=r"the proxy 127\.0\.0\.1"):
            await transport.request("GET", "/x")


@dataclass
class SocksServer:
    """A SOCKS5 server for one login, or for everybody; `answers` replaces what it says, message by message."""

    login: tuple[bytes, bytes] | None = None
    answers: list[bytes] | None = None
    wanted: list[tuple[str, int]] = field(default_factory=list)
    said: bytes = b""
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await (self._play(reader, writer) if self.answers is not None else self._connect(reader, writer))
        writer.close()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in self.answers or ():
            self.said += await reader.read(1000)
            writer.write(answer)
        if self.answers == [b""]:  # says nothing, and waits
            await reader.read(1)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        assert version == 5 and (2 in methods) is (self.login is not None)
        writer.write(b"\x05\x02" if self.login is not None else b"\x05\x00")
        if self.login is not None:
            assert await reader.readexactly(1) == b"\x01"
            user, password = [await reader.readexactly((await reader.readexactly(1))[0]) for _ in range(2)]
            writer.write(b"\x01\x00" if (user, password) == self.login else b"\x01\x01")
        head = await reader.readexactly(4)
        assert head[:3] == b"\x05\x01\x00"
        if head[3] == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = str(ipaddress.ip_address(await reader.readexactly(4 if head[3] == 1 else 16)))
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.wanted.append((host, port))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x05\x00\x00\x03\x04here\x12\x34")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_pipe(reader, far_writer))
            tasks.create_task(_pipe(far_reader, writer))


@asynccontextmanager
async def socks(proxy: SocksServer) -> AsyncIterator[SocksServer]:
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        proxy.port = server.sockets[0].getsockname()[1]
        yield proxy


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
@pytest.mark.parametrize("host", ["api.example", "127.0.0.1"])
async def test_http2_goes_through_a_socks_proxy(bench: Bench, scheme: str, host: str) -> None:
    """The proxy resolves the name: here nobody could."""
    async with bench.server(watch) as server, socks(SocksServer(login=(b"me", b"p@w"))) as proxy:
        async with bench.closing:
            url = f"{scheme}://me:p%40w@127.0.0.1:{proxy.port}"
            transport = bench.transport(f"https://{host}:{server.port}", proxy_url=url)
            async with watching(transport, 3):
                assert await transport.request("GET", "/x") == b"ok"
        await until(lambda: not server.open)
    assert proxy.wanted == [(host, server.port)]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_http1_goes_through_a_socks_proxy(bench: Bench, scheme: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({})

    tls = bench.tls("http/1.1") if scheme == "https" else None
    async with api_server.serving(answer, tls=tls) as server, socks(SocksServer()) as proxy:
        environ = {f"{scheme.upper()}_PROXY": f"socks5://127.0.0.1:{proxy.port}"}
        port = int(server.url.rpartition(":")[2])
        async with bench.closing:
            transport = bench.transport(f"{scheme}://api.example:{port}", environ)
            for _ in range(3):
                assert await transport.request("GET", "/x") == b"{}"
    assert set(proxy.wanted) == {("api.example", port)}


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([b"\x05\xff"], "no acceptable authentication methods"),
        ([b"\x05\x01"], "unsupported authentication method 1"),
        ([b"\x04\x00"], "unexpected protocol version 4"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "unexpected protocol version 72"),
        ([b"\x05\x02", b"\x01\x01"], "username/password authentication failed"),
        ([b"\x05\x00", b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"], "connection refused"),
        ([b"\x05\x00", b"\x05\x63\x00\x01"], "unknown code: 99"),
        ([b"\x05\x00", b"\x05\x00\x00\x09"], "unknown address type 9"),
        ([b"\x05\x00", b"\x05\x00\x00\x03\xff"], "it closed the connection"),
        ([b"\x05"], "it closed the connection"),
    ],
)
async def test_socks_proxy_that_refuses_is_named(bench: Bench, answers: list[bytes], told: str) -> None:
    async with socks(SocksServer(answers=answers)) as proxy, bench.closing:
        transport = bench.transport("https://api.example:1", proxy_url=f"socks5://me:pw@127.0.0.1:{proxy.port}")
        with pytest.raises(ApiDown, match=rf"the proxy 127\.0\.0\.1: {re.escape(told)}"):
            await transport.request("GET", "/x")


async def test_socks_proxy_that_says_nothing_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "CONNECT_TIMEOUT", 0.05)
    async with socks(SocksServer(answers=[b""])) as proxy, bench.closing:
        transport = bench.transport("https://api.example:1", proxy_url=f"socks5://127.0.0.1:{proxy.port}")
        with pytest.raises(ApiDown):
            await transport.request("GET", "/x")


def test_what_socks_cannot_carry_is_refused() -> None:
    assert target_address("b\u00fccher.example")[:2] == b"\x03\x15"
    assert target_address("::1") == b"\x04" + b"\0" * 15 + b"\x01"
    for host in ("", "a" * 300, "\u00fc" * 100):
        with pytest.raises(ProxyRefused):
            target_address(host)
    with pytest.raises(ProxyRefused):
        login_message("u", "p" * 256)


async def test_a_watch_that_begins_while_connections_are_renewed_is_not_tried_on_the_old_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(self: Connections, request: exchanges.Request) -> exchanges.Answer:
        self.retired = True
        raise NotProcessed("new connections are used")

    monkeypatch.setattr(Connections, "open", refuses)
    transport = bench.transport("https://127.0.0.1:1")
    async with asyncio.timeout(5):
        async with aclosing(transport.stream("/watch", silence=5, read=as_it_is)) as lines:
            assert [line async for line in lines] == []


@pytest.mark.parametrize(
    ("header", "seconds"), [("5", 5.0), ("86400", 30.0), ("99999999999", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)]
)
async def test_no_server_makes_us_wait_for_long(header: str, seconds: float | None) -> None:
    assert transport_module.error_of(503, b"<html>maintenance</html>", header).retry_after == seconds
