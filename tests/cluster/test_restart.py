"""The agent is restarted under a full node: nobody outside may notice."""

from __future__ import annotations

import json
import time

import pytest

from tests.cluster.joined import (
    STAY,
    Joined,
    a_workload,
    condition,
    container_manifest,
    is_ready,
    of_app,
    pod_manifest,
    state_of,
)

pytestmark = pytest.mark.cluster

PODS = 50
LATE = "late"
SERVE = "httpd -p 8080; " + STAY
PROBED = {"tcpSocket": {"port": 8080}, "periodSeconds": 2, "timeoutSeconds": 10}


def fill(node: Joined) -> set[str]:
    probed = container_manifest(SERVE, readinessProbe=PROBED, livenessProbe=PROBED)
    node.apply(
        a_workload("Deployment", "many", replicas=PODS - 10),
        a_workload("Deployment", "probed", pod={"containers": [probed]}, replicas=10),
    )
    node.wait(f"{PODS} ready", lambda pods: sum(map(is_ready, pods.values())) == PODS, within=300)
    ids = node.running_ids()
    assert len(ids) == PODS
    return ids


def assert_untouched(node: Joined, since: float, ids: set[str]) -> None:
    """Nothing restarted, and no pod was ever shown as not ready."""
    flips = {
        seen.object["metadata"]["name"]: json.dumps(seen.object["status"])
        for seen in node.pods.since(since)
        if condition(seen.object, "Ready") != "True" and seen.object["metadata"]["name"] != LATE
    }
    assert not flips, f"{len(flips)}: {flips.popitem()}\n{node.agent.tail(60)}"
    assert node.running_ids() == ids
    pods = of_app(node.pods.objects, "many") + of_app(node.pods.objects, "probed")
    assert len(pods) == PODS
    assert sum(state_of(pod)["restartCount"] for pod in pods) == 0


def wait_acts(node: Joined) -> None:
    """The new agent has taken over as soon as a new pod runs."""
    node.apply(pod_manifest(LATE, node=node.agent.node))
    node.wait_running(LATE)
    node.cluster.kubectl("delete", "pod", LATE, "--grace-period=1")


def test_agent_restarted_under_50_pods(node: Joined) -> None:
    ids = fill(node)
    for leave in (node.agent.stop, node.agent.kill9):
        began = time.monotonic()
        leave()
        node.agent.start()
        wait_acts(node)
        time.sleep(4)  # twice the period of the probes: all of them have spoken again
        assert_untouched(node, began, ids)


def test_deleted_while_the_agent_was_away(node: Joined) -> None:
    node.apply(*[pod_manifest(f"p{number}", node=node.agent.node) for number in range(4)])
    for number in range(4):
        node.wait_running(f"p{number}")
    node.agent.kill9()
    node.cluster.kubectl("delete", "pod", "p0", "p1", "--wait=false", "--grace-period=1")
    node.cluster.kubectl("delete", "pod", "p2", "--force", "--grace-period=0")
    node.agent.start()
    node.wait_gone("p0", "p1", "p2")
    deadline = time.monotonic() + 60
    while len(node.running_ids()) != 1:
        assert time.monotonic() < deadline, node.agent.tail()
        time.sleep(0.1)
    assert is_ready(node.pod("p3"))
    assert state_of(node.pod("p3"))["restartCount"] == 0
