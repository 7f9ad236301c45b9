"""What a route gets and what it gives, without a word of the HTTP library.

A `Call` is one request as routes see it; the answer is a whole `Answer`, a `Flow` of bytes that may never end, or
an `Upgraded` connection that is handed to the runtime. `Refused` is how any layer below the router says no.
Does not cover: sockets and HTTP itself (http.py), who may call (auth.py, authz.py).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

from msgspec import Struct, field

from pykubelet.model.errors import PykubeletError

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class Refused(PykubeletError):
    """The request is answered with this status and text."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}


async def no_body(limit: int) -> bytes:
    return b""


class Call(Struct, frozen=True, kw_only=True):
    """One request. Header names are lower case; the query is decoded and keeps order and repeats."""

    method: str = "GET"
    path: str = "/"
    query: Sequence[tuple[str, str]] = ()
    headers: Sequence[tuple[str, str]] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    """The parts of the path that the route names."""
    body: Callable[[int], Awaitable[bytes]] = no_body
    """Reads the body, at most so many bytes; more is refused with 413."""
    has_body: bool = False
    address: str = ""
    """Where it comes from, as connections are counted (admission.py)."""

    def header(self, name: str) -> str:
        """All values of a header, joined as HTTP allows; empty when absent."""
        return ", ".join(value for key, value in self.headers if key == name)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.query if key == name), default)

    def has(self, name: str) -> bool:
        return any(key == name for key, _ in self.query)

    def tokens(self, name: str) -> list[str]:
        """The comma-separated words of a header, lower case."""
        return [word.strip().lower() for word in self.header(name).split(",") if word.strip()]

    @property
    def wants_upgrade(self) -> bool:
        return "upgrade" in self.tokens("connection") and bool(self.header("upgrade"))


class Answer(Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, status: int = 200) -> Answer:
        return cls(status=status, body=text.encode())

    @classmethod
    def json(cls, body: bytes) -> Answer:
        return cls(body=body, content_type=JSON)


class Flow(Struct, frozen=True, kw_only=True):
    """Bytes sent as they come; the generator is closed when the caller goes away."""

    chunks: AsyncGenerator[bytes, None]
    content_type: str = TEXT
    length: int | None = None
    """Known in advance for files; otherwise the answer is chunked."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Bridging(enum.Enum):
    """How an upgraded connection reaches the runtime's streaming server."""

    VERBATIM = "verbatim"
    """Both speak the same: bytes pass untouched."""
    CHANNELS = "channels"
    """The caller speaks WebSocket v5 channels, the runtime SPDY streams."""
    TUNNEL = "tunnel"
    """The caller speaks SPDY inside WebSocket messages, the runtime bare SPDY."""


class Upgraded(Struct, frozen=True, kw_only=True):
    """The connection leaves HTTP and is joined to the runtime's streaming URL."""

    url: str
    bridging: Bridging = Bridging.VERBATIM
    streams: Sequence[str] = ()
    """For CHANNELS: which of stdin, stdout, stderr, resize are open."""


Reply = Answer | Flow | Upgraded
Handler = Callable[[Call], Awaitable[Reply]]
Admit = Callable[[str], None]
"""Told for whom a request is, by namespace or user, when its caller is known and may. Raises Refused 429."""
