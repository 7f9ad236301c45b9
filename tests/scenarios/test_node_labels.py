"""Pods that want a node with certain labels: before the Node is known, and while its watch is behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from pykubelet.api.types import Node, Pod, Taint
from pykubelet.kit.clock import utc
from pykubelet.model.errors import ApiDown
from pykubelet.model.pod import uid_of
from pykubelet.node.fresh_node import FreshNode
from pykubelet.node.register import initial_info
from tests.builders import a_pod
from tests.harness import MACHINE, NodeHarness, a_node
from tests.scenarios.cluster_node import ClusterHarness, a_cluster_node

OWN_LABELS = {
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/os": "linux",
    "beta.kubernetes.io/arch": "amd64",
    "kubernetes.io/hostname": "node1",
    "disk": "fast",
}
AWAY = ApiDown("connection refused")


def label(node: ClusterHarness, **labels: str) -> Node:
    known = node.api_node()
    metadata = msgspec.structs.replace(known.metadata, labels={**known.metadata.labels, **labels})
    return node.api.change(msgspec.structs.replace(known, metadata=metadata))


def told_phase(node: NodeHarness, pod: Pod) -> str | None:
    status = node.node.table.reported_status(uid_of(pod))
    return status.phase if status is not None else None


@pytest.mark.parametrize("key", OWN_LABELS)
async def test_a_node_without_a_cluster_has_the_labels_every_node_has(tmp_path: Path, key: str) -> None:
    async with a_node(tmp_path, "--node-labels=disk=fast") as node:
        pod = node.run(a_pod(node_selector={key: OWN_LABELS[key]}))
        await node.until_running(pod)


async def test_a_label_that_the_node_does_not_have_rejects_a_static_pod(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod(node_selector={"kubernetes.io/arch": "s390x"}))
        await node.until(lambda: told_phase(node, pod) == "Failed")
        assert node.status(pod).reason == "NodeAffinity"


async def test_a_static_pod_starts_while_the_api_server_is_away(tmp_path: Path) -> None:
    node = ClusterHarness(tmp_path)
    node.api.stop()
    await node.start()
    try:
        pod = node.run(a_pod(node_selector={"kubernetes.io/os": "linux", "kubernetes.io/hostname": "node1"}))
        await node.until_running(pod)
    finally:
        await node.kill()


@pytest.mark.parametrize(("value", "outcome"), [("yes", "Running"), ("no", "Failed")])
async def test_a_static_pod_that_wants_a_label_of_the_node_object_waits_for_it(
    tmp_path: Path, value: str, outcome: str
) -> None:
    node = ClusterHarness(tmp_path)
    await node.start()
    await node.until(node.is_ready)
    label(node, rack="yes")
    await node.kill()
    node.api.stop()
    await node.start()
    try:
        pod = node.run(a_pod(node_selector={"rack": value}))
        other = node.run(a_pod("other"))
        await node.until_running(other)
        await node.clock.sleep(60)
        assert told_phase(node, pod) is None
        node.api.start()
        await node.until(lambda: told_phase(node, pod) == outcome)
    finally:
        await node.kill()


async def test_a_pod_that_comes_before_the_label_it_wants_is_judged_by_the_newest_node(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        node.api.fail_next("watch", AWAY, times=1000, kind=Node)
        node.api.break_watches(AWAY)
        await node.clock.sleep(2)
        label(node, rack="yes")
        node.bind("wanted", node_selector={"rack": "yes"})
        node.bind("unwanted", node_selector={"rack": "no"})
        node.bind("other")
        await node.until(lambda: node.phase("wanted") == "Running")
        await node.until(lambda: node.phase("unwanted") == "Failed")
        shown = node.shown("unwanted")
        assert shown is not None and shown.status.reason == "NodeAffinity"
        await node.until(lambda: node.phase("other") == "Running")


async def test_a_pod_deleted_while_the_node_is_being_read_is_seen_off(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        node.api.fail_next("get", AWAY, times=3, kind=Node)
        node.bind("unwanted", node_selector={"rack": "no"})
        await node.delete("unwanted")
        await node.until(lambda: node.shown("unwanted") is None)
        node.bind("later", node_selector={"rack": "no"})
        await node.until(lambda: node.phase("later") == "Failed")


async def test_a_pod_seen_off_while_the_node_is_being_read_does_not_live_again(tmp_path: Path) -> None:
    """It stays in the API for its finalizer, and changes there once more before the answer comes."""
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        (fresh_node,) = [each for each in node.node.services.managers if isinstance(each, FreshNode)]
        answered = asyncio.Event()
        fresh_node._read = answered.wait  # type: ignore[assignment]
        pod = node.bind("unwanted", node_selector={"rack": "no"})
        pod = node.change(pod, finalizers=["example.com/hold"])
        await node.clock.sleep(1)
        pod = node.change(pod, deletion_timestamp=utc(node.clock.now()), deletion_grace_period_seconds=5)
        await node.until(lambda: node.node.table.is_finished(uid_of(pod)))
        state, shown = node.node.table.worker(uid_of(pod)), node.shown("unwanted")
        assert state is not None and shown is not None
        node.change(shown, labels={"a": "b"})
        await node.clock.sleep(5)
        answered.set()
        await node.clock.sleep(60)
        assert node.node.table.worker(uid_of(pod)) is state, "it had no second life"
        assert not state.restart_requested and node.node.table.undecided == set()


async def test_taints_of_the_settings_count_before_the_node_is_known(tmp_path: Path) -> None:
    settings = NodeHarness(tmp_path, "--register-with-taints=gpu=yes:NoSchedule").settings
    assert list(initial_info(settings, MACHINE, {}).taints) == [Taint(key="gpu", value="yes", effect="NoSchedule")]
