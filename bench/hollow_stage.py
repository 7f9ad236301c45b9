"""Where hollow nodes are measured: a control plane, a fleet as a process beside it, and what each process costs."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import own_cpu
from bench.report import commit, machine
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.machine import wait_for

RESULTS = Path(__file__).parent / "results" / "hollow.json"
OPEN_METRICS = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics"
USUAL_FLAGS = {
    # The bed looks at nodes every second; this is Kubernetes' own period.
    "kube-controller-manager": ["--node-monitor-period=5s", OPEN_METRICS],
    "kube-scheduler": [OPEN_METRICS],
}
NODE_SILENCE = 50.0
"""Kubernetes' own."""
MIB = 1 << 20
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextmanager
def control_plane(flags: Mapping[str, Sequence[str]] | None = None) -> Iterator[Cluster]:
    """As a cluster of this size has it, but for the rates of `flags`."""
    merged = {
        name: [*USUAL_FLAGS.get(name, ()), *(flags or {}).get(name, ())] for name in {*USUAL_FLAGS, *(flags or {})}
    }
    with running_cluster(node_silence=NODE_SILENCE, new_etcd=True, flags=merged) as cluster:
        yield cluster


@contextmanager
def fleet(cluster: Cluster, nodes: int, *words: str) -> Iterator[FleetProcess]:
    command = [sys.executable, "-m", "pykubelet", "hollow", "--nodes", str(nodes)]
    log = cluster.folder / "hollow.log"
    with (
        # In memory: the disk is etcd's, and a thousand machines would not share one either.
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--kubeconfig", str(cluster.admin_kubeconfig), "--folder", folder, *words],
            stdout=output,
            stderr=output,
        ) as process,
    ):
        try:
            yield FleetProcess(process, log, nodes)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


class FleetProcess:
    def __init__(self, process: subprocess.Popen[bytes], log: Path, nodes: int) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log
        self._nodes = nodes

    def wait_ready(self, within: float = 900.0) -> float:
        """Seconds that the nodes needed, as the command says."""
        said = re.compile(rf"^{self._nodes} of {self._nodes} nodes ready after ([\d.]+) s$", re.MULTILINE)

        def is_ready() -> bool:
            if self._process.poll() is not None:
                raise SystemExit(f"bench: the fleet ended: {self._log.read_text()[-2000:]}")
            return bool(said.search(self._log.read_text()))

        wait_for(is_ready, f"{self._nodes} hollow nodes ready", within)
        found = said.search(self._log.read_text())
        assert found is not None
        return float(found[1])

    def warnings(self) -> int:
        return sum(line.startswith(("W", "E")) for line in self._log.read_text().splitlines())


class Costs:
    """Processor time and memory of the processes of a cluster and its fleet."""

    def __init__(self, cluster: Cluster, hollow: int) -> None:
        services = (cluster.etcd, cluster.apiserver, cluster.controller_manager, cluster.scheduler)
        self._pids = {"hollow": hollow, **{service.name: service.pid for service in services}}
        self._before = self._cpu()
        self._since = time.monotonic()

    def _cpu(self) -> dict[str, float]:
        return {name: own_cpu(pid) for name, pid in self._pids.items()}

    def so_far(self) -> dict[str, Any]:
        """Since it was made: part of one core, and memory now."""
        seconds = time.monotonic() - self._since
        return {
            "seconds": round(seconds, 1),
            "cores": {name: round((now - self._before[name]) / seconds, 3) for name, now in self._cpu().items()},
            "cpu_seconds": {name: round(now - self._before[name], 1) for name, now in self._cpu().items()},
            "rss_mib": {name: round(rss(pid) / MIB, 1) for name, pid in self._pids.items()},
        }


def rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024


def peak_rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


class Scrape:
    """The metrics of one program of the control plane at one moment."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        tls = ssl._create_unverified_context()
        tls.load_cert_chain(cluster.admin.certificate, cluster.admin.key)
        with urllib.request.urlopen(f"{url}/metrics", context=tls, timeout=30) as answer:
            text = answer.read().decode()
        self._samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            if (found := SAMPLE.match(line)) is not None:
                self._samples.append((found[1], dict(LABEL.findall(found[2] or "")), float(found[3])))

    def sum(self, name: str, **labels: str) -> float:
        return sum(
            value
            for known, carried, value in self._samples
            if known == name and all(carried.get(key) == wanted for key, wanted in labels.items())
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for known, carried, value in self._samples:
            if known == name:
                found[carried.get(label, "")] = found.get(carried.get(label, ""), 0.0) + value
        return found


def mean_ms(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    """Mean of what a histogram of seconds counted between two scrapes, in milliseconds."""
    count = after.sum(f"{name}_count", **labels) - before.sum(f"{name}_count", **labels)
    total = after.sum(f"{name}_sum", **labels) - before.sum(f"{name}_sum", **labels)
    return round(1000 * total / count, 2) if count else 0.0


def keep(section: str, found: Mapping[str, Any], path: Path = RESULTS) -> None:
    """Write a section of the results, with the commit and the machine it belongs to."""
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    where = machine("none")
    del where["containerd"]
    known[section] = {"commit": commit(), "machine": where, **found}
    path.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps(known[section], indent=1))


def processors() -> int:
    return os.cpu_count() or 1
