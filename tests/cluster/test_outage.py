"""The API server is away, or the wire to it goes silent: pods live on, nothing is lost, both sides agree soon after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.cluster import Cluster
from tests.bed.runtime import BedContainerd
from tests.bed.silence import SilentWire, silent_wire
from tests.cluster.joined import Joined, Manifest, is_ready, joined, phase, pod_manifest, state_of

pytestmark = pytest.mark.cluster

AWAY = 12.0
"""Seconds without an API server; 60 was tried by hand."""
AGREE_WITHIN = 30.0
SILENT_FOR = 60.0
"""The agent must notice a dead connection within 30 s, and then catch up."""
WAIT = "until [ -e /told/now ]; do sleep 0.1; done"
ONCE = f"[ -e /keep/tried ] || {{ touch /keep/tried; {WAIT}; exit 9; }}; trap 'exit 0' TERM; sleep 100000 & wait"
"""Crashes once, when it is told to."""


def told_in(folder: Path, pod: Manifest) -> Manifest:
    """The pod's program sees `folder`, and keeps things over its end."""
    pod["spec"]["volumes"] = [{"name": "keep", "emptyDir": {}}, {"name": "told", "hostPath": {"path": str(folder)}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "keep", "mountPath": "/keep"},
        {"name": "told", "mountPath": "/told"},
    ]
    return pod


@pytest.fixture(scope="module", autouse=True)
def controllers_recover(cluster: Cluster) -> Iterator[None]:
    """Whoever comes after these tests should not wait for the control plane's own recovery."""
    yield
    cluster.restart_controllers()


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[SilentWire]:
    with silent_wire(cluster.port) as made:
        yield made


def test_a_connection_that_goes_silent_is_left(
    cluster: Cluster, containerd: BedContainerd, wire: SilentWire, tmp_path: Path
) -> None:
    """First in this file: after an outage the control plane itself takes up to a minute to see to new nodes."""
    login = cluster.node_kubeconfig("quiet", port=wire.port)
    with joined(cluster, containerd, tmp_path, name="quiet", kubeconfig=login) as node:
        node.apply(pod_manifest("first", node="quiet"))
        node.wait_running("first")
        assert wire.cut() == 2, "heartbeats are on one, all other requests and the watches on another"
        began = time.monotonic()
        node.apply(pod_manifest("unheard", node="quiet"))
        node.wait_running("unheard", within=SILENT_FOR)
        print(f"recovered {time.monotonic() - began:.1f} s after the wire went silent")
        node.wait_running("first")  # the control plane may have taken it for not ready meanwhile
        node.clean()


def test_api_server_away_while_containers_crash_and_pods_are_deleted(node: Joined, tmp_path: Path) -> None:
    here = node.agent.node
    names = [f"calm{number}" for number in range(5)]
    node.apply(*[pod_manifest(name, node=here) for name in names])
    node.apply(pod_manifest("leaving", node=here, terminationGracePeriodSeconds=3))
    for name in (*names, "leaving"):
        node.wait_running(name)
    calm = {state_of(node.pod(name))["containerID"] for name in names}
    # The end is asked for when the server goes away; the crash and the end of a job follow.
    ender = pod_manifest("ender", WAIT, node=here, restartPolicy="Never")
    node.apply(told_in(tmp_path, pod_manifest("crasher", ONCE, node=here)), told_in(tmp_path, ender))
    for name in ("crasher", "ender"):
        node.wait_running(name)
    node.cluster.kubectl("delete", "pod", "leaving", "--wait=false")
    node.cluster.stop_apiserver()
    (tmp_path / "now").touch()
    began = time.monotonic()
    time.sleep(AWAY)
    assert {f"containerd://{id}" for id in node.running_ids()} >= calm, "pods live on"
    node.cluster.start_apiserver()
    back = time.monotonic()
    node.wait_gone("leaving", within=AGREE_WITHIN)
    node.wait_pod(
        "crasher", lambda pod: is_ready(pod) and state_of(pod)["restartCount"] == 1, "told", within=AGREE_WITHIN
    )
    node.wait_pod("ender", lambda pod: phase(pod) == "Succeeded", "told", within=AGREE_WITHIN)
    node.wait_node("True", within=AGREE_WITHIN)
    node.wait("all ready", lambda pods: all(is_ready(pods[f"default/{n}"]) for n in names), within=AGREE_WITHIN)
    print(f"agreed {time.monotonic() - back:.1f} s after an outage of {back - began:.0f} s")
    assert {state_of(node.pod(name))["containerID"] for name in names} == calm
    assert sum(state_of(node.pod(name))["restartCount"] for name in names) == 0
    # And it works on as before.
    node.apply(pod_manifest("after", node=here))
    node.wait_running("after", within=30)


def test_agent_started_while_the_api_server_is_away(node: Joined) -> None:
    """Nothing is touched before the API server was heard."""
    node.apply(pod_manifest("held", node=node.agent.node))
    node.wait_running("held")
    before = node.running_ids()
    node.cluster.stop_apiserver()
    node.agent.kill9()
    node.agent.start()
    time.sleep(4)
    assert node.agent.status is None, node.agent.tail()
    assert node.running_ids() == before
    node.cluster.start_apiserver()
    node.wait_node("True", within=AGREE_WITHIN)
    node.apply(pod_manifest("new", node=node.agent.node))
    node.wait_running("new", within=AGREE_WITHIN)
    assert before <= node.running_ids()
