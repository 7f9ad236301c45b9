"""`python -m hosts.kubeadm`: a cluster made with kubeadm on two guests, from the boot to `kubeadm reset`.

Writes what was seen to hosts/results/kubeadm.json. Exit status 0 when all was as expected, 1 when not, 2 when the
guests could not be had. docs/join-with-kubeadm.md is what is run here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hosts.image import ROOT
from hosts.kubeadm import checks
from hosts.kubeadm.checks import GO, OURS, Seen
from hosts.kubeadm.cluster import Cluster, NotAsExpected, two_guests
from hosts.machine import CommandFailed

RESULTS = ROOT / "hosts/results/kubeadm.json"

Step = tuple[str, Callable[[Cluster], Seen]]
STEPS: list[Step] = [
    ("kubeadm init", checks.init),
    ("kubeadm join", checks.join),
    ("pods of kube-system", checks.system_pods),
    ("Service by its name from the other node", checks.service),
    ("control plane from pykubelet to Go", lambda cluster: checks.swap(cluster, cluster.control, GO)),
    ("control plane from Go to pykubelet", lambda cluster: checks.swap(cluster, cluster.control, OURS)),
    ("certificate renewed", checks.rotation),
    ("kubeadm upgrade", checks.upgrade),
    ("Service after the upgrade", checks.reach),
    ("worker from pykubelet to Go", lambda cluster: checks.swap(cluster, cluster.worker, GO)),
    ("worker from Go to pykubelet", lambda cluster: checks.swap(cluster, cluster.worker, OURS)),
    ("Service after the swaps", checks.reach),
    ("kubeadm reset", checks.reset),
]


def main() -> int:
    began = time.monotonic()
    steps: list[Seen] = []
    try:
        with two_guests() as cluster:
            good = run(cluster, steps)
    except (RuntimeError, CommandFailed, OSError, subprocess.SubprocessError) as error:
        print(f"kubeadm: {error}", file=sys.stderr)
        return 2
    write(steps, good, time.monotonic() - began)
    return 0 if good else 1


def run(cluster: Cluster, steps: list[Seen]) -> bool:
    """Do the steps until one is not as expected, and add what each saw."""
    for name, step in STEPS:
        began = time.monotonic()
        result: Seen = {"step": name}
        try:
            result["seen"] = step(cluster)
        except (NotAsExpected, CommandFailed, subprocess.TimeoutExpired) as error:
            result["problem"] = str(error)
            result["journals"] = {node.name: journal(cluster, node.name) for node in cluster.nodes}
        result["seconds"] = round(time.monotonic() - began)
        steps.append(result)
        print(f"{name}: {result.get('problem', 'as expected')} ({result['seconds']} s)", flush=True)
        if "problem" in result:
            return False
    return True


def journal(cluster: Cluster, name: str) -> list[str]:
    """The end of what the agent of a node wrote."""
    node = next(each for each in cluster.nodes if each.name == name)
    return node.machine.run("journalctl -u kubelet -n 200 -o cat --no-pager", check=False).splitlines()


def write(steps: list[Seen], good: bool, seconds: float) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    result = {
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "good": good,
        "seconds": round(seconds),
        "steps": steps,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"what was seen is in {Path(RESULTS).relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
