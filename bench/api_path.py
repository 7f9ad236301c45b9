"""From the creation of a pod in the API to its process, and to "Running" in the API, and where the time goes.

Both agents, the Go kubelet and pykubelet, on one control plane and one containerd with the same configuration, in turn
for several rounds; pods without volumes and with some take turns within a round. Pods are bound when they are created,
so that no scheduler is measured. Everything is seen from outside: a watch of our own shows when the pod is there and
when it is Running, the first line of its log when its process runs, containerd's log when each call came and was
answered, the API server's metrics how many requests the pods' lives took: `python -m bench.api_path [ROUNDS] [PODS]`;
with `--markdown` the figures are kept and put into docs/performance.md.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import stamp_ns
from bench.report import DOCUMENT, commit, containerd_version, described, machine, update_document
from tests.bed.agent import BedAgent, remove_pods
from tests.bed.cgroups import CgroupTree
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.parts import blocking, scratch_folder
from tests.bed.runtime import BUSYBOX, BedContainerd, running_containerd
from tests.bed.watching import Objects, Watching, watching

from pykubelet.standalone import programs
from pykubelet.standalone.cleanup import unmount_below

ROUNDS, PODS = 10, 3
"""PODS of each shape for each agent in a round."""
SCRIPT = "echo up; trap 'exit 0' TERM; sleep 100000 & wait"
AGENTS = ("go", "pykubelet")
SHAPES = {"plain": "no volume", "volumes": "ConfigMap, Secret, token, emptyDir"}
FIGURES = {"runs": "created → process runs", "visible": "process runs → Running in the API", "total": "together"}
STEPS = {
    "before": ("created → sandbox requested", "agent"),
    "sandbox": ("RunPodSandbox", "runtime"),
    "between": ("→ container requested", "agent"),
    "create": ("CreateContainer", "runtime"),
    "then": ("→ start requested", "agent"),
    "start": ("StartContainer", "runtime"),
    "report": ("→ Running in the API", "agent, API server"),
}
COUNTED = {
    "PATCH pods/status": "status patches",
    "GET pods": "reads of the pod",
    "LIST configmaps": "first reads of ConfigMaps",
    "WATCH configmaps": "watches of ConfigMaps",
    "LIST secrets": "first reads of Secrets",
    "WATCH secrets": "watches of Secrets",
    "POST serviceaccounts/token": "token requests",
    "POST events": "events",
}
RESULTS = Path(__file__).parent / "api_path.json"
MARKS = ("<!-- api_path:begin -->", "<!-- api_path:end -->")

Manifest = dict[str, Any]
Sample = dict[str, float]
"""Milliseconds by figure and step."""
Results = dict[str, dict[str, list[Sample]]]
"""Samples by agent and shape."""
Counts = dict[str, float]


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
        blocking(remove_pods(containerd.endpoint, keep=set()))  # or the other agent would spend its turn on it
        cluster.kubectl("delete", "node", node, "--ignore-not-found")
        unmount_below(folder)
        groups.remove()


def _settings(folder: Path) -> dict[str, Any]:
    """What the Go kubelet needs beside the bed's settings; pykubelet gets the same."""
    return {
        "volumePluginDir": str(folder / "volume-plugins"),
        "imageGCHighThresholdPercent": 100,
        "maxOpenFiles": 4096,
        "maxPods": 200,
    }


class Admin:
    """Requests to the API server over one connection, without a process of kubectl beside the measurement."""

    def __init__(self, cluster: Cluster) -> None:
        tls = ssl.create_default_context(cafile=str(cluster.ca_file))
        tls.load_cert_chain(cluster.admin.certificate, cluster.admin.key)
        self._connection = http.client.HTTPSConnection("127.0.0.1", cluster.port, context=tls, timeout=30)

    def request(self, method: str, path: str, body: Manifest | None = None) -> str:
        headers = {"Content-Type": "application/json"}
        self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]}")
        return text

    def create(self, obj: Manifest) -> None:
        self.request("POST", f"/api/v1/namespaces/default/{obj['kind'].lower()}s", obj)

    def delete_pod(self, name: str) -> None:
        self.request("DELETE", f"/api/v1/namespaces/default/pods/{name}")

    def counts(self) -> Counts:
        """Requests the API server has answered, by what they did."""
        return counted(self.request("GET", "/metrics").splitlines())

    def close(self) -> None:
        self._connection.close()


REQUESTS = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def counted(lines: Iterable[str]) -> Counts:
    """Good answers by verb and resource, for those in COUNTED."""
    found = dict.fromkeys(COUNTED, 0.0)
    for line in lines:
        if (match := REQUESTS.match(line)) is None:
            continue
        labels = dict(LABEL.findall(match["labels"]))
        subresource = f"/{labels['subresource']}" if labels["subresource"] else ""
        what = f"{labels['verb']} {labels['resource']}{subresource}"
        if what in found and labels["code"].startswith("2"):
            found[what] += float(match["count"])
    return found


