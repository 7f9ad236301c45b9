"""A node joins a cluster: Node, lease, readiness, outages; what the cluster sees of it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pykubelet.api.types import Event, Lease, Node, Pod
from pykubelet.node.conditions import READY, find_condition
from tests.scenarios.cluster_node import ClusterHarness, a_cluster_node


async def test_the_node_is_ready_and_has_its_lease_within_a_second(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path, "--node-labels=rack=7", "--register-with-taints=own=me:NoSchedule") as node:
        await node.until(node.is_ready, within=1.0)
        await node.until(lambda: node.api.find(Lease, "node1", "kube-node-lease") is not None, within=1.0)
        found = node.api_node()
        assert found.metadata.labels["rack"] == "7"
        assert [taint.key for taint in found.spec.taints] == ["own"]
        assert found.status.node_info is not None
        assert found.status.node_info.container_runtime_version == "fake://1.0"
        assert [a.address for a in found.status.addresses] == ["10.1.0.5", "node1"]
        assert len(found.status.images) == 1
        await node.clock.sleep(5)
        assert {"Starting", "NodeHasSufficientMemory"} <= node.event_reasons()
        about = {event.involved_object.uid for event in node.api.everything(Event) if event.involved_object}
        assert about == {"node1"}


async def test_an_idle_node_says_little(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready, within=1.0)
        await node.clock.sleep(10)
        begin = len(node.api.calls)
        await node.clock.sleep(100)
        later = node.api.calls[begin:]
        assert {call.kind for call in later} == {Lease}
        assert 9 <= len(later) <= 11


async def test_a_node_restarted_keeps_what_others_wrote_into_it(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready, within=1.0)
        await node.kill()
        found = node.api_node()
        spec = msgspec.structs.replace(found.spec, unschedulable=True)
        metadata = msgspec.structs.replace(found.metadata, labels={**found.metadata.labels, "mine": "1"})
        conditions = [msgspec.structs.replace(each, status="Unknown") for each in found.status.conditions]
        status = msgspec.structs.replace(found.status, conditions=conditions)
        node.api.change(msgspec.structs.replace(found, spec=spec, metadata=metadata, status=status))
        await node.start()
        await node.until(node.is_ready, within=1.0)
        assert node.api_node().spec.unschedulable is True
        assert node.api_node().metadata.labels["mine"] == "1"
        assert len(node.api.everything(Node)) == 1
        await node.clock.sleep(2)
        assert "NodeNotSchedulable" in node.event_reasons()


async def test_without_a_pod_network_the_node_is_not_ready_and_says_why(tmp_path: Path) -> None:
    harness = ClusterHarness(tmp_path)
    harness.cri.set_condition("NetworkReady", False, reason="NetworkPluginNotReady", message="cni")
    await harness.start()
    try:
        await harness.until(lambda: harness.api.find(Node, "node1") is not None, within=1.0)
        await harness.clock.sleep(1)
        ready = find_condition(harness.api_node().status.conditions, READY)
        assert ready is not None and ready.status == "False"
        assert ready.message == (
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni"
        )
        harness.cri.set_condition("NetworkReady", True)
        await harness.until(harness.is_ready, within=6.0)
        await harness.clock.sleep(2)
        assert "NodeReady" in harness.event_reasons()
    finally:
        await harness.kill()


async def test_after_an_outage_of_the_server_node_and_cluster_agree_again(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready, within=1.0)
        lease = node.api.find(Lease, "node1", "kube-node-lease")
        node.api.stop()
        await node.clock.sleep(300)
        node.api.compact()
        node.api.start()
        begin = node.clock.monotonic()
        await node.until(lambda: node.api.find(Lease, "node1", "kube-node-lease") != lease, within=10.0)
        await node.until(lambda: any(s.kind is Pod for s in node.api.open_watches), within=10.0)
        assert node.clock.monotonic() - begin < 10
        assert node.is_ready()


async def test_an_api_server_that_is_away_for_hours_ends_no_agent(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind()
        await node.until(lambda: node.phase() == "Running")
        node.api.stop()
        node.cri.exit("app", 1)
        await node.clock.sleep(2 * 3600)
        node.api.start()
        await node.until(node.is_ready, within=120)
        node.bind("later")
        await node.until(lambda: node.phase("later") == "Running")
