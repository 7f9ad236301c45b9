"""Churn on a real containerd: as many pods as fit into some minutes, and what the agent holds meanwhile.

    python -m bench.churn_real [--minutes 15] [--pods 8]

The agent runs as a process on a private containerd; pods (plain, with volumes, crashing, probed) live a few seconds
each and are replaced at once. Every half minute the process's memory, descriptors and threads, the files in its
folders, the runtime's containers and the metric series are counted; over the second half none may grow. The result is
bench/churn_real.json and a table in docs/endurance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import ssl
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.churn import DOCUMENT, grown, rows
from bench.report import HERE, commit, update_document
from tests.bed.agent import BedAgent, bed_agent
from tests.bed.chaos.node import SETTINGS, manifest
from tests.bed.chaos.world import look, refused_removals, told_pods, violations
from tests.bed.parts import blocking
from tests.bed.runtime import BedContainerd, running_containerd

RESULTS = HERE / "churn_real.json"
MARKS = ("<!-- churn-real:begin -->", "<!-- churn-real:end -->")
EVIDENCE = HERE.parent / "build" / "churn_real"
SAMPLE = 20.0
FLAVOURS = ("plain", "volumes", "volumes", "crashing", "probed")
SETTLES = 75.0


class RealChurn:
    def __init__(self, agent: BedAgent, containerd: BedContainerd, *, pods: int) -> None:
        self._agent, self._containerd, self._most = agent, containerd, pods
        self._dice = random.Random(1)
        self._live: dict[str, float] = {}
        self.made = 0
        self.refused: set[str] = set()
        """Ended containers that the runtime gives to nobody."""
        self.samples: list[dict[str, float]] = []

    def run(self, minutes: float) -> None:
        began = time.monotonic()
        next_sample = began + SAMPLE
        while (now := time.monotonic()) < began + 60 * minutes:
            for name in [name for name, at in self._live.items() if at <= now]:
                self._agent.drop(name)
                del self._live[name]
            while len(self._live) < self._most:
                self._create(now)
            if now >= next_sample:
                self._sample((now - began) / 3600)
                next_sample += SAMPLE
            time.sleep(0.1)

    def _create(self, now: float) -> None:
        self.made += 1
        name, flavour = f"pod-{self.made}", self._dice.choice(FLAVOURS)
        pod = manifest(name, "0", flavour)
        container = pod["spec"]["containers"][0]
        if flavour == "crashing":
            container["command"] = ["sh", "-c", "sleep 1; exit 1"]
        elif flavour == "probed":
            container["livenessProbe"] = {"exec": {"command": ["true"]}, "periodSeconds": 1}
        self._agent.put(name, pod)
        self._live[name] = now + self._dice.uniform(4, 12)

    def _sample(self, hour: float) -> None:
        agent = self._agent
        process = Path("/proc", str(agent.pid))
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        sample = {
            "hour": hour,
            "made": self.made,
            "pods": len(told_pods(agent)),
            "rss_kib": float(status["VmRSS"].split()[0]),
            "threads": float(status["Threads"]),
            "descriptors": len(os.listdir(process / "fd")),
            "files": sum(len(files) for _, _, files in os.walk(agent.disk)),
            "series": sum(not line.startswith("#") for line in self._metrics()),
            "sandboxes": len(self._containerd.container_ids()),
            "groups": len(agent.cgroups.groups()),
        }
        self.samples.append(sample)
        print(" ".join(f"{name} {value:.2f}" for name, value in sample.items()), flush=True)

    def _metrics(self) -> list[str]:
        url = f"https://127.0.0.1:{self._agent.settings['port']}/metrics"
        with urllib.request.urlopen(url, context=ssl._create_unverified_context(), timeout=20) as answer:
            return str(answer.read().decode()).splitlines()

    def left_over(self) -> list[str]:
        """What is still there when all are deleted and had time to go."""
        for name in self._live:
            self._agent.drop(name)
        deadline, found = time.monotonic() + SETTLES, ["nothing was read"]
        while found and time.monotonic() < deadline:
            time.sleep(1.0)
            world = look(self._agent, self._containerd, None)
            found = violations({}, world, runtime_killed=False)
        if found:
            EVIDENCE.mkdir(parents=True, exist_ok=True)
            (EVIDENCE / "agent.log").write_text(self._agent.log())
            (EVIDENCE / "containerd.log").write_text(self._containerd.log)
            # Whatever can be removed here the agent could have removed, too.
            self.refused = blocking(refused_removals(self._containerd.endpoint, world.containers))
            boxes = {c.sandbox_id for c in world.containers if c.id in self.refused}
            found = [text for text in found if not any(id[:12] in text for id in self.refused | boxes)]
        return found


def table(result: Mapping[str, Any]) -> str:
    """Every run that was kept, oldest first, with what was said when it ended."""
    titles = {"rss_kib": "resident memory of the agent, KiB", "series": "metric series", "groups": "cgroups"}
    titles["sandboxes"] = "containers and sandboxes of the runtime"
    text = []
    for run in result["runs"]:
        text += [
            f"{run['made']} pods, {run['pods']} at a time, in {run['minutes']:g} minutes (commit {run['commit']}). "
            f"Grown, by the tolerances of that time: {_shown(run['grown_as_run'])}; by those of now: "
            f"{_shown(run['grown'])}. Left over: {'; '.join(run['left_over']) or 'nothing'}. "
            f"Refused by containerd: {'not asked' if run['refused'] is None else run['refused']}.",
            "",
            *rows(run["samples"], titles),
            "",
        ]
    return "\n".join(text[:-1])


def _shown(grown: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {by:+,.1f}" for name, by in sorted(grown.items())) or "nothing"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--pods", type=int, default=8)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only write the table again")
    options = parser.parse_args()
    if options.table:
        update_document(table(json.loads(options.results.read_text())), DOCUMENT, MARKS)
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="pkr-") as folder,
        running_containerd() as containerd,
        bed_agent(Path(folder), containerd, **SETTINGS) as agent,
    ):
        churn = RealChurn(agent, containerd, pods=options.pods)
        time.sleep(3.0)
        churn.run(options.minutes)
        left = churn.left_over()
    bad = grown(churn.samples)
    result = {
        "commit": commit(),
        "minutes": options.minutes,
        "pods": options.pods,
        "made": churn.made,
        "grown": bad,
        "grown_as_run": bad,
        "left_over": left,
        "refused": len(churn.refused),
        "samples": churn.samples,
    }
    kept = json.loads(options.results.read_text())["runs"] if options.results.exists() else []
    options.results.write_text(json.dumps({"runs": [*kept, result]}, indent=1) + "\n")
    print(f"{churn.made} pods; grown: {bad}; left over: {left}")
    return 1 if bad or left else 0


if __name__ == "__main__":
    sys.exit(main())
