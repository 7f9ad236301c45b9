"""HTTPS without verification, and lifecycle hooks with their fall-back to plain HTTP."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from pykubelet.api.types import ContainerPort, HTTPGetAction, HTTPHeader
from pykubelet.clients.http.client import ShortCalls
from pykubelet.kit.metrics import Registry
from pykubelet.model.http import BadRequest, HttpProblem, HttpRequest, PlainAnswer
from pykubelet.runtime.hooks import HttpHooks
from tests.bed.certificates import Authority
from tests.builders import a_container, a_context, a_pod
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.clients.http.servers import plain_after_hello, serving, serving_raw

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BAD = b"HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\nbroken"
CALLS = ShortCalls()


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    pair = Authority(tmp_path).issue("someone", hosts=["elsewhere.example"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


async def no_address(uid: str) -> str:
    return ""


async def loopback(uid: str) -> str:
    assert uid == "uid-web"
    return "127.0.0.1"


@pytest.mark.real_loop
async def test_who_gives_the_node_pods_must_prove_its_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = ShortCalls(roots=ssl.create_default_context(cafile=str(authority.pair.certificate)))

    def certificate(host: str) -> ssl.SSLContext:
        pair = authority.issue(host, hosts=[host])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    async with serving(OK, tls=certificate("localhost")) as server:
        named, numbered = f"https://localhost:{server.port}/", f"https://127.0.0.1:{server.port}/"
        got = await trusted.fetch(named, {"Authorization": "secret"}, timeout=5, max_bytes=100)
        assert got.body == b"ok"
        server.requests.clear()
        for calls, url in ((trusted, numbered), (CALLS, named)):
            with pytest.raises(HttpProblem, match="failed to verify certificate"):
                await calls.fetch(url, {"Authorization": "secret"}, timeout=5, max_bytes=100)
    assert not any(b"secret" in request for request in server.requests)


@pytest.mark.real_loop
async def test_no_redirect_takes_the_headers_of_a_fetch_into_the_open(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("localhost", hosts=["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    trusted = ShortCalls(roots=ssl.create_default_context(cafile=str(authority.pair.certificate)))
    async with serving(OK) as plain:
        away = f"HTTP/1.1 302 Found\r\nLocation: http://localhost:{plain.port}/\r\nContent-Length: 0\r\n\r\n"
        async with serving(away.encode(), tls=context) as server:
            with pytest.raises(HttpProblem, match="redirected from https to http"):
                await trusted.fetch(f"https://localhost:{server.port}/", {"X-Key": "s"}, timeout=5, max_bytes=100)
    assert plain.requests == []


@pytest.mark.real_loop
async def test_a_certificate_for_another_name_does_not_matter(tls: ssl.SSLContext) -> None:
    async with serving(OK, tls=tls) as server:
        got = await CALLS.get(server.request(scheme="https"), timeout=5, max_body=100)
        assert got.body == b"ok"
        named = await CALLS.get(server.request(scheme="https", host="localhost"), timeout=5, max_body=100)
        assert named.status == 200


@pytest.mark.real_loop
async def test_a_long_body_over_tls(tls: ssl.SSLContext) -> None:
    async with serving(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 300_000, tls=tls) as server:
        got = await CALLS.get(server.request(scheme="https"), timeout=5, max_body=200_000)
    assert (len(got.body), got.truncated) == (200_000, True)


@pytest.mark.real_loop
async def test_plain_http_to_a_tls_hello_is_recognised() -> None:
    async with plain_after_hello(OK) as (port, _):
        with pytest.raises(PlainAnswer, match="server gave HTTP response to HTTPS client"):
            await CALLS.get(_https(port), timeout=5, max_body=100)


def _https(port: int) -> HttpRequest:
    return HttpRequest(scheme="https", host="127.0.0.1", port=port, target="/")


@pytest.mark.real_loop
@pytest.mark.parametrize("answer", [b"", b"\x16\x03\x01\x00\x02zz", b"hello"])
async def test_a_broken_handshake(answer: bytes) -> None:
    async with serving_raw(answer) as port:
        with pytest.raises(HttpProblem) as caught:
            await CALLS.get(_https(port), timeout=5, max_body=100)
    assert not isinstance(caught.value, PlainAnswer)


@pytest.mark.real_loop
async def test_any_answer_satisfies_a_hook() -> None:
    events = RecordedEvents()
    hooks = HttpHooks(a_context(events=events), CALLS, loopback)
    async with serving(BAD) as server:
        container = a_container(ports=[ContainerPort(name="web", container_port=server.port)])
        await hooks.call(a_pod(), container, HTTPGetAction(port="web", path="/bye"))
    assert server.requests[0].startswith(b"GET /bye HTTP/1.1\r\n")
    assert b"User-Agent: kube-lifecycle/1.36\r\n" in server.requests[0]
    assert events.texts == []


@pytest.mark.real_loop
async def test_an_https_hook_answered_in_http_is_sent_again_without_its_secret() -> None:
    events = RecordedEvents()
    metrics = Registry()
    hooks = HttpHooks(a_context(events=events, metrics=metrics), CALLS, no_address)
    secrets = [HTTPHeader(name="Authorization", value="secret"), HTTPHeader(name="X-Kept", value="1")]
    async with plain_after_hello(OK) as (port, requests):
        action = HTTPGetAction(port=port, host="127.0.0.1", scheme="HTTPS", http_headers=secrets)
        await hooks.call(a_pod(), a_container(), action)
    assert b"secret" not in requests[-1]
    assert b"X-Kept: 1" in requests[-1]
    assert metrics.counter("kubelet_lifecycle_handler_http_fallbacks_total", "").value() == 1
    assert events.texts == [
        f"Warning LifecycleHTTPFallback request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, "
        "retry with HTTP succeeded"
    ]


@pytest.mark.real_loop
async def test_a_hook_that_reaches_nobody_fails() -> None:
    hooks = HttpHooks(a_context(events=RecordedEvents()), CALLS, no_address)
    with pytest.raises(BadRequest, match="no address"):
        await hooks.call(a_pod(), a_container(), HTTPGetAction(port=80))
    with pytest.raises(HttpProblem, match="connection refused"):
        await hooks.call(a_pod(), a_container(), HTTPGetAction(port=1, host="127.0.0.1"))
