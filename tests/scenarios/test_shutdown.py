"""The machine goes down: pods end class by class, the API server knows, the lock is let go; and what comes after."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.api.types import OwnerReference
from pykubelet.hollow.cri_values import Behaviour
from pykubelet.model.reasons import DISRUPTION_TARGET
from pykubelet.node.conditions import READY, find_condition
from pykubelet.node.shutdown import two_periods
from tests.builders import a_pod
from tests.fakes.fake_logind import FakeLogind
from tests.harness import NodeHarness
from tests.scenarios.cluster_node import ClusterHarness

PLAIN = {"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"}
CRITICAL = 2_000_000_000


def a_config(folder: Path, **settings: object) -> str:
    file = folder / "config.json"
    head = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    file.write_text(json.dumps({**head, **settings}))
    return f"--config={file}"


@asynccontextmanager
async def a_node(
    folder: Path, *, cluster: bool = True, **settings: object
) -> AsyncIterator[tuple[NodeHarness, FakeLogind]]:
    flag, logind = a_config(folder, **(settings or PLAIN)), FakeLogind()
    harness = ClusterHarness(folder, flag) if cluster else NodeHarness(folder, flag)
    harness.logind = logind
    await harness.start()
    try:
        await harness.until(lambda: len(logind.locks) == 1)
        yield harness, logind
    finally:
        await harness.kill()


@asynccontextmanager
async def a_cluster_node(folder: Path, **settings: object) -> AsyncIterator[tuple[ClusterHarness, FakeLogind]]:
    async with a_node(folder, **settings) as (harness, logind):
        assert isinstance(harness, ClusterHarness)
        yield harness, logind


def stops(node: NodeHarness) -> list[str]:
    return [call.args["container_id"] for call in node.cri.called("stop_container")]


async def test_pods_end_by_class_and_the_lock_is_let_go_after_the_last_status(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        node.cri.program(Behaviour(stops_after=3), name="app")
        node.bind("web", grace=60)
        node.bind("core", grace=60, priority=CRITICAL)
        await node.until(lambda: node.phase("web") == node.phase("core") == "Running")
        begun = node.clock.monotonic()
        logind.announce(True)
        await node.until(lambda: node.running() == ["core/app"])
        assert node.phase("core") == "Running" and len(logind.locks) == 1
        ready = find_condition(node.api_node().status.conditions, READY)
        assert ready is not None
        assert (ready.status, ready.reason, ready.message) == ("False", "KubeletNotReady", "node is shutting down")
        await node.until(lambda: not logind.locks)
        assert 6 <= node.clock.monotonic() - begun < 12
        for name in ("web", "core"):
            shown = node.shown(name)
            assert shown is not None
            status = shown.status
            assert (status.phase, status.reason) == ("Failed", "Terminated")
            assert status.message == "Pod was terminated in response to imminent node shutdown."
            target = next(c for c in status.conditions if c.type == DISRUPTION_TARGET)
            assert (target.status, target.reason) == ("True", "TerminationByKubelet")
        assert not node.cgroups.groups.keys() & {"/kubepods/besteffort/poduid-web"}
        assert node.events("Shutdown") == ["Shutdown manager detected shutdown event"]


async def test_a_class_that_does_not_end_in_time_does_not_take_the_others_time(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        node.cri.program(Behaviour(stops_after=None), name="app")
        node.bind("web", grace=600)
        node.bind("core", grace=600, priority=CRITICAL)
        await node.until(lambda: node.phase("web") == node.phase("core") == "Running")
        begun = node.clock.monotonic()
        logind.announce(True)
        await node.until(lambda: not logind.locks)
        # 20 s for the ordinary, 10 s for the critical one; the runtime kills at the end of each.
        assert 29 <= node.clock.monotonic() - begun <= 37
        graces = [call.args["timeout"] for call in node.cri.called("stop_container")]
        assert graces[0] == 20 and graces[-1] <= 10


async def test_what_pods_wrote_can_still_be_read_after_they_ended(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        node.cri.write_logs = True
        node.cri.program(Behaviour(output=("last words",)), name="app")
        node.bind("web")
        await node.until(lambda: node.phase("web") == "Running")
        logind.announce(True)
        await node.until(lambda: not logind.locks)
        await node.clock.sleep(300)
        assert node.phase("web") == "Failed"
        assert [c.name for c in node.cri.containers.values()] == ["app"]
        (folder,) = node.paths.pod_logs.iterdir()
        assert "last words" in (folder / "app" / "0.log").read_text()
        await node.delete("web")
        await node.until(lambda: not node.cri.containers and not any(node.paths.pod_logs.iterdir()))


async def test_priorities_of_ones_own_choice(tmp_path: Path) -> None:
    entries = [{"priority": 100, "shutdownGracePeriodSeconds": 20}, {"priority": -5, "shutdownGracePeriodSeconds": 7}]
    async with a_cluster_node(tmp_path, shutdownGracePeriodByPodPriority=entries) as (node, logind):
        node.cri.program(Behaviour(stops_after=2), name="app")
        for name, priority in (("low", -10), ("usual", None), ("high", 1000)):
            node.bind(name, grace=30, priority=priority)
        await node.until(lambda: len(node.running()) == 3)
        logind.announce(True)
        await node.until_running_only("high/app")
        await node.until(lambda: not logind.locks)
        graces = {call.args["timeout"] for call in node.cri.called("stop_container")}
        assert graces == {7, 20}


async def test_new_pods_are_refused_until_it_is_cancelled(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        logind.announce(True)
        await node.until(lambda: not logind.locks)
        node.bind("late")
        await node.until(lambda: node.phase("late") == "Failed")
        shown = node.shown("late")
        assert shown is not None
        assert (shown.status.reason, shown.status.message) == (
            "NodeShutdown",
            "Pod was rejected: Pod was rejected as the node is shutting down.",
        )
        logind.announce(False)
        await node.until(node.is_ready)
        assert len(logind.locks) == 1
        node.bind("later")
        await node.until(lambda: node.phase("later") == "Running")
        assert node.events("Shutdown")[-1] == "Shutdown manager detected shutdown cancellation"


async def test_a_node_without_pods_says_that_it_goes_before_it_lets_go(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        await node.until(node.is_ready)
        logind.announce(True)
        while logind.locks:
            await node.clock.sleep(0.001)
        assert not node.is_ready()


async def test_logind_or_the_bus_restarted_is_registered_with_again(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        logind.restart()
        await node.until(lambda: len(logind.locks) == 1)
        logind.present = False
        logind.cut()
        await node.until(lambda: not logind.locks)
        await node.clock.sleep(300)
        logind.present = True
        await node.until(lambda: len(logind.locks) == 1)


async def test_a_shutdown_announced_while_the_agent_was_away_is_noticed(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        node.bind("web", grace=5)
        await node.until(lambda: node.phase("web") == "Running")
        await node.kill()
        logind.preparing = True
        await node.start()
        await node.until(lambda: node.phase("web") == "Failed")
        shown = node.shown("web")
        assert shown is not None and shown.status.reason in ("Terminated", "NodeShutdown")
        await node.until(lambda: not node.running())


async def test_a_delay_that_logind_does_not_grant_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness, logind = ClusterHarness(tmp_path, a_config(tmp_path, **PLAIN)), FakeLogind(max_delay=5)
    harness.logind, logind.takes_delay = logind, False
    await harness.start()
    try:
        await harness.clock.sleep(600)
        told = [record for record in caplog.records if "cannot be held up" in record.message]
        assert len(told) == 1
        assert "grace periods at shutdown need 39s" in told[0].__dict__["error"]
        logind.takes_delay = True
        await harness.until(lambda: len(logind.locks) == 1)
        assert logind.delay == 39
    finally:
        await harness.kill()


async def test_after_the_reboot_static_pods_come_back_and_nothing_dead_is_left(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        static = node.run(a_pod("static", uid="static-uid"))
        node.bind("web", grace=5)
        await node.until(lambda: node.running() == ["static/app", "web/app"])
        logind.announce(True)
        await node.until(lambda: not logind.locks)
        assert node.running() == []
        await node.kill()
        logind.preparing = False
        await node.start()
        await node.until_running(static)
        assert node.phase("web") == "Failed"
        assert (tmp_path / "kubelet" / "graceful_node_shutdown_state").exists()
        assert "kubelet_graceful_shutdown_end_time_seconds 17" in node.node.ctx.metrics.expose()
        await node.delete("web")
        await node.until(lambda: {box.pod_uid for box in node.cri.sandboxes.values()} == {"static-uid"}, within=300)
        assert node.folders.pod_uids() == ["static-uid"]


async def test_after_the_reboot_only_pods_without_a_replacement_are_left_in_the_cluster(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as (node, logind):
        owners = {"own": "", "copy": "ReplicaSet", "daemon": "DaemonSet", "job": "Job"}
        for name, kind in owners.items():
            pod = node.bind(name, grace=5)
            if kind:
                owner = OwnerReference(api_version="apps/v1", kind=kind, name="o", uid="o", controller=True)
                node.change(pod, owner_references=[owner])
        await node.until(lambda: len(node.running()) == 4)
        logind.announce(True)
        await node.until(lambda: not logind.locks)
        await node.clock.sleep(120)
        assert [node.phase(name) for name in owners] == ["Failed"] * 4
        await node.kill()
        logind.preparing = False
        await node.start()
        await node.until(lambda: node.shown("copy") is None and node.shown("daemon") is None)
        await node.clock.sleep(120)
        assert [node.phase(name) for name in ("own", "job")] == ["Failed"] * 2


async def test_without_logind_and_without_an_api_server_a_command_does_the_same(tmp_path: Path) -> None:
    harness = NodeHarness(tmp_path)
    await harness.start()
    try:
        harness.cri.program(Behaviour(stops_after=2), name="app")
        web, core = harness.run(a_pod("web", uid="w")), harness.run(a_pod("core", uid="c", priority=CRITICAL))
        await harness.until_running(web, core)
        manager = harness.node.sync.shutdown.manager
        outcome = await manager.shut_down(two_periods(30, 10))
        assert sorted(outcome.stopped) == ["default/core-node1", "default/web-node1"]
        assert not outcome.left and harness.running() == []
        assert harness.status(web).reason == "Terminated"
        await harness.clock.sleep(300)
        assert harness.running() == []
        manager.cancel()
        await harness.until_running(web, core)
    finally:
        await harness.kill()
