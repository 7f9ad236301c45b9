"""Pods with a user namespace of their own (`hostUsers: false`): ranges of ids, and volumes mounted id-mapped.

With containerd 2.x and runc 1.3, which can do it, and a real API server beside the guest, without which no pod has
configMaps and secrets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bed.cluster import Cluster

from hosts.machine import Kind
from hosts.node import UNIT, Node, Record, a_pod, node_on

IDS = 65536
VOLUMES = "/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~{kind}/{name}"
HOST_FOLDER = "/srv/shared"
USER, GROUP = 1234, 2345


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    with node_on(Kind(name="users"), newer=True) as node:
        node.machine.run(f"mkdir -p {HOST_FOLDER}; echo host >{HOST_FOLDER}/of-host; chmod 755 {HOST_FOLDER}")
        node.start_runtime(newer=True)
        node.join(cluster)
        cluster.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"key": "from map"}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}, "stringData": {"key": "of secret"}},
        )
        yield node


def maps(node: Node, pid: int) -> tuple[list[int], list[int]]:
    """uid_map and gid_map of a process: first id inside, first outside, length."""
    uids, gids = (node.machine.get(f"/proc/{pid}/{file}").split() for file in ("uid_map", "gid_map"))
    return [int(each) for each in uids], [int(each) for each in gids]


def owner(node: Node, path: str) -> str:
    return node.machine.run(f"stat -c %u:%g {path}").strip()


def recorded(node: Node, uid: str) -> Any:
    return json.loads(node.machine.get(f"/var/lib/kubelet/pods/{uid}/userns"))


WRITES = f"""
echo x >/empty/by-root; echo x >/memory/by-root; echo x >/host/by-root
chown {USER}:{GROUP} /empty/by-root
sleep 1000000
"""
SOURCES: dict[str, dict[str, Any]] = {
    "empty": {"emptyDir": {}},
    "memory": {"emptyDir": {"medium": "Memory"}},
    "map": {"configMap": {"name": "map"}},
    "secret": {"secret": {"secretName": "secret"}},
    "downward": {"downwardAPI": {"items": [{"path": "key", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    "projected": {
        "projected": {
            "sources": [
                {"configMap": {"name": "map", "items": [{"key": "key", "path": "key"}]}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
            ]
        }
    },
    "host": {"hostPath": {"path": HOST_FOLDER}},
}


def full_pod(name: str) -> dict[str, Any]:
    mounts = [{"name": volume, "mountPath": f"/{volume}"} for volume in SOURCES]
    return a_pod(
        name,
        WRITES,
        hostUsers=False,
        automountServiceAccountToken=False,
        volumes=[{"name": volume} | source for volume, source in SOURCES.items()],
        container={"volumeMounts": mounts},
    )


def test_ids_and_volumes(node: Node, cluster: Cluster, record_property: Record) -> None:
    """Root inside is another user outside; volumes show the same owner inside as without the namespace."""
    node.create(cluster, full_pod("mapped"))
    pod = node.running("mapped")
    uid, pid = pod["metadata"]["uid"], node.pid("mapped", "main")
    uids, gids = maps(node, pid)
    record_property("uid_map", uids)
    assert uids == gids
    assert (uids[0], uids[2]) == (0, IDS), uids
    assert uids[1] >= IDS and uids[1] % IDS == 0, uids
    assert recorded(node, uid)["uidMappings"] == [{"hostId": uids[1], "containerId": 0, "length": IDS}]
    assert node.machine.run(f"stat -c %u /proc/{pid}").strip() == str(uids[1])

    inside = node.exec("mapped", "main", "stat -c '%n %u:%g' /*/key /projected/token /*/by-root /host/of-host")
    owners = dict(line.split() for line in inside.splitlines())
    assert owners == {
        "/downward/key": "0:0",
        "/map/key": "0:0",
        "/projected/key": "0:0",
        "/secret/key": "0:0",
        "/projected/token": "0:0",
        "/empty/by-root": f"{USER}:{GROUP}",
        "/memory/by-root": "0:0",
        "/host/by-root": "0:0",
        "/host/of-host": "0:0",
    }
    read = node.exec("mapped", "main", "cat /map/key /secret/key /projected/key /downward/key")
    assert read == "from mapof secretfrom mapmapped", read
    # Mounted id-mapped: on the node's disk are the ids of inside, not those of the process.
    empty = VOLUMES.format(uid=uid, kind="empty-dir", name="empty")
    assert owner(node, f"{empty}/by-root") == f"{USER}:{GROUP}"
    assert owner(node, f"{HOST_FOLDER}/by-root") == "0:0"
    assert owner(node, VOLUMES.format(uid=uid, kind="secret", name="secret") + "/key") == "0:0"


def test_each_pod_has_its_own_range(node: Node, cluster: Cluster) -> None:
    """Two pods never share ids; a pod without a namespace has the host's."""
    node.create(cluster, a_pod("second", hostUsers=False))
    node.create(cluster, a_pod("plain"))
    node.running("second")
    node.running("plain")
    first, second = (maps(node, node.pid(name, "main"))[0] for name in ("mapped", "second"))
    assert abs(first[1] - second[1]) >= IDS, (first, second)
    assert maps(node, node.pid("plain", "main"))[0] == [0, 0, 4294967295]


def test_ranges_outlive_the_agent(node: Node, cluster: Cluster) -> None:
    """After a restart a container that dies comes back with the same ids, and no new pod gets them."""
    before = {name: (node.pid(name, "main"), maps(node, node.pid(name, "main"))) for name in ("mapped", "second")}
    node.machine.run(f"systemctl restart {UNIT}")
    node.running("mapped")
    assert {name: (node.pid(name, "main"), maps(node, node.pid(name, "main"))) for name in before} == before
    node.machine.run(f"kill -9 {before['second'][0]}")
    node.wait(lambda: _restarts(node, "second") == 1 and node.running("second"), "second restarted")
    assert maps(node, node.pid("second", "main")) == before["second"][1]
    node.create(cluster, a_pod("third", hostUsers=False))
    node.running("third")
    taken = {uids[1] for _, (uids, _) in before.values()}
    assert maps(node, node.pid("third", "main"))[0][1] not in taken


def _restarts(node: Node, name: str) -> int:
    return int(node.container(name, "main")["restartCount"])


def test_ranges_are_given_back(node: Node, cluster: Cluster) -> None:
    """The lowest free range goes to the next pod; nothing of the pods before is left on the disk."""
    freed = maps(node, node.pid("mapped", "main"))[0][1]
    uid = node.pods()["mapped"]["metadata"]["uid"]
    node.remove(cluster, "mapped", "second", "third", "plain")
    node.wait(lambda: not node.machine.run(f"ls -d /var/lib/kubelet/pods/{uid} 2>/dev/null || true"), "folders gone")
    node.create(cluster, a_pod("again", hostUsers=False))
    node.running("again")
    assert maps(node, node.pid("again", "main"))[0][1] == freed
    node.remove(cluster, "again")
