"""A scripted HTTPS server on loopback for tests of the transport: tells what it was asked, answers as told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.bed.certificates import Authority, Pair

LEAVING = web.AppKey("leaving", asyncio.Event)
"""Set when the server stops; handlers that hang wait for it, so that none outlives its test."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ApiServer:
    handler: Handler
    tls: ssl.SSLContext | None = None
    port: int = 0
    requests: list[web.Request] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    """Common names of the client certificates, one per request."""
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._runner = web.AppRunner(_app(self._handle), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.tls, reuse_address=True)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
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
        if peer:
            self.clients += [value for part in peer["subject"] for name, value in part if name == "commonName"]
        return await self.handler(request)


def _app(handler: Handler) -> web.Application:
    app = web.Application()
    app[LEAVING] = asyncio.Event()
    app.router.add_route("*", "/{path:.*}", handler)
    return app


@asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
    server = ApiServer(handler, tls)
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
