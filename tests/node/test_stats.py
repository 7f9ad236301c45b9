"""Stats of real pods on a real containerd: what a pod does is what its stats show."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pykubelet.api.types import Container, ObjectMeta, Pod, PodSpec
from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.clients.host.cgroup_stats import CgroupStats
from pykubelet.clients.host.machine import read_machine
from pykubelet.clients.host.node_stats import NodeStats
from pykubelet.clients.host.port import NodePaths
from pykubelet.edges import GuardEdges
from pykubelet.eviction.stats import EvictionStats
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import Services
from pykubelet.model.runtime_status import ContainerState, PodRuntimeStatus
from pykubelet.stats.build import Stats
from pykubelet.stats.cadvisor import machine_lines
from pykubelet.stats.provider import StatsProvider, StatsSettings
from pykubelet.stats.snapshot import CgroupNames
from pykubelet.stats.source import NodeStatsSource
from tests.bed.agent import NODE, BedAgent, bed_agent
from tests.bed.runtime import BUSYBOX, BedContainerd
from tests.fakes.fake_guard import FakeKernelLog
from tests.unit.stats.making import no_volumes

pytestmark = pytest.mark.node

MIB = 1 << 20
BOTH = pytest.mark.parametrize("from_runtime", [False, True], ids=["cgroups", "runtime"])
"""Who measures pods: gate PodAndContainerStatsFromCRI."""
SCRIPTS = {
    "burner": "while :; do :; done",
    "hog": "dd if=/dev/zero of=/dev/shm/x bs=1M count=40; exec sleep 100000",
    "writer": "dd if=/dev/zero of=/big bs=1M count=8; yes 0123456789 | head -c 2000000; exec sleep 100000",
}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, containerd: BedContainerd) -> Iterator[BedAgent]:
    with bed_agent(tmp_path_factory.mktemp("stats"), containerd) as running:
        for name, script in SCRIPTS.items():
            container = {"name": "app", "image": BUSYBOX, "command": ["sh", "-c", script]}
            spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
            running.put(name, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        yield running


class Seen:
    """The agent's pods as the runtime shows them: stands for the agent's own stores."""

    def __init__(self, cri: GrpcCriClient) -> None:
        self._cri = cri
        self.statuses: dict[str, PodRuntimeStatus] = {}

    async def refresh(self) -> None:
        self.statuses = {}
        for record in await self._cri.list_pod_sandboxes(ready_only=True):
            if not record.pod_name.endswith(f"-{NODE}"):
                continue
            box = await self._cri.pod_sandbox_status(record.id)
            containers = [
                await self._cri.container_status(each.id)
                for each in await self._cri.list_containers(pod_uid=record.pod_uid)
            ]
            self.statuses[record.pod_uid] = PodRuntimeStatus(
                uid=record.pod_uid,
                name=record.pod_name,
                namespace=record.pod_namespace,
                ips=box.ips,
                sandboxes=(box,),
                containers=tuple(containers),
            )

    async def until_running(self, clock: SystemClock) -> None:
        async with asyncio.timeout(60):
            while True:
                await self.refresh()
                running = [
                    each
                    for status in self.statuses.values()
                    for each in status.containers
                    if each.state is ContainerState.RUNNING
                ]
                if len(running) == len(SCRIPTS):
                    return
                await clock.sleep(0.2)

    def runtime_statuses(self) -> list[PodRuntimeStatus]:
        return list(self.statuses.values())

    def runtime_status(self, uid: str) -> PodRuntimeStatus:
        return self.statuses[uid]

    def pods(self) -> list[Pod]:
        spec = PodSpec(containers=[Container(name="app", image=BUSYBOX)])
        return [
            Pod(metadata=ObjectMeta(name=each.name, namespace=each.namespace, uid=each.uid), spec=spec)
            for each in self.statuses.values()
        ]


class Looking:
    def __init__(self, agent: BedAgent, cri: GrpcCriClient, *, from_runtime: bool) -> None:
        self.clock = SystemClock()
        self.seen = Seen(cri)
        machine = read_machine()
        cgroups, host = CgroupStats(hugepage_sizes=machine.hugepage_sizes), NodeStats()
        names = CgroupNames(root=agent.cgroups.name)
        guard = GuardEdges(cgroups=cgroups, host=host, kernel_log=FakeKernelLog())
        provider = StatsProvider(
            guard,
            cri=cri,
            table=self.seen,
            paths=NodePaths(root=agent.root, pod_logs=agent.pod_logs, container_logs=agent.folder / "links"),
            clock=self.clock,
            settings=StatsSettings(cgroups=names, fresh_for=0.0, disks_every=0.0, from_runtime=from_runtime),
        )
        stats = Stats(provider=provider, volumes=no_volumes(self.clock), cgroups=names, services=Services())
        cores, sockets = host.cpu_layout()
        self.source = NodeStatsSource(
            provider=provider,
            volumes=stats.volumes,
            machine=machine,
            machine_text=machine_lines(machine, physical_cores=cores, sockets=sockets, version="test"),
            node_name=NODE,
            disk_names=host.device_name,
        )
        self.signals = EvictionStats(
            stats,
            guard,
            cri=cri,
            clock=self.clock,
            memory_bytes=machine.memory_bytes,
            root_dir=str(agent.root),
        )

    async def summary(self) -> dict[str, Any]:
        return json.loads(await self.source.summary(only_cpu_and_memory=False))  # type: ignore[no-any-return]

    async def pod(self, name: str) -> dict[str, Any]:
        pods = (await self.summary())["pods"]
        (found,) = [each for each in pods if each["podRef"]["name"] == f"{name}-{NODE}"]
        return found  # type: ignore[no-any-return]


@asynccontextmanager
async def looking(agent: BedAgent, containerd: BedContainerd, *, from_runtime: bool = False) -> AsyncIterator[Looking]:
    async with GrpcCriClient(containerd.endpoint, clock=SystemClock()) as cri:
        found = Looking(agent, cri, from_runtime=from_runtime)
        await found.seen.until_running(found.clock)
        yield found


async def until(look: Looking, name: str, holds: Any, what: str, every: float = 0.5) -> dict[str, Any]:
    found: dict[str, Any] = {}
    end = look.clock.monotonic() + 60
    while look.clock.monotonic() < end:
        found = await look.pod(name)
        if holds(found):
            return found
        await look.clock.sleep(every)
    raise AssertionError(f"{what}: {json.dumps(found)}")


async def test_a_busy_loop_uses_a_core(agent: BedAgent, containerd: BedContainerd) -> None:
    async with looking(agent, containerd) as look:
        seen = [await look.pod("burner")]

        def busy(pod: dict[str, Any]) -> bool:
            seen.append(pod)
            app, before = (each["containers"][0]["cpu"] for each in reversed(seen[-2:]))
            # Others work on this machine too: a core less what they take.
            return (
                300_000_000 < app.get("usageNanoCores", 0) < 1_100_000_000
                and app["usageCoreNanoSeconds"] > before["usageCoreNanoSeconds"] + 900_000_000
            )

        await look.clock.sleep(3)
        last = await until(look, "burner", busy, "a core in use", every=3)
        app = last["containers"][0]
        assert last["cpu"]["usageCoreNanoSeconds"] >= app["cpu"]["usageCoreNanoSeconds"]
        node = (await look.summary())["node"]
        assert node["cpu"]["usageNanoCores"] >= 0.9 * app["cpu"]["usageNanoCores"]
        assert last["process_stats"]["process_count"] == 1


@BOTH
async def test_memory_shows_in_the_working_set(agent: BedAgent, containerd: BedContainerd, from_runtime: bool) -> None:
    async with looking(agent, containerd, from_runtime=from_runtime) as look:
        found = await until(
            look, "hog", lambda pod: pod["containers"][0]["memory"]["workingSetBytes"] > 40 * MIB, "40 MiB in use"
        )
        assert found["containers"][0]["memory"]["workingSetBytes"] < 60 * MIB
        assert found["memory"]["workingSetBytes"] >= found["containers"][0]["memory"]["workingSetBytes"]
        uses = await look.signals.pods(disks=False)
        largest = max(uses, key=lambda uid: uses[uid].memory or 0)
        assert look.seen.statuses[largest].name == f"hog-{NODE}"


@BOTH
async def test_disk_shows_in_rootfs_and_logs(agent: BedAgent, containerd: BedContainerd, from_runtime: bool) -> None:
    def settled(pod: dict[str, Any]) -> bool:
        app = pod["containers"][0]
        return app["rootfs"]["usedBytes"] >= 8 * MIB and app["logs"]["usedBytes"] >= 2_000_000  # type: ignore[no-any-return]

    async with looking(agent, containerd, from_runtime=from_runtime) as look:
        found = await until(look, "writer", settled, "8 MiB in the layer, 2 MB in the log")
        app = found["containers"][0]
        assert app["rootfs"]["capacityBytes"] > app["rootfs"]["usedBytes"]
        assert found["ephemeral-storage"]["usedBytes"] >= app["rootfs"]["usedBytes"] + app["logs"]["usedBytes"]


@BOTH
async def test_network_bytes_grow(agent: BedAgent, containerd: BedContainerd, from_runtime: bool) -> None:
    async with looking(agent, containerd, from_runtime=from_runtime) as look:
        before = await look.pod("hog")
        (ip,) = [each.ips[0] for each in look.seen.statuses.values() if each.name == f"hog-{NODE}"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:

            def received(pod: dict[str, Any]) -> bool:
                for _ in range(500):  # again each time: the kernel drops what it cannot queue before it knows the peer
                    sender.sendto(b"x" * 1000, (ip, 9))
                return bool(pod["network"]["rxBytes"] - before["network"]["rxBytes"] >= 500_000)

            after = await until(look, "hog", received, "500 kB received")
        assert after["network"]["name"] == "eth0"


async def test_metrics_of_real_pods_parse(agent: BedAgent, containerd: BedContainerd) -> None:
    async with looking(agent, containerd) as look:
        text = await look.source.cadvisor()
        series = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        keys = [(each.name, tuple(sorted(each.labels.items()))) for each in series]
        assert len(keys) == len(set(keys))
        with_cpu = {each.labels["pod"] for each in series if each.name == "container_cpu_usage_seconds_total"}
        assert {f"{name}-{NODE}" for name in SCRIPTS} <= with_cpu
        text = await look.source.resource()
        found = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
        assert {"node_cpu_usage_seconds_total", "container_start_time_seconds", "pod_memory_working_set_bytes"} <= found


async def test_signals_of_the_machine(agent: BedAgent, containerd: BedContainerd) -> None:
    async with looking(agent, containerd) as look:
        found = await look.signals.node()
        assert found.memory is not None and 0 < found.memory.available < found.memory.capacity
        assert found.node_fs is not None and found.image_fs is not None
        assert found.tasks is not None and found.tasks.limit > found.tasks.tasks
        assert found.node_fs.available > 0 and found.image_fs.inodes_free > 0
