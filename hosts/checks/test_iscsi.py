"""iSCSI volumes: the kernel's own target (LIO) and open-iscsi in one guest, with and without CHAP, and a target that
dies under a pod.

With a real API server beside the guest: the secret with the names and passwords of CHAP comes from there, and static
pods may not refer to secrets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bed.cluster import Cluster

from hosts.machine import Kind
from hosts.node import Node, Record, a_pod, node_on

PORTAL = "10.0.2.15:3260"
INITIATOR = "iqn.2026-01.org.example:guest"
OPEN, GUARDED = "iqn.2026-01.org.example:open", "iqn.2026-01.org.example:guarded"
PASSWORD, PASSWORD_BACK, PASSWORD_DISCOVERY = "open-sesame-12", "sesame-open-34", "sesame-where-56"
TARGETS = f"""
/backstores/fileio create name=open file_or_dev=/srv/open.img size=256M
/backstores/fileio create name=second file_or_dev=/srv/second.img size=256M
/backstores/fileio create name=guarded file_or_dev=/srv/guarded.img size=256M
/iscsi create {OPEN}
/iscsi/{OPEN}/tpg1/luns create /backstores/fileio/open
/iscsi/{OPEN}/tpg1/luns create /backstores/fileio/second
/iscsi/{OPEN}/tpg1 set attribute authentication=0 generate_node_acls=1 demo_mode_write_protect=0
/iscsi create {GUARDED}
/iscsi/{GUARDED}/tpg1/luns create /backstores/fileio/guarded
/iscsi/{GUARDED}/tpg1/acls create {INITIATOR}
/iscsi/{GUARDED}/tpg1/acls/{INITIATOR} set auth userid=pod password={PASSWORD}
/iscsi/{GUARDED}/tpg1/acls/{INITIATOR} set auth mutual_userid=disk mutual_password={PASSWORD_BACK}
/iscsi/{GUARDED}/tpg1 set attribute authentication=1
"""
DISCOVERY = f"/iscsi set discovery_auth enable=1 userid=finder password={PASSWORD_DISCOVERY}"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    with node_on(Kind(name="iscsi")) as node:
        node.machine.put("/etc/iscsi/initiatorname.iscsi", f"InitiatorName={INITIATOR}\n", mode="600")
        # After that many seconds without the target, reads and writes fail instead of waiting; 120 otherwise.
        node.machine.run("sed -i 's/^\\(node.session.timeo.replacement_timeout\\).*/\\1 = 20/' /etc/iscsi/iscsid.conf")
        node.machine.run("targetcli", stdin=TARGETS.encode())
        node.machine.run("systemctl start iscsid")
        node.start_runtime()
        node.join(cluster)
        cluster.apply(secret("chap", PASSWORD), secret("wrong", "not-the-password"))
        yield node


def secret(name: str, password: str) -> dict[str, Any]:
    words = {
        "node.session.auth.username": "pod",
        "node.session.auth.password": password,
        "node.session.auth.username_in": "disk",
        "node.session.auth.password_in": PASSWORD_BACK,
        "discovery.sendtargets.auth.username": "finder",
        "discovery.sendtargets.auth.password": PASSWORD_DISCOVERY,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/iscsi-chap",
        "metadata": {"name": name, "namespace": "default"},
        "stringData": words,
    }


def disk_pod(name: str, command: str, *, iqn: str = OPEN, lun: int = 0, **source: Any) -> dict[str, Any]:
    volume = {"name": "disk", "iscsi": {"targetPortal": PORTAL, "iqn": iqn, "lun": lun, "fsType": "ext4"} | source}
    mounts = {"volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}
    return a_pod(name, command, volumes=[volume], container=mounts, automountServiceAccountToken=False)


def sessions(node: Node) -> list[str]:
    """The targets that the kernel has a session with."""
    return node.machine.run("cat /sys/class/iscsi_session/*/targetname 2>/dev/null || true").split()


def disks(node: Node) -> list[str]:
    """SCSI disks of the guest; its own are virtio."""
    return node.machine.run("ls /sys/class/scsi_disk").split()


def left(node: Node, iqn: str = OPEN) -> list[str]:
    """What volumes may leave behind: sessions, disks, mounts and the record of the login. Discovery makes records of
    the portal's other targets, too; they stay, as upstream leaves them."""
    mounted = node.machine.run("grep kubernetes.io.iscsi /proc/mounts || true").splitlines()
    records = node.machine.run("iscsiadm -m node 2>/dev/null || true").splitlines()
    return sessions(node) + disks(node) + mounted + [record for record in records if iqn in record]


