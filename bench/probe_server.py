"""A server that does nothing but note when each probe arrived, in a process of its own.

Times are of the monotonic clock, which all processes of a machine share. The path of a request names the probe.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
ANSWER_KEPT = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True, slots=True)
class Arrivals:
    by_probe: dict[str, list[float]]

    def within(self, begin: float, end: float) -> Arrivals:
        cut = {probe: [at for at in times if begin <= at <= end] for probe, times in self.by_probe.items()}
        return Arrivals({probe: times for probe, times in cut.items() if len(times) > 1})


def deviations(arrivals: Arrivals, period: float) -> tuple[list[float], list[float]]:
    """How far, as a share of the period, each interval is off (sorted), and each probe's mean interval."""
    single, means = [], []
    for times in arrivals.by_probe.values():
        single += [abs(later - earlier - period) / period for earlier, later in itertools.pairwise(times)]
        means.append(abs((times[-1] - times[0]) / (len(times) - 1) - period) / period)
    return sorted(single), means


@dataclass(frozen=True, slots=True)
class ProbeServer:
    port: int
    file: Path

    def arrivals(self) -> Arrivals:
        """All so far; call it after the probing agent has ended."""
        found: dict[str, list[float]] = {}
        for line in self.file.read_text().splitlines():
            stamp, _, probe = line.partition(" ")
            if probe:
                found.setdefault(probe, []).append(float(stamp))
        return Arrivals(found)


@contextlib.asynccontextmanager
async def probe_server(file: Path) -> AsyncIterator[ProbeServer]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.probe_server", str(file), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield ProbeServer(int(await process.stdout.readline()), file)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


class _Requests(asyncio.Protocol):
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        assert self._transport is not None
        self._notes.append(f"{now:.6f} {data.split(b' ', 2)[1].decode()}\n")
        closing = b"connection: close" in data.lower()
        self._transport.write(ANSWER if closing else ANSWER_KEPT)
        if closing:
            self._transport.close()


async def _serve(file: Path) -> None:
    notes: list[str] = []
    server = await asyncio.get_running_loop().create_server(lambda: _Requests(notes), "0.0.0.0", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    with file.open("w") as out:
        while True:
            await asyncio.sleep(0.5)
            out.writelines(notes)
            out.flush()
            notes.clear()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
