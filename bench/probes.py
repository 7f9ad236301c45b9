"""What probes cost, and whether they keep their time: `python -m bench.probes [--quick] [--markdown]`.

Exec probes: the same 200 probes at 10 s on 100 pods by the bare runtime, the Go kubelet and pykubelet; what counts is
the processor time of agent, containerd, shims and everything they started, because an exec costs the runtime far more
than it costs any agent. HTTP probes: 500 at 1 s by pykubelet, timed where they arrive (bench/probe_server.py).
A report of its own beside `python -m bench`; exit status as there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.measure import TookTooLong, own_cpu
from bench.pods import STAY, Shape
from bench.probe_server import Arrivals, deviations, probe_server
from bench.report import Budget, Limit, percent, plain
from bench.scenario import Figures
from bench.stage import Stage, open_stage
from bench.subjects import Agent, Floor, Subject, go_kubelet, pykubelet

from pykubelet.model.errors import PykubeletError
from pykubelet.standalone import programs

RESULTS = report.HERE / "results" / "probes.json"
MARKS = ("<!-- probes:begin -->", "<!-- probes:end -->")
PERIOD = 10.0
COMMAND = ("true",)
SETTLE = 12.0
"""More than a period: every probe has been asked before the window opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    exec_pods: int = 100
    """Two exec probes each."""
    exec_window: float = 60.0
    http_pods: int = 50
    """Five containers with two HTTP probes each."""
    http_window: float = 30.0


QUICK = Sizes(exec_pods=20, exec_window=20.0, http_pods=10, http_window=20.0)
HTTP_CONTAINERS = 5

BUDGETS = (
    Budget("exec_cpu", "exec probes: agent and runtime", percent, (Limit(0.5, "go"), Limit(1.1, "floor")), either=True),
    Budget("exec_runtime_cpu", "of it the runtime", percent),
    Budget("exec_agent_cpu", "of it the agent", percent, (Limit(0.5, "go"),)),
    Budget("exec_rate", "execs a second, as asked for", plain),
    Budget("http_probes", "HTTP probes at 1 s", plain),
    Budget("http_agent_cpu", "their agent", percent),
    Budget("http_worst_period", "worst mean period of a probe, off by", percent, (Limit(0.1),)),
    Budget("http_p50", "one interval off by, p50", percent, (Limit(0.1),)),
    Budget("http_p99", "one interval off by, p99", percent, (Limit(0.1),)),
    Budget("http_max", "one interval off by, worst of all", percent),
)


@dataclass(frozen=True, slots=True)
class ExecShape(Shape):
    """Pods with a liveness and a readiness probe that run a command."""

    def manifest(self, name: str, command: tuple[str, ...]) -> bytes:
        pod = json.loads(Shape.manifest(self, name, command))
        probe = {"exec": {"command": COMMAND}, "periodSeconds": int(PERIOD), "timeoutSeconds": 5}
        for container in pod["spec"]["containers"]:
            container.update(livenessProbe=probe, readinessProbe=probe)
        return json.dumps(pod).encode()


@dataclass(frozen=True, slots=True)
class HttpShape(Shape):
    """Pods of several containers, each with two probes that go to a server of the benchmark."""

    address: str
    port: int

    def manifest(self, name: str, command: tuple[str, ...]) -> bytes:
        pod = json.loads(Shape.manifest(self, name, command))
        first = pod["spec"]["containers"][0]
        # The first keeps its name: it is by that one's log that a pod is seen to run.
        names = [first["name"], *[f"c{number}" for number in range(1, HTTP_CONTAINERS)]]
        pod["spec"]["containers"] = [{**first, "name": each, **self._probes(f"/{name}/{each}")} for each in names]
        return json.dumps(pod).encode()

    def _probes(self, path: str) -> dict[str, Any]:
        return {
            f"{kind}Probe": {
                "httpGet": {"host": self.address, "port": self.port, "path": f"{path}/{kind}"},
                "periodSeconds": 1,
                "failureThreshold": 30,
            }
            for kind in ("liveness", "readiness")
        }


# -- exec


async def exec_probes(subject: Subject, stage: Stage, sizes: Sizes) -> Figures:
    figures = Figures()
    names = [f"p{number}" for number in range(sizes.exec_pods)]
    await subject.start()
    try:
        await subject.add(dict.fromkeys(names, STAY))
        await subject.logs.all_first(names, within=180)
        if subject.pid is None:
            async with _bare_probes(stage):
                await _exec_window(subject, stage, sizes, figures)
        else:
            await _exec_window(subject, stage, sizes, figures)
    finally:
        await subject.stop()
    figures.add("exec_rate", 2 * sizes.exec_pods / PERIOD)
    return figures


async def _exec_window(subject: Subject, stage: Stage, sizes: Sizes, figures: Figures) -> None:
    await asyncio.sleep(SETTLE)
    runtime = runtime_processes(stage)
    before, began = _cpu(runtime), time.monotonic()
    agent_before = own_cpu(subject.pid) if subject.pid is not None else 0.0
    await asyncio.sleep(sizes.exec_window)
    agent = own_cpu(subject.pid) - agent_before if subject.pid is not None else 0.0
    used, took = _cpu(runtime) - before, time.monotonic() - began
    figures.add("exec_runtime_cpu", used / took)
    if subject.pid is not None:
        figures.add("exec_agent_cpu", agent / took)
    figures.add("exec_cpu", (used + agent) / took)


