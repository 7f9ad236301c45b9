"""What watched objects cost: connections to the API server, memory, processor time at rest and under changes.

Not the whole agent but its client: a process that follows the Secrets and ConfigMaps of so many pods, as the agent
does, on the real control plane, over HTTP/2 and over HTTP/1.1 in turn: `python -m bench.watches [PODS] [SECONDS]`;
with `--markdown` the figures are kept and put into docs/performance.md.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from bench.report import DOCUMENT, commit, update_document
from tests.bed.cluster import running_cluster

from pykubelet.api.types import (
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    ObjectMeta,
    Pod,
    PodSpec,
    Secret,
    SecretVolumeSource,
    Volume,
)
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import load_kubeconfig
from pykubelet.clients.kube.references import ReferenceWatcher
from pykubelet.clients.kube.transport import Transport
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import gather_all, running

PODS, REST_SECONDS = 100, 20.0
QPS, BURST = 50.0, 100
"""Of an agent, unless its configuration says otherwise."""
NAMESPACE = "default"
CHANGES_PER_MINUTE = 1000
MOST_KIB = 10.0
STREAMS, SPARE_STREAMS = 100, 100
"""On one connection, as kube-apiserver allows unless told otherwise; and for the requests beside the watches."""
PROTOCOLS: dict[str, dict[str, str]] = {"HTTP/2": {}, "HTTP/1.1": {"DISABLE_HTTP2": "1"}}
RESULTS = Path(__file__).parent / "watches.json"
MARKS = ("<!-- watches:begin -->", "<!-- watches:end -->")
Results = dict[str, dict[str, float]]
CLOCK = SystemClock()


def client_of(kubeconfig: Path, qps: float = -1) -> RestKubeClient:
    server = ServerConnections(load_kubeconfig(kubeconfig), clock=CLOCK)
    return RestKubeClient(Transport(server, agent="bench", qps=qps, burst=BURST))


def objects_of(pod: int) -> list[ConfigMap | Secret]:
    """Three objects, each with a few hundred bytes."""
    value = "x" * 200
    return [
        ConfigMap(metadata=ObjectMeta(name=f"watched-{pod}-a", namespace=NAMESPACE), data={"key": value}),
        ConfigMap(metadata=ObjectMeta(name=f"watched-{pod}-b", namespace=NAMESPACE), data={"key": value}),
        Secret(metadata=ObjectMeta(name=f"watched-{pod}-c", namespace=NAMESPACE), data={"key": "eHh4" * 60}),
    ]


def a_pod(number: int) -> Pod:
    names = [obj.metadata.name or "" for obj in objects_of(number)]
    volumes = [
        Volume(name="a", config_map=ConfigMapVolumeSource(name=names[0])),
        Volume(name="b", config_map=ConfigMapVolumeSource(name=names[1])),
        Volume(name="c", secret=SecretVolumeSource(secret_name=names[2])),
    ]
    return Pod(
        metadata=ObjectMeta(name=f"pod-{number}", namespace=NAMESPACE, uid=f"uid-{number}"),
        spec=PodSpec(containers=[Container(name="main", image="none")], volumes=volumes),
    )


def memory_kib(process: int | str = "self") -> int:
    """Memory of the process alone: shares in libraries change with whatever else runs on the machine."""
    gc.collect()
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def connections(process: int | str = "self", port: int = 0) -> int:
    """Open TCP connections of the process, to the port if one is given."""
    links = [os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir() if path.is_symlink()]
    mine = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    here = [row for row in rows if row[9] in mine and row[3] == "01"]
    return sum(1 for row in here if not port or int(row[2].rpartition(":")[2], 16) == port)


async def follow(kubeconfig: Path, pods: int, seconds: float) -> dict[str, float]:
    """The child's part: follow the objects, say what it costs."""
    client = client_of(kubeconfig, QPS)
    watcher = ReferenceWatcher(kube=client, clock=CLOCK)
    heard: dict[str, int] = {}
    watcher.listen(lambda kind, namespace, name, uids: heard.update({name: heard.get(name, 0) + 1}))
    await client.is_healthy()
    async with running(watcher):
        # What the first object costs, code that is used for the first time, an agent has paid long before.
        watcher.register(a_pod(0))
        await until(lambda: len(heard) == 3)
        await CLOCK.sleep(1.0)
        before = memory_kib()
        for number in range(1, pods + 1):
            watcher.register(a_pod(number))
        await until(lambda: len(heard) == 3 * (pods + 1))
        await CLOCK.sleep(3.0)
        after, used = memory_kib(), time.process_time()
        await CLOCK.sleep(seconds)
        at_rest = time.process_time() - used
        open_connections = connections()
        print("ready", flush=True)
        known, used, began = sum(heard.values()), time.process_time(), CLOCK.monotonic()
        changes = int(await asyncio.to_thread(sys.stdin.readline))
        await until(lambda: sum(heard.values()) >= known + changes)
        spent, lasted = time.process_time() - used, CLOCK.monotonic() - began
    await client.close()
    return {
        "objects": 3 * pods,
        "connections": open_connections,
        "kib_per_object": round((after - before) / (3 * pods), 2),
        "cpu_percent_at_rest": round(100 * at_rest / seconds, 3),
        "changes": changes,
        "cpu_percent_under_changes": round(100 * spent / lasted, 3),
    }


