"""A scripted HTTPS server on loopback for tests of the transport: tells what it was asked, answers as told.

It speaks HTTP/1.1; behind an `Http2Front` it is asked over HTTP/2, so that the same tests hold both to the same.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from tests.bed.certificates import Authority, Pair
from tests.unit.clients.http2.servers import Asked, Http2Server

LEAVING = web.AppKey("leaving", asyncio.Event)
"""Set when the server stops; handlers that hang wait for it, so that none outlives its test."""
CLIENT = "X-Client-Name"
"""The name of the certificate's owner, from the front."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ApiServer:
    handler: Handler
    tls: ssl.SSLContext | None = None
    port: int = 0
    requests: list[web.Request] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    """Common names of the client certificates, one per request."""
    front: Http2Front | None = None
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        if self.front is not None:
            return self.front.server.url
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def reached_at(self) -> int:
        return self.front.server.port if self.front is not None else self.port

    async def start(self) -> None:
        self._runner = web.AppRunner(_app(self._handle), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.tls, reuse_address=True)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

        if self.front is not None:
            self.front.backend = self.port
            await self.front.start()

    async def stop(self) -> None:
        if self.front is not None:
            await self.front.stop()
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.app[LEAVING].set()
            await asyncio.sleep(0.02)
            await runner.cleanup()
            await asyncio.sleep(0)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        assert request.transport is not None
        peer: Any = request.transport.get_extra_info("peercert")
        if CLIENT in request.headers:
            self.clients.append(request.headers[CLIENT])
        elif peer:
            self.clients += [value for part in peer["subject"] for name, value in part if name == "commonName"]
        return await self.handler(request)


def _app(handler: Handler) -> web.Application:
    app = web.Application()
    app[LEAVING] = asyncio.Event()
    app.router.add_route("*", "/{path:.*}", handler)
    return app


class Http2Front:
    """Takes requests over HTTP/2 and passes them on, each on a connection of its own that ends as the answer does."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        tls.set_alpn_protocols(["h2"])
        self.server = Http2Server(self._pass_on, tls)
        self.backend = 0

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> None:
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()

    async def _pass_on(self, asked: Asked) -> None:
        await asked.complete.wait()
        headers = {name: value for name, value in asked.headers.items() if not name.startswith(":")}
        assert asked.peer.transport is not None
        certificate: Any = asked.peer.transport.get_extra_info("peercert")
        if certificate:
            headers[CLIENT] = next(value for ((name, value),) in certificate["subject"] if name == "commonName")
        url = URL(f"http://127.0.0.1:{self.backend}{asked.path}", encoded=True)
        try:
            async with (
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.request(
                    asked.headers[":method"], url, headers=headers, data=bytes(asked.body), allow_redirects=False
                ) as response,
            ):
                more = {name: value for name, value in response.headers.items() if name == "Retry-After"}
                asked.head(response.status, **{name.lower(): value for name, value in more.items()})
                async for chunk in response.content.iter_any():
                    await asked.pour(chunk)
                asked.end()
        except aiohttp.ClientError:
            asked.peer.abort()


@asynccontextmanager
async def serving(
    handler: Handler, *, tls: ssl.SSLContext | None = None, front: ssl.SSLContext | None = None
) -> AsyncIterator[ApiServer]:
    """With `front` it is reached over HTTP/2 with that TLS."""
    server = ApiServer(handler, tls, front=Http2Front(front) if front is not None else None)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def server_tls(authority: Authority, pair: Pair) -> ssl.SSLContext:
    """A server context that asks clients for certificates of the same authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.pair.certificate))
    context.load_cert_chain(pair.certificate, pair.key)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def an_authority(folder: Path) -> tuple[Authority, ssl.SSLContext]:
    authority = Authority(folder)
    return authority, server_tls(authority, authority.issue("server", hosts=["127.0.0.1", "api.example"]))


async def ok(request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


async def as_it_is(line: bytes) -> bytes:
    """For streams whose lines are of interest."""
    return line
