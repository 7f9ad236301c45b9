"""What a scraper costs: both agents with 57 pods, left alone and then scraped every 15 s, as monitoring does.

    python -m bench.scraping [--rounds N] [--markdown]

The agents take turns, and who is first changes from round to round. A round: the pods run, half a minute of nothing,
then a minute in which `/metrics/cadvisor` and `/stats/summary` are each read every 15 s, by turns, over one connection
kept open, with gzip as Prometheus asks for it. Processor time is the agent's own, from the kernel, to the nanosecond:
that of a scrape is what it used from the request until a second after the answer, less what it uses at rest.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import json
import ssl
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.measure import TookTooLong, until
from bench.pods import STAY, Shape
from bench.report import DOCUMENT, RESULTS, commit, containerd_version, described, machine, percent, update_document
from bench.scenario import BURST, RESIDENTS
from bench.stage import Stage, open_stage
from bench.subjects import Agent, go_kubelet, pykubelet

from pykubelet.model.errors import PykubeletError
from pykubelet.standalone import programs

KEPT = RESULTS.with_name("scraping.json")
MARKS = ("<!-- scraping:begin -->", "<!-- scraping:end -->")
ROUNDS = 3
PODS = RESIDENTS + BURST
SETTLE = 5.0
"""Seconds between the last pod's start and the first measurement."""
IDLE = 30.0
EVERY = 15.0
SCRAPES = 3
"""Of each endpoint, in a round."""
AFTER = 1.0
"""Seconds after an answer that still belong to its scrape: what an agent does late, such as collecting its garbage."""
ENDPOINTS = {"cadvisor": "/metrics/cadvisor", "summary": "/stats/summary"}
AGENTS = {"go": go_kubelet, "pykubelet": pykubelet}
LATENCY, CPU, BYTES, SERIES = "latency", "cpu", "bytes", "lines"

Samples = dict[str, list[float]]


def cpu_of(pid: int) -> float:
    """Seconds of processor time of all threads of a process, those that have ended, too."""
    return time.clock_gettime((~pid << 3) | 2)  # the kernel's number for the clock of another process


class Scraper:
    """One connection to an agent's server, as a scraper keeps it."""

    def __init__(self, agent: Agent) -> None:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection("127.0.0.1", agent.port, context=trusting, timeout=30)

    def get(self, path: str) -> tuple[bytes, bytes]:
        """The answer as it came, and what it says. Raises TookTooLong when it is none."""
        self._connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        answer = self._connection.getresponse()
        body = answer.read()
        said = gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body
        if answer.status != 200:
            raise TookTooLong(f"GET {path}: {answer.status} {said[:300]!r}")
        return body, said

    def close(self) -> None:
        self._connection.close()


class Turn:
    """One agent's turn in one round."""

    def __init__(self, agent: Agent, found: Samples) -> None:
        self._agent = agent
        self._found = found

    async def run(self, number: int) -> None:
        await self._agent.start()
        try:
            names = [f"scraped-{number}-{each}" for each in range(PODS)]
            await self._agent.add(dict.fromkeys(names, STAY))
            await self._agent.logs.all_first(names, within=120)
            await self._measure()
            await self._agent.remove(names)
            await asyncio.sleep(5.0)  # the rest is the stage's
        finally:
            await self._agent.stop()

    async def _measure(self) -> None:
        pid = self._agent.pid
        assert pid is not None
        scraper = Scraper(self._agent)
        await asyncio.sleep(SETTLE)
        for path in ENDPOINTS.values():  # the first of each finds cgroups and fills caches
            await asyncio.to_thread(scraper.get, path)
        await asyncio.sleep(SETTLE)
        before, began = cpu_of(pid), time.monotonic()
        await asyncio.sleep(IDLE)
        rest = (cpu_of(pid) - before) / (time.monotonic() - began)
        self._add("idle_cpu", rest)
        before, began = cpu_of(pid), time.monotonic()
        for number in range(SCRAPES):
            for place, (name, path) in enumerate(ENDPOINTS.items()):
                due = began + EVERY * (number + place / len(ENDPOINTS))
                await asyncio.sleep(due - time.monotonic())
                await self._scrape(scraper, name, path, rest, pid)
        await asyncio.sleep(began + EVERY * SCRAPES - time.monotonic())
        self._add("scraped_cpu", (cpu_of(pid) - before) / (time.monotonic() - began))
        scraper.close()

    async def _scrape(self, scraper: Scraper, name: str, path: str, rest: float, pid: int) -> None:
        before, began = cpu_of(pid), time.monotonic()
        body, said = await asyncio.to_thread(scraper.get, path)
        took = time.monotonic() - began
        await asyncio.sleep(AFTER)
        used = cpu_of(pid) - before - rest * (time.monotonic() - began)
        measured = {LATENCY: took, CPU: used, BYTES: float(len(body)), SERIES: float(_lines(said))}
        for what, value in measured.items():
            self._add(f"{name}_{what}", value)

    def _add(self, figure: str, value: float) -> None:
        self._found.setdefault(figure, []).append(value)


