"""The short-call client on real sockets: requests, bodies, redirects, and everything that can be wrong."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from pykubelet.clients.http.client import ShortCalls, redirect_of, request_bytes
from pykubelet.clients.http.port import ConnectProblem
from pykubelet.kit.names import Found, NameLookups
from pykubelet.model.http import BodyProblem, HttpAnswer, HttpProblem, HttpRequest
from tests.unit.clients.http.servers import serving

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CALLS = ShortCalls()


def a_request(**fields: object) -> HttpRequest:
    values: dict[str, object] = {"scheme": "http", "host": "10.0.0.1", "port": 80, "target": "/x"}
    return HttpRequest(**{**values, **fields})  # type: ignore[arg-type]


def test_request_on_the_wire() -> None:
    request = a_request(headers=(("User-Agent", "kube-probe/1.36"), ("X-A", "1"), ("Connection", "keep-alive")))
    assert request_bytes(request) == (
        b"GET /x HTTP/1.1\r\nHost: 10.0.0.1:80\r\nUser-Agent: kube-probe/1.36\r\nX-A: 1\r\nConnection: close\r\n\r\n"
    )


def test_host_header_of_the_list_replaces_the_address() -> None:
    assert b"\r\nHost: web.example\r\n" in request_bytes(a_request(headers=(("host", "web.example"),)))
    assert b"\r\nHost: [fd00::1]:80\r\n" in request_bytes(a_request(host="fd00::1"))


@pytest.mark.parametrize(
    ("status", "location", "url"),
    [
        (302, "/y", "http://10.0.0.1:80/y"),
        (301, "y?z=1", "http://10.0.0.1:80/y?z=1"),
        (308, "http://10.0.0.1:81/", "http://10.0.0.1:81/"),
        (307, "https://10.0.0.1/y", "https://10.0.0.1:443/y"),
        (303, "//other/y", "http://other:80/y"),
        (302, "", None),
        (304, "/y", None),
        (200, "/y", None),
    ],
)
def test_where_an_answer_sends_us(status: int, location: str, url: str | None) -> None:
    answer = HttpAnswer(status=status, headers=(("location", location),) if location else ())
    following = redirect_of(a_request(), answer)
    assert (following.url if following else None) == url


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.0 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 500 Oh\nContent-Length: 1\n\nx", 500, b"x"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
            200,
            b"abc0123456789",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200, 200, b"x" * 100),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFF\r\n" + b"y" * 200, 200, b"y" * 100),
    ],
)
async def test_good_answers(answer: bytes, status: int, body: bytes) -> None:
    async with serving(answer) as server:
        got = await CALLS.get(server.request(), timeout=5, max_body=100)
    assert (got.status, got.body) == (status, body)
    assert got.truncated == (len(body) == 100)


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "EOF"),
        (b"HTTP/1.1 200 O", "unexpected EOF"),
        (b"SSH-2.0-OpenSSH_9\r\n", 'malformed HTTP response "SSH-2.0-OpenSSH_9"'),
        (b"HTTP/1.1 abc\r\n\r\n", 'malformed HTTP response "HTTP/1.1 abc"'),
        (b"\x00\xff\r\n\r\n", "malformed HTTP response"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "malformed MIME header line"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70000, "headers exceeded"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20000 + b"\r\n", "headers exceeded"),
        (b"HTTP/1.1 100 C\r\n\r\n" * 7, "too many 1xx"),
    ],
)
async def test_answers_that_are_none(answer: bytes, text: str) -> None:
    async with serving(answer) as server:
        with pytest.raises(HttpProblem) as caught:
            await CALLS.get(server.request("/p"), timeout=5, max_body=100)
    assert str(caught.value).startswith(f'Get "http://127.0.0.1:{server.port}/p": ')
    assert text in str(caught.value)
    assert not isinstance(caught.value, BodyProblem)


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "unexpected EOF"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\nshort", "bad Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "invalid byte in chunk length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "malformed chunked"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "unsupported transfer encoding"),
    ],
)
async def test_bodies_that_break_off(answer: bytes, text: str) -> None:
    async with serving(answer) as server:
        with pytest.raises(BodyProblem, match=text):
            await CALLS.get(server.request(), timeout=5, max_body=100)


@pytest.mark.real_loop
async def test_silence_is_a_timeout_in_known_words() -> None:
    async with serving(b"", closes=False) as server:
        with pytest.raises(HttpProblem, match=r"context deadline exceeded .Client.Timeout exceeded while awaiting"):
            await CALLS.get(server.request(), timeout=0.05, max_body=100)


@pytest.mark.real_loop
async def test_a_body_that_never_ends_is_another_kind_of_timeout() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\n\r\nmore to come", closes=False) as server:
        with pytest.raises(BodyProblem, match="while reading body"):
            await CALLS.get(server.request(), timeout=0.05, max_body=100)


def to(location: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 4\r\n\r\nmove".encode()


async def follow(answers: Sequence[bytes]) -> tuple[HttpAnswer, list[bytes]]:
    async with serving(*answers) as server:
        got = await CALLS.get(server.request("/a"), timeout=5, max_body=100)
    return got, [request.split(b" ")[1] for request in server.requests]


@pytest.mark.real_loop
async def test_redirects_on_the_same_host_are_followed() -> None:
    got, asked = await follow([to("/b"), to("http://127.0.0.1:PORT/c"), OK])
    assert (got.status, asked) == (200, [b"/a", b"/b", b"/c"])


@pytest.mark.real_loop
async def test_a_redirect_to_another_host_is_the_answer() -> None:
    got, asked = await follow([to("http://example.invalid/b")])
    assert (got.status, got.body, asked) == (302, b"move", [b"/a"])


@pytest.mark.real_loop
async def test_redirects_in_a_circle_end() -> None:
    async with serving(to("/a")) as server:
        with pytest.raises(HttpProblem, match="stopped after 10 redirects"):
            await CALLS.get(server.request("/a"), timeout=5, max_body=100)
    assert len(server.requests) == 10


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.real_loop
async def test_a_closed_port() -> None:
    port = closed_port()
    refused = f"dial tcp 127.0.0.1:{port}: connect: connection refused"
    with pytest.raises(HttpProblem) as http:
        await CALLS.get(a_request(host="127.0.0.1", port=port), timeout=5, max_body=100)
    assert str(http.value) == f'Get "http://127.0.0.1:{port}/x": {refused}'
    with pytest.raises(ConnectProblem) as tcp:
        await CALLS.connect("127.0.0.1", port, timeout=5)
    assert str(tcp.value) == refused


@pytest.mark.real_loop
async def test_no_host_is_this_machine() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as server:
        port = server.request("/a").port
        await CALLS.connect("", port, timeout=5)
        assert (await CALLS.get(a_request(host="", port=port), timeout=5, max_body=100)).status == 200


@pytest.mark.real_loop
async def test_a_full_listen_queue_is_a_timeout() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        filler = [socket.socket() for _ in range(4)]
        for sock in filler:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        try:
            with pytest.raises(ConnectProblem, match=r"dial tcp 127.0.0.1:\d+: i/o timeout"):
                await CALLS.connect("127.0.0.1", port, timeout=0.05)
        finally:
            for sock in filler:
                sock.close()


@pytest.mark.real_loop
async def test_an_open_port_and_names() -> None:
    async with serving(OK) as server:
        await CALLS.connect("127.0.0.1", server.port, timeout=5)
        got = await CALLS.get(server.request(host="localhost"), timeout=5, max_body=100)
        assert got.status == 200
    with pytest.raises(ConnectProblem, match="lookup"):
        await CALLS.connect("no such name", 80, timeout=5)
    with pytest.raises(ConnectProblem, match="lookup"):
        await CALLS.connect("a\0b", 80, timeout=5)


@pytest.mark.real_loop
async def test_ipv6() -> None:
    async with serving(OK, host="::1") as server:
        got = await CALLS.get(server.request(host="::1"), timeout=5, max_body=100)
    assert got.body == b"ok"
    assert f"Host: [::1]:{server.port}".encode() in server.requests[0]


@pytest.mark.real_loop
async def test_fetch_takes_any_address_and_refuses_long_answers() -> None:
    async with serving(OK) as server:
        url = f"http://127.0.0.1:{server.port}/pods?x=1"
        got = await CALLS.fetch(url, {"X-Token": "s"}, timeout=5, max_bytes=2)
        assert (got.status, got.body) == (200, b"ok")
        assert server.requests[0].startswith(b"GET /pods?x=1 HTTP/1.1\r\n")
        assert b"\r\nX-Token: s\r\n" in server.requests[0]
        with pytest.raises(HttpProblem, match="longer than 1 bytes"):
            await CALLS.fetch(url, {}, timeout=5, max_bytes=1)
    for bad in ("ftp://x/", "http:///x", "http://[::1/", "nonsense"):
        with pytest.raises(HttpProblem):
            await CALLS.fetch(bad, {}, timeout=5, max_bytes=1)


@pytest.mark.real_loop
async def test_a_cancelled_call_leaves_nothing_open() -> None:
    async with serving(b"", closes=False) as server:
        task = asyncio.get_running_loop().create_task(CALLS.get(server.request(), timeout=None, max_body=1))
        await server.requested.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.real_loop
@pytest.mark.parametrize("location", ["http://[x", "http://[::1/x", "http://127.0.0.1:99999/"])
async def test_a_redirect_to_no_address_fails_the_call(location: str) -> None:
    answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    async with serving(answer) as server:
        with pytest.raises(HttpProblem, match=r'^Get "http://127.*(failed to parse Location|parse ")'):
            await CALLS.get(server.request(), timeout=5, max_body=100)


@pytest.mark.real_loop
async def test_names_are_looked_up_outside_the_loops_own_pool() -> None:
    asked: list[str] = []

    def resolve(name: str) -> Found:
        asked.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    async with serving(OK) as server:
        calls = ShortCalls(NameLookups(resolve=resolve))
        got = await calls.get(server.request(host="pod.example"), timeout=5, max_body=100)
        await calls.connect("pod.example", server.port, timeout=5)
    assert got.body == b"ok" and asked == ["pod.example"] * 2
