"""The Node itself on a real control plane: ready soon, complete, kept alive by its lease, missed when it is gone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.cli.local_socket import local_socket
from tests.bed.cluster import Cluster
from tests.bed.machine import wait_for
from tests.bed.runtime import BUSYBOX, BedContainerd
from tests.cluster.joined import Joined, condition, joined, pod_manifest

pytestmark = pytest.mark.cluster

READY_WITHIN = 10.0
MISSED_WITHIN = 60.0
UNREACHABLE = "node.kubernetes.io/unreachable"


def test_node_says_what_it_is_and_has(node: Joined, containerd: BedContainerd) -> None:
    found = node.wait_node("True", 5)
    meta, status = found["metadata"], found["status"]
    assert meta["labels"]["kubernetes.io/hostname"] == node.agent.node
    assert meta["labels"]["kubernetes.io/os"] == "linux"
    assert {address["type"]: address["address"] for address in status["addresses"]} == {
        "InternalIP": containerd.gateway_ip,
        "Hostname": node.agent.node,
    }
    for kind in ("MemoryPressure", "DiskPressure", "PIDPressure"):
        assert condition(found, kind) == "False"
    assert {"cpu", "memory", "pods", "ephemeral-storage"} <= set(status["capacity"])
    assert set(status["capacity"]) == set(status["allocatable"])
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert status["nodeInfo"]["kubeletVersion"].startswith("v1.36")
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] > 0
    assert any(BUSYBOX in image["names"] for image in status["images"])


def test_lease_belongs_to_the_node_and_is_renewed(node: Joined) -> None:
    def lease() -> dict[str, Any]:
        """Without anything in it as long as there is none."""
        words = ("-n", "kube-node-lease", "--field-selector", f"metadata.name={node.agent.node}")
        return next(iter(node.cluster.get("leases", *words)["items"]), {"metadata": {}})

    def owned() -> dict[str, Any]:
        # That of an earlier node of this name may still be there until the control plane's collector comes by.
        uid, found = node.nodes.objects[node.agent.node]["metadata"]["uid"], lease()
        return found if [each["uid"] for each in found["metadata"].get("ownerReferences", ())] == [uid] else {}

    first = wait_for(owned, "a lease that goes when the node goes", within=60)
    assert first["spec"]["holderIdentity"] == node.agent.node
    wait_for(lambda: lease().get("spec", first["spec"]) != first["spec"], "the lease is renewed, every 2 s here")


def test_labels_of_others_stay_and_a_deleted_node_comes_back(node: Joined) -> None:
    name = node.agent.node
    node.cluster.kubectl("label", "node", name, "bed.example/rack=r1")
    node.apply(pod_manifest("stays", node=name))
    node.wait_running("stays")
    ids = node.running_ids()
    node.agent.stop()
    node.agent.start()
    node.wait_node("True", 30)
    assert node.nodes.objects[name]["metadata"]["labels"]["bed.example/rack"] == "r1"
    uid = node.nodes.objects[name]["metadata"]["uid"]
    node.cluster.kubectl("delete", "node", name)
    node.nodes.wait(
        "registered anew", lambda nodes: nodes.get(name, {}).get("metadata", {}).get("uid") not in (None, uid), 60
    )
    node.wait_node("True", 30)
    assert node.running_ids() == ids


@pytest.fixture
def fresh(shared_node: Joined, cluster: Cluster, containerd: BedContainerd, tmp_path: Path) -> Iterator[Joined]:
    shared_node.agent.kill9()  # it would end the pods of the other one, which it knows nothing of
    with joined(cluster, containerd, tmp_path, name="fresh", nodeStatusUpdateFrequency="2s") as made:
        yield made


def test_a_shutdown_is_told_and_can_be_taken_back(node: Joined) -> None:
    program = str(Path(sys.executable).with_name("pykubelet"))
    command = [program, "shutdown", "--socket", str(local_socket(node.agent.root))]
    node.wait_node("True", 20)
    node.apply(pod_manifest("going"))
    node.wait_running("going")
    subprocess.run([*command, "--grace", "20s", "--grace-critical", "10s"], check=True, timeout=60)
    # The command is through: the API server must know of the pod already.
    status = node.cluster.get("pod", "going")["status"]
    # Its container ended well when it was told to, but the pod was cut short.
    assert (status["phase"], status["reason"]) == ("Failed", "Terminated")
    assert status["message"] == "Pod was terminated in response to imminent node shutdown."
    assert any(each["type"] == "DisruptionTarget" and each["status"] == "True" for each in status["conditions"])
    found = node.wait_node("False", 30)
    (ready,) = (each for each in found["status"]["conditions"] if each["type"] == "Ready")
    assert (ready["reason"], ready["message"]) == ("KubeletNotReady", "node is shutting down")
    subprocess.run([*command, "--cancel"], check=True, timeout=60)
    node.wait_node("True", 30)


def test_ready_soon_and_missed_when_gone(fresh: Joined) -> None:
    """Last in this file: the agent of the other tests is ended, two cannot share the runtime."""
    fresh.agent.stop()
    fresh.cluster.kubectl("delete", "node", "fresh")
    began = time.monotonic()
    fresh.agent.start()
    fresh.nodes.wait("node", lambda nodes: "fresh" in nodes, 20)
    fresh.wait_node("True", 20)
    assert time.monotonic() - began < READY_WITHIN
    fresh.apply(pod_manifest("lonely", node="fresh"))
    fresh.wait_running("lonely")
    fresh.agent.kill9()
    fresh.wait_node("Unknown", MISSED_WITHIN)
    fresh.nodes.wait("tainted", lambda nodes: UNREACHABLE in json.dumps(nodes["fresh"]["spec"].get("taints", [])), 30)
    fresh.wait_pod("lonely", lambda pod: condition(pod, "Ready") == "False", "its pods count as not ready", 30)
    fresh.agent.start()
    fresh.wait_node("True", 30)
    fresh.wait_running("lonely", within=30)
