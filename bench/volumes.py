"""What twenty volumes cost: pod bound → its process runs, with 20 volumes of API objects, less the same without any.

Both agents in turn on one control plane and one containerd, as in api_path.py. Every pod gets objects of its own that
nobody has read before, which is the dearest case; pods with and without volumes take turns, so that a machine that
grows slower hits both. A second figure: a pod waits for a config map that is missing; from the moment the object is
there to the process. `python -m bench.volumes [--quick]`; `make bench` runs it last.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.api_path import GoAgent, first_line, joined_agent, phase_of, pod_manifest
from tests.bed.agent import BedAgent
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.parts import scratch_folder
from tests.bed.runtime import BedContainerd, running_containerd
from tests.bed.watching import Watching, watching

from pykubelet.model.errors import PykubeletError

RESULTS = Path(__file__).resolve().parent / "results" / "volumes.json"
SAMPLES, QUICK_SAMPLES = 15, 5
LATE_SAMPLES, QUICK_LATE_SAMPLES = 5, 2
MOST_MS = 100.0
"""By how much 20 volumes may delay pykubelet's pods."""
MOST_LATE_MS = 1000.0
"""How long after its missing object appeared a pod of pykubelet may start."""
LATE_AFTER = 4.0
"""Seconds a pod waits for its missing object: some tries have failed by then."""
CONFIGS, SECRETS, PROJECTED = 7, 7, 6

Manifest = dict[str, Any]


@dataclass(slots=True)
class Samples:
    """Milliseconds."""

    plain: list[float] = field(default_factory=list)
    volumes: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    @property
    def added(self) -> float:
        return statistics.median(self.volumes) - statistics.median(self.plain)


class VolumesBench:
    """One agent's turn."""

    def __init__(self, cluster: Cluster, agent: BedAgent, pods: Watching, configs: Watching) -> None:
        self._cluster = cluster
        self._agent = agent
        self._pods = pods
        self._configs = configs
        self._pause = random.Random(1)

    def run(self, samples: int, late: int) -> Samples:
        found, own = Samples(), self._agent.node  # no object may be there from the other agent's turn
        self._start(f"{own}-warm", volumes=True)
        self._start(f"{own}-warm-plain", volumes=False)
        for number in range(samples):
            found.plain.append(self._start(f"{own}-plain-{number}", volumes=False))
            found.volumes.append(self._start(f"{own}-full-{number}", volumes=True))
        for number in range(late):
            found.late.append(self._late(f"{own}-late-{number}"))
        return found

    def _start(self, name: str, *, volumes: bool) -> float:
        time.sleep(self._pause.uniform(0.8, 1.4))  # uneven, so that no polling happens to fit it
        if volumes:
            self._cluster.apply(*objects_of(name))
        self._cluster.apply(pod_manifest(name, self._agent.node, volumes_of(name) if volumes else []))
        bound, runs = self._times(name)
        self._cluster.kubectl("delete", "pod", name, "--wait=false")
        self._pods.wait(f"{name} gone", lambda found: f"default/{name}" not in found, 60)
        return (runs - bound) / 1e6

    def _late(self, name: str) -> float:
        volume = {"name": "v", "configMap": {"name": name}}
        self._cluster.apply(pod_manifest(name, self._agent.node, [volume]))
        time.sleep(LATE_AFTER + self._pause.uniform(0, 1))
        self._cluster.apply(a_config(name))
        self._configs.wait(f"config map {name}", lambda found: f"default/{name}" in found, 30)
        there = next(seen.at for seen in self._configs.history if seen.object["metadata"]["name"] == name)
        _, runs = self._times(name, within=150)
        return (runs - int(there * 1e9) - wall_offset()) / 1e6

    def _times(self, name: str, within: float = 60) -> tuple[int, int]:
        """When the pod was bound and when it ran; nanoseconds of the wall clock."""
        self._pods.wait(f"{name} running", lambda found: phase_of(found, name) == "Running", within)
        bound = next(seen.at for seen in self._pods.history if seen.object["metadata"]["name"] == name)
        return int(bound * 1e9) + wall_offset(), first_line(self._agent, name)


def wall_offset() -> int:
    return time.time_ns() - int(time.monotonic() * 1e9)


def a_config(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1", "b": "2"}}


def a_secret(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"key": name}}


def objects_of(pod: str) -> list[Manifest]:
    configs = [a_config(f"{pod}-{number}") for number in range(CONFIGS + PROJECTED)]
    return configs + [a_secret(f"{pod}-{number}") for number in range(SECRETS + PROJECTED)]


def volumes_of(pod: str) -> list[Manifest]:
    found: list[Manifest] = []
    for number in range(CONFIGS):
        found.append({"name": f"c{number}", "configMap": {"name": f"{pod}-{number}"}})
    for number in range(SECRETS):
        found.append({"name": f"s{number}", "secret": {"secretName": f"{pod}-{number}"}})
    for number in range(PROJECTED):
        sources = [
            {"configMap": {"name": f"{pod}-{CONFIGS + number}"}},
            {"secret": {"name": f"{pod}-{SECRETS + number}"}},
            {"serviceAccountToken": {"path": "token"}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]
        found.append({"name": f"p{number}", "projected": {"sources": sources}})
    return found


def measure(cluster: Cluster, containerd: BedContainerd, folder: Path, *, quick: bool, only: str) -> dict[str, Samples]:
    """Figures by agent."""
    found = {}
    sizes = (QUICK_SAMPLES, QUICK_LATE_SAMPLES) if quick else (SAMPLES, LATE_SAMPLES)
    kinds: dict[str, type[BedAgent]] = {"go": GoAgent, "pykubelet": BedAgent}
    for name, kind in kinds.items():
        if only in ("", name):
            with (
                watching(cluster, "/api/v1/configmaps") as configs,
                joined_agent(kind, name, cluster, containerd, folder / name) as (agent, pods),
            ):
                found[name] = VolumesBench(cluster, agent, pods, configs).run(*sizes)
    return found


def report(found: dict[str, Samples]) -> tuple[list[str], bool]:
    """Lines of a table, and whether the budgets hold."""
    lines = [f"{'p50, ms':12} {'no volume':>10} {'20 volumes':>11} {'added':>7} {'object there -> runs':>21}"]
    for name, samples in found.items():
        plain, full, late = (statistics.median(each) for each in (samples.plain, samples.volumes, samples.late))
        lines.append(f"{name:12} {plain:10.0f} {full:11.0f} {samples.added:7.0f} {late:21.0f}")
    own = found.get("pykubelet")
    if own is None:
        return lines, True
    verdicts = [
        ("20 volumes add", own.added, MOST_MS),
        ("runs after its missing object is there", statistics.median(own.late), MOST_LATE_MS),
    ]
    for what, value, most in verdicts:
        word = "ok" if value <= most else "TOO MUCH"
        lines.append(f"{what}: {value:.0f} ms, at most {most:.0f} ms: {word}")
    return lines, all(value <= most for _, value, most in verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.volumes", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few samples")
    parser.add_argument("--only", default="", choices=["go", "pykubelet"], help="measure this alone")
    options = parser.parse_args()
    try:
        with running_containerd() as containerd, running_cluster() as cluster, scratch_folder("pklvol-") as folder:
            found = measure(cluster, containerd, folder, quick=options.quick, only=options.only)
    except PykubeletError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    lines, holds = report(found)
    if not options.only:
        RESULTS.write_text(json.dumps({name: asdict(samples) for name, samples in found.items()}, indent=1) + "\n")
    print("\n".join(lines))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
