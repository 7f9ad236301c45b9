"""What the way through the API server adds: pod bound → its process runs → the API server shows it running.

Both agents, the Go kubelet and pykubelet, in turn on one control plane and one containerd, with the same
configuration. Pods are bound when they are created, so that no scheduler is measured; the process stamps its own
start in its log, and a watch of our own stamps the moment the status arrives. A report of its own, since it needs the
control plane: `python -m bench.api_path [PODS]`; `make bench` runs it last.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import stamp_ns
from tests.bed.agent import BedAgent
from tests.bed.cgroups import CgroupTree
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.parts import scratch_folder
from tests.bed.runtime import BUSYBOX, BedContainerd, running_containerd
from tests.bed.watching import Objects, Watching, watching

from pykubelet.standalone.cleanup import unmount_below

PODS = 20
SCRIPT = "echo up; trap 'exit 0' TERM; sleep 100000 & wait"
START_RATIO = 0.5
"""pykubelet's start over the Go kubelet's."""
VISIBLE_MS = 100.0


@dataclass(slots=True)
class Samples:
    """Milliseconds."""

    start: list[float] = field(default_factory=list)
    visible: list[float] = field(default_factory=list)


class GoAgent(BedAgent):
    """The Go kubelet in the same surroundings."""

    program: Path

    def start(self) -> None:
        guard = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, str(self.program), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )


def measure(cluster: Cluster, containerd: BedContainerd, folder: Path, *, pods: int = PODS) -> dict[str, Samples]:
    """Figures by agent: `go` and `pykubelet`."""
    found = {}
    for name, kind in (("go", GoAgent), ("pykubelet", BedAgent)):
        with joined_agent(kind, name, cluster, containerd, folder / name) as (agent, shown):
            found[name] = _pods(cluster, agent, shown, pods)
    return found


@contextmanager
def joined_agent(
    kind: type[BedAgent],
    name: str,
    cluster: Cluster,
    containerd: BedContainerd,
    folder: Path,
    *,
    gone_within: float = 60,
) -> Iterator[tuple[BedAgent, Watching]]:
    """One agent, a ready node of the cluster, and a view of all pods; nothing is left of it afterwards."""
    groups = CgroupTree(f"/pklapi-{os.getpid()}")
    groups.make()
    node = f"bench-{name}"
    agent = kind(folder, containerd, groups, node=node, kubeconfig=cluster.node_kubeconfig(node), **_settings(folder))
    if isinstance(agent, GoAgent):
        agent.program = cluster.programs / "kubelet"
    try:
        with watching(cluster, "/api/v1/pods") as pods, watching(cluster, "/api/v1/nodes") as nodes:
            agent.start()
            nodes.wait(f"{node} ready", lambda found: _ready(found, node), 60)
            yield agent, pods
            cluster.kubectl("delete", "pod", "--all", "--wait=false")
            pods.wait("pods gone", lambda found: not found, gone_within)
    finally:
        agent.kill9()
        cluster.kubectl("delete", "node", node, "--ignore-not-found")
        unmount_below(folder)
        groups.remove()


def _settings(folder: Path) -> dict[str, Any]:
    """What the Go kubelet needs beside the bed's settings; pykubelet gets the same."""
    return {
        "localStorageCapacityIsolation": False,
        "volumePluginDir": str(folder / "volume-plugins"),
        "imageGCHighThresholdPercent": 100,
        "maxOpenFiles": 4096,
        "maxPods": 200,
    }


def _pods(cluster: Cluster, agent: BedAgent, shown: Watching, count: int) -> Samples:
    samples, pause = Samples(), random.Random(1)
    _one(cluster, agent, shown, "warm")  # the first pays for cold caches
    for number in range(count):
        time.sleep(pause.uniform(0.3, 0.9))  # an uneven rhythm, so that no agent's polling happens to fit it
        bound, runs, visible = _one(cluster, agent, shown, f"p{number}")
        samples.start.append((runs - bound) / 1e6)
        samples.visible.append((visible - runs) / 1e6)
    return samples


def _one(cluster: Cluster, agent: BedAgent, shown: Watching, name: str) -> tuple[int, int, int]:
    """When one pod was bound, ran, and was shown running; nanoseconds of the wall clock."""
    offset = time.time_ns() - int(time.monotonic() * 1e9)
    cluster.apply(_manifest(name, agent.node))
    shown.wait(f"{name} running", lambda found: phase_of(found, name) == "Running", 60)
    states = [seen for seen in shown.history if seen.object["metadata"]["name"] == name]
    bound = states[0].at
    visible = next(seen.at for seen in states if seen.object["status"].get("phase") == "Running")
    return int(bound * 1e9) + offset, first_line(agent, name), int(visible * 1e9) + offset


def first_line(agent: BedAgent, name: str) -> int:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for path in agent.pod_logs.glob(f"default_{name}_*/app/0.log"):
            if lines := path.read_text().splitlines():
                return stamp_ns(lines[0])
        time.sleep(0.01)
    raise RuntimeError(f"{name} wrote nothing:\n{agent.tail()}")


def _manifest(name: str, node: str) -> dict[str, Any]:
    container = {"name": "app", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", SCRIPT]}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def phase_of(found: Objects, name: str) -> str:
    return str(found.get(f"default/{name}", {}).get("status", {}).get("phase", ""))


def _ready(found: Objects, node: str) -> bool:
    conditions = found.get(node, {}).get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def report(found: dict[str, Samples]) -> tuple[list[str], bool]:
    """Lines of a table, and whether the budgets hold."""
    lines = [f"{'':12} {'bound -> runs p50':>18} {'p90':>8} {'runs -> visible p50':>20} {'p90':>8}   (ms)"]
    for name, samples in found.items():
        figures = [pick(each) for each in (samples.start, samples.visible) for pick in (statistics.median, _p90)]
        lines.append(f"{name:12} {figures[0]:18.0f} {figures[1]:8.0f} {figures[2]:20.0f} {figures[3]:8.0f}")
    ratio = statistics.median(found["pykubelet"].start) / statistics.median(found["go"].start)
    visible = statistics.median(found["pykubelet"].visible)
    lines.append(_verdict("start over the Go kubelet's", ratio, START_RATIO, "{:.2f}"))
    lines.append(_verdict("visible after the process runs", visible, VISIBLE_MS, "{:.0f} ms"))
    return lines, ratio <= START_RATIO and visible <= VISIBLE_MS


def _p90(samples: list[float]) -> float:
    return sorted(samples)[int(0.9 * (len(samples) - 1))]


def _verdict(what: str, value: float, most: float, form: str) -> str:
    word = "ok" if value <= most else "TOO MUCH"
    return f"{what}: {form.format(value)}, at most {form.format(most)}: {word}"


def main(words: list[str], show: Callable[[str], None] = print) -> int:
    count = int(words[0]) if words else PODS
    with running_containerd() as containerd, running_cluster() as cluster, scratch_folder("pklapi-") as folder:
        found = measure(cluster, containerd, folder, pods=count)
    lines, holds = report(found)
    for line in lines:
        show(line)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
