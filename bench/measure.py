"""Readings from outside: container logs, /proc of the agent, the ends of processes.

None of them asks an agent or burdens the runtime: logs are files, ends of processes are told by the kernel.
Times are nanoseconds of the wall clock, as the runtime stamps log lines with it.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from bench.pods import CONTAINER, NAMESPACE

TICK = os.sysconf("SC_CLK_TCK")


class TookTooLong(Exception):
    """What was waited for did not happen."""


def stamp_ns(line: str) -> int:
    """The time at the start of a log line, which has up to nine digits after the second."""
    text = line.split(" ", 1)[0]
    head, _, tail = text.partition(".")
    digits = tail.rstrip("Z") if tail.endswith("Z") else tail.partition("+")[0].partition("-")[0]
    zone = "+00:00" if text.endswith("Z") else text[len(head) + 1 + len(digits) :]
    return int(datetime.fromisoformat(head + zone).timestamp()) * 1_000_000_000 + int(digits.ljust(9, "0"))


class Logs:
    """The log files of bench pods under one folder, for one subject."""

    def __init__(self, folder: Path, suffix: str = "", alive: Callable[[], bool] = lambda: True) -> None:
        self._folder = folder
        self._suffix = suffix
        """What an agent adds to the name of a static pod: a dash and the node's name."""
        self._alive = alive
        """Whether waiting makes sense."""

    def stamps(self, pod: str, restart: int = 0) -> list[int]:
        """Times of the lines of one container's log, for the given number of restarts."""
        folder = self._folders().get(f"{NAMESPACE}_{pod}{self._suffix}")
        return self._read(folder, restart) if folder else []

    async def first(self, pod: str, *, restart: int = 0, within: float = 30.0) -> int:
        """When the pod's process wrote its first line; waits for it."""

        def there() -> bool:
            self._insist()
            return bool(self.stamps(pod, restart))

        await until(f"{pod} runs (start {restart})", there, within=within)
        return self.stamps(pod, restart)[0]

    async def all_first(self, pods: Sequence[str], *, within: float = 60.0) -> list[int]:
        """The first lines of many pods."""
        left, found = list(pods), dict[str, int]()
        deadline = time.monotonic() + within
        while True:
            self._insist()
            folders = self._folders()
            for pod in left:
                folder = folders.get(f"{NAMESPACE}_{pod}{self._suffix}")
                if folder and (stamps := self._read(folder, 0)):
                    found[pod] = stamps[0]
            left = [pod for pod in left if pod not in found]
            if not left:
                return list(found.values())
            if time.monotonic() > deadline:
                raise TookTooLong(f"{len(left)} of {len(pods)} pods do not run after {within:g} s, e.g. {left[0]}")
            await asyncio.sleep(0.1)  # stamps are exact however late they are read; looking must not cost

    def _insist(self) -> None:
        if not self._alive():
            raise TookTooLong("the agent has ended")

    def _folders(self) -> dict[str, str]:
        names = os.listdir(self._folder) if self._folder.exists() else []
        return {name.rpartition("_")[0]: name for name in names}

    def _read(self, folder: str, restart: int) -> list[int]:
        try:
            text = (self._folder / folder / CONTAINER / f"{restart}.log").read_text()
        except OSError:
            return []
        return [stamp_ns(line) for line in text.splitlines()]


async def until(what: str, holds: Callable[[], bool], *, within: float = 30.0, period: float = 0.02) -> None:
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            raise TookTooLong(f"not after {within:g} s: {what}")
        await asyncio.sleep(period)


class Ends:
    """Waits for the ends of processes that are not our children."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._handles = [handle for pid in pids if (handle := _handle(pid)) is not None]

    def wait(self, within: float) -> int:
        """Block until all are gone; gives the time of the last end."""
        poll = select.poll()
        for handle in self._handles:
            poll.register(handle, select.POLLIN)
        left, deadline = set(self._handles), time.monotonic() + within
        while left:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                raise TookTooLong(f"{len(left)} of {len(self._handles)} processes still live after {within:g} s")
            for handle, _ in ready:
                poll.unregister(handle)
                left.discard(handle)
        ended = time.time_ns()
        for handle in self._handles:
            os.close(handle)
        return ended


def _handle(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def first_processes(run: Path) -> dict[str, int]:
    """Id -> first process of everything containerd runs, sandboxes and containers, from its shims' own files."""
    found = {}
    for file in run.glob("io.containerd.runtime.v2.task/k8s.io/*/init.pid"):
        try:
            found[file.parent.name] = int(file.read_text())
        except (OSError, ValueError):
            continue  # just coming or going
    return found


def own_cpu(pid: int) -> float:
    """Seconds of processor time the process has used, with the children it has waited for."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(word) for word in words[11:15]) / TICK


def busy() -> float:
    """Seconds that all processors of the machine together were not idle since the boot."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words)
    return (user + nice + system + irq + softirq + steal) / TICK


def pss(pid: int) -> int:
    """Proportional memory of the process and its children, in bytes, as if this benchmark were not running.

    The benchmark is a Python program with the same libraries as one of the subjects: pages they share would make that
    subject look smaller than it is. Of files that this process maps, too, everything resident counts.
    """
    ours = {path for path, _, _ in mappings(os.getpid()) if path}
    return sum(
        resident if path in ours else proportional
        for member in _family(pid)
        for path, resident, proportional in mappings(member)
    )


def mappings(pid: int) -> Iterator[tuple[str, int, int]]:
    """File (empty for anonymous memory), resident bytes and proportional bytes of each mapping."""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except OSError:
        return
    path, resident = "", 0
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "Rss:":
            resident = int(rest.split()[0]) * 1024
        elif word == "Pss:":
            yield path, resident, int(rest.split()[0]) * 1024
        elif not word.endswith(":"):
            place = line.split(maxsplit=5)
            path = place[5] if len(place) > 5 and place[5].startswith("/") else ""


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += _family(int(child))
    return found
