"""A blocking HTTP client for the node's server: over the local socket, or over HTTPS with a client certificate.

Small on purpose: commands send one request at a time. Streams that go both ways (exec, port-forward) are in
streams.py. Does not cover: requests and how responses are shown.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from pykubelet.cli.errors import NO_AGENT, CommandFailed
from pykubelet.cli.http_exchange import Response, exchange

if TYPE_CHECKING:
    import ssl

CONNECT_TIMEOUT = 5.0
DEFAULT_PORT = 10250

Query = Sequence[tuple[str, str]]


class Target(Struct, frozen=True, kw_only=True):
    """Which node to connect to, and how."""

    sockets: tuple[Path, ...] = ()
    """Local sockets, the first that is there counts."""
    url: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""
    token: str = ""
    insecure: bool = False

    @property
    def socket(self) -> Path:
        return next((path for path in self.sockets if path.exists()), self.sockets[0])

    def context(self) -> ssl.SSLContext:
        import ssl  # the local socket does without it

        try:
            context = ssl.create_default_context(cafile=self.authority or None)
            if self.insecure:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except OSError as error:
            files = ", ".join(path for path in (self.certificate, self.key, self.authority) if path)
            raise CommandFailed(f"the TLS files cannot be used ({files}): {error.strerror or error}") from error
        return context

    def host(self) -> tuple[str, int]:
        parts = urlsplit(self.url if "://" in self.url else f"https://{self.url}")
        if parts.scheme != "https" or not parts.hostname:
            raise CommandFailed(f"--node {self.url}: must be https://HOST[:PORT]", 2)
        return parts.hostname, parts.port or DEFAULT_PORT


class Answer(Struct, frozen=True):
    status: int
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace").strip()


def path_of(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


class NodeClient:
    def __init__(self, target: Target) -> None:
        self.target = target

    @property
    def is_local(self) -> bool:
        return not self.target.url

    def get(self, path: str, query: Query = ()) -> Answer:
        return self.ask("GET", path, query)

    def ask(
        self, method: str, path: str, query: Query = (), *, body: bytes = b"", timeout: float | None = None
    ) -> Answer:
        """The answer with any status. Without `timeout` it may take any time."""
        with self._sent(method, path, query, body, timeout) as response:
            return Answer(response.status, response.read())

    def good(self, method: str, path: str, query: Query = (), *, body: bytes = b"") -> Answer:
        """The answer of a question that must succeed."""
        answer = self.ask(method, path, query, body=body)
        if answer.status >= 300:
            raise CommandFailed(answer.text or f"the node answered {answer.status}")
        return answer

    @contextmanager
    def stream(self, path: str, query: Query = ()) -> Iterator[Iterator[bytes]]:
        """Blocks as they come, until the node ends the answer."""
        with self._sent("GET", path, query, b"", None) as response:
            if response.status >= 300:
                raise CommandFailed(response.read().decode(errors="replace").strip())
            yield response.blocks()

    @contextmanager
    def _sent(self, method: str, path: str, query: Query, body: bytes, timeout: float | None) -> Iterator[Response]:
        target = path + (f"?{urlencode(query)}" if query else "")
        try:
            with self._connected() as connection:
                connection.settimeout(timeout)
                yield exchange(connection, method, target, host=self._host(), headers=self.headers(), body=body)
        except OSError as error:
            raise self.unreachable(error) from error

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.target.token}"} if self.target.token else {}

    def _connected(self) -> socket.socket:
        if not self.is_local:
            host, port = self.target.host()
            context = self.target.context()
            plain = socket.create_connection((host, port), CONNECT_TIMEOUT)
            return context.wrap_socket(plain, server_hostname=host)
        local = socket.socket(socket.AF_UNIX)
        try:
            local.settimeout(CONNECT_TIMEOUT)
            local.connect(str(self.target.socket))
        except BaseException:
            local.close()
            raise
        return local

    def _host(self) -> str:
        """What the request says it is for."""
        if self.is_local:
            return "localhost"
        host, port = self.target.host()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def unreachable(self, error: Exception) -> CommandFailed:
        if not self.is_local:
            return CommandFailed(f"node {self.target.url} cannot be reached: {error}", NO_AGENT)
        if isinstance(error, PermissionError):
            return CommandFailed(f"only root may talk to the agent at {self.target.socket}", NO_AGENT)
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            where = " or ".join(str(path) for path in self.target.sockets)
            return CommandFailed(
                f"no agent is running here (looked for {where}); start one with `pykubelet up`, or name one with "
                "--state-dir or --node",
                NO_AGENT,
            )
        return CommandFailed(f"the agent at {self.target.socket} does not answer: {error}", NO_AGENT)
