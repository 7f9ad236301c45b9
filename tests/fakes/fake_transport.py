"""The API server as bytes: what the client's transport would give, for tests of everything behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, cast

from pykubelet.clients.kube.port import Sent
from pykubelet.clients.kube.transport import Transport
from pykubelet.model.errors import Invalid

Query = Sequence[tuple[str, str]]


class FakeTransport:
    """Every GET of a collection gets `listed`; every watch the lines from `watched`, which is a queue.

    No watch begins with the full set."""

    def __init__(self, listed: bytes = b'{"metadata":{"resourceVersion":"1"},"items":[]}') -> None:
        self.listed = listed
        self.answers: dict[str, bytes] = {}
        """Path to body, for all that is no list."""
        self.requested: list[tuple[str, str]] = []
        self.watched_from: list[str] = []
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    @property
    def as_transport(self) -> Transport:
        return cast(Transport, self)

    def send(self, line: bytes) -> None:
        self._lines.put_nowait(line)

    def hang_up(self) -> None:
        self._lines.put_nowait(None)

    async def request(self, method: str, path: str, **about: Any) -> bytes:
        self.requested.append((method, path))
        return self.answers.get(path, self.listed)

    async def stream(
        self,
        path: str,
        *,
        query: Query = (),
        silence: float,
        read: Callable[[bytes], Awaitable[Any]],
        sent: Sent | None = None,
    ) -> AsyncGenerator[Any, None]:
        if "sendInitialEvents" in dict(query):
            raise Invalid("resourceVersionMatch: Forbidden: forbidden for watch", code=422, reason="Invalid")
        self.watched_from.append(dict(query)["resourceVersion"])
        while (line := await self._lines.get()) is not None:
            if (found := await read(line)) is not None:
                yield found

    async def close(self) -> None:
        return None
