"""What spans cost: CPU of a burst of pods on the fake runtime, and of calls over gRPC; off, none sampled, all sampled.

`python -m bench.tracing [ROUNDS]` prints the figures and keeps them in bench/tracing.json. The three ways take turns,
and the least of each counts: whatever else the machine does only adds to it. Spans are made and encoded, not sent.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.report import commit
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from tests.builders import a_pod
from tests.clock_loop import AutojumpLoop
from tests.harness import a_node
from tests.recorded_spans import ALL, recorded_spans
from tests.unit.clients.plugins.serving import serving, unary

from pykubelet.clients.cri import calls
from pykubelet.clients.cri.connection import Connection
from pykubelet.clients.otlp.sender import BATCH
from pykubelet.kit.clock import SystemClock
from pykubelet.wire import cri_pb2 as pb

PODS, WAVE, CALLS, ROUNDS = 100, 20, 1000, 7
RESULTS = Path(__file__).parent / "tracing.json"
WAYS: dict[str, int | None] = {"off": None, "none sampled": 0, "all sampled": ALL}


@contextmanager
def traced(rate: int | None) -> Iterator[list[int]]:
    """Gives the number of spans, at the end."""
    count: list[int] = []
    if rate is None:
        yield count
        return
    with recorded_spans(rate) as spans:
        yield count
        for at in range(0, len(spans), BATCH):
            encode_spans(spans[at : at + BATCH]).SerializeToString()
        count.append(len(spans))


async def burst(folder: Path) -> None:
    async with a_node(folder) as node:
        for wave in range(PODS // WAVE):
            pods = [node.run(a_pod(f"pod-{wave}-{number}")) for number in range(WAVE)]
            for pod in pods:
                await node.until_running(pod)
            await asyncio.sleep(2)  # more at once would look like a loop that is hot (tests/spin_guard.py)


async def called(folder: Path) -> None:
    async def status(request: Any, context: Any) -> pb.ContainerStatusResponse:
        return pb.ContainerStatusResponse()

    socket = folder / "r.sock"
    methods = {"ContainerStatus": unary(status, pb.ContainerStatusRequest)}
    async with serving(socket, {"runtime.v1.RuntimeService": methods}):
        connection = Connection(f"unix://{socket}", clock=SystemClock())
        for _ in range(CALLS):
            await connection.call(calls.CONTAINER_STATUS, pb.ContainerStatusRequest(container_id="c"), timeout=10)
        await connection.close()


def measured(rate: int | None) -> dict[str, float]:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        gc.collect()
        began = time.process_time()
        with traced(rate) as spans, asyncio.Runner(loop_factory=AutojumpLoop) as runner:
            runner.run(burst(Path(folder)))
        found["pod_ms"] = 1000 * (time.process_time() - began) / PODS
        found["spans_of_a_pod"] = sum(spans) / PODS
    with tempfile.TemporaryDirectory() as folder:
        gc.collect()
        began = time.process_time()
        with traced(rate), asyncio.Runner() as runner:
            runner.run(called(Path(folder)))
        found["call_us"] = 1e6 * (time.process_time() - began) / CALLS
    return found


def main(words: list[str]) -> None:
    rounds = int(words[0]) if words else ROUNDS
    logging.disable()  # the fakes have no log files to rotate
    measured_at = commit()
    samples: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, rate in WAYS.items():
            samples[way].append(measured(rate))
    results = {way: {key: round(min(s[key] for s in each), 3) for key in each[0]} for way, each in samples.items()}
    report = {"commit": measured_at, "pods": PODS, "calls": CALLS, "rounds": rounds, "results": results}
    print(json.dumps(report, indent=2))
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