def test_a_disk_is_made_and_kept(node: Node, cluster: Cluster, record_property: Record) -> None:
    """A blank disk gets the filesystem asked for; two disks share a session; the data is there for the next pod."""
    write = "echo kept >/disk/by-pod; sync; sleep 1000000"
    node.create(cluster, disk_pod("first", write), disk_pod("second", write, lun=1))
    node.running("first")
    node.running("second")
    assert sessions(node) == [OPEN]
    assert len(disks(node)) == 2
    line = next(row for row in node.machine.get("/proc/mounts").splitlines() if "lun-0" in row)
    record_property("mount", line)
    assert line.split()[2] == "ext4", line
    node.remove(cluster, "second")
    assert sessions(node) == [OPEN]
    assert len(disks(node)) == 1
    assert node.exec("first", "main", "cat /disk/by-pod") == "kept\n"
    node.remove(cluster, "first")
    assert left(node) == []
    node.create(cluster, disk_pod("again", "cat /disk/by-pod; sleep 1000000", readOnly=True))
    node.running("again")
    assert node.exec("again", "main", "cat /disk/by-pod") == "kept\n"
    assert "Read-only" in node.exec("again", "main", "touch /disk/x 2>&1; true")
    node.remove(cluster, "again")
    assert left(node) == []


def test_chap(node: Node, cluster: Cluster) -> None:
    """Both sides prove who they are; without or with a wrong password there is no session, and no password is told."""
    chap: dict[str, Any] = {"chapAuthSession": True, "secretRef": {"name": "chap"}}
    wrong: dict[str, Any] = {"chapAuthSession": True, "secretRef": {"name": "wrong"}}
    node.create(cluster, disk_pod("wrong", "true", iqn=GUARDED, **wrong))
    message = node.wait(lambda: _mount_event(cluster, "wrong"), "an event about the login")
    assert GUARDED in message and "authorization failure" in message, message
    node.remove(cluster, "wrong")
    assert left(node, GUARDED) == []
    node.create(cluster, disk_pod("guarded", "echo x >/disk/x; sleep 1000000", iqn=GUARDED, **chap))
    node.running("guarded")
    session = node.machine.run("cat /sys/class/iscsi_session/*/username /sys/class/iscsi_session/*/username_in")
    assert session.split() == ["pod", "disk"]
    node.remove(cluster, "guarded")
    assert left(node, GUARDED) == []
    _no_password_told(node)


def test_chap_at_discovery(node: Node, cluster: Cluster) -> None:
    """A portal that lists its targets only to who has a password."""
    node.machine.run(f"targetcli {DISCOVERY}")
    try:
        node.create(cluster, disk_pod("stranger", "true"))
        message = node.wait(lambda: _mount_event(cluster, "stranger"), "an event about the discovery")
        assert "iscsiadm" in message, message
        node.remove(cluster, "stranger")
        both: dict[str, Any] = {"chapAuthDiscovery": True, "chapAuthSession": True, "secretRef": {"name": "chap"}}
        node.create(cluster, disk_pod("finder", "sleep 1000000", iqn=GUARDED, **both))
        node.running("finder")
        node.remove(cluster, "finder")
    finally:
        node.machine.run("targetcli /iscsi set discovery_auth enable=0")
    assert left(node, GUARDED) == []
    _no_password_told(node)


def _mount_event(cluster: Cluster, pod: str) -> str:
    events = cluster.get("events", "--field-selector", f"involvedObject.name={pod},reason=FailedMount")["items"]
    return str(events[0]["message"]) if events else ""


def _no_password_told(node: Node) -> None:
    log = node.log(100_000)
    assert "iscsi" in log
    for password in (PASSWORD, PASSWORD_BACK, PASSWORD_DISCOVERY, "not-the-password"):
        assert password not in log


def test_a_target_that_dies(node: Node, cluster: Cluster, record_property: Record) -> None:
    """The pod can be deleted, other pods live meanwhile, and the next pod has the disk when the target is back."""
    writing = "while true; do echo x >>/disk/log; sync; sleep 1; done"
    node.create(cluster, disk_pod("hangs", writing))
    node.running("hangs")
    node.machine.run(f"targetcli /iscsi/{OPEN}/tpg1 disable")
    node.wait(lambda: "LOGGED_IN" not in _states(node), "the session lost")
    node.create(cluster, a_pod("bystander"))
    node.running("bystander")
    assert node.machine.run("curl -sf -m 20 http://127.0.0.1:10248/healthz") == "ok"
    names = {pod["podRef"]["name"] for pod in json.loads(node.get("/stats/summary"))["pods"]}
    assert "bystander" in names
    node.remove(cluster, "bystander")
    cluster.kubectl("delete", "pod", "hangs", "--wait=false")
    record_property("explained", node.machine.run("pykubelet explain hangs", check=False))
    node.gone(cluster, "hangs")
    assert left(node) == []
    node.machine.run(f"targetcli /iscsi/{OPEN}/tpg1 enable")
    node.create(cluster, disk_pod("after", "cat /disk/by-pod; sleep 1000000"))
    node.running("after")
    assert node.exec("after", "main", "cat /disk/by-pod") == "kept\n"
    node.remove(cluster, "after")
    assert left(node) == []


def _states(node: Node) -> str:
    return node.machine.run("cat /sys/class/iscsi_session/*/state 2>/dev/null || true")