class Turn:
    """One agent's turn in one round."""

    def __init__(self, admin: Admin, agent: BedAgent, containerd: BedContainerd, shown: Watching) -> None:
        self._admin = admin
        self._agent = agent
        self._containerd = containerd
        self._shown = shown

    def run(self, found: dict[str, list[Sample]], pods: int, label: str, chance: random.Random) -> Counts:
        """Add the samples to `found`; gives the requests that the lives of all these pods took."""
        for shape in SHAPES:
            self._one(f"{label}-warm-{shape}", shape)  # the first pays for cold caches
        before = self._admin.counts()
        for number in range(pods):
            for shape in SHAPES:
                time.sleep(chance.uniform(0.3, 0.9))  # uneven, so that no agent's polling happens to fit it
                found[shape].append(self._one(f"{label}-{shape}-{number}", shape))
        after = self._admin.counts()
        return {what: after[what] - before[what] for what in COUNTED}

    def _one(self, name: str, shape: str) -> Sample:
        if shape == "volumes":
            self._admin.create({"kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
            self._admin.create({"kind": "Secret", "metadata": {"name": name}, "stringData": {"key": name}})
        since = len(self._containerd.log)
        self._admin.create(a_pod(name, self._agent.node, shape))
        self._shown.wait(f"{name} running", lambda found: phase_of(found, name) == "Running", 60)
        offset = time.time_ns() - int(time.monotonic() * 1e9)
        states = [seen for seen in self._shown.history if seen.object["metadata"]["name"] == name]
        shown = next(seen.at for seen in states if seen.object["status"].get("phase") == "Running")
        created, visible = (int(at * 1e9) + offset for at in (states[0].at, shown))
        runs = first_line(self._agent, name)
        self._admin.delete_pod(name)
        self._shown.wait(f"{name} gone", lambda found: f"default/{name}" not in found, 60)
        calls = runtime_calls(self._containerd.log[since:].splitlines(), name)
        return sample(created, runs, visible, calls)


CALL = re.compile(r'^time="(?P<at>[^"]+)" level=info msg="(?P<text>.*)"$')
MILESTONES = (
    ("sandbox", re.compile(r"^RunPodSandbox for (?!.*returns)")),
    ("sandbox done", re.compile(r"^RunPodSandbox for .*returns sandbox id")),
    ("create", re.compile(r"^CreateContainer within sandbox .* for (?!.*returns)")),
    ("create done", re.compile(r"^CreateContainer within sandbox .*returns container id")),
    ("start", re.compile(r"^StartContainer for (?!.*returns)")),
    ("start done", re.compile(r"^StartContainer for .*returns successfully")),
)


def runtime_calls(lines: Iterable[str], pod: str) -> dict[str, int]:
    """When each call for the pod came and was answered, as containerd's log says; nanoseconds of the wall clock.

    Only one pod is started at a time, so that every call after its sandbox was requested is for it."""
    found: dict[str, int] = {}
    for line in lines:
        if (match := CALL.match(line)) is None or (not found and f"Name:{pod}," not in line):
            continue
        for what, pattern in MILESTONES:
            if pattern.match(match["text"]):
                found.setdefault(what, stamp_ns(match["at"] + " "))
    return found


def sample(created: int, runs: int, visible: int, calls: Mapping[str, int]) -> Sample:
    """Milliseconds of each figure and step; arguments are nanoseconds of the wall clock."""
    marks = [created, *(calls[what] for what, _ in MILESTONES), visible]
    found = {name: (end - begin) / 1e6 for name, begin, end in zip(STEPS, marks, marks[1:], strict=False)}
    figures = {"runs": runs - created, "visible": visible - runs, "total": visible - created}
    return found | {name: each / 1e6 for name, each in figures.items()}


def first_line(agent: BedAgent, name: str) -> int:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for path in agent.pod_logs.glob(f"default_{name}_*/app/0.log"):
            if lines := path.read_text().splitlines():
                return stamp_ns(lines[0])
        time.sleep(0.01)
    raise RuntimeError(f"{name} wrote nothing:\n{agent.tail()}")


def a_pod(name: str, node: str, shape: str) -> Manifest:
    volumes: list[Manifest] = []
    if shape == "volumes":
        volumes += [{"name": "config", "configMap": {"name": name}}, {"name": "secret", "secret": {"secretName": name}}]
        volumes += [{"name": "scratch", "emptyDir": {}}]
    return pod_manifest(name, node, volumes, token=shape == "volumes")


def pod_manifest(name: str, node: str, volumes: list[Manifest], *, token: bool = False) -> Manifest:
    """A pod bound to the node, with all volumes mounted."""
    container = {
        "name": "app",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", SCRIPT],
        "volumeMounts": [{"name": each["name"], "mountPath": f"/v/{each['name']}"} for each in volumes],
    }
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": token,
        "containers": [container],
        "volumes": volumes,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def phase_of(found: Objects, name: str) -> str:
    return str(found.get(f"default/{name}", {}).get("status", {}).get("phase", ""))


def _ready(found: Objects, node: str) -> bool:
    conditions = found.get(node, {}).get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def measure(rounds: int, pods: int, show: Callable[[str], None]) -> tuple[Results, dict[str, Counts]]:
    """Samples of both agents, and the requests for each pod's life."""
    found: Results = {agent: {shape: [] for shape in SHAPES} for agent in AGENTS}
    requests: dict[str, Counts] = {agent: dict.fromkeys(COUNTED, 0.0) for agent in AGENTS}
    kinds: dict[str, type[BedAgent]] = {"go": GoAgent, "pykubelet": BedAgent}
    chance = random.Random(1)
    with running_containerd() as containerd, running_cluster() as cluster, scratch_folder("pklapi-") as folder:
        for turn in range(rounds):
            # Who is first changes, so that a machine that grows slower harms both.
            for name in AGENTS if turn % 2 == 0 else AGENTS[::-1]:
                with joined_agent(kinds[name], name, cluster, containerd, folder / f"{name}{turn}") as (agent, shown):
                    admin = Admin(cluster)
                    counts = Turn(admin, agent, containerd, shown).run(found[name], pods, f"{name}{turn}", chance)
                    admin.close()
                for what in COUNTED:
                    requests[name][what] += counts[what] / (rounds * pods * len(SHAPES))
            show(f"round {turn + 1} of {rounds}: " + _medians(found))
    return found, requests


def _medians(found: Results) -> str:
    shown = [
        f"{agent} {shape} {statistics.median(each['total'] for each in samples):.0f}"
        for agent, shapes in found.items()
        for shape, samples in shapes.items()
    ]
    return ", ".join(shown) + " ms"


def table(report: Mapping[str, Any]) -> str:
    """The figures for people."""
    where, found, requests = report["machine"], report["samples"], report["requests"]
    count = len(found["go"]["plain"])
    lines = [
        f"{where['date']}, commit {report['commit']}: {described(where)}, "
        f"load before the run {where['load']}; "
        f"{report['rounds']} rounds, {count} pods of each shape for each agent. "
        "Milliseconds: median (10th to 90th percentile).",
        "",
        "| pod | figure | Go kubelet 1.36.4 | pykubelet | ratio |",
        "|---|---|---|---|---|",
    ]
    for shape, title in SHAPES.items():
        for figure, text in FIGURES.items():
            go, own = ([each[figure] for each in found[agent][shape]] for agent in AGENTS)
            ratio = statistics.median(own) / statistics.median(go)
            lines.append(f"| {title} | {text} | {_spread(go)} | {_spread(own)} | {ratio:.2f} |")
    lines += ["", "| where the time goes, medians | whose | Go, no volume | pykubelet | Go, volumes | pykubelet |"]
    lines.append("|---|---|---|---|---|---|")
    for step, (text, whose) in STEPS.items():
        cells = [_median(found[agent][shape], step) for shape in SHAPES for agent in AGENTS]
        lines.append(f"| {text} | {whose} | {' | '.join(cells)} |")
    lines += ["", "| requests for a pod's life, mean of both shapes | Go kubelet 1.36.4 | pykubelet |", "|---|---|---|"]
    for what, text in COUNTED.items():
        lines.append(f"| {text} ({what}) | {requests['go'][what]:.2f} | {requests['pykubelet'][what]:.2f} |")
    return "\n".join(lines)


def _median(samples: Iterable[Sample], figure: str) -> str:
    return f"{statistics.median(each[figure] for each in samples):.0f}"


def _spread(samples: list[float]) -> str:
    ordered = sorted(samples)
    low, high = (ordered[round(part * (len(ordered) - 1))] for part in (0.1, 0.9))
    return f"{statistics.median(ordered):.0f} ({low:.0f} to {high:.0f})"


def verdicts(report: Mapping[str, Any]) -> dict[str, bool]:
    """What must hold: below the Go kubelet for every shape, with no more status patches."""
    found, requests = report["samples"], report["requests"]
    judged = {}
    for shape in SHAPES:
        go, own = (statistics.median(each["total"] for each in found[agent][shape]) for agent in AGENTS)
        judged[f"created → Running in the API, {SHAPES[shape]}: below the Go kubelet"] = own < go
    patches = "PATCH pods/status"
    judged["no more status patches than the Go kubelet"] = requests["pykubelet"][patches] <= requests["go"][patches]
    return judged


def reported(rounds: int, pods: int, commit: str) -> dict[str, Any]:
    """Measure; everything that is kept."""
    where = machine(containerd_version(programs.find_runtime().containerd))
    found, requests = measure(rounds, pods, lambda line: print(line, file=sys.stderr, flush=True))
    report = {"commit": commit, "machine": where, "rounds": rounds, "requests": requests, "samples": found}
    return {key: _rounded(each) for key, each in report.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 2) if isinstance(value, float) else value


def main(arguments: list[str]) -> int:
    numbers = [int(each) for each in arguments if not each.startswith("-")]
    rounds, pods = (*numbers, *(ROUNDS, PODS)[len(numbers) :])
    measured = commit()
    report = reported(rounds, pods, measured)
    print(table(report))
    if "--markdown" in arguments:
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
        update_document(table(report), DOCUMENT, MARKS)
    judged = verdicts(report)
    for what, holds in judged.items():
        print(f"{what}: {'ok' if holds else 'NO'}")
    return 0 if all(judged.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
