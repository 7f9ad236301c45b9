"""Hollow nodes on an API server in memory: they register, run pods as the workload says, and live through failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from pykubelet.api.types import (
    ContainerPort,
    ExecAction,
    HTTPGetAction,
    Lease,
    Node,
    Pod,
    PodStatus,
    Probe,
    TCPSocketAction,
)
from pykubelet.hollow.fleet import Fleet, FleetPlan, UnscrapedRegistry, fleet_settings
from pykubelet.hollow.history import Histories, load_histories
from pykubelet.hollow.node import HollowNode, Shared
from pykubelet.hollow.server import NodeClients
from pykubelet.hollow.workload import Failure, FailuresPlan, MachinePlan, Program, RuntimePlan, Workload
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.pod import SOURCE_ANNOTATION
from pykubelet.model.runtime_status import ContainerState
from pykubelet.node.conditions import is_ready
from tests.builders import a_container, a_pod
from tests.fakes.fake_kube import FakeKube

KUBECONFIG = """
{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [],
 contexts: [{name: c, context: {cluster: c}}], current-context: c}
"""


class HollowBed:
    def __init__(self, folder: Path, nodes: int, workload: Workload, history: Histories | None) -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        (folder / "kubeconfig").write_text(KUBECONFIG)
        plan = FleetPlan(nodes=nodes, kubeconfig=folder / "kubeconfig", folder=folder, workload=workload)
        shared = Shared(
            settings=fleet_settings(plan),
            workload=workload,
            history=history,
            clock=self.clock,
            metrics=UnscrapedRegistry(),
            clients=lambda name: NodeClients(self.kube, self.kube, self.kube),
            folder=folder,
            seed="1",
        )
        self.nodes = [HollowNode(shared, name=name, number=number) for number, name in plan.names()]
        self.said: list[str] = []
        self.fleet = Fleet(self.nodes, self.clock, self.said.append)

    def ready(self) -> list[str]:
        found = [self.kube.find(Node, node.name) for node in self.nodes]
        return [str(node.metadata.name) for node in found if node is not None and is_ready(node.status)]

    def bind(self, name: str, *, restart_policy: str = "Always", **container: Any) -> None:
        """A pod as the scheduler leaves it, on the first node."""
        pod = a_pod(
            name, node_name="hollow-0", containers=[a_container("app", **container)], restart_policy=restart_policy
        )
        del pod.metadata.annotations[SOURCE_ANNOTATION]
        pod.status = PodStatus(phase="Pending")
        self.kube.add(pod)

    def boot_id(self) -> str:
        node = self.kube.find(Node, "hollow-0")
        assert node is not None and node.status.node_info is not None
        return node.status.node_info.boot_id

    def phase(self, name: str) -> str:
        found = self.kube.find(Pod, name, "default")
        return str(found.status.phase) if found is not None else "gone"

    def is_pod_ready(self, name: str) -> bool:
        found = self.kube.find(Pod, name, "default")
        return found is not None and any(c.type == "Ready" and c.status == "True" for c in found.status.conditions)

    def restarts(self, name: str) -> int:
        found = self.kube.find(Pod, name, "default")
        return sum(each.restart_count for each in found.status.container_statuses) if found is not None else 0

    async def until(self, question: Callable[[], bool], within: float = 120.0) -> float:
        """Seconds until it is so."""
        began = self.clock.monotonic()
        while not question():
            assert self.clock.monotonic() - began < within
            await self.clock.sleep(0.05)
        return self.clock.monotonic() - began


@asynccontextmanager
async def hollow(
    folder: Path, *, nodes: int = 1, workload: Workload | None = None, history: Histories | None = None
) -> AsyncIterator[HollowBed]:
    bed = HollowBed(folder, nodes, workload or Workload(), history)
    async with TaskSet("hollow nodes") as tasks:
        await bed.fleet.start(tasks)
        yield bed


async def test_nodes_are_ready_and_keep_their_leases(tmp_path: Path) -> None:
    async with hollow(tmp_path, nodes=20, workload=Workload(machine=MachinePlan(zones=2, cpus=3, pods=7))) as bed:
        assert bed.ready() == [f"hollow-{number}" for number in range(20)]
        assert bed.said[-1].startswith("20 of 20 nodes ready")
        shown = bed.kube.find(Node, "hollow-3")
        assert shown is not None
        assert shown.metadata.labels["topology.kubernetes.io/zone"] == "zone-1"
        assert shown.metadata.labels["pykubelet.local/hollow"] == "true"
        assert (shown.status.capacity["cpu"], shown.status.capacity["pods"]) == ("3", "7")
        assert shown.status.daemon_endpoints is not None and shown.status.daemon_endpoints.kubelet_endpoint is not None
        assert shown.status.daemon_endpoints.kubelet_endpoint.port == 0
        addresses = {a.address for n in bed.nodes if (s := bed.kube.find(Node, n.name)) for a in s.status.addresses}
        assert len({each for each in addresses if each.startswith("172.")}) == 20
        before = bed.kube.find(Lease, "hollow-7", "kube-node-lease")
        await bed.clock.sleep(15)
        after = bed.kube.find(Lease, "hollow-7", "kube-node-lease")
        assert before is not None and after is not None and before.spec.renew_time != after.spec.renew_time


async def test_a_pod_runs_after_the_latencies_of_its_runtime_and_is_gone_when_deleted(tmp_path: Path) -> None:
    workload = Workload(runtime=RuntimePlan(sandbox=2.0, create=1.0, start=0.5))
    async with hollow(tmp_path, workload=workload) as bed:
        bed.bind("web")
        took = await bed.until(lambda: bed.phase("web") == "Running")
        assert 3.4 < took < 6.0  # and its image of 100 MiB is pulled beside the sandbox
        await bed.kube.delete(Pod, "web", "default")
        await bed.until(lambda: bed.phase("web") == "gone")
        await bed.until(
            lambda: not bed.nodes[0].cri.sandboxes and not list((tmp_path / "hollow-0/kubelet/pods").iterdir())
        )


async def test_programs_end_crash_and_answer_probes_as_the_workload_says(tmp_path: Path) -> None:
    programs = (
        Program(pods="job-*", runs=10.0),
        Program(pods="bad-*", crashes=1.0, crash_after=2.0, out_of_memory=1.0),
        Program(pods="slow-*", ready_after=20.0),
    )
    probes = {
        "slow-http": Probe(http_get=HTTPGetAction(port=80), period_seconds=1),
        "slow-tcp": Probe(tcp_socket=TCPSocketAction(port=80), period_seconds=1),
        "slow-exec": Probe(exec=ExecAction(command=["true"]), period_seconds=1),
    }
    async with hollow(tmp_path, workload=Workload(programs=programs)) as bed:
        bed.bind("bad-1")
        for name, probe in probes.items():
            bed.bind(name, readiness_probe=probe, ports=[ContainerPort(container_port=80)])
        bed.bind("job-1", restart_policy="Never")
        await bed.until(lambda: all(bed.phase(name) == "Running" for name in probes))
        assert not any(bed.is_pod_ready(name) for name in probes)
        assert 18 < await bed.until(lambda: all(bed.is_pod_ready(name) for name in probes)) < 25
        assert bed.phase("job-1") == "Succeeded"
        assert bed.restarts("bad-1") >= 1
        ended = [c for c in bed.nodes[0].cri.containers.values() if c.state is ContainerState.EXITED]
        assert "OOMKilled" in {each.reason for each in ended}


async def test_an_agent_that_was_away_takes_its_pods_over(tmp_path: Path) -> None:
    failures = FailuresPlan(agent=Failure(every=300.0, lasts=30.0))
    async with hollow(tmp_path, workload=Workload(failures=failures)) as bed:
        bed.bind("web")
        await bed.until(lambda: bed.phase("web") == "Running")
        ids = set(bed.nodes[0].cri.containers)
        await bed.until(lambda: bed.nodes[0].agent is None, within=3000)
        bed.bind("other")
        await bed.clock.sleep(20)
        assert bed.phase("other") != "Running"
        await bed.until(lambda: bed.phase("other") == "Running")
        assert ids < set(bed.nodes[0].cri.containers) and bed.restarts("web") == 0


async def test_pods_start_anew_after_a_power_cut(tmp_path: Path) -> None:
    failures = FailuresPlan(power=Failure(every=300.0, lasts=60.0))
    async with hollow(tmp_path, workload=Workload(failures=failures)) as bed:
        bed.bind("web")
        await bed.until(lambda: bed.phase("web") == "Running")
        boot = bed.boot_id()
        await bed.until(lambda: bed.nodes[0].agent is None, within=3000)
        await bed.until(lambda: bed.restarts("web") == 1 and bed.is_pod_ready("web"))
        await bed.until(lambda: bed.boot_id() != boot)


async def test_a_runtime_that_is_away_makes_the_node_not_ready(tmp_path: Path) -> None:
    failures = FailuresPlan(runtime=Failure(every=300.0, lasts=120.0))
    async with hollow(tmp_path, workload=Workload(failures=failures)) as bed:
        await bed.until(lambda: bed.ready() == [], within=3000)
        await bed.until(lambda: bed.ready() == ["hollow-0"], within=300)


async def test_what_one_node_recorded_another_replays(tmp_path: Path) -> None:
    workload = Workload(
        runtime=RuntimePlan(sandbox=3.0, create=1.0, start=0.5),
        programs=(Program(pods="web", crashes=1.0, crash_after=4.0),),
    )
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    async with hollow(tmp_path / "first", workload=workload) as bed:
        bed.bind("web")
        await bed.until(lambda: bed.restarts("web") == 2)
        agent = bed.nodes[0].agent
        assert agent is not None
        explained = [agent.explainer("default", "web")]
        document = tmp_path / "lives.json"
        document.write_bytes(msgspec.json.encode(explained))
    async with hollow(tmp_path / "second", history=load_histories([document])) as bed:
        bed.bind("web")
        bed.bind("another")
        assert 4.4 < await bed.until(lambda: bed.phase("web") == "Running") < 5.5
        await bed.until(lambda: bed.restarts("web") == 2 and bed.restarts("another") == 2)
        ended = [c for c in bed.nodes[0].cri.containers.values() if c.state is ContainerState.EXITED]
        assert {each.exit_code for each in ended} == {1}
        assert all(3.9 < (each.finished_at - each.started_at) / 1e9 < 4.6 for each in ended)
