"""What 300 watched objects cost a whole agent, beside the Go kubelet: connections, memory, processor time.

Each agent runs 100 pods in the same bed, first without volumes, then with three config maps and secrets in each. The
difference in memory is what an object costs, its volume and its watch; the processor time at rest is that of the whole
agent with 100 running pods. Then the objects change a thousand times a minute.
`python -m bench.watched_pods [go|pykubelet] [plain|watched]` measures one of the four (all of them, if not told which),
keeps it in bench/watched_pods.json and puts the table into docs/performance.md.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from bench.api_path import GoAgent, joined_agent, phase_of, pod_manifest
from bench.report import DOCUMENT, commit, update_document
from bench.watches import CHANGES_PER_MINUTE, a_pod, change, connections, memory_kib, prepare
from tests.bed.agent import BedAgent
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.parts import scratch_folder
from tests.bed.runtime import BedContainerd, running_containerd

from pykubelet.clients.kube.patch import plain

PODS = 100
SETTLE, REST = 20.0, 40.0
RUNNING_WITHIN, GONE_WITHIN = 300.0, 180.0
AGENTS: dict[str, type[BedAgent]] = {"go": GoAgent, "pykubelet": BedAgent}
SHAPES = ("plain", "watched")
RESULTS = Path(__file__).parent / "watched_pods.json"
MARKS = ("<!-- watched-pods:begin -->", "<!-- watched-pods:end -->")


def measure(kind: str, shape: str, cluster: Cluster, containerd: BedContainerd, folder: Path) -> dict[str, float]:
    watched = shape == "watched"
    if watched:
        uvloop.run(prepare(cluster.admin_kubeconfig, PODS))
    with joined_agent(AGENTS[kind], kind, cluster, containerd, folder, gone_within=GONE_WITHIN) as (agent, shown):
        names = [f"pod-{number}" for number in range(PODS)]
        began = time.monotonic()
        cluster.apply(*(manifest(number, agent.node, watched=watched) for number in range(PODS)))
        shown.wait(
            "all pods running", lambda found: all(phase_of(found, name) == "Running" for name in names), RUNNING_WITHIN
        )
        found: dict[str, float] = {"all_running_s": round(time.monotonic() - began, 1)}
        time.sleep(SETTLE)
        found["connections"] = connections(agent.pid, cluster.port)
        found["memory_kib"] = memory_kib(agent.pid)
        found["cpu_percent_at_rest"] = used(agent, lambda: time.sleep(REST))
        if watched:
            found["cpu_percent_under_changes"] = used(
                agent, lambda: uvloop.run(change(cluster.admin_kubeconfig, PODS, CHANGES_PER_MINUTE))
            )
            found["memory_kib_after_changes"] = memory_kib(agent.pid)
    return found


def used(agent: BedAgent, work: Callable[[], object]) -> float:
    """Percent of a processor that the agent used meanwhile."""
    before, began = ticks(agent.pid), time.monotonic()
    work()
    return round(100 * (ticks(agent.pid) - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began), 2)


def ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def manifest(number: int, node: str, *, watched: bool) -> dict[str, Any]:
    volumes = plain(a_pod(number))["spec"]["volumes"] if watched else []
    return pod_manifest(f"pod-{number}", node, volumes)


TITLES = {"go": "Go kubelet 1.36.4", "pykubelet": "pykubelet"}
Results = dict[str, dict[str, dict[str, float]]]
"""By agent and shape."""


def table(report: dict[str, Any]) -> str:
    results: Results = report["results"]
    agents = [name for name in AGENTS if "watched" in results.get(name, {})]
    rows = [
        ("connections to the API server", "watched", "connections", "{:g}"),
        ("memory, pods without volumes", "plain", "memory_kib", "{:g} KiB"),
        ("memory, pods with the objects", "watched", "memory_kib", "{:g} KiB"),
        ("CPU at rest, pods without volumes", "plain", "cpu_percent_at_rest", "{:g} %"),
        ("CPU at rest, pods with the objects", "watched", "cpu_percent_at_rest", "{:g} %"),
        (f"CPU, {CHANGES_PER_MINUTE} changes a minute", "watched", "cpu_percent_under_changes", "{:g} %"),
    ]
    lines = [f"{PODS} running pods, {3 * PODS} objects, commit {report['commit']}:", ""]
    lines.append(f"| figure | {' | '.join(TITLES[name] for name in agents)} |")
    lines.append("|---" * (len(agents) + 1) + "|")
    for title, shape, key, form in rows:
        values = [form.format(results[name][shape][key]) if shape in results[name] else "–" for name in agents]
        lines.append(f"| {title} | {' | '.join(values)} |")
    lines.append(
        f"| so for each object, its volume and watch | {' | '.join(map(per_object, map(results.get, agents)))} |"
    )
    return "\n".join(lines)


def per_object(found: dict[str, dict[str, float]]) -> str:
    if not found.keys() >= set(SHAPES):
        return "–"
    return f"{(found['watched']['memory_kib'] - found['plain']['memory_kib']) / (3 * PODS):.1f} KiB"


def main(words: list[str]) -> None:
    measured = commit()
    report: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"results": {}}
    report["commit"] = measured
    for kind in [name for name in AGENTS if not set(words) & set(AGENTS) or name in words]:
        for shape in [name for name in SHAPES if not set(words) & set(SHAPES) or name in words]:
            with (
                running_containerd() as containerd,
                running_cluster(new_etcd=True) as cluster,
                scratch_folder("pklwatch-") as folder,
            ):
                found = measure(kind, shape, cluster, containerd, folder)
            report["results"].setdefault(kind, {})[shape] = found
            print(kind, shape, json.dumps(found), flush=True)
            RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    update_document(table(report), DOCUMENT, MARKS)


if __name__ == "__main__":
    main(sys.argv[1:])
