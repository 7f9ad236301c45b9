"""One hollow node with 500 pods: start, processor time and memory with probes of all kinds, restart, churn of 10,000.

`python -m bench.hollow_node` runs the agent in this process on a real control plane; what the benchmark itself does is
small beside it, and nothing while it measures idleness. The figures are in bench/results/hollow.json and in the table
of docs/hollow.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from bench import hollow
from bench.hollow_stage import MIB, control_plane, keep, rss
from bench.measure import own_cpu
from tests.bed.cluster import Cluster

from pykubelet.api.types import (
    Container,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    ObjectMeta,
    Pod,
    PodSpec,
    Probe,
    TCPSocketAction,
)
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import load_kubeconfig
from pykubelet.clients.kube.transport import Transport
from pykubelet.hollow.fleet import FleetPlan, hollow_nodes
from pykubelet.hollow.node import HollowNode
from pykubelet.hollow.workload import MachinePlan, Program, RuntimePlan, Spread, Workload
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.memory import freeze_start_up, limit_arenas
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import ApiNotFound
from pykubelet.model.pod import uid_of

PODS, CHURNED, CHURNED_AT_ONCE = 500, 10_000, 40
SETTLE, MEASURED = 30.0, 60.0
LONGEST = 600.0
WORKLOAD = Workload(
    machine=MachinePlan(pods=PODS + 2 * CHURNED_AT_ONCE, cpus=64, memory="256Gi"),
    runtime=RuntimePlan(
        sandbox=Spread(median=0.2, p99=1.0), create=Spread(median=0.03, p99=0.2), start=Spread(median=0.05, p99=0.3)
    ),
    programs=(Program(ready_after=0.5),),
)
PROBES: tuple[dict[str, Any], ...] = (
    {"http_get": HTTPGetAction(port=80, path="/")},
    {"tcp_socket": TCPSocketAction(port=80)},
    {"grpc": GRPCAction(port=80)},
    {"exec": ExecAction(command=["true"])},
)


def a_pod(name: str, number: int, *, probed: bool) -> Pod:
    """Bound to the node; each has a readiness and a liveness probe of one of the four kinds, every ten seconds."""
    container = Container(name="app", image="busybox:1")
    if probed:
        action = PROBES[number % len(PROBES)]
        container.readiness_probe = Probe(period_seconds=10, **action)
        container.liveness_probe = Probe(period_seconds=10, **action)
    spec = PodSpec(containers=[container], node_name="hollow-0", termination_grace_period_seconds=1)
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)


class Bench:
    def __init__(self, node: HollowNode, client: RestKubeClient, folder: Path) -> None:
        """`folder` is that of the nodes."""
        self._node = node
        self._folder = folder / node.name / "kubelet" / "pods"
        self._client = client

    def ready(self) -> int:
        """Pods that the agent has reported as ready."""
        agent = self._node.agent
        assert agent is not None
        return sum(
            any(each.type == "Ready" and each.status == "True" for each in reported.status.conditions)
            for _, reported in agent.table.reports()
        )

    def are_ready(self, count: int) -> bool:
        return self.ready() >= count

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONGEST):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.02)

    async def start(self) -> dict[str, Any]:
        began, cpu = time.monotonic(), own_cpu(os.getpid())
        makes = asyncio.create_task(self._make())
        found: dict[str, Any] = {}
        for name, count in (("first", 1), ("median", PODS // 2), ("last", PODS)):
            await self.until(partial(self.are_ready, count))
            found[f"{name}_ready_after"] = round(time.monotonic() - began, 2)
        await makes
        return {**found, "cpu_seconds": round(own_cpu(os.getpid()) - cpu, 1)}

    async def _make(self) -> None:
        room = asyncio.Semaphore(16)

        async def make(number: int) -> None:
            async with room:
                await self._client.create(a_pod(f"web-{number}", number, probed=True))

        await gather_all(*(make(number) for number in range(PODS)))

    async def steady(self) -> dict[str, Any]:
        await asyncio.sleep(SETTLE)
        before, began = own_cpu(os.getpid()), time.monotonic()
        await asyncio.sleep(MEASURED)
        cores = (own_cpu(os.getpid()) - before) / (time.monotonic() - began)
        return {"cores": round(cores, 4), **self.state()}

    def state(self) -> dict[str, Any]:
        return {
            "rss_mib": round(rss(os.getpid()) / MIB, 1),
            "tasks": len(asyncio.all_tasks()),
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "sandboxes": len(self._node.cri.sandboxes),
        }

    async def churn(self) -> dict[str, Any]:
        """Pods come and go beside the others: made, running, deleted, gone."""
        before, began, cpu = self.state(), time.monotonic(), own_cpu(os.getpid())
        numbers = iter(range(CHURNED))

        async def one_after_the_other() -> None:
            for number in numbers:
                await self._live(f"churn-{number}", number)

        await gather_all(*(one_after_the_other() for _ in range(CHURNED_AT_ONCE)))
        took, spent = time.monotonic() - began, own_cpu(os.getpid()) - cpu
        await self.until(lambda: len(self._node.cri.sandboxes) == PODS)
        await asyncio.sleep(SETTLE)
        return {
            "pods": CHURNED,
            "seconds": round(took, 1),
            "pods_a_second": round(CHURNED / took, 1),
            "cpu_ms_a_pod": round(1000 * spent / CHURNED, 2),
            "before": before,
            "after": self.state(),
            "folders_left": len(list(self._folder.glob("*"))) - PODS,
        }

    async def _live(self, name: str, number: int) -> None:
        made = await self._client.create(a_pod(name, number, probed=False))
        agent, uid = self._node.agent, uid_of(made)
        assert agent is not None

        def phase() -> str | None:
            status = agent.table.reported_status(uid)
            return status.phase if status is not None else None

        await self.until(lambda: phase() == "Running")
        try:
            await self._client.delete(Pod, name, "default")
        except ApiNotFound:
            return
        await self.until(lambda: phase() is None)


async def measured(cluster: Cluster, folder: Path) -> dict[str, Any]:
    clock = SystemClock()
    plan = FleetPlan(nodes=1, kubeconfig=cluster.admin_kubeconfig, folder=folder, workload=WORKLOAD)
    server = ServerConnections(load_kubeconfig(cluster.admin_kubeconfig), clock=clock)
    client = RestKubeClient(Transport(server, agent="bench", qps=-1, burst=1))
    found: dict[str, Any] = {"pods": PODS}
    try:
        async with hollow_nodes(plan, clock=clock) as (node,):
            bench = Bench(node, client, folder)
            async with node.agent_running():
                freeze_start_up()
                await node.ready.wait()
                found["idle_rss_mib"] = bench.state()["rss_mib"]
                found["start"] = await bench.start()
                found["steady"] = await bench.steady()
            found["restart"] = await restarted(node, bench)
            async with node.agent_running():
                await bench.until(lambda: bench.ready() == PODS)
                found["churn"] = await bench.churn()
    finally:
        await server.close()
    return found


async def restarted(node: HollowNode, bench: Bench) -> dict[str, Any]:
    """A new agent finds 500 running pods. The start of the interpreter and its imports are not in it."""
    containers = set(node.cri.containers)
    began, cpu = time.monotonic(), own_cpu(os.getpid())
    async with node.agent_running() as agent:
        await bench.until(lambda: sum(each.last_sync > 0 for each in agent.table.workers()) == PODS)
        took = time.monotonic() - began
        await bench.until(lambda: bench.ready() == PODS)
        return {
            "all_synced_after": round(took, 2),
            "all_ready_after": round(time.monotonic() - began, 2),
            "cpu_seconds": round(own_cpu(os.getpid()) - cpu, 2),
            "containers_kept": len(containers & set(node.cri.containers)),
        }


def main() -> None:
    limit_arenas()
    logging.getLogger("pykubelet").setLevel(logging.ERROR)
    with (
        control_plane() as cluster,
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(measured(cluster, Path(folder)))
    keep("node", found)
    hollow.main(["tables"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PODS, CHURNED, SETTLE, MEASURED = (int(word) for word in sys.argv[1:5])
    main()
