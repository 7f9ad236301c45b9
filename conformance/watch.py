"""The agent's footprint while specs run and what is left when their namespaces are gone.

Looks at the process from outside (proc), at its folders, at the mount table and at its cgroups; of the agent itself it
asks only which tasks it has.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.bed import Bed

PERIOD = 1.0
SETTLED_WITHIN = 540.0
"""A spec deletes a pod by force whose grace is 500 s; as upstream, its container gets all of it."""
FIRST_SPECS = 20
FIRST, LAST = f"after {FIRST_SPECS} specs", "at the end"
ALLOWED_GROWTH = 15 * 2**20
POD_TASK = re.compile(r"(pod|volume) \S+/|(status of|inspect|prune|channel) |settle-")
"""What works for one pod is named so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    at: float
    pss: int
    """Bytes; memory shared with others counts in part."""
    files: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is still there although no pod is."""

    pod_folders: Sequence[str]
    mounts: Sequence[str]
    cgroups: Sequence[str]
    containers: Sequence[str]
    tasks: Sequence[str]

    def sentences(self) -> list[str]:
        return [f"{kind.replace('_', ' ')}: {', '.join(found[:5])}" for kind, found in asdict(self).items() if found]


def footprint(pid: int) -> Footprint | None:
    """None when the process is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        files, threads = len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return None
    pss = next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return Footprint(at=time.time(), pss=pss, files=files, threads=threads)


class Watch:
    """Samples for as long as `watching` lasts."""

    def __init__(self) -> None:
        self.samples: list[Footprint] = []

    def when(self, moment: float) -> Footprint | None:
        """The last sample before the moment."""
        return next((sample for sample in reversed(self.samples) if sample.at <= moment), None)


@contextmanager
def watching(pid: int) -> Iterator[Watch]:
    watch, over = Watch(), threading.Event()

    def body() -> None:
        while not over.is_set():
            if (found := footprint(pid)) is not None:
                watch.samples.append(found)
            over.wait(PERIOD)

    thread = threading.Thread(target=body, name="watch")
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def settle(bed: Bed, within: float = SETTLED_WITHIN) -> Left:
    """Wait until nothing is left, or say what still is after that time."""
    deadline = time.monotonic() + within
    while True:
        try:
            found = left(bed)
            if (bed.gone() and not found.sentences()) or time.monotonic() > deadline:
                return found
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:  # the machine was too busy for one question; the results must not be lost
                raise
        time.sleep(1)


def tasks(bed: Bed) -> list[str]:
    """Names of everything that runs inside the agent."""
    said = bed.cluster.kubectl("get", "--raw", f"/api/v1/nodes/{bed.agent.node}/proxy/debug/pprof/goroutine")
    return [line.removeprefix("task ") for line in said.splitlines() if line.startswith("task ")]


def left(bed: Bed) -> Left:
    pods = bed.agent.root / "pods"
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return Left(
        pod_folders=sorted(path.name for path in pods.iterdir()) if pods.exists() else [],
        mounts=[line.split()[4] for line in mounts if str(bed.agent.root) in line],
        cgroups=[group for group in bed.agent.cgroups.groups() if "/pod" in group or group.startswith("kubepods/pod")],
        tasks=[task for task in tasks(bed) if POD_TASK.match(task)],
        containers=sorted(bed.runtime.container_ids() - bed.foreign),
    )


def summary(watch: Watch, ends: Sequence[float]) -> dict[str, Footprint]:
    """The figures after the first specs and at the end, when all is quiet again."""
    ordered = sorted(ends)
    moments = {FIRST: ordered[FIRST_SPECS - 1]} if len(ordered) > FIRST_SPECS else {}
    found = {name: watch.when(moment) for name, moment in (moments | {LAST: time.time()}).items()}
    return {name: each for name, each in found.items() if each is not None}


def growth(found: Mapping[str, Footprint]) -> list[str]:
    """A sentence when the agent is much bigger at the end than after the first specs."""
    if FIRST not in found or LAST not in found or found[LAST].pss - found[FIRST].pss <= ALLOWED_GROWTH:
        return []
    return [f"memory: {shown(found[FIRST])} {FIRST}, {shown(found[LAST])} {LAST}"]


def shown(each: Footprint) -> str:
    return f"{each.pss / 2**20:.1f} MiB, {each.files} files, {each.threads} threads"
