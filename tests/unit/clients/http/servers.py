"""Small servers that answer with exact bytes, for tests on real sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from pykubelet.model.http import HttpRequest

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ByteServer:
    """Answers the n-th connection with the n-th text (the last for all later ones); keeps what was sent to it."""

    def __init__(self, answers: Sequence[bytes], *, closes: bool = True) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.closes = closes
        self.port = 0
        self.release = asyncio.Event()
        self.requested = asyncio.Event()

    def request(self, target: str = "/", **fields: object) -> HttpRequest:
        values: dict[str, object] = {"scheme": "http", "host": "127.0.0.1", "port": self.port, "target": target}
        return HttpRequest(**{**values, **fields})  # type: ignore[arg-type]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = b""
            while b"\r\n\r\n" not in request and (data := await reader.read(4096)):
                request += data
            self.requests.append(request)
            self.requested.set()
            answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
            writer.write(answer.replace(b"PORT", str(self.port).encode()))
            await writer.drain()
            if not self.closes:
                await self.release.wait()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    *answers: bytes, closes: bool = True, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[ByteServer]:
    server = ByteServer(answers, closes=closes)
    async with listening(server.handle, host=host, tls=tls) as port:
        server.port = port
        try:
            yield server
        finally:
            server.release.set()


@asynccontextmanager
async def listening(
    handler: Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None]] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await handler(reader, writer)

    server = await asyncio.start_server(tracked, host, 0, ssl=tls)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await asyncio.sleep(0)
        pending = [task for task in tasks if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=2)
        await server.wait_closed()


@asynccontextmanager
async def serving_raw(answer: bytes) -> AsyncIterator[int]:
    """Answers anything at all with these bytes and closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(answer)
        writer.close()

    async with listening(handle) as port:
        yield port


@asynccontextmanager
async def plain_after_hello(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A plain HTTP server as common ones are: a TLS hello gets a 400 in plain text, a request gets the answer."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(4096)
        requests.append(data)
        writer.write(answer if data.startswith(b"GET ") else b"HTTP/1.0 400 Bad Request\r\n\r\n")
        writer.close()

    async with listening(handle) as port:
        yield port, requests
