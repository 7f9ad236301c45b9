"""NFS volumes from a server in the guest, and what the node does when that server dies under a pod.

With a real API server beside the guest: options of a mount come only with a persistent volume.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bed.cluster import Cluster

from hosts.machine import Kind
from hosts.node import Node, Record, a_pod, node_on

SERVER = "10.0.2.15"
"""The guest's own address."""
EXPORT = "/srv/export"
# Clients get their locks back after a restart of the server only when this is over; it is 90 s otherwise.
SHORT_GRACE = "[nfsd]\ngrace-time=10\nlease-time=10\n"
COUNTING = "i=0; while true; do i=$((i+1)); echo $i >/data/count.new && mv /data/count.new /data/count; sleep 1; done"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    with node_on(Kind(name="nfs")) as node:
        node.machine.put("/etc/exports", f"{EXPORT} *(rw,no_root_squash,no_subtree_check,insecure)\n")
        node.machine.put("/etc/nfs.conf.d/grace.conf", SHORT_GRACE)
        node.machine.run(f"mkdir -p {EXPORT}/deep; chmod 777 {EXPORT}; echo kept >{EXPORT}/of-server")
        node.machine.run("systemctl start nfs-server")
        node.start_runtime()
        node.join(cluster)
        yield node


def nfs_pod(name: str, command: str, **source: Any) -> dict[str, Any]:
    volume = {"name": "data", "nfs": {"server": SERVER, "path": EXPORT} | source}
    return _with_data(name, command, volume)


def _with_data(name: str, command: str, volume: dict[str, Any]) -> dict[str, Any]:
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    return a_pod(name, command, volumes=[volume], container=mounts, automountServiceAccountToken=False)


def persistent(name: str, *options: str) -> list[dict[str, Any]]:
    """A volume with mount options, and the claim bound to it."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": common
        | {
            "capacity": {"storage": "1Gi"},
            "nfs": {"server": SERVER, "path": f"{EXPORT}/deep"},
            "mountOptions": list(options),
            "claimRef": {"namespace": "default", "name": name},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": common | {"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
    }
    return [volume, claim]


def mounts(node: Node) -> list[str]:
    """The kernel's lines about nfs mounts of pods."""
    lines = node.machine.get("/proc/mounts").splitlines()
    return [line for line in lines if " nfs" in line and "/var/lib/kubelet/pods/" in line]


def test_pods_share_an_export(node: Node, cluster: Cluster, record_property: Record) -> None:
    """Read and written by pods; read-only and mount options are the kernel's; nothing is left mounted."""
    cluster.apply(*persistent("tuned", "nfsvers=4.1", "rsize=65536", "noatime"))
    tuned = {"name": "data", "persistentVolumeClaim": {"claimName": "tuned"}}
    node.create(
        cluster,
        nfs_pod("writes", "cp /data/of-server /data/by-pod && sleep 1000000"),
        nfs_pod("reads", "sleep 1000000", readOnly=True),
        _with_data("tuned", "echo deep >/data/by-tuned; sleep 1000000", tuned),
    )
    for name in ("writes", "reads", "tuned"):
        node.running(name)
    assert node.machine.get(f"{EXPORT}/by-pod") == "kept\n"
    assert node.machine.get(f"{EXPORT}/deep/by-tuned") == "deep\n"
    assert node.exec("reads", "main", "cat /data/by-pod") == "kept\n"
    assert "Read-only" in node.exec("reads", "main", "touch /data/x 2>&1; true")
    uid = node.pods()["tuned"]["metadata"]["uid"]
    options = next(line.split()[3].split(",") for line in mounts(node) if uid in line)
    record_property("options", ",".join(options))
    assert {"vers=4.1", "rsize=65536", "noatime"} <= set(options), options
    node.remove(cluster, "writes", "reads", "tuned")
    assert mounts(node) == []
    assert node.machine.get(f"{EXPORT}/by-pod") == "kept\n"


def test_an_export_that_does_not_exist(node: Node, cluster: Cluster) -> None:
    """The pod waits, and the server's words are in its event and in `explain`."""
    node.create(cluster, nfs_pod("lost", "sleep 1000000", path="/srv/nowhere"))

    def warned() -> str:
        events = cluster.get("events", "--field-selector", "involvedObject.name=lost,reason=FailedMount")["items"]
        return str(events[0]["message"]) if events else ""

    message = node.wait(warned, "an event about the mount")
    assert f"{SERVER}:/srv/nowhere" in message, message
    told = node.machine.run("pykubelet explain lost", check=False)
    assert f"{SERVER}:/srv/nowhere" in told, told
    node.remove(cluster, "lost")


def test_a_server_that_dies(node: Node, cluster: Cluster, record_property: Record) -> None:
    """Other pods start, are measured, evicted and end; the pods of the dead server are explained and can be deleted;
    those that stay go on when it is back."""
    node.create(cluster, nfs_pod("stays", COUNTING), nfs_pod("leaves", COUNTING, path=f"{EXPORT}/deep"))
    node.running("stays")
    node.running("leaves")
    node.wait(lambda: node.machine.run(f"cat {EXPORT}/count {EXPORT}/deep/count", check=False), "counted")
    node.machine.run("systemctl stop nfs-server")
    before = node.machine.run(f"cat {EXPORT}/count", check=False)
    node.machine.run("sleep 3")
    assert node.machine.run(f"cat {EXPORT}/count", check=False) == before, "the server still serves"

    _others_live(node, cluster)
    node.create(cluster, nfs_pod("late", COUNTING, path=f"{EXPORT}/deep"))
    told = node.wait(lambda: _explained(node, "late", "volume data", SERVER), "late explained")
    record_property("explained", told.splitlines()[1].strip())
    told = node.wait(lambda: _explained(node, "leaves", "/data", "has not come back"), "leaves explained")
    record_property("explained of a pod that ran", told.splitlines()[1].strip())
    node.remove(cluster, "leaves")
    assert node.machine.run("curl -sf -m 20 http://127.0.0.1:10248/healthz") == "ok"

    node.machine.run("systemctl start nfs-server")
    node.running("late")
    node.wait(lambda: int(node.machine.get(f"{EXPORT}/count")) > int(before), "stays counts on")
    assert node.container("stays", "main")["restartCount"] == 0
    node.remove(cluster, "stays", "late")
    assert mounts(node) == []


def _others_live(node: Node, cluster: Cluster) -> None:
    filling = "dd if=/dev/zero of=/scratch/big bs=1M count=30; sleep 1000000"
    scratch = {"name": "scratch", "emptyDir": {"sizeLimit": "5Mi"}}
    mount = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    node.create(cluster, a_pod("bystander"), a_pod("greedy", filling, volumes=[scratch], container=mount))
    node.running("bystander")
    assert node.machine.run("curl -sf -m 20 http://127.0.0.1:10248/healthz") == "ok"

    def measured() -> bool:
        summary = json.loads(node.machine.run("curl -sf -m 60 http://127.0.0.1:10255/stats/summary"))
        return "bystander" in {pod["podRef"]["name"] for pod in summary["pods"]}

    node.wait(measured, "bystander in /stats/summary")
    assert "evicted" in node.phase("greedy", "Failed")["status"]["reason"].lower()
    node.remove(cluster, "bystander", "greedy")


def _explained(node: Node, name: str, *words: str) -> str:
    """What `explain` says about a pod once these words are in it."""
    told = node.machine.run(f"pykubelet explain {name}", check=False, within=120)
    return told if all(word in told for word in words) else ""
