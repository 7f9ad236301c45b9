"""How long a node stays short of memory: from the moment a threshold is crossed to the pod's eviction.

Both agents, the Go kubelet and pykubelet, by turns on one control plane and one containerd, with the same thresholds.
A pod fills a volume in memory; the benchmark reads the machine's own figures every few milliseconds to know when the
threshold is crossed, and a watch of its own stamps when the API server shows the pod as evicted. A second pod that
keeps to its request must stay. `python -m bench.eviction [ROUNDS] [--markdown]`; `make bench` runs it too. ROUNDS are
those of each turn, and each agent has two.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.report import DOCUMENT, RESULTS, commit, containerd_version, described, machine, update_document
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.parts import scratch_folder
from tests.bed.runtime import BedContainerd, running_containerd
from tests.cluster.joined import Joined, condition, container_manifest, is_ready, joined, phase, pod_manifest

from pykubelet.clients.host.cgroup_stats import CgroupStats
from pykubelet.clients.host.machine import read_machine
from pykubelet.standalone import programs

MIB = 1 << 20
ROUNDS, TURNS = 3, 2
KEPT = RESULTS.with_name("eviction.json")
MARKS = ("<!-- eviction:begin -->", "<!-- eviction:end -->")
ROOM = 1200 * MIB
EATS = 2500
MOST = 2.0
"""Seconds pykubelet may take."""
STEP = 0.005
HOLD = "volumes/kubernetes.io~empty-dir/hold/go"


@dataclass(slots=True)
class Samples:
    """Seconds after the crossing."""

    shown: list[float] = field(default_factory=list)
    """The API server shows the pod as evicted."""
    relieved: list[float] = field(default_factory=list)
    """The memory is back."""
    failures: list[str] = field(default_factory=list)
    """The agent's last words where it did not evict anybody."""
    innocent: int = 0
    """Pods that should have stayed and did not."""


class Memory:
    def __init__(self) -> None:
        self._stats = CgroupStats()
        self._capacity = read_machine().memory_bytes

    def available(self) -> int:
        usage = self._stats.usage("/", 0)
        if usage is None or usage.memory is None:
            raise SystemExit("bench: this host does not tell how much memory is used")
        return self._capacity - usage.memory.working_set


def measure(cluster: Cluster, containerd: BedContainerd, folder: Path, rounds: int) -> dict[str, Samples]:
    agents = {"go": cluster.programs / "kubelet", "pykubelet": None}
    found = {name: Samples() for name in agents}
    pause = random.Random(1)
    for turn in range(TURNS):
        for name in list(agents) if turn % 2 == 0 else list(agents)[::-1]:
            print(f"bench: turn {turn + 1}, {name} ...", file=sys.stderr, flush=True)
            threshold = Memory().available() - ROOM
            home = folder / f"{name}{turn}"
            settings: dict[str, Any] = {
                "program": agents[name],
                "evictionHard": {"memory.available": f"{threshold // MIB}Mi"},
                "evictionPressureTransitionPeriod": "1s",
                "volumePluginDir": str(home / "volume-plugins"),
                "imageGCHighThresholdPercent": 100,
                "maxOpenFiles": 4096,
            }
            with joined(cluster, containerd, home, name=f"bench-{name}", ready_within=60, **settings) as node:
                _rounds(node, threshold, rounds, found[name], pause)
    return found


def _rounds(node: Joined, threshold: int, rounds: int, samples: Samples, pause: random.Random) -> None:
    for number in range(rounds):
        time.sleep(pause.uniform(1.0, 4.0))  # an uneven rhythm, so that no agent's polling happens to fit it
        _one(node, threshold, f"r{number}", samples)
        if samples.failures:
            return
        node.clean()
        node.nodes.wait("no pressure", lambda found: condition(found[node.agent.node], "MemoryPressure") != "True", 120)
        node.nodes.wait("no taints", lambda found: not found[node.agent.node]["spec"].get("taints"), 120)


