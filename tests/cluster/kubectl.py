"""Stock kubectl as users run it: with pipes, in a terminal, over both kinds of streams."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bed.cluster import Cluster

SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}
WEBSOCKET = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "true"}
TRANSPORTS = {"spdy": SPDY, "websocket": WEBSOCKET}


@dataclass(frozen=True)
class Done:
    code: int
    out: bytes
    err: bytes


class Kubectl:
    """As admin unless a kubeconfig is given; `transport` is spdy or websocket."""

    def __init__(self, cluster: Cluster, transport: str = "websocket", kubeconfig: Path | None = None) -> None:
        self._base = [str(cluster.programs / "kubectl"), f"--kubeconfig={kubeconfig or cluster.admin_kubeconfig}"]
        self._environment: Mapping[str, str] = {**os.environ, **TRANSPORTS[transport]}

    def run(self, *words: str, stdin: bytes | None = b"", within: float = 60.0) -> Done:
        done = subprocess.run(
            [*self._base, *words],
            input=stdin,
            capture_output=True,
            timeout=within,
            env=self._environment,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, stdin: bytes | None = b"", within: float = 60.0) -> bytes:
        done = self.run(*words, stdin=stdin, within=within)
        assert done.code == 0, (words, done.err[-500:])
        return done.out

    @contextmanager
    def running(self, *words: str, within: float = 180.0) -> Iterator[subprocess.Popen[bytes]]:
        """With pipes on all three; ended at the end, and after `within` seconds, so that no read waits for ever."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*self._base, *words], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=self._environment
        )
        guard = threading.Timer(within, process.kill)
        guard.daemon = True
        guard.start()
        try:
            yield process
        finally:
            process.terminate()
            process.communicate()
            guard.cancel()

    @asynccontextmanager
    async def forwarding(self, pod: str, port: int) -> AsyncIterator[int]:
        """A local port that leads to the pod's."""
        with self.running("port-forward", pod, f":{port}", within=700) as process:
            assert process.stdout is not None
            async with asyncio.timeout(30):
                first = (await asyncio.to_thread(process.stdout.readline)).decode()
            found = re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", first)
            assert found, first
            yield int(found[1])

    @contextmanager
    def terminal(self, *words: str, size: tuple[int, int] = (24, 80)) -> Iterator[Terminal]:
        """In a pseudo terminal of its own, of `size` rows and columns."""
        controller, inner = pty.openpty()
        termios.tcsetwinsize(inner, size)
        process = subprocess.Popen(
            [*self._base, *words],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=self._environment,
            start_new_session=True,
        )
        try:
            yield Terminal(controller, inner, process)
        finally:
            process.kill()
            process.wait()
            os.close(inner)
            os.close(controller)


class Terminal:
    def __init__(self, controller: int, inner: int, process: subprocess.Popen[bytes]) -> None:
        self._controller = controller
        self._inner = inner
        self._process = process
        self.shown = b""

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self._inner, (rows, columns))
        self._process.send_signal(signal.SIGWINCH)

    def type(self, data: bytes) -> None:
        os.write(self._controller, data)

    def wait_for(self, text: bytes, within: float = 30.0) -> None:
        deadline = time.monotonic() + within
        while text not in self.shown:
            ready, _, _ = select.select([self._controller], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the terminal never showed {text!r} but {self.shown[-1000:]!r}"
            self.shown += os.read(self._controller, 65536)

    def end(self, within: float = 30.0) -> int:
        """The exit status, when it has ended by itself."""
        return self._process.wait(within)