def _lines(said: bytes) -> int:
    """Series of a text, pods of a summary."""
    if said.startswith(b"{"):
        return len(json.loads(said)["pods"])
    return sum(1 for line in said.splitlines() if line and not line.startswith(b"#"))


async def measure(rounds: int) -> tuple[dict[str, Samples], list[str]]:
    """The samples of each agent, and a sentence for each turn that failed."""
    found: dict[str, Samples] = {name: {} for name in AGENTS}
    faults: list[str] = []
    async with open_stage() as stage:
        folder = stage.folder / "data"
        folder.mkdir()
        # With its default: without it the Go kubelet does not look at disks, and has no summary.
        settings = {"localStorageCapacityIsolation": True}
        agents = {name: make(stage, Shape(folder), **settings) for name, make in AGENTS.items()}
        for number in range(rounds):
            for name in list(AGENTS) if number % 2 == 0 else list(AGENTS)[::-1]:
                print(f"bench: round {number + 1} of {rounds}, {name} ...", file=sys.stderr, flush=True)
                try:
                    await Turn(agents[name], found[name]).run(number)
                except (TookTooLong, PykubeletError, OSError) as error:
                    faults.append(f"{name}, round {number + 1}: {error}\n{agents[name].last_lines()}")
                await _clean(stage)
    return found, faults


async def _clean(stage: Stage) -> None:
    await stage.clean()
    await until("nothing runs", lambda: not any(stage.run.glob("io.containerd.runtime.v2.task/k8s.io/*/init.pid")))


def milliseconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms"


def kilobytes(value: float) -> str:
    return f"{value / 1e3:.0f} kB"


def plain(value: float) -> str:
    return f"{value:.0f}"


ROWS = [
    ("idle_cpu", f"CPU with {PODS} pods, nobody asks", percent, 0.5),
    ("scraped_cpu", f"CPU with {PODS} pods, both endpoints every {EVERY:g} s", percent, 0.5),
    *(
        (f"{name}_{what}", f"`{path}`: {title}", show, goal)
        for name, path in ENDPOINTS.items()
        for what, title, show, goal in (
            (LATENCY, "answered after", milliseconds, 1.0),
            (CPU, "CPU of the agent", milliseconds, 0.5),
            (BYTES, "sent, compressed if the agent does", kilobytes, None),
            (SERIES, "series" if name == "cadvisor" else "pods", plain, None),
        )
    ),
]
"""Figure, what it is, how it is shown, and how much of the Go kubelet's it may be."""


def table(report: Mapping[str, Any]) -> str:
    """The figures for people."""
    where, found = report["machine"], report["samples"]
    lines = [
        f"{where['date']}, commit {report['commit']}: {described(where)}, "
        f"Python {where['python']}, load before the run {where['load']}; {report['rounds']} rounds. "
        "Median (least to most).",
        "",
        "| figure | Go kubelet 1.36.4 | pykubelet | ratio | goal |",
        "|---|---|---|---|---|",
    ]
    for figure, title, show, goal in ROWS:
        go, own = (found[agent].get(figure, []) for agent in AGENTS)
        ratio = ratio_of(report, figure)
        cells = [_spread(go, show), _spread(own, show), f"{ratio:.2f}" if ratio is not None else "–"]
        held = "" if goal is None else f"≤ {goal:g} × Go{'' if ratio is not None and ratio <= goal else ', missed'}"
        lines.append(f"| {title} | {' | '.join(cells)} | {held} |")
    return "\n".join(lines)


def ratio_of(report: Mapping[str, Any], figure: str) -> float | None:
    """Ours against the Go kubelet's, by medians; None when one of them was not measured."""
    go, own = (report["samples"][agent].get(figure, []) for agent in AGENTS)
    return statistics.median(own) / statistics.median(go) if go and own and statistics.median(go) else None


def _spread(samples: Sequence[float], show: Callable[[float], str]) -> str:
    if not samples:
        return "not measured"
    return f"{show(statistics.median(samples))} ({show(min(samples))} to {show(max(samples))})"


def missed(report: Mapping[str, Any]) -> list[str]:
    found = []
    for figure, title, _, goal in ROWS:
        ratio = ratio_of(report, figure)
        if goal is not None and (ratio is None or ratio > goal):
            found.append(f"{title}: {'not measured' if ratio is None else f'{ratio:.2f} × Go, goal {goal:g}'}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scraping", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--markdown", action="store_true", help="keep the samples, put the table into the document")
    options = parser.parse_args()
    where, measured = machine(containerd_version(programs.find_runtime().containerd)), commit()
    found, faults = asyncio.run(measure(options.rounds))
    rounded = {
        name: {figure: [round(value, 6) for value in each] for figure, each in samples.items()}
        for name, samples in found.items()
    }
    report = {"commit": measured, "machine": where, "rounds": options.rounds, "pods": PODS, "samples": rounded}
    print(table(report))
    if options.markdown:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(report, indent=1) + "\n")
        update_document(table(report), DOCUMENT, MARKS)
    for line in [*missed(report), *faults]:
        print(line, file=sys.stderr)
    return 2 if faults else 1 if missed(report) else 0


if __name__ == "__main__":
    sys.exit(main())
