"""Hollow nodes beside Kubernetes' own, kubemark: what a node costs at rest, and 500 pods on one of them.

`python -m bench.kubemark` runs the control plane and both in a network namespace of their own, since a Go kubelet puts
its chains into the packet filter. Runtimes take no time in either, and pods have no probes: kubemark's cannot answer
any. The figures are in bench/results/hollow.json and the table in docs/hollow.md.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from bench import hollow
from bench.hollow_stage import MIB, control_plane, keep, rss
from bench.measure import own_cpu
from tests.bed.cluster import Cluster, go_programs
from tests.bed.parts import free_port

from pykubelet.api.types import Container, Node, ObjectMeta, Pod, PodSpec
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import load_kubeconfig
from pykubelet.clients.kube.transport import Transport
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import gather_all
from pykubelet.node.conditions import is_ready

INSIDE = "--inside"
NODES, PODS = 10, 500
SETTLE, MEASURED = 20.0, 40.0
LONGEST = 300.0
WORKLOAD = "{machine: {pods: 600, cpus: 64, memory: 256Gi}, images: {size: 0}}"


@contextmanager
def nodes_of(subject: str, cluster: Cluster, count: int, folder: Path) -> Iterator[list[int]]:
    """The processes of so many nodes, whose names begin with the subject's."""
    login = str(cluster.admin_kubeconfig)
    if subject == "pykubelet":
        (folder / "workload.yaml").write_text(WORKLOAD)
        words = ["hollow", "--nodes", str(count), "--prefix", "pykubelet-", "--kubeconfig", login]
        words += ["--workload", str(folder / "workload.yaml"), "--folder", str(folder)]
        commands = [[sys.executable, "-m", "pykubelet", *words]]
    else:
        program = str(go_programs("kubemark") / "kubemark")
        same = ["--morph=kubelet", f"--kubeconfig={login}", "--max-pods=600", "--use-host-image-service=false"]
        same += ["--kube-api-qps=50", "--kube-api-burst=100"]  # as kubelets have it
        commands = [
            [program, *same, f"--name=kubemark-{number}", f"--kubelet-port={free_port()}", "--kubelet-read-only-port=0"]
            for number in range(count)
        ]
    with (folder / f"{subject}.log").open("wb") as log:
        running = [subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) for command in commands]
        try:
            yield [each.pid for each in running]
        finally:
            for each in running:
                each.kill()
                each.wait()


class Bench:
    def __init__(self, client: RestKubeClient, cluster: Cluster, folder: Path) -> None:
        self._client = client
        self._cluster = cluster
        self._folder = folder

    async def rest(self, subject: str) -> dict[str, Any]:
        with nodes_of(subject, self._cluster, NODES, self._folder) as pids:
            await self._until_ready(subject, NODES)
            await asyncio.sleep(SETTLE)
            before, began = sum(map(own_cpu, pids)), time.monotonic()
            await asyncio.sleep(MEASURED)
            cores = (sum(map(own_cpu, pids)) - before) / (time.monotonic() - began)
            found = {"nodes": NODES, "rss_mib_a_node": round(sum(map(rss, pids)) / MIB / NODES, 1)}
            await self._remove_nodes()
            return {**found, "cores_a_node": round(cores / NODES, 5)}

    async def pods(self, subject: str) -> dict[str, Any]:
        with nodes_of(subject, self._cluster, 1, self._folder) as (pid,):
            await self._until_ready(subject, 1)
            await asyncio.sleep(5.0)
            before, began = own_cpu(pid), time.monotonic()
            making = asyncio.create_task(self._make(f"{subject}-0"))
            found: dict[str, Any] = {"pods": PODS}
            for name, count in (("first", 1), ("median", PODS // 2), ("last", PODS)):
                await self._until_running(count)
                found[f"{name}_running_after"] = round(time.monotonic() - began, 1)
            await making
            found["cpu_seconds"] = round(own_cpu(pid) - before, 1)
            await asyncio.sleep(SETTLE)
            before, began = own_cpu(pid), time.monotonic()
            await asyncio.sleep(MEASURED)
            found["cores"] = round((own_cpu(pid) - before) / (time.monotonic() - began), 4)
            found["rss_mib"] = round(rss(pid) / MIB, 1)
        await asyncio.to_thread(
            self._cluster.kubectl, "delete", "pods", "--all", "--force", "--grace-period=0", within=LONGEST
        )
        await self._remove_nodes()
        return found

    async def _make(self, node: str) -> None:
        room = asyncio.Semaphore(16)

        async def make(number: int) -> None:
            containers = [Container(name="app", image="busybox:1", image_pull_policy="IfNotPresent")]
            spec = PodSpec(containers=containers, node_name=node, automount_service_account_token=False)
            async with room:
                await self._client.create(Pod(metadata=ObjectMeta(name=f"p-{number}", namespace="default"), spec=spec))

        await gather_all(*(make(number) for number in range(PODS)))

    async def _until_running(self, count: int) -> None:
        async with asyncio.timeout(LONGEST):
            while True:
                page = await self._client.list(
                    Pod, "default", field_selector="status.phase=Running", resource_version="0"
                )
                if len(page.items) >= count:
                    return
                await asyncio.sleep(0.25)

    async def _until_ready(self, subject: str, count: int) -> None:
        async with asyncio.timeout(LONGEST):
            while True:
                page = await self._client.list(Node)
                ready = [each for each in page.items if is_ready(each.status)]
                if sum(str(each.metadata.name).startswith(subject) for each in ready) >= count:
                    return
                await asyncio.sleep(0.5)

    async def _remove_nodes(self) -> None:
        await asyncio.to_thread(self._cluster.kubectl, "delete", "nodes", "--all", "--wait=false")


async def measured(cluster: Cluster, folder: Path) -> dict[str, Any]:
    server = ServerConnections(load_kubeconfig(cluster.admin_kubeconfig), clock=SystemClock())
    bench = Bench(RestKubeClient(Transport(server, agent="bench", qps=-1, burst=1)), cluster, folder)
    try:
        return {subject: {"rest": await bench.rest(subject), "pods": await bench.pods(subject)} for subject in SUBJECTS}
    finally:
        await server.close()


SUBJECTS = ("kubemark", "pykubelet")


def main(words: list[str]) -> None:
    if INSIDE not in words:
        inside = f"ip link set lo up && exec {sys.executable} -m bench.kubemark {INSIDE}"
        raise SystemExit(subprocess.run(["unshare", "--net", "sh", "-c", inside], check=False).returncode)
    with control_plane() as cluster, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        found = uvloop.run(measured(cluster, Path(folder)))
    keep("kubemark", {"version": "v1.36.4", **found})
    hollow.main(["tables"])


if __name__ == "__main__":
    main(sys.argv[1:])
