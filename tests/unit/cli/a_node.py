"""A node's local socket made of canned answers, served by a thread; and a way to run commands against it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pytest

from pykubelet.api.types import Pod
from pykubelet.cli.main import run_command
from pykubelet.server.pods import pod_list


@dataclass
class CannedNode:
    socket: Path
    answers: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    """By method and path."""
    requested: list[tuple[str, str, str, bytes]] = field(default_factory=list)
    """Method, path, query, body."""

    def give(self, path: str, value: Any, *, method: str = "GET", status: int = 200) -> None:
        body = value if isinstance(value, bytes) else msgspec.json.encode(value)
        self.answers[method, path] = (status, body)

    def give_pods(self, *pods: Pod) -> None:
        self.give("/local/pods", pod_list(pods))


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def serving(node: CannedNode) -> Iterator[CannedNode]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(parts.path)
            node.requested.append((self.command, path, unquote(parts.query), body))
            status, content = node.answers.get((self.command, path), (404, b"404 page not found\n"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer

        def address_string(self) -> str:
            return "local"

        def log_message(self, *ignored: object) -> None:
            return

    with _Server(str(node.socket), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield node
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Done:
    status: int
    out: str
    err: str


class Commands:
    """Runs commands as the program does, against one socket."""

    def __init__(self, socket: Path, capture: pytest.CaptureFixture[str]) -> None:
        self._socket = socket
        self._capture = capture

    def __call__(self, *words: str) -> Done:
        self._capture.readouterr()
        status = run_command([*words, "--socket", str(self._socket)])
        captured = self._capture.readouterr()
        return Done(status, captured.out, captured.err)

    def bare(self, *words: str) -> Done:
        self._capture.readouterr()
        status = run_command(words)
        captured = self._capture.readouterr()
        return Done(status, captured.out, captured.err)