@asynccontextmanager
async def _bare_probes(stage: Stage) -> AsyncIterator[None]:
    """The same calls in the same rhythm: two for each container, every period from the moment it came."""
    async with stage.client() as cri:
        containers = await cri.list_containers(running_only=True)

        async def probe(container: str, offset: float) -> None:
            loop = asyncio.get_running_loop()
            due = loop.time() + offset
            while True:
                await asyncio.sleep(max(0.0, due - loop.time()))
                await cri.exec_sync(container, COMMAND, 5)
                due += PERIOD

        tasks = [
            asyncio.create_task(probe(each.id, each.created_at / 1e9 % PERIOD)) for each in containers for _ in range(2)
        ]
        try:
            yield
        finally:
            failed = [task.exception() for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if failed:
                raise TookTooLong(f"floor: an exec failed: {failed[0]}")


def runtime_processes(stage: Stage) -> list[int]:
    """containerd and its shims. What they start (runc, the probe's command) ends under them and counts as theirs."""
    mark = str(stage.folder).encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        program = Path(words[0].decode(errors="replace")).name
        if program in ("containerd", "containerd-shim-runc-v2") and any(mark in word for word in words):
            found.append(int(folder.name))
    return found


def _cpu(pids: Sequence[int]) -> float:
    return sum(own_cpu(pid) for pid in pids)


# -- HTTP


async def http_probes(stage: Stage, sizes: Sizes, host_folder: Path) -> Figures:
    figures = Figures()
    address = stage.containerd.network.gateway_ip
    async with probe_server(stage.folder / "arrivals") as server:
        # By another name: the folders of the subject that had exec probes are still there.
        program = Path(sys.executable).with_name("pykubelet")
        agent = Agent("pykubelet-http", [program], stage, HttpShape(host_folder, address, server.port))
        names = [f"h{number}" for number in range(sizes.http_pods)]
        await agent.start()
        try:
            await agent.add(dict.fromkeys(names, STAY))
            await agent.logs.all_first(names, within=180)
            expected = sizes.http_pods * HTTP_CONTAINERS * 2
            await asyncio.sleep(10.0)  # the other containers of the last pods start, and it all comes to rest
            assert agent.pid is not None
            before, began = own_cpu(agent.pid), time.monotonic()
            await asyncio.sleep(sizes.http_window)
            took = time.monotonic() - began
            figures.add("http_agent_cpu", (own_cpu(agent.pid) - before) / took)
        finally:
            await agent.stop()
        arrivals = server.arrivals().within(began, began + took)
    _judge_arrivals(figures, arrivals, expected, took)
    return figures


def _judge_arrivals(figures: Figures, arrivals: Arrivals, expected: int, took: float) -> None:
    if len(arrivals.by_probe) != expected:
        raise TookTooLong(f"{len(arrivals.by_probe)} of {expected} HTTP probes came in {took:.0f} s")
    single, means = deviations(arrivals, period=1.0)
    figures.add("http_probes", expected)
    figures.add("http_worst_period", max(means))
    for name, share in (("http_p50", 0.5), ("http_p99", 0.99), ("http_max", 1.0)):
        figures.add(name, single[min(len(single) - 1, int(share * len(single)))])


# -- the whole


SUBJECTS: dict[str, Callable[[Stage, Shape], Subject]] = {"floor": Floor, "go": go_kubelet, "pykubelet": pykubelet}
HTTP = "http"


async def measure(chosen: Sequence[str], sizes: Sizes) -> tuple[dict[str, Figures], list[str]]:
    results: dict[str, Figures] = {}
    faults: list[str] = []
    async with open_stage() as stage:
        host_folder = stage.folder / "data"
        host_folder.mkdir()
        for name in [each for each in SUBJECTS if each in chosen]:
            print(f"bench: exec probes, {name} ...", file=sys.stderr, flush=True)
            subject = SUBJECTS[name](stage, ExecShape(host_folder))
            try:
                results[name] = await exec_probes(subject, stage, sizes)
            except (TookTooLong, PykubeletError) as error:
                faults.append(f"{name}: {error}")
                if isinstance(subject, Agent):
                    faults.append(f"the end of its log:\n{subject.last_lines()}")
            await stage.clean()
        if HTTP in chosen:
            print("bench: HTTP probes ...", file=sys.stderr, flush=True)
            try:
                found = await http_probes(stage, sizes, host_folder)
                for figure, value in found.values.items():
                    results.setdefault("pykubelet", Figures()).add(figure, value)
            except (TookTooLong, PykubeletError) as error:
                faults.append(f"HTTP probes: {error}")
    return results, faults


def main() -> int:
    options = parse()
    where = report.machine(report.containerd_version(programs.find_runtime().containerd))
    where["volumes"] = "one hostPath volume each"
    began = time.monotonic()
    try:
        results, faults = asyncio.run(measure(options.only or [*SUBJECTS, HTTP], QUICK if options.quick else Sizes()))
    except PykubeletError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    rows = report.judge(results, BUDGETS)
    report.write_json(results, where, rows, RESULTS)
    if options.markdown:
        report.update_document(report.markdown(rows, where), marks=MARKS)
    print(report.text_table(rows))
    for fault in faults:
        print(f"bench: {fault}", file=sys.stderr)
    print(f"{time.monotonic() - began:.0f} s, figures in {RESULTS.relative_to(report.HERE.parent)}")
    return 2 if faults else 1 if any(row.verdict is False for row in rows) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.probes", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=[*SUBJECTS, HTTP], help="measure this alone; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="few pods and short windows, for trying the benchmark")
    parser.add_argument("--markdown", action="store_true", help="put the table into docs/performance.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
