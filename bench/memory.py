"""What the agent holds with 57 pods: proportional memory, what of it is its own and what is code of libraries.

Taken a minute after the last pod runs, when housekeeping has looked twice, and once more after the server was asked:
its HTTP library is loaded with the first caller.
`python -m bench.memory [PODS] [--markdown] [--source FOLDER]`. What was measured is added to bench/memory.json, which
the table is made from. Ends with 1 when the budget does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.measure import first_processes, mappings, pss
from bench.pods import STAY, Shape
from bench.report import commit, containerd_version, machine, mebibytes, update_document
from bench.stage import Stage, open_stage
from bench.subjects import Agent, pykubelet

from pykubelet.standalone.programs import find_runtime

PODS = 57
BUDGET = 55 * 2**20
SETTLED_AFTER = 65.0
RUNNING_WITHIN = 120.0
MARKS = ("<!-- memory:begin -->", "<!-- memory:end -->")
RESULTS = Path(__file__).with_suffix(".json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.splitlines()[0])
    parser.add_argument("pods", nargs="?", type=int, default=PODS)
    parser.add_argument("--markdown", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--source", type=Path, help="the checkout to measure, if it is not this one")
    options = parser.parse_args()
    if options.source is not None:
        os.environ["PYTHONPATH"] = str(options.source.resolve() / "src")
    where = machine(containerd_version(find_runtime().containerd))
    taken = asyncio.run(measure(options.pods))
    run = {"commit": commit(options.source), "machine": where, "pods": options.pods, "bytes": taken}
    known: list[dict[str, Any]] = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    runs = [each for each in known if (each["commit"], each["pods"]) != (run["commit"], run["pods"])] + [run]
    RESULTS.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    if options.markdown:
        update_document(markdown(runs), marks=MARKS)
    print(markdown([run]))
    return 0 if taken["settled"]["all"] <= BUDGET else 1


async def measure(pods: int) -> dict[str, dict[str, int]]:
    async with open_stage() as stage:
        folder = stage.folder / "data"
        folder.mkdir()
        agent = pykubelet(stage, Shape(folder))
        await agent.start()
        try:
            await asyncio.sleep(5.0)
            taken = {"started": parts(agent)}
            await agent.add({f"pod-{number}": STAY for number in range(pods)})
            await all_run(stage, pods)
            await asyncio.sleep(SETTLED_AFTER)
            taken["settled"] = parts(agent)
            await asyncio.to_thread(ask_server, agent)
            await asyncio.sleep(SETTLED_AFTER)
            taken["asked"] = parts(agent)
        finally:
            await agent.stop()
            await stage.clean()
    return taken


async def all_run(stage: Stage, pods: int) -> None:
    end = time.monotonic() + RUNNING_WITHIN
    while len(first_processes(stage.run)) < 2 * pods:
        if time.monotonic() > end:
            raise SystemExit(f"bench: {pods} pods do not run within {RUNNING_WITHIN:g} s")
        await asyncio.sleep(0.5)


def parts(agent: Agent) -> dict[str, int]:
    """All of it; memory of its own; resident pages of files, code most of all."""
    assert agent.pid is not None
    found = list(mappings(agent.pid))
    own = sum(resident for path, resident, _ in found if not path)
    return {"all": pss(agent.pid), "own": own, "files": sum(resident for path, resident, _ in found if path)}


def ask_server(agent: Agent) -> None:
    """As a scraper does, a few times."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    for path in ("/metrics", "/metrics/cadvisor", "/stats/summary", "/pods"):
        address = f"https://127.0.0.1:{agent.port}{path}"
        with urllib.request.urlopen(address, timeout=30, context=unverified) as answer:
            answer.read()


def markdown(runs: list[dict[str, Any]]) -> str:
    titles = {
        "started": "after its start",
        "settled": "a minute after the last pod runs",
        "asked": "a minute after its server was asked for metrics, statistics and pods",
    }
    lines = ["| commit, pods | when | all | its own | of files |", "|---|---|---|---|---|"]
    for run in runs:
        for key, title in titles.items():
            cells = " | ".join(mebibytes(run["bytes"][key][part]) for part in ("all", "own", "files"))
            lines.append(f"| {run['commit']}, {run['pods']} | {title} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
