"""The transport against a real server on loopback: credentials change, servers fail, connections break.

Every test with the fixture `serving` holds for HTTP/1.1 and HTTP/2 alike.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pykubelet.clients.kube import dialing
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.exchanges import FIRST_PAUSE
from pykubelet.clients.kube.kubeconfig import ClusterEntry, ExecEntry, Kubeconfig, KubeconfigError, UserEntry
from pykubelet.clients.kube.transport import LINES_AT_ONCE, RequestMetrics, Transport, _Lines
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import (
    AlreadyExists,
    ApiConflict,
    ApiDown,
    ApiError,
    ApiServerError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
from tests.bed.silence import silent_wire
from tests.unit.clients.kube import api_server
from tests.unit.clients.kube.api_server import LEAVING, ApiServer, an_authority, as_it_is, ok

pytestmark = pytest.mark.real_loop

Serving = Callable[..., AbstractAsyncContextManager[ApiServer]]


@pytest.fixture(scope="module")
def usual_tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return an_authority(tmp_path_factory.mktemp("tls"))[1]


@pytest.fixture(params=["http/1.1", "h2"])
def serving(request: pytest.FixtureRequest, usual_tls: ssl.SSLContext) -> Serving:
    """A server that speaks that protocol."""
    if request.param == "http/1.1":
        return api_server.serving

    def front(handler: api_server.Handler, *, tls: ssl.SSLContext | None = None) -> Any:
        return api_server.serving(handler, front=tls or usual_tls)

    return front


def a_transport(url: str, user: UserEntry | None = None, **options: Any) -> Transport:
    cluster = {name: options.pop(name) for name in list(options) if name in ClusterEntry.__struct_fields__}
    if url.startswith("https:") and not {"ca_data", "ca_file"} & cluster.keys():
        cluster["insecure"] = True
    config = Kubeconfig(cluster=ClusterEntry(server=url, **cluster), user=user or UserEntry(), source="test.conf")
    server = ServerConnections(config, clock=SystemClock(), environ=options.pop("environ", {}))
    return Transport(server, agent="kubelet/v1.36.4 (linux/amd64) kubernetes/pykubelet", **options)


async def test_request_carries_what_servers_log_and_need(serving: Serving) -> None:
    async with serving(ok) as server:
        transport = a_transport(server.url, UserEntry(token="secret", impersonate=(("Impersonate-User", "me"),)))
        query = [("fieldSelector", "metadata.name=a b"), ("limit", "1")]
        assert (
            await transport.request("PATCH", "/api/v1/x", query=query, body=b"{}", content_type="a/b")
            == b'{"ok": true}'
        )
        await transport.close()
    (request,) = server.requests
    assert request.headers["User-Agent"].startswith("kubelet/v1.36.4 ")
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Impersonate-User"] == "me"
    assert request.headers["Content-Type"] == "a/b"
    assert request.query["fieldSelector"] == "metadata.name=a b"


async def test_requests_and_waits_are_counted(serving: Serving) -> None:
    metrics = Registry()
    async with serving(ok) as server:
        observers = {"metrics": RequestMetrics(metrics)}
        transport = a_transport(server.url, qps=20, burst=1, **observers)
        for _ in range(2):
            await transport.request("GET", "/api/v1/x")
        await transport.close()
    host = server.url.partition("://")[2]
    assert metrics.counter("rest_client_requests_total", "").value("200", host, "GET") == 2
    assert metrics.histogram("rest_client_request_duration_seconds", "").count(host, "GET") == 2
    assert metrics.histogram("rest_client_rate_limiter_duration_seconds", "").count("GET", host) == 2
    assert metrics.histogram("rest_client_request_size_bytes", "").count("GET", host) == 2
    assert metrics.histogram("rest_client_response_size_bytes", "").count("GET", host) == 2


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Expired),
        (410, "Gone", Expired),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ApiServerError),
        (504, "Timeout", ApiServerError),
        (302, "", ApiError),
    ],
)
async def test_refusals_are_told_apart(serving: Serving, code: int, reason: str, expected: type[Exception]) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "reason": reason, "message": "because", "code": code}, status=code)

    async with serving(refuse) as server:
        transport = a_transport(server.url)
        with pytest.raises(expected, match="because") as caught:
            await transport.request("GET", "/x")
        await transport.close()
    assert isinstance(caught.value, ApiError)
    assert (caught.value.code, caught.value.reason) == (code, reason)


async def test_refusal_of_a_foreign_uid_is_a_conflict(serving: Serving) -> None:
    async def refuse(request: web.Request) -> web.Response:
        details = {"causes": [{"field": "metadata.uid", "reason": "FieldValueInvalid"}]}
        return web.json_response({"kind": "Status", "reason": "Invalid", "details": details}, status=422)

    async with serving(refuse) as server:
        transport = a_transport(server.url)
        with pytest.raises(ApiConflict):
            await transport.request("PATCH", "/x", body=b"{}")
        await transport.close()


async def test_proxy_page_becomes_a_message(serving: Serving) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(text="<h1>Bad gateway</h1>", status=502)

    async with serving(refuse) as server:
        transport = a_transport(server.url)
        with pytest.raises(ApiServerError, match="Bad gateway"):
            await transport.request("GET", "/x")
        await transport.close()


async def test_server_that_asks_for_patience_is_asked_again(serving: Serving) -> None:
    answers = [429, 503, 200]

    async def busy(request: web.Request) -> web.Response:
        code = answers.pop(0)
        return web.json_response({}, status=code, headers={"Retry-After": "1"} if code != 200 else {})

    metrics = Registry()
    async with serving(busy) as server:
        transport = a_transport(server.url, metrics=RequestMetrics(metrics))
        began = asyncio.get_running_loop().time()
        await transport.request("POST", "/x", body=b"{}")
        assert asyncio.get_running_loop().time() - began >= 2
        await transport.close()
    assert answers == []
    host = server.url.partition("://")[2]
    retries = metrics.counter("rest_client_request_retries_total", "")
    assert [retries.value(code, "POST", host) for code in ("429", "503", "200")] == [1, 1, 0]


async def test_patience_ends_with_the_deadline(serving: Serving) -> None:
    async def busy(request: web.Request) -> web.Response:
        return web.json_response({}, status=429, headers={"Retry-After": "20"})

    async with serving(busy) as server:
        transport = a_transport(server.url)
        with pytest.raises(TooManyRequests) as caught:
            await transport.request("GET", "/x", timeout=5)
        assert caught.value.retry_after == 20
        await transport.close()


async def test_server_that_is_not_there_is_down_and_later_back(serving: Serving) -> None:
    async with serving(ok) as server:
        transport = a_transport(server.url)
        await transport.request("GET", "/x")
        await server.stop()
        with pytest.raises(ApiDown):
            await transport.request("GET", "/x")
        await server.start()
        await SystemClock().sleep(2 * FIRST_PAUSE)
        await transport.request("GET", "/x")
        await transport.close()


async def test_connection_that_ends_in_use_is_tried_once_more_but_never_for_post(serving: Serving) -> None:
    left = 1

    async def hang_up(request: web.Request) -> web.Response:
        nonlocal left
        left -= 1
        if left >= 0:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({})

    async with serving(hang_up) as server:
        transport = a_transport(server.url)
        await transport.request("PATCH", "/x", body=b"{}")
        left = 1
        with pytest.raises(ApiDown):
            await transport.request("POST", "/x", body=b"{}")
        await transport.close()


async def test_answer_that_never_comes_is_down(serving: Serving) -> None:
    async def sleep(request: web.Request) -> web.Response:
        await request.app[LEAVING].wait()
        return web.Response()

    async with serving(sleep) as server:
        transport = a_transport(server.url)
        with pytest.raises(ApiDown, match="no answer in time"):
            await transport.request("GET", "/x", timeout=0.3)
        await transport.close()


async def test_stream_gives_whole_lines_however_long(serving: Serving) -> None:
    big = b"x" * 3_000_000

    async def lines(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b"one\ntw", b"o\n", big, b"\n\nlast\n", b"cut off"):
            await response.write(piece)
        return response

    async with serving(lines) as server:
        transport = a_transport(server.url)
        got = [line async for line in transport.stream("/x", silence=5, read=as_it_is)]
        await transport.close()
    assert got == [b"one", b"two", big, b"last"]


def test_lines_are_cut_from_pieces_of_any_size() -> None:
    text = b"first\n\nsecond\nlast"
    for size in range(1, len(text) + 1):
        lines, found = _Lines(), []
        for at in range(0, len(text), size):
            assert lines.feed(text[at : at + size])
            while lines.complete:
                found.append(lines.complete.pop())
        assert found == [b"first", b"second"]
        assert not lines.feed(b"")


async def test_stream_refused_is_an_error_of_its_own(serving: Serving) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"message": "too old resource version", "reason": "Expired"}, status=410)

    async with serving(refuse) as server:
        transport = a_transport(server.url)
        with pytest.raises(Expired):
            await anext(transport.stream("/x", silence=5, read=as_it_is))
        await transport.close()


async def test_stream_refused_with_an_answer_that_never_ends_is_given_up(serving: Serving) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while not request.app[LEAVING].is_set():
            await response.write(b".")
            await SystemClock().sleep(0.02)
        return response

    async with serving(drip) as server:
        transport = a_transport(server.url, timeout=0.5)
        with pytest.raises(ApiDown, match="no answer in time"):
            await anext(transport.stream("/x", silence=5, read=as_it_is))
        await transport.close()


async def test_loop_has_turns_while_many_lines_are_read(serving: Serving) -> None:
    async def many(request: web.Request) -> web.Response:
        return web.Response(body=b"line\n" * 5000)

    turns = [0]
    """Lines read in each turn of other work."""

    async def other_work() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    async with serving(many) as server:
        transport = a_transport(server.url)
        stream = transport.stream("/x", silence=5, read=as_it_is)
        assert await anext(stream) == b"line"
        other = asyncio.create_task(other_work())
        async for _ in stream:
            turns[-1] += 1
        other.cancel()
        await transport.close()
    assert max(turns) <= LINES_AT_ONCE


async def silent(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first\n")
    await request.app[LEAVING].wait()
    return response


async def test_silent_stream_is_given_up(serving: Serving) -> None:
    async with serving(silent) as server:
        transport = a_transport(server.url)
        stream = transport.stream("/x", silence=0.3, read=as_it_is)
        assert await anext(stream) == b"first"
        with pytest.raises(ApiDown):
            await anext(stream)
        await transport.close()


async def test_stream_tells_when_it_was_sent_though_no_answer_comes(serving: Serving) -> None:
    told: list[bool] = []

    async def never(request: web.Request) -> web.Response:
        await request.app[LEAVING].wait()
        return web.Response()

    async with serving(never) as server:
        transport = a_transport(server.url)
        with pytest.raises(ApiDown, match="no answer in time"):
            await anext(transport.stream("/x", silence=0.3, read=as_it_is, sent=told.append))
        await transport.close()
    assert told == [True]


async def test_renewed_connections_end_streams_without_error(serving: Serving) -> None:
    async with serving(silent) as server:
        transport = a_transport(server.url)
        stream = transport.stream("/x", silence=30, read=as_it_is)
        async with aclosing(stream):
            assert await anext(stream) == b"first"
            asyncio.get_running_loop().call_later(0.05, lambda: renewing.append(loop.create_task(transport.renew())))
            loop, renewing = asyncio.get_running_loop(), []
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            await asyncio.gather(*renewing)
        await transport.close()


async def test_abandoned_connections_end_at_once_though_the_peer_is_silent(serving: Serving, tmp_path: Path) -> None:
    authority, tls = an_authority(tmp_path)
    async with serving(silent, tls=tls) as server:
        with silent_wire(server.reached_at) as wire:
            cluster = ClusterEntry(server=f"https://127.0.0.1:{wire.port}", ca_file=authority.pair.certificate)
            transport = Transport(
                ServerConnections(Kubeconfig(cluster=cluster, user=UserEntry()), clock=SystemClock()), agent="test"
            )
            stream = transport.stream("/x", silence=30, read=as_it_is)
            async with aclosing(stream):
                assert await anext(stream) == b"first"
                wire.cut()
                loop = asyncio.get_running_loop()
                leaving: list[asyncio.Task[None]] = []
                loop.call_later(0.05, lambda: leaving.append(loop.create_task(transport.abandon())))
                async with asyncio.timeout(5):
                    with pytest.raises(StopAsyncIteration):
                        await anext(stream)
                await asyncio.gather(*leaving)
            again = transport.stream("/x", silence=30, read=as_it_is)
            async with aclosing(again):
                assert await anext(again) == b"first"
            await transport.close()


async def test_a_request_without_an_answer_is_repeated_when_its_connection_is_abandoned(
    serving: Serving, tmp_path: Path
) -> None:
    authority, tls = an_authority(tmp_path)
    async with serving(ok, tls=tls) as server:
        with silent_wire(server.reached_at) as wire:
            cluster = ClusterEntry(server=f"https://127.0.0.1:{wire.port}", ca_file=authority.pair.certificate)
            transport = Transport(
                ServerConnections(Kubeconfig(cluster=cluster, user=UserEntry()), clock=SystemClock()), agent="test"
            )
            await transport.request("GET", "/x")
            wire.cut()
            async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
                patched = tasks.create_task(transport.request("PATCH", "/x", body=b"{}"))
                await asyncio.sleep(0.1)
                assert not patched.done()
                await transport.abandon()
            assert patched.result() == b'{"ok": true}'
            await transport.close()


async def test_token_file_is_read_again_as_soon_as_the_server_refuses_the_old_one(
    serving: Serving, tmp_path: Path
) -> None:
    good = "Bearer one"

    async def check(request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if request.headers["Authorization"] == good else 401)

    file = tmp_path / "token"
    file.write_text("one\n")
    async with serving(check) as server:
        transport = a_transport(server.url, UserEntry(token="unused", token_file=file))
        await transport.request("GET", "/x")
        file.write_text("two\n")
        good = "Bearer two"
        await transport.request("GET", "/x")
        good = "Bearer three"
        with pytest.raises(Unauthorized):
            await transport.request("GET", "/x")
        await transport.close()


async def test_client_certificate_is_replaced_without_a_failed_request(serving: Serving, tmp_path: Path) -> None:
    authority, tls = an_authority(tmp_path)
    folder = tmp_path / "client"
    folder.mkdir()
    certificate, key = folder / "tls.crt", folder / "tls.key"

    def put(user: str, *, with_key: bool = True) -> None:
        pair = authority.issue(user)
        certificate.write_bytes(pair.certificate.read_bytes())
        if with_key:
            key.write_bytes(pair.key.read_bytes())

    put("first")
    async with serving(ok, tls=tls) as server:
        user = UserEntry(certificate_file=certificate, key_file=key)
        transport = a_transport(server.url, user, ca_data=authority.pair.certificate.read_bytes())
        await transport.request("GET", "/x")
        put("half", with_key=False)
        await asyncio.sleep(1.1)
        await transport.request("GET", "/x")
        put("second")
        await asyncio.sleep(1.1)
        await transport.request("GET", "/x")
        await transport.close()
    assert server.clients == ["first", "first", "second"]


@pytest.mark.parametrize("leave", [Transport.renew, Transport.abandon])
async def test_half_a_new_pair_found_with_new_connections_leaves_the_old_one_in_force(
    serving: Serving, tmp_path: Path, leave: Callable[[Transport], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    authority, tls = an_authority(tmp_path)
    first, second = authority.issue("first"), authority.issue("second")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(first.certificate.read_bytes())
    key.write_bytes(first.key.read_bytes())
    async with serving(ok, tls=tls) as server:
        user = UserEntry(certificate_file=certificate, key_file=key)
        transport = a_transport(server.url, user, ca_data=authority.pair.certificate.read_bytes())
        await transport.request("GET", "/x")
        certificate.write_bytes(second.certificate.read_bytes())
        await asyncio.sleep(1.1)  # files are looked at once a second
        for _ in range(2):
            await leave(transport)
            await transport.request("GET", "/x")
        key.write_bytes(second.key.read_bytes())
        await asyncio.sleep(1.1)
        await transport.request("GET", "/x")
        await transport.close()
    assert server.clients == ["first", "first", "first", "second"]
    assert caplog.messages.count("new client certificate cannot be used yet") == 1


async def test_inline_certificate_and_other_server_name(serving: Serving, tmp_path: Path) -> None:
    authority, tls = an_authority(tmp_path)
    pair = authority.issue("inline")
    user = UserEntry(certificate_data=pair.certificate.read_bytes(), key_data=pair.key.read_bytes())
    async with serving(ok, tls=tls) as server:
        ca = authority.pair.certificate.read_bytes()
        named = a_transport(server.url, user, ca_data=ca, tls_server_name="api.example")
        await named.request("GET", "/x")
        await named.close()
        wrong = a_transport(server.url, user, ca_data=ca, tls_server_name="other.example")
        with pytest.raises(ApiDown, match=r"other\.example"):
            await wrong.request("GET", "/x")
        await wrong.close()
    assert server.clients == ["inline"]


async def test_unknown_authority_is_refused_unless_told_not_to_look(serving: Serving, tmp_path: Path) -> None:
    _, tls = an_authority(tmp_path)
    (tmp_path / "o").mkdir()
    other, _ = an_authority(tmp_path / "o")
    async with serving(ok, tls=tls) as server:
        careful = a_transport(server.url, ca_data=other.pair.certificate.read_bytes())
        with pytest.raises(ApiDown, match=r"(?i)certificate verify failed"):
            await careful.request("GET", "/x")
        await careful.close()
        careless = a_transport(server.url, insecure=True)
        await careless.request("GET", "/x")
        await careless.close()


async def test_bad_certificate_at_start_names_the_kubeconfig(tmp_path: Path) -> None:
    transport = a_transport("https://127.0.0.1:1", UserEntry(certificate_data=b"rubbish", key_data=b"rubbish"))
    with pytest.raises(KubeconfigError, match=r"kubeconfig test.conf: certificate, key or CA cannot be used"):
        await transport.open()
    missing = a_transport("https://127.0.0.1:1", ca_file=tmp_path / "none")
    with pytest.raises(KubeconfigError, match=r"certificate-authority: .*none: No such file"):
        await missing.open()


async def test_plugin_is_asked_again_when_its_token_is_refused(serving: Serving, tmp_path: Path) -> None:
    counter = tmp_path / "count"
    script = (
        f"n=$(($(cat {counter} 2>/dev/null || echo 0) + 1)); echo $n >{counter}; "
        'echo "{\\"apiVersion\\":\\"client.authentication.k8s.io/v1\\",\\"kind\\":\\"ExecCredential\\",'
        '\\"status\\":{\\"token\\":\\"t$n\\"}}"'
    )
    entry = ExecEntry(api_version="client.authentication.k8s.io/v1", command="/bin/sh", args=("-c", script))

    async def check(request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if request.headers["Authorization"] == "Bearer t2" else 401)

    async with serving(check) as server:
        transport = a_transport(server.url, UserEntry(exec=entry))
        await transport.request("GET", "/x")
        await transport.request("GET", "/x")
        await transport.close()
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer t1", "Bearer t2", "Bearer t2"]


async def test_requests_go_through_the_proxy() -> None:
    async def proxy(request: web.Request) -> web.Response:
        return web.json_response(
            {"asked": request.headers["Host"], "password": request.headers.get("Proxy-Authorization")}
        )

    async with api_server.serving(proxy) as server:
        url = server.url.replace("http://", "http://me:pw@")
        transport = a_transport("http://api.invalid:8080", proxy_url=url)
        answer = await transport.request("GET", "/x")
        await transport.close()
    assert b'"asked": "api.invalid:8080"' in answer
    assert base64.b64encode(b"me:pw") in answer


def test_sockets_notice_a_dead_peer_within_30_seconds() -> None:
    made = dialing.make_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ()))
    with made:
        tcp = socket.IPPROTO_TCP
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval = made.getsockopt(tcp, socket.TCP_KEEPIDLE), made.getsockopt(tcp, socket.TCP_KEEPINTVL)
        assert idle + interval * made.getsockopt(tcp, socket.TCP_KEEPCNT) <= 30
        assert made.getsockopt(tcp, socket.TCP_USER_TIMEOUT) <= 30_000


async def test_closed_client_is_down_and_opens_nothing(serving: Serving) -> None:
    async with serving(ok) as server:
        transport = a_transport(server.url)
        await transport.request("GET", "/x")
        await transport.close()
        with pytest.raises(ApiDown, match="the client is closed"):
            await transport.request("GET", "/x")
