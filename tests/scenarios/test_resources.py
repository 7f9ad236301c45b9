"""Cgroups and user namespaces on a whole node: pods outside their cgroup, id ranges over a pod's life."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from pykubelet.api.types import ResourceRequirements
from pykubelet.hollow.cri_values import TERMINATED, Behaviour
from pykubelet.model.pod import uid_of
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod
from tests.harness import NodeHarness, a_node

GI = 1 << 30
HELD = ResourceRequirements(requests={"cpu": "500m"}, limits={"memory": "64Mi"})


async def test_the_classes_follow_the_pods(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pods = [node.run(a_pod(name, containers=[a_container("app", resources=HELD)])) for name in ("a", "b")]
        await node.until_running(*pods)
        assert node.cgroups.groups["/kubepods/burstable"].cpu_shares == 1024
        assert node.cgroups.groups["/kubepods/besteffort"].cpu_shares == 2
        node.remove("a")
        await node.until(lambda: node.cgroups.groups["/kubepods/burstable"].cpu_shares == 512)
        node.remove("b")
        await node.until(lambda: node.cgroups.groups["/kubepods/burstable"].cpu_shares == 2)
        assert set(node.cgroups.groups) == {"/kubepods", "/kubepods/burstable", "/kubepods/besteffort"}


async def test_what_pods_may_use_of_the_memory_is_the_capacity_less_reservations(tmp_path: Path) -> None:
    """For limits; neither eviction thresholds nor huge pages are taken off, unlike in the Node's allocatable."""
    (tmp_path / "config.yaml").write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "featureGates: {MemoryQoS: true, QOSReserved: true}\nmemoryThrottlingFactor: 0.5\n"
        "qosReserved: {memory: 50%}\nsystemReserved: {memory: 768Mi}\nkubeReserved: {memory: 256Mi}\n"
        "evictionHard: {memory.available: 512Mi}\n"
    )
    harness = NodeHarness(tmp_path, f"--config={tmp_path / 'config.yaml'}")
    harness.machine = msgspec.structs.replace(harness.machine, cgroup_v2=True, hugepages=((2 << 20, 64),))
    await harness.start()
    try:
        some = ResourceRequirements(requests={"memory": "1Gi"})
        await harness.until_running(harness.run(a_pod("some", containers=[a_container("app", resources=some)])))
        config = harness.cri.called("create_container")[0].args["config"]
        assert config.linux.resources.unified["memory.high"] == str(4 * GI)
        assert harness.cgroups.groups["/kubepods/burstable"].memory_bytes == 7 * GI
        assert harness.cgroups.groups["/kubepods/besteffort"].memory_bytes == 13 * GI // 2
    finally:
        await harness.kill()


async def test_a_pod_that_runs_outside_its_cgroup_is_started_again_inside(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web", containers=[a_container("app", resources=HELD)]))
        await node.until_running(pod)
        await node.kill()
        # As after a change of cgroupRoot: the group that the settings mean is not there.
        node.cgroups.groups.clear()
        await node.start()
        await node.until(lambda: len(node.cri.called("start_container")) == 2)
        await node.until_running(pod)
        assert f"/kubepods/burstable/pod{uid_of(pod)}" in node.cgroups.groups
        await node.clock.sleep(300)
        assert len(node.cri.called("start_container")) == 2


async def test_pods_without_cgroups_of_their_own_run_all_the_same(tmp_path: Path) -> None:
    async with a_node(tmp_path, "--cgroups-per-qos=false", "--enforce-node-allocatable=none") as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        assert node.cri.called("run_pod_sandbox")[0].args["config"].linux.cgroup_parent == ""
        node.remove("web")
        await node.until(lambda: not node.cri.sandboxes)
        assert node.cgroups.groups == {}


async def test_a_pod_with_its_own_users_keeps_its_ids_until_it_is_gone(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web", host_users=False))
        await node.until_running(pod)
        userns = node.cri.called("run_pod_sandbox")[0].args["config"].linux.security_context.namespace_options
        assert userns.userns_options.mode == cri_pb2.NamespaceMode.POD
        (ids,) = userns.userns_options.uids
        assert (ids.host_id, ids.container_id, ids.length) == (65_536, 0, 65_536)
        file = node.paths.pod(uid_of(pod)) / "userns"
        assert json.loads(file.read_text())["uidMappings"][0]["hostId"] == 65_536
        await node.kill()
        await node.start()
        other = node.run(a_pod("other", host_users=False))
        await node.until_running(pod, other)
        assert json.loads((node.paths.pod(uid_of(other)) / "userns").read_text())["uidMappings"][0]["hostId"] == 131_072
        node.remove("web")
        await node.until(lambda: not file.exists())
        third = node.run(a_pod("third", host_users=False))
        await node.until_running(third)
        assert json.loads((node.paths.pod(uid_of(third)) / "userns").read_text())["uidMappings"][0]["hostId"] == 65_536


async def test_a_runtime_without_user_namespaces_refuses_the_pod_and_says_why(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        fine = node.run(a_pod("fine"))
        await node.until_running(fine)
        node.cri.handlers = ()
        await node.clock.sleep(10)  # until the agent has asked the runtime again
        node.run(a_pod("web", host_users=False))
        await node.until(lambda: bool(node.events("FailedCreatePodSandBox")))
        text = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        assert text in node.events("FailedCreatePodSandBox")[0]
        assert node.ready_sandboxes() == ["fine"]


async def test_a_pod_that_makes_room_says_so_in_its_status(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        most = ResourceRequirements(requests={"cpu": "3"})
        lesser = node.run(a_pod("lesser", containers=[a_container("app", resources=most)], priority=1))
        await node.until_running(lesser)
        greater = node.run(a_pod("greater", containers=[a_container("app", resources=most)], priority=2))
        await node.until_running(greater)
        assert node.events("Preempting") == ["Preempted in order to admit critical pod"]
        await node.until(lambda: node.running() == ["greater/app"])
        status = node.status(lesser)
        assert (status.phase, status.reason, status.message) == (
            "Failed",
            "Preempting",
            "Preempted in order to admit critical pod",
        )
        (told,) = [each for each in status.conditions if each.type == "DisruptionTarget"]
        assert (told.status, told.reason, told.message) == (
            "True",
            "TerminationByKubelet",
            "Pod was preempted by Kubelet to accommodate a critical pod.",
        )
        assert told.last_transition_time is not None


async def test_a_critical_pod_starts_when_its_victim_has_stopped(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=7), pod="lesser-node1")
        most = ResourceRequirements(requests={"cpu": "3"})
        lesser = node.run(a_pod("lesser", containers=[a_container("app", resources=most)], priority=1))
        await node.until_running(lesser)
        greater = node.run(a_pod("greater", containers=[a_container("app", resources=most)], priority=2))
        await node.until_running(greater)
        victim = next(c for c in node.cri.containers.values() if c.sandbox.name == "lesser-node1")
        started = node.cri.container("app", pod="greater-node1").started_at
        assert 0 < victim.finished_at <= started
        assert victim.exit_code == TERMINATED