def _one(node: Joined, threshold: int, name: str, samples: Samples) -> None:
    greedy, modest, memory = f"greedy-{name}", f"modest-{name}", Memory()
    node.apply(_greedy(greedy, node.agent.node), _modest(modest, node.agent.node))
    for each in (greedy, modest):
        node.wait_running(each, within=60)
    uid = node.pod(greedy)["metadata"]["uid"]
    (node.agent.root / "pods" / uid / HOLD).touch()
    crossed = _wait(lambda: memory.available() < threshold, 60)
    if crossed is None:
        raise SystemExit("bench: memory did not run short; does something else change it on this machine?")
    relieved = _wait(lambda: memory.available() >= threshold, 60)
    if relieved is None:
        samples.failures.append(node.agent.tail(1))
        return
    try:
        node.wait_pod(greedy, lambda pod: phase(pod) == "Failed", "is evicted", within=30)
    except AssertionError as error:  # memory came back by itself, or nobody was told
        samples.failures.append(str(error))
        return
    shown = next(
        seen.at
        for seen in node.pods.history
        if seen.object["metadata"]["name"] == greedy and seen.object["status"].get("phase") == "Failed"
    )
    samples.shown.append(shown - crossed)
    samples.relieved.append(relieved - crossed)
    samples.innocent += not is_ready(node.pod(modest))


def _wait(holds: Callable[[], bool], within: float) -> float | None:
    """The monotonic time at which it first held; None when it did not."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            return None
        time.sleep(STEP)
    return time.monotonic()


def _greedy(name: str, node: str) -> dict[str, Any]:
    script = (
        "trap 'exit 0' TERM; while [ ! -e /hold/go ]; do sleep 0.1; done; "
        f"dd if=/dev/zero of=/hold/x bs=1M count={EATS}; sleep 100000 & wait"
    )
    container = container_manifest(script, volumeMounts=[{"name": "hold", "mountPath": "/hold"}])
    volumes = [{"name": "hold", "emptyDir": {"medium": "Memory"}}]
    return pod_manifest(name, node=node, containers=[container], volumes=volumes)


def _modest(name: str, node: str) -> dict[str, Any]:
    return pod_manifest(name, node=node, containers=[container_manifest(resources={"requests": {"memory": "64Mi"}})])


def report(found: dict[str, Samples]) -> tuple[list[str], bool]:
    """Lines of a table, and whether the budget holds."""
    lines = [
        f"{'':12} {'crossed -> evicted p50':>23} {'worst':>7} {'-> memory back p50':>19} {'worst':>7} {'innocent':>9}"
    ]
    for name, each in found.items():
        if each.failures:
            lines.append(f"{name:12} did not evict in time: {each.failures[0]}")
            continue
        figures = (statistics.median(each.shown), max(each.shown), statistics.median(each.relieved), max(each.relieved))
        lines.append("{:12} {:23.2f} {:7.2f} {:19.2f} {:7.2f} {:9}".format(name, *figures, each.innocent))
    own = found["pykubelet"]
    if own.failures:
        return lines, False
    holds = max(own.shown) <= MOST and own.innocent == 0
    word = "ok" if holds else "TOO MUCH"
    lines.append(f"pykubelet's worst: {max(own.shown):.2f} s, at most {MOST:g} s and nobody else: {word}")
    return lines, holds


def table(kept: Mapping[str, Any]) -> str:
    """What was kept, for people."""
    where, found = kept["machine"], kept["samples"]
    lines = [
        f"{where['date']}, commit {kept['commit']}: {described(where)}, "
        f"load before the run {where['load']}; "
        f"{len(found['pykubelet']['shown'])} evictions by each agent. Median (least to most).",
        "",
        "| figure | Go kubelet 1.36.4 | pykubelet | budget |",
        "|---|---|---|---|",
    ]
    rows = (("shown", "crossed → shown as evicted", f"{MOST:g} s"), ("relieved", "crossed → memory back", ""))
    for figure, title, budget in rows:
        cells = [_spread(found[name][figure]) for name in ("go", "pykubelet")]
        lines.append(f"| {title} | {' | '.join(cells)} | {budget} |")
    innocent = [str(found[name]["innocent"]) for name in ("go", "pykubelet")]
    return "\n".join([*lines, f"| pods evicted that should have stayed | {' | '.join(innocent)} | 0 |"])


def _spread(samples: list[float]) -> str:
    if not samples:
        return "evicted nobody"
    return f"{statistics.median(samples):.2f} s ({min(samples):.2f} to {max(samples):.2f})"


def main(words: list[str], show: Callable[[str], None] = print) -> int:
    rounds = next((int(word) for word in words if word.isdigit()), ROUNDS)
    where, measured = machine(containerd_version(programs.find_runtime().containerd)), commit()
    with running_containerd() as containerd, running_cluster() as cluster, scratch_folder("pklevict-") as folder:
        found = measure(cluster, containerd, folder, rounds)
    lines, holds = report(found)
    for line in lines:
        show(line)
    if "--markdown" in words:
        samples = {name: asdict(each) for name, each in found.items()}
        kept = {"commit": measured, "machine": where, "samples": samples}
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        update_document(table(kept), DOCUMENT, MARKS)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
