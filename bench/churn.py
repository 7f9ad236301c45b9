"""A day of churn in minutes: the whole agent on a runtime and an API server in memory, with time that jumps.

    python -m bench.churn [--hours 24] [--pods 30] [--seed 1] [--trace]

More than 20,000 pods come and go: services with probes, crash loops, jobs, pods with init containers and volumes, pods
that ignore SIGTERM, and manifests; probes fail, watches end and expire, the API server is away, memory runs short and
pods are evicted, the image disk fills and images are collected. Every half hour memory (blocks of Python's allocator
and the process's pages), descriptors, tasks, threads, files, metric series, events and records are counted, and over
the second half of the day none of them may grow. What is left in memory of pods that are gone is listed in the end.
`--trace` also says which lines of the agent hold most memory, at twice the time. The result is bench/churn.json and a
table in docs/endurance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from bench.report import HERE, commit, update_document
from tests.builders import a_container, a_pod
from tests.clock_loop import AutojumpLoop
from tests.fakes.fake_guard import GIB, FakeMachine
from tests.lives.held import mentions
from tests.scenarios.cluster_node import ClusterHarness

from pykubelet.api.types import (
    ConfigMap,
    ConfigMapVolumeSource,
    EmptyDirVolumeSource,
    Event,
    ExecAction,
    ObjectMeta,
    Pod,
    PodStatus,
    Probe,
    Secret,
    SecretVolumeSource,
    Volume,
    VolumeMount,
)
from pykubelet.hollow.cri_values import Behaviour, Exec, MemoryContainer
from pykubelet.model.errors import ApiNotFound
from pykubelet.model.pod import SOURCE_ANNOTATION
from pykubelet.model.runtime_status import ExecResult

RESULTS = HERE / "churn.json"
DOCUMENT = HERE.parent / "docs" / "endurance.md"
MARKS = ("<!-- churn:begin -->", "<!-- churn:end -->")
HARD = "--eviction-hard=memory.available<1Gi,nodefs.available<10%,imagefs.available<5%"
FLAGS = (HARD, "--image-gc-high-threshold=85", "--image-gc-low-threshold=70", "--minimum-image-ttl-duration=2m")
SAMPLE = 1800.0
"""Seconds between two counts."""
UID = "churned-"
KINDS = ("service", "service", "crashing", "job", "stubborn", "volumes", "init", "unwell", "static", "pulled")
PULLED = 40
"""Images that have to be pulled, again after each collection."""
LIVES = (20.0, 60.0, 120.0, 240.0)
"""Seconds after which a pod is deleted."""
MOST_GROWTH = 0.03
"""By which a count may grow over the second half, as part of its mean ..."""
SLACK = {
    "blocks": 3000.0,
    "rss_kib": 2048.0,
    "series": 5.0,
    "files": 20.0,
    "tasks": 20.0,
    "events": 20.0,
    "sandboxes": 25.0,
    "groups": 10.0,
}
"""... or by so much, because the pods of the moment differ."""
SOURCE = str(HERE.parent / "src" / "pykubelet") + "/*"


class Churn:
    def __init__(self, folder: Path, *, pods: int, seed: int) -> None:
        self.node = ClusterHarness(folder, *FLAGS)
        self.folder = folder
        self.machine = FakeMachine(self.node.cri)
        self.node.guard = self.machine.edges()
        self.dice = random.Random(seed)
        self.made = 0
        self.done: Counter[str] = Counter()
        self.samples: list[dict[str, float]] = []
        self._most = pods
        self._live: dict[str, float] = {}
        """Pod name -> when it is deleted."""
        cri = self.node.cri
        cri.on_exec(self._exec)
        cri.program(Behaviour(exits_after=3.0, exit_code=1), name="crashing")
        cri.program(Behaviour(exits_after=15.0), name="job")
        cri.program(Behaviour(stops_after=None), name="stubborn")
        cri.program(Behaviour(exits_after=1.0), name="first")
        for number in range(PULLED):
            cri.add_to_registry(f"pulled-{number}:1", takes=1.0)

    def _exec(self, container: MemoryContainer, command: Sequence[str]) -> Exec:
        sick = container.name == "unwell" and self.dice.random() < 0.5
        return Exec(result=ExecResult(exit_code=int(sick)))

    # --- what happens -------------------------------------------------------------------------------

    async def run(self, hours: float) -> None:
        self._objects()
        await self.node.start()
        end = self.node.clock.monotonic() + hours * 3600
        next_sample, next_trouble = SAMPLE, 300.0
        while (now := self.node.clock.monotonic()) < end:
            await self._churn(now)
            if now >= next_trouble:
                await self._trouble()
                next_trouble = now + self.dice.uniform(200, 700)
            if now >= next_sample:
                self._sample(now)
                next_sample += SAMPLE
            await self.node.clock.sleep(1.0)
        await self._end()

    def _objects(self) -> None:
        meta = partial(ObjectMeta, namespace="default")
        self.node.api.add(ConfigMap(metadata=meta(name="settings"), data={"a": "1"}))
        self.node.api.add(Secret(metadata=meta(name="password"), data={"b": b"2"}))

    async def _churn(self, now: float) -> None:
        for name in [name for name, at in self._live.items() if at <= now]:
            await self._delete(name)
        while len(self._live) < self._most:
            self._create(now)

    async def _delete(self, name: str) -> None:
        del self._live[name]
        self.machine.uses.pop(name, None)
        if name in self.node.wanted:
            self.node.remove(name)
            return
        with suppress(ApiNotFound):
            await self.node.delete(name, grace=self.dice.choice((None, None, 1)))

    def _create(self, now: float) -> None:
        self.made += 1
        kind = self.dice.choice(KINDS)
        name = f"{kind}-{self.made}"
        self.done[f"{kind} pods"] += 1
        self._live[name] = now + self.dice.choice(LIVES) * self.dice.uniform(0.5, 1.5)
        pod = self._pod(kind, name)
        if kind == "static":
            self.node.run(pod)
        else:
            del pod.metadata.annotations[SOURCE_ANNOTATION]
            pod.status = PodStatus(phase="Pending")
            self.node.api.add(pod)

    def _pod(self, kind: str, name: str) -> Pod:
        """Its container has the name of the kind, which is how the runtime knows what its program does."""
        fields: dict[str, Any] = {}
        spec: dict[str, Any] = {"node_name": "node1", "grace": 5}
        if kind in ("service", "unwell"):
            check = Probe(exec=ExecAction(command=["well"]), period_seconds=10, failure_threshold=2)
            fields = {"liveness_probe": check, "readiness_probe": check}
        elif kind == "job":
            spec["restart_policy"] = "Never"
        elif kind == "volumes":
            spec["volumes"] = [
                Volume(name="disk", empty_dir=EmptyDirVolumeSource()),
                Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory")),
                Volume(name="settings", config_map=ConfigMapVolumeSource(name="settings")),
                Volume(name="password", secret=SecretVolumeSource(secret_name="password")),
            ]
            fields["volume_mounts"] = [VolumeMount(name=v.name, mount_path=f"/{v.name}") for v in spec["volumes"]]
        elif kind == "init":
            spec["init"] = [a_container("first")]
        elif kind == "pulled":
            fields["image"] = f"pulled-{self.made % PULLED}:1"
        self.machine.uses[name] = 20 << 20
        return a_pod(name, uid=f"{UID}{self.made}", containers=[a_container(kind, **fields)], **spec)

    async def _trouble(self) -> None:
        kind = self.dice.choice(("watches end", "history compacted", "API server away", "memory short", "disk fills"))
        self.done[kind] += 1
        api, clock = self.node.api, self.node.clock
        if kind == "watches end":
            api.break_watches()
        elif kind == "history compacted":
            api.compact()
            api.break_watches()
        elif kind == "API server away":
            api.stop()
            await clock.sleep(self.dice.uniform(5, 60))
            api.start()
        elif kind == "memory short":
            greedy = self.dice.choice(sorted(self._live))
            self.machine.uses[greedy] = 7 * GIB
            await clock.sleep(30)
            self.machine.uses.pop(greedy, None)
        else:
            self.machine.set_disk("/", free=12 * GIB)
            await clock.sleep(310)  # images are collected every five minutes
            self.machine.set_disk("/", free=50 * GIB)

    async def _end(self) -> None:
        """Everything is deleted; what still knows of a pod an hour later."""
        for name in list(self._live):
            await self._delete(name)
        await self.node.clock.sleep(3600)
        self._forget_fakes()
        self.done["evictions"] = int(self._metric("kubelet_evictions"))
        self.left = Counter(path.partition(" = ")[0] for path in mentions(self.node.node, [UID]))
        self.still = [pod.metadata.name for pod in self.node.api.everything(Pod)]
        await self.node.kill()

    # --- counting -----------------------------------------------------------------------------------

    def _forget_fakes(self) -> None:
        """What only the fakes remember is no part of the agent."""
        self.node.cri.calls.clear()
        self.node.api.calls.clear()
        self.node.api.store._history[:-200] = []
        for event in self.node.api.everything(Event):
            self.node.api.remove(Event, event.metadata.name or "", event.metadata.namespace or "")

    def _metric(self, name: str) -> float:
        lines = self.node.node.ctx.metrics.expose().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and "#" not in line)

    def _sample(self, now: float) -> None:
        self._forget_fakes()
        gc.collect()
        node = self.node.node
        exposed = node.ctx.metrics.expose()
        sample = {
            "hour": now / 3600,
            "pods": len(self._live),
            "made": self.made,
            "blocks": sys.getallocatedblocks(),
            "rss_kib": resident() / 1024,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "files": sum(len(files) for _, _, files in os.walk(self.folder)),
            "folders": sum(len(folders) for _, folders, _ in os.walk(self.folder)),
            "series": sum(not line.startswith("#") for line in exposed.splitlines()),
            "events": len(node.events.all()),
            "lives": len(node.ctx.recorder.lives()),
            "records": sum(1 for _ in node.table),
        }
        self.samples.append(sample)
        print(" ".join(f"{name} {value:.1f}" for name, value in sample.items()), flush=True)
        if tracemalloc.is_tracing():
            print("\n".join(f"   {line}" for line in holders()), flush=True)


def holders(count: int = 12) -> list[str]:
    """The lines of the agent that hold most memory."""
    taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, SOURCE, all_frames=False)])
    most = sorted(taken.statistics("lineno"), key=lambda each: -each.size)
    whole = sum(each.size for each in most) // 1024
    return [f"{whole} KiB in all", *(f"{each.size // 1024} KiB {each.traceback[0]}" for each in most[:count])]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(samples: Sequence[Mapping[str, float]], name: str) -> float:
    """By how much a count grew over the second half, by the line of least squares."""
    half = samples[len(samples) // 2 :]
    hours = [each["hour"] for each in half]
    line = statistics.linear_regression(hours, [each[name] for each in half])
    return line.slope * (hours[-1] - hours[0])


def grown(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Counts that grew by more than they may."""
    found = {}
    for name in samples[0].keys() - {"hour", "made", "pods"}:
        mean = statistics.fmean(each[name] for each in samples[len(samples) // 2 :])
        if (by := growth(samples, name)) > max(MOST_GROWTH * mean, SLACK.get(name, 2.0)):
            found[name] = by
    return found


def rows(samples: Sequence[Mapping[str, float]], titles: Mapping[str, str]) -> list[str]:
    """A table: the mean of each count in each quarter of the time, and how much it grew in the second half."""
    lines = []
    for name in samples[0].keys() - {"hour", "made"}:
        means = [statistics.fmean(each[name] for each in part) for part in quarters(samples)]
        shown = " | ".join(f"{mean:,.0f}" for mean in means)
        lines.append(f"| {titles.get(name, name)} | {shown} | {growth(samples, name):+,.0f} |")
    head = "| count, mean of | 1st quarter | 2nd | 3rd | 4th | growth in the second half, least squares |"
    return [head, "|---|---|---|---|---|---|", *sorted(lines)]


def quarters(samples: Sequence[Mapping[str, float]]) -> list[Sequence[Mapping[str, float]]]:
    return [samples[len(samples) * each // 4 : len(samples) * (each + 1) // 4] for each in range(4)]


def table(result: Mapping[str, Any]) -> str:
    titles = {
        "blocks": "blocks of Python's allocator, with those of the fakes",
        "rss_kib": "memory of the process with the fakes, KiB",
        "lives": "histories kept by the recorder",
        "records": "records of pods",
        "series": "metric series",
        "events": "events kept",
    }
    done = ", ".join(f"{count} {what}" for what, count in result["done"].items())
    run = f"seed {result['seed']}, commit {result['commit']}, {result['seconds'] / 60:.0f} minutes"
    head = f"{result['made']} pods in {result['hours']:g} hours ({run}): {done}."
    return "\n".join([head, "", *rows(result["samples"], titles)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--pods", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    if options.table:
        update_document(table(json.loads(options.results.read_text())), DOCUMENT, MARKS)
        return 0
    logging.getLogger("pykubelet").setLevel(logging.CRITICAL)
    began = time.monotonic()
    if options.trace:
        tracemalloc.start(1)
    with tempfile.TemporaryDirectory(prefix="churn-", dir="/dev/shm") as name:
        churn = Churn(Path(name), pods=options.pods, seed=options.seed)
        with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
            runner.run(churn.run(options.hours))
    result = {
        "commit": commit(),
        "seed": options.seed,
        "hours": options.hours,
        "made": churn.made,
        "seconds": round(time.monotonic() - began),
        "done": churn.done,
        "grown": grown(churn.samples),
        "left_in_memory": churn.left,
        "left_at_the_server": churn.still,
        "samples": churn.samples,
    }
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    print(f"grown: {result['grown']}, left in memory: {dict(churn.left)}, left at the server: {churn.still}")
    return 1 if result["grown"] or churn.left or churn.still else 0


if __name__ == "__main__":
    sys.exit(main())
