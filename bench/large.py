"""Five hundred pods on this machine: `python -m bench.large [--pods N] [--markdown]`.

Both agents get the same pods from a folder, all at once, in turns: how soon they run, what the agent costs at rest
with probes of all kinds (HTTP, TCP, gRPC, exec), how soon it acts after a restart, and how fast the pods end.
Exit status as of `python -m bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import grpc.aio
from bench import report
from bench.measure import TookTooLong, busy, first_processes, own_cpu, pss
from bench.pods import STAY, Shape
from bench.probe_server import probe_server
from bench.report import Budget, Limit, mebibytes, percent, plain, seconds
from bench.scenario import NS, SETTLE, Figures
from bench.stage import Stage, open_stage
from bench.subjects import Agent, go_kubelet, pykubelet

from pykubelet.model.errors import PykubeletError
from pykubelet.standalone import programs

RESULTS = report.HERE / "results" / "large.json"
MARKS = ("<!-- large:begin -->", "<!-- large:end -->")
PODS = 500
PERIOD, EXEC_PERIOD = 10, 60
"""Seconds between two probes of a container. An exec costs the runtime 50 times what a request costs."""
REST = 60.0
"""Seconds of steady state: every probe was asked at least once."""
WITHIN = 600.0
HTTP, TCP, EXEC, GRPC = range(4)

BUDGETS = (
    Budget("first", "the first pod runs", seconds, (Limit(1.0, "go"),)),
    Budget("median", "half of the pods run", seconds, (Limit(1.0, "go"),)),
    Budget("all", "all pods run", seconds, (Limit(1.0, "go"),)),
    Budget("busy", "CPU of the whole machine until then", seconds, (Limit(1.0, "go"),)),
    Budget("start_cpu", "of it the agent", seconds, (Limit(1.0, "go"),)),
    Budget("held", "pods that still run after it all", plain),
    Budget("rest_cpu", "the agent's CPU with all probes", percent, (Limit(0.5, "go"),)),
    Budget("memory", "the agent's memory (PSS)", mebibytes, (Limit(100 * 2**20), Limit(1.0, "go"))),
    Budget("restart", "agent started again → the next pod runs", seconds, (Limit(2.0), Limit(1.0, "go"))),
    Budget("delete", "all pods gone, grace 1 s", seconds, (Limit(1.0, "go"),)),
)


@dataclass(frozen=True, slots=True)
class ProbedShape(Shape):
    """Pods with a readiness probe each, a quarter of every kind."""

    address: str
    http: int
    grpc: int

    def manifest(self, name: str, command: tuple[str, ...]) -> bytes:
        pod = json.loads(Shape.manifest(self, name, command))
        digits = "".join(letter for letter in name if letter.isdigit())
        kind = int(digits or 0) % 4
        pod["spec"]["containers"][0]["readinessProbe"] = self._probe(kind)
        if kind == GRPC:
            pod["spec"]["hostNetwork"] = True  # a gRPC probe goes to the pod's own address: the server is there
        return json.dumps(pod).encode()

    def _probe(self, kind: int) -> dict[str, Any]:
        if kind == HTTP:
            return {"httpGet": {"host": self.address, "port": self.http, "path": "/"}, "periodSeconds": PERIOD}
        if kind == TCP:
            return {"tcpSocket": {"host": self.address, "port": self.http}, "periodSeconds": PERIOD}
        if kind == EXEC:
            return {"exec": {"command": ["true"]}, "periodSeconds": EXEC_PERIOD, "timeoutSeconds": 10}
        return {"grpc": {"port": self.grpc}, "periodSeconds": PERIOD}


@asynccontextmanager
async def health_server() -> AsyncIterator[int]:
    """The port of a gRPC server that is always healthy."""

    async def check(request: bytes, context: Any) -> bytes:
        return b"\x08\x01"  # HealthCheckResponse{status: SERVING}

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(check)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": method})])
    port = server.add_insecure_port("0.0.0.0:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


class Run:
    """One agent with all the pods, once."""

    def __init__(self, agent: Agent, stage: Stage, pods: int) -> None:
        self._agent = agent
        self._stage = stage
        self._names = [f"large{number}" for number in range(pods)]
        self.figures = Figures()

    async def measure(self) -> None:
        await self._agent.start()
        try:
            await self._agent.add({"warm": STAY})
            await self._agent.logs.first("warm", within=60)
            await self._start()
            await self._rest()
            await self._restart()
            await self._delete()
        finally:
            await self._agent.stop()

    @property
    def _pid(self) -> int:
        assert self._agent.pid is not None
        return self._agent.pid

    async def _start(self) -> None:
        own, whole = own_cpu(self._pid), busy()
        asked = await self._agent.add(dict.fromkeys(self._names, STAY))
        took = sorted((at - asked) / NS for at in await self._agent.logs.all_first(self._names, within=WITHIN))
        await asyncio.sleep(SETTLE)
        self.figures.add("busy", busy() - whole)
        self.figures.add("start_cpu", own_cpu(self._pid) - own)
        self.figures.add("first", took[0])
        self.figures.add("median", statistics.median(took))
        self.figures.add("all", took[-1])

    async def _rest(self) -> None:
        deadline = time.monotonic() + WITHIN
        while (ready := await asyncio.to_thread(ready_pods, self._agent.port)) < len(self._names):
            if time.monotonic() > deadline:
                raise TookTooLong(f"{ready} of {len(self._names)} pods are ready")
            await asyncio.sleep(5.0)
        before, began = own_cpu(self._pid), time.monotonic()
        await asyncio.sleep(REST)
        self.figures.add("rest_cpu", (own_cpu(self._pid) - before) / (time.monotonic() - began))
        self.figures.add("memory", pss(self._pid))

    async def _restart(self) -> None:
        before = first_processes(self._stage.run)
        await self._agent.stop()
        await self._agent.add({"late": STAY})
        began = time.time_ns()
        await self._agent.start()
        self.figures.add("restart", (await self._agent.logs.first("late", within=120) - began) / NS)
        await asyncio.sleep(10.0)
        after = first_processes(self._stage.run)
        self.figures.add("held", sum(after.get(id) == pid for id, pid in before.items()) / 2 - 1)

    async def _delete(self) -> None:
        asked = await self._agent.remove(self._names)
        deadline = time.monotonic() + WITHIN
        async with self._stage.client() as cri:
            while (left := len(await cri.list_pod_sandboxes(ready_only=True))) > 2:  # warm and late
                if time.monotonic() > deadline:
                    raise TookTooLong(f"{left - 2} pods are not gone after {WITHIN:g} s")
                await asyncio.sleep(0.2)
        self.figures.add("delete", time.time() - asked / NS)


def ready_pods(port: int) -> int:
    """How many pods of the benchmark the agent calls ready, except for those that only help."""
    trusting = ssl._create_unverified_context()
    with urlopen(f"https://127.0.0.1:{port}/pods", context=trusting, timeout=30) as answer:
        pods = json.load(answer).get("items") or []
    conditions = [
        each for pod in pods if "large" in pod["metadata"]["name"] for each in pod["status"].get("conditions") or []
    ]
    return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def measure(pods: int) -> tuple[dict[str, Figures], list[str]]:
    results: dict[str, Figures] = {}
    faults: list[str] = []
    async with open_stage() as stage, probe_server(stage.folder / "arrivals") as http, health_server() as health:
        host_folder = stage.folder / "data"
        host_folder.mkdir()
        shape = ProbedShape(host_folder, stage.containerd.network.gateway_ip, http.port, health)
        for make in (go_kubelet, pykubelet):
            run = Run(agent := make(stage, shape), stage, pods)
            print(f"bench: {pods} pods, {agent.name} ...", file=sys.stderr, flush=True)
            results[agent.name] = run.figures
            try:
                await run.measure()
            except (TookTooLong, PykubeletError) as error:
                faults += [f"{agent.name}: {error}", f"the end of its log:\n{agent.last_lines()}"]
            await stage.clean()
    return results, faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.large", description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--markdown", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    where = report.machine(report.containerd_version(programs.find_runtime().containerd))
    where["commit"], where["pods"] = report.commit(), options.pods
    began = time.monotonic()
    results, faults = asyncio.run(measure(options.pods))
    rows = report.judge(results, BUDGETS)
    print(report.text_table(rows))
    for fault in faults:
        print(f"bench: {fault}", file=sys.stderr)
    if options.markdown:
        report.write_json(results, where, rows, RESULTS)
        report.update_document(markdown(rows, where), marks=MARKS)
    print(f"{time.monotonic() - began:.0f} s")
    return 2 if faults else 1 if any(row.verdict is False for row in rows) else 0


def markdown(rows: list[report.Row], where: dict[str, Any]) -> str:
    lines = [
        f"{where['date']}: {where['pods']} pods on {report.described(where)}, Python {where['python']}. "
        f"Commit {where['commit']}.",
        "",
        "| figure | Go kubelet 1.36.4 | pykubelet | budget | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        shown = [row.shown.get(name, "–") for name in ("go", "pykubelet")]
        lines.append(f"| {' | '.join([row.budget.title, *shown, row.rules, row.word])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
