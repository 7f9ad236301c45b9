"""/var/lib/kubelet on XFS with project quotas: the filesystem counts the emptyDirs of pods in user namespaces.

As upstream: behind the gate LocalStorageCapacityIsolationFSQuotaMonitoring, and only with `hostUsers: false`. With a
real API server beside the guest: static pods are critical, and no critical pod is evicted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bed.cluster import Cluster

from hosts.machine import Disk, Kind
from hosts.node import UNIT, Node, Record, a_pod, node_on

ROOT = "/var/lib/kubelet"
FIRST_PROJECT = 1048577
MIB = 1 << 20
GATES = {"featureGates": {"LocalStorageCapacityIsolationFSQuotaMonitoring": True}}
# A file that is open but has no name any more: no walk of the folder finds it, a quota counts it.
UNNAMED = "dd if=/dev/zero of=/scratch/named bs=1M count=3; exec 5>/scratch/unnamed; rm /scratch/unnamed; "
UNNAMED += "dd if=/dev/zero bs=1M count=8 >&5; sync; sleep 1000000"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    with node_on(Kind(name="quotas", disks=(Disk(name="kubelet", size="4G"),)), newer=True) as node:
        disk = "/dev/disk/by-id/virtio-kubelet"
        node.machine.run(f"mkfs.xfs -q -f {disk}; mkdir -p {ROOT}; mount -o prjquota {disk} {ROOT}")
        node.start_runtime(newer=True)
        node.join(cluster, GATES)
        yield node


def with_scratch(name: str, command: str, *, size_limit: str | None = None, **spec: Any) -> dict[str, Any]:
    source = {"sizeLimit": size_limit} if size_limit else {}
    mounts = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    volume = {"name": "scratch", "emptyDir": source}
    return a_pod(name, command, volumes=[volume], container=mounts, automountServiceAccountToken=False, **spec)


def folder(node: Node, name: str) -> str:
    uid = node.pods()[name]["metadata"]["uid"]
    return f"{ROOT}/pods/{uid}/volumes/kubernetes.io~empty-dir/scratch"


def project(node: Node, path: str) -> int:
    """The project of a folder, as the filesystem's own tool shows it."""
    shown = node.machine.run(f"xfs_io -r -c 'lsproj' {path}")
    return int(shown.rpartition("=")[2])


def report(node: Node) -> dict[int, tuple[int, int]]:
    """Project -> bytes and inodes, for all projects that hold something."""
    sizes = _columns(node.machine.run(f"sync; xfs_quota -x -c 'report -p -n -N -b' {ROOT}"))
    inodes = _columns(node.machine.run(f"xfs_quota -x -c 'report -p -n -N -i' {ROOT}"))
    return {each: (sizes[each] * 1024, inodes[each]) for each in sizes if each and inodes.get(each)}


def _columns(text: str) -> dict[int, int]:
    rows = [line.split() for line in text.splitlines() if line.startswith("#")]
    return {int(row[0].removeprefix("#")): int(row[1]) for row in rows}


def volume_usage(node: Node, name: str) -> dict[str, Any]:
    for pod in json.loads(node.get("/stats/summary"))["pods"]:
        if pod["podRef"]["name"] == name:
            return next((each for each in pod.get("volume", ()) if each["name"] == "scratch"), {})
    return {}


def test_the_filesystem_counts(node: Node, cluster: Cluster, record_property: Record) -> None:
    """The figures are those of `xfs_quota`, with a file that has no name; a pod of the host's users is walked."""
    node.create(
        cluster, with_scratch("counted", UNNAMED, hostUsers=False), with_scratch("walked", UNNAMED, size_limit="6Mi")
    )
    node.running("counted")
    node.running("walked")
    number = project(node, folder(node, "counted"))
    assert number >= FIRST_PROJECT
    assert project(node, folder(node, "walked")) == 0
    usage = node.wait(lambda: _agreed(node, "counted", number), "11 MiB, the same in xfs_quota and /stats/summary")
    record_property("usedBytes", usage["usedBytes"])
    record_property("inodesUsed", usage["inodesUsed"])
    walked = node.wait(lambda: _at_least(volume_usage(node, "walked"), 3 * MIB), "3 MiB in /stats/summary")
    assert walked["usedBytes"] < 4 * MIB, walked


def _agreed(node: Node, name: str, number: int) -> dict[str, Any]:
    """The agent's figures when they are those of `xfs_quota`. Both change while XFS gives back what it reserved for
    files that grow, so that one comparison is not enough."""
    usage = _at_least(volume_usage(node, name), 11 * MIB)
    return usage if usage and (usage["usedBytes"], usage["inodesUsed"]) == report(node).get(number) else {}


def _at_least(usage: dict[str, Any], size: int) -> dict[str, Any]:
    return usage if usage.get("usedBytes", 0) >= size else {}


def test_projects_are_not_mixed_up(node: Node, cluster: Cluster) -> None:
    """Two volumes have two numbers; a restarted agent finds them on the folders; root inside cannot change its own."""
    node.create(cluster, with_scratch("other", "echo x >/scratch/x; sleep 1000000", hostUsers=False))
    node.running("other")
    numbers = {name: project(node, folder(node, name)) for name in ("counted", "other")}
    assert len(set(numbers.values())) == 2 and min(numbers.values()) >= FIRST_PROJECT, numbers
    node.machine.run(f"systemctl restart {UNIT}")
    node.running("other")
    assert {name: project(node, folder(node, name)) for name in numbers} == numbers
    node.wait(lambda: _agreed(node, "counted", numbers["counted"]), "counted again")


def test_a_pod_over_its_limit_is_evicted(node: Node, cluster: Cluster) -> None:
    """By what the quota counts: the file that makes it too much has no name. Whoever is walked stays within."""
    node.create(cluster, with_scratch("greedy", UNNAMED, size_limit="6Mi", hostUsers=False))
    status = node.phase("greedy", "Failed")["status"]
    assert status["reason"] == "Evicted", status
    assert 'Usage of EmptyDir volume "scratch" exceeds the limit "6Mi"' in status["message"], status
    node.phase("counted", "Running")
    node.phase("walked", "Running")


def test_numbers_are_given_back(node: Node, cluster: Cluster) -> None:
    """With their pods no project holds anything, so each number can be had again."""
    held = {project(node, folder(node, name)) for name in ("counted", "other")}
    assert held <= set(report(node))
    node.remove(cluster, "counted", "walked", "other", "greedy")
    node.wait(lambda: not set(report(node)), f"no project holds anything: {report(node)}")
