"""`python -m bench.streams`: following the log of a container that prints 50 MB/s, and what that costs the pods.

How many lines a second arrive by /containerLogs?follow=true over HTTPS, next to `tail -f` on the same file; and how
long a pod takes to start while nothing prints, while the container prints unread, while `tail -f` reads its log and
while the agent does. The last three take turns in rounds: what else happens on the machine meets all of them. tail is
the control group, for reading 50 MB/s takes from two cores whoever does it. Exit status 1 when following is slower
than half of tail, or pods start more than 50 ms later than next to tail.
Does not cover: kubectl and the API server in between (tests/cluster/test_kubectl.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench import report
from bench.measure import own_cpu
from bench.pods import CONTAINER, MOUNT_PATH, NAMESPACE, STAY, Shape
from bench.stage import Stage, open_stage
from bench.subjects import NODE, Agent, go_kubelet, pykubelet

from pykubelet.model.errors import PykubeletError
from pykubelet.standalone import programs

MEGABYTE = 1_000_000
RATE = 50 * MEGABYTE
CHUNKS = 10
"""The printing container writes this many pieces a second."""
WARM_UP, SETTLE = 2.0, 0.5
PODS_IN_A_TURN = 2
RESULTS = report.RESULTS.with_name("streams.json")
LEAST_SHARE, MOST_DELAY = 0.5, 0.05


class Counter:
    """Counts the lines that come from a source of bytes, in a thread of its own."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self.lines = 0
        threading.Thread(target=self._run, name="counter", daemon=True).start()

    def _run(self) -> None:
        # Closing the source is how it ends.
        with contextlib.suppress(OSError, ValueError):
            while block := self._read():
                self.lines += block.count(b"\n")

    async def rate(self, seconds: float) -> float:
        """Lines a second, from now on."""
        before, began = self.lines, time.monotonic()
        await asyncio.sleep(seconds)
        return (self.lines - before) / (time.monotonic() - began)


@contextmanager
def tail(path: Path) -> Iterator[Counter]:
    with subprocess.Popen(["tail", "-c0", "-f", path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        stream = process.stdout
        try:
            yield Counter(lambda: os.read(stream.fileno(), 1 << 20))
        finally:
            process.kill()


@contextmanager
def follow(port: int, pod: str) -> Iterator[Counter]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain) as secured,
    ):
        path = f"/containerLogs/{NAMESPACE}/{pod}-{NODE}/{CONTAINER}?follow=true&tailLines=0"
        secured.sendall(f"GET {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        head = secured.recv(1 << 16)
        if b" 200 " not in head[:20]:
            raise PykubeletError(f"the log cannot be followed: {head[:200]!r}")
        # Marks of the chunked encoding count as lines, a few in thousands.
        yield Counter(lambda: secured.recv(1 << 18))


Readers = Mapping[str, Callable[[], AbstractContextManager[Counter | None]]]


class StreamsBench:
    def __init__(self, stage: Stage, agent: Agent, *, line: int, seconds: float, pods: int) -> None:
        self._stage = stage
        self._agent = agent
        self._seconds = seconds
        self._pods = pods
        self._made = 0
        self._line = line
        text = b"x" * (line - 1) + b"\n"
        (stage.folder / "data" / "chunk").write_bytes(text * (RATE // CHUNKS // line))

    async def figures(self) -> dict[str, float]:
        await self._agent.start()
        found: dict[str, float] = {}
        try:
            await self._start_pods(2)
            found["pod_start_quiet"] = statistics.median(await self._start_pods(self._pods))
            # Asleep until the next tenth of a second, so that the rate holds whatever a piece takes to print.
            beat = f"while :; do cat {MOUNT_PATH}/chunk & usleep {1_000_000 // CHUNKS}; wait; done"
            await self._agent.add({"printer": ("sh", "-c", f"echo up; {beat}")})
            await self._agent.logs.first("printer")
            log = next((self._agent.log_file.parent / "logs").glob(f"{NAMESPACE}_printer-*/{CONTAINER}/0.log"))
            port = json.loads((self._agent.log_file.parent / "config.json").read_text())["port"]
            await asyncio.sleep(WARM_UP)
            found["written"] = await self._written(log)
            readers: Readers = {
                "printing": contextlib.nullcontext,
                "tailed": lambda: tail(log),
                "followed": lambda: follow(port, "printer"),
            }
            found |= await self._rates(readers)
            found |= await self._rounds(readers)
        finally:
            await self._agent.stop()
        return found

    async def _rates(self, readers: Readers) -> dict[str, float]:
        """Bytes a second that reach each reader, and what it costs the agent to be one."""
        found = {}
        with readers["tailed"]() as counter:
            assert counter is not None
            await asyncio.sleep(WARM_UP)
            found["tail"] = await counter.rate(self._seconds) * self._line
        with readers["followed"]() as counter:
            assert counter is not None and self._agent.pid is not None
            await asyncio.sleep(WARM_UP)
            before = own_cpu(self._agent.pid)
            found["follow"] = await counter.rate(self._seconds) * self._line
            found["follow_cpu"] = (own_cpu(self._agent.pid) - before) / self._seconds
        return found

    async def _rounds(self, readers: Readers) -> dict[str, float]:
        """Medians over all rounds. Each round begins with another situation."""
        taken: dict[str, list[float]] = {name: [] for name in readers}
        read = 0.0
        order = list(readers)
        for number in range(self._pods):
            for name in order[number % len(order) :] + order[: number % len(order)]:
                with readers[name]() as counter:
                    await asyncio.sleep(SETTLE)
                    began, lines = time.monotonic(), counter.lines if counter is not None else 0
                    taken[name] += await self._start_pods(PODS_IN_A_TURN)
                    if name == "followed" and counter is not None:
                        read += (counter.lines - lines) * self._line / (time.monotonic() - began)
        medians = {f"pod_start_{name}": statistics.median(each) for name, each in taken.items()}
        return medians | {"follow_meanwhile": read / self._pods}

    async def _written(self, log: Path) -> float:
        """Bytes of content a second that reach the log file."""
        before, began = log.stat().st_size, time.monotonic()
        await asyncio.sleep(self._seconds)
        grown, taken = log.stat().st_size - before, time.monotonic() - began
        with log.open("rb") as file:
            record = len(file.readline())
            record = len(file.readline()) or record
        return grown / taken / record * self._line

    async def _start_pods(self, count: int) -> list[float]:
        """Seconds from manifest to running process, one pod at a time."""
        taken = []
        for _ in range(count):
            self._made += 1
            name = f"single-{self._made}"
            await asyncio.sleep(0.3)
            asked = await self._agent.add({name: STAY})
            taken.append((await self._agent.logs.first(name) - asked) / 1e9)
            await self._agent.remove([name])
        return taken


def without_rotation(agent: Agent) -> Agent:
    """The file must stay the one that tail has opened."""
    path = agent.log_file.parent / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"containerLogMaxSize": "1Ti"}, indent=2))
    return agent


