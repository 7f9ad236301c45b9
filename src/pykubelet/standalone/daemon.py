"""One daemon process that outlives its starter: started in its own session, found again by its pid file.

A process is identified by its number and start time, so that a reused number is never mistaken for it.
Waiting for its end needs no polling and works for a daemon that an earlier agent started. asyncio is imported where
it is waited: commands only look at the pid file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

ENDED = ("Z", "X")


class Daemon(Struct, frozen=True, kw_only=True):
    pid: int
    start_time: int
    """In clock ticks since boot, from /proc: with the number it names one process for good."""
    config_digest: str
    """Of what it was started with; another digest means that it must be restarted."""

    def alive(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # a dead child stays visible until it is waited for
        return process_start(self.pid) == self.start_time

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; the process being gone is fine."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def ended(self) -> None:
        """Wait for its end."""
        import asyncio

        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        try:
            if not self.alive():
                return
            loop.add_reader(handle, over.set)
            await over.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        self.alive()

    async def end(self, *, grace: float) -> None:
        """SIGTERM, and SIGKILL when that was not enough after `grace` seconds."""
        import asyncio

        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                await self.ended()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.ended()

    def save(self, path: Path) -> None:
        temporary = path.with_suffix(".new")
        fields = {"pid": self.pid, "startTime": self.start_time, "configDigest": self.config_digest}
        temporary.write_text(json.dumps(fields) + "\n")
        temporary.replace(path)


def spawn(command: Sequence[str | Path], *, environment: Mapping[str, str], log: Path, config_digest: str) -> Daemon:
    """Start the program in its own session, with stdout and stderr appended to `log`."""
    words = [os.fspath(word) for word in command]
    pid = os.posix_spawn(
        words[0],
        words,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these two, and ignoring is inherited
        setsigmask=[],
    )
    start = process_start(pid)
    return Daemon(pid=pid, start_time=-1 if start is None else start, config_digest=config_digest)


def load(path: Path) -> Daemon | None:
    """The daemon that a pid file names, if that very process is alive. A damaged file names none."""
    try:
        fields = json.loads(path.read_text())
        daemon = Daemon(
            pid=int(fields["pid"]),
            start_time=int(fields["startTime"]),
            config_digest=str(fields["configDigest"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return daemon if daemon.alive() else None


def process_start(pid: int) -> int | None:
    """When the process started, or None when there is no such process or only its remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    words = text.rpartition(")")[2].split()  # the name before it may hold anything, brackets too
    return None if words[0] in ENDED else int(words[19])