async def until(holds: Callable[[], bool], within: float = 120.0) -> None:
    async with asyncio.timeout(within):
        while not holds():
            await CLOCK.sleep(0.05)


async def prepare(kubeconfig: Path, pods: int) -> None:
    client = client_of(kubeconfig)
    for number in range(pods + 1):
        await gather_all(*(client.create(obj) for obj in objects_of(number)))
    await client.close()


async def change(kubeconfig: Path, pods: int, changes: int) -> None:
    """So many changes, at the rate of so many a minute."""
    client, began = client_of(kubeconfig), CLOCK.monotonic()
    for number in range(changes):
        obj = objects_of(number // 3 % pods)[number % 3]
        obj.metadata.labels = {"change": f"{os.getpid()}-{began:.0f}-{number}"}
        await client.update(obj)
        await CLOCK.sleep(began + (number + 1) * 60 / CHANGES_PER_MINUTE - CLOCK.monotonic())
    await client.close()


def measured(kubeconfig: Path, pods: int, seconds: float, environ: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.watches", "follow", str(kubeconfig), str(pods), str(seconds)]
    with subprocess.Popen(
        command, env={**os.environ, **environ}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() == "ready\n":
            changes = int(seconds / 60 * CHANGES_PER_MINUTE)
            child.stdin.write(f"{changes}\n")
            child.stdin.flush()
            uvloop.run(change(kubeconfig, pods, changes))
        result: dict[str, float] = json.loads(child.stdout.read())
    return result


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["follow"]:
        print(json.dumps(uvloop.run(follow(Path(arguments[1]), int(arguments[2]), float(arguments[3])))))
        return
    keep = "--markdown" in arguments
    numbers = [each for each in arguments if not each.startswith("-")]
    pods = int(numbers[0]) if numbers else PODS
    seconds = float(numbers[1]) if len(numbers) > 1 else REST_SECONDS
    measured_at = commit()
    results: dict[str, dict[str, float]] = {}
    with running_cluster(new_etcd=True) as cluster:
        uvloop.run(prepare(cluster.admin_kubeconfig, pods))
        for name, environ in PROTOCOLS.items():
            results[name] = measured(cluster.admin_kubeconfig, pods, seconds, environ)
    report = {"commit": measured_at, "results": results}
    print(json.dumps(report, indent=2))
    if keep:
        RESULTS.write_text(json.dumps(report, indent=2) + "\n")
        update_document(table(report), DOCUMENT, MARKS)
    if not holds(results):
        sys.exit(f"over the budget: {MOST_KIB:g} KiB for each object, a connection for each {STREAMS} streams")


def holds(results: Results) -> bool:
    found = results["HTTP/2"]
    streams = math.ceil((found["objects"] + SPARE_STREAMS) / STREAMS)
    return found["kib_per_object"] <= MOST_KIB and found["connections"] <= streams


def table(report: dict[str, Any]) -> str:
    """The figures for people."""
    results: Results = report["results"]
    rows = [
        ("connections to the API server", "connections", ""),
        ("memory for each object", "kib_per_object", " KiB"),
        ("CPU at rest", "cpu_percent_at_rest", " %"),
        (f"CPU, {CHANGES_PER_MINUTE} changes a minute", "cpu_percent_under_changes", " %"),
    ]
    objects = next(iter(results.values()))["objects"]
    lines = [f"{objects} objects, commit {report['commit']}:", "", f"| figure | {' | '.join(results)} |"]
    lines.append("|---" * (len(results) + 1) + "|")
    for title, key, unit in rows:
        lines.append(f"| {title} | {' | '.join(f'{each[key]:g}{unit}' for each in results.values())} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