async def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found = {}
    async with open_stage() as stage:
        (stage.folder / "data").mkdir()
        for name, make in {"go": go_kubelet, "pykubelet": pykubelet}.items():
            if name not in options.subjects:
                continue
            agent = without_rotation(make(stage, Shape(stage.folder / "data")))
            bench = StreamsBench(stage, agent, line=options.line, seconds=options.seconds, pods=options.pods)
            found[name] = await bench.figures()
            await stage.clean()
    return found


def verdicts(found: dict[str, float]) -> dict[str, bool]:
    return {
        "follow": found["follow"] >= LEAST_SHARE * found["tail"],
        "pods": found["pod_start_followed"] - found["pod_start_tailed"] < MOST_DELAY,
    }


def shown(name: str, found: dict[str, float]) -> str:
    rates = {key: f"{found[key] / MEGABYTE:.0f} MB/s" for key in ("written", "tail", "follow", "follow_meanwhile")}
    starts = {key: f"{found[f'pod_start_{key}'] * 1000:.0f} ms" for key in ("quiet", "printing", "tailed", "followed")}
    later = {key: (found["pod_start_followed"] - found[f"pod_start_{key}"]) * 1000 for key in ("tailed", "printing")}
    return (
        f"{name}: printed {rates['written']}, tail -f {rates['tail']}, followed {rates['follow']} "
        f"({found['follow'] / found['tail']:.2f} × tail) with {found['follow_cpu'] * 100:.0f} % of a core; "
        f"pod start p50 {starts['quiet']} at rest, {starts['printing']} while it prints, "
        f"{starts['tailed']} with tail -f, {starts['followed']} while it is followed "
        f"({rates['follow_meanwhile']} meanwhile): "
        f"{later['tailed']:+.0f} ms against tail -f, {later['printing']:+.0f} ms against nobody reading"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__.splitlines()[0])
    parser.add_argument("--line", type=int, default=1000, help="bytes of each line")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each rate")
    parser.add_argument("--pods", type=int, default=7, help="rounds, of two pods in each situation")
    parser.add_argument("--only", dest="subjects", action="append", choices=["go", "pykubelet"])
    options = parser.parse_args()
    options.subjects = options.subjects or ["pykubelet"]
    where = report.machine(report.containerd_version(programs.find_runtime().containerd))
    try:
        found = asyncio.run(measure(options))
    except PykubeletError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": where, "line": options.line, "subjects": found}, indent=2) + "\n")
    for name, figures in found.items():
        print(shown(name, figures))
    held = verdicts(found["pykubelet"]) if "pykubelet" in found else {}
    for what, holds in held.items():
        print(f"{what}: {'pass' if holds else 'FAIL'}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
