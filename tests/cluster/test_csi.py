"""Storage drivers on the real control plane: a real driver, real mounts, and kills at any moment."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.cluster import Cluster
from tests.bed.csi import DRIVER, Attacher, BedDriver, a_bound_volume, a_driver, bed_driver, wait_until
from tests.bed.runtime import BedContainerd
from tests.cluster.joined import STAY, Joined, joined, pod_manifest

pytestmark = pytest.mark.cluster

KILLS = 20
VOLUMES = "pv,pvc"


@pytest.fixture(scope="module")
def storage(
    cluster: Cluster, containerd: BedContainerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Joined, BedDriver, Attacher]]:
    folder = tmp_path_factory.mktemp("csi")
    cluster.apply(a_driver(podInfoOnMount=True, fsGroupPolicy="ReadWriteOnceWithFSType"))
    settings = {"address": containerd.gateway_ip, "volumeStatsAggPeriod": "1s"}
    with (
        joined(cluster, containerd, folder, name="disks", **settings) as node,
        bed_driver(folder, node.agent.root, cluster) as (driver, attacher),
    ):
        wait_until("the driver is listed", lambda: drivers_of(node) == [DRIVER])
        yield node, driver, attacher
        node.clean()
        cluster.kubectl("delete", "pvc", "--all", "--wait=false")
        cluster.kubectl("delete", "pv", "--all", "--wait=false")
        cluster.kubectl("delete", "csidriver", DRIVER)


def drivers_of(node: Joined) -> list[str]:
    found = node.cluster.kubectl("get", "csinode", node.agent.node, "-o", "json", check=False)
    return [each["name"] for each in json.loads(found)["spec"].get("drivers") or ()] if found.strip() else []


def with_volume(name: str, claim: str, script: str, *, block: bool = False, **spec: Any) -> dict[str, Any]:
    pod = pod_manifest(name, script, node="disks", **spec)
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    place = {"volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]}
    pod["spec"]["containers"][0] |= place if block else {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    return pod


def mounts_below(root: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted(point for point in points if point.startswith(str(root)) and "csi" in point)


def left_behind(node: Joined, driver: BedDriver) -> list[str]:
    root = node.agent.root
    home = root / "plugins" / "kubernetes.io" / "csi"
    files, staging = [], []
    for folder, folders, names in os.walk(home):  # unlike rglob it does not mind what goes meanwhile
        files += [os.path.join(folder, name) for name in names]
        staging += [os.path.join(folder, name) for name in folders if name == "globalmount"]
    pods = [str(path) for path in root.glob("pods/*/volumes/kubernetes.io~csi/*")]
    return mounts_below(root) + files + staging + pods + driver.loop_devices()


def test_the_node_lists_the_driver(storage: tuple[Joined, BedDriver, Attacher]) -> None:
    node, _, _ = storage
    (entry,) = node.cluster.get("csinode", "disks")["spec"]["drivers"]
    assert entry == {
        "name": DRIVER,
        "nodeID": "bed-node",
        "topologyKeys": ["bed.example.com/zone"],
        "allocatable": {"count": 50},
    }
    found = node.cluster.get("node", "disks")["metadata"]
    assert json.loads(found["annotations"]["csi.volume.kubernetes.io/nodeid"]) == {DRIVER: "bed-node"}
    assert found["labels"]["bed.example.com/zone"] == "z1"


def test_data_moves_from_pod_to_pod_and_grows(storage: tuple[Joined, BedDriver, Attacher]) -> None:
    node, driver, attacher = storage
    attacher.paused = True
    node.apply(*a_bound_volume("disk", "loop-1"))
    write = "echo kept > /data/file; ls -ldn /data; while true; do df -k /data | tail -1; sleep 0.5; done"
    group = {"securityContext": {"fsGroup": 4321}}
    node.apply(with_volume("first", "disk", write, **group))
    says = "is not attached to this node"
    try:
        wait_until("the reason is told", lambda: says in told(node, "first"))
    except AssertionError as error:
        raise AssertionError(f"{error}; {told(node, 'first')}\n{node.agent.tail()}") from None
    attacher.paused = False
    node.wait_running("first", within=60)
    first = node.wait_log("first", "%")
    assert " 4321 " in first.splitlines()[0]
    before = int(first.splitlines()[-1].split()[1])
    figures = wait_until("figures of the volume", lambda: volume_stats(node, "first"))
    assert figures["pvcRef"] == {"name": "disk", "namespace": "default"}
    assert figures["capacityBytes"] // 1024 == before

    # The control plane's part of growing; then the pod is touched, which makes the node look at once.
    node.cluster.kubectl("patch", "pv", "disk", "-p", '{"spec": {"capacity": {"storage": "640Mi"}}}')
    node.cluster.kubectl("annotate", "pod", "first", "touched=yes")
    wait_until("the filesystem has grown", lambda: int(node.log_of("first").splitlines()[-1].split()[1]) > before)
    claim = wait_until("the claim says so", lambda: claim_of_size(node, "disk", "640Mi"))
    assert "allocatedResourceStatuses" not in claim["status"]

    node.delete("pod", "first")
    node.wait_gone("first")
    node.apply(with_volume("second", "disk", f"cat /data/file; {STAY}"))
    node.wait_log("second", "kept", within=60)
    node.delete("pod", "second")
    node.wait_gone("second")
    wait_until("nothing is left", lambda: not left_behind(node, driver))
    assert_order(driver)


def told(node: Joined, pod: str) -> str:
    return asked(node, f"explain/default/{pod}")


def asked(node: Joined, path: str) -> str:
    """What the node's own server says, through the API server."""
    return node.cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node.agent.node}/proxy/{path}", check=False)


def volume_stats(node: Joined, pod: str) -> dict[str, Any] | None:
    said = asked(node, "stats/summary")
    for each in json.loads(said)["pods"] if said.startswith("{") else ():
        if each["podRef"]["name"] == pod:
            for volume in each.get("volume", ()):
                if volume["name"] == "data":
                    found: dict[str, Any] = volume
                    return found
    return None


def claim_of_size(node: Joined, name: str, size: str) -> dict[str, Any] | None:
    found: dict[str, Any] = node.cluster.get("pvc", name)
    return found if found["status"]["capacity"]["storage"] == size else None


def test_a_block_volume(storage: tuple[Joined, BedDriver, Attacher]) -> None:
    node, driver, _ = storage
    node.apply(*a_bound_volume("raw", "block-1", block=True))
    write = f"echo raw bytes | dd of=/dev/data bs=512 conv=sync 2>&1; {STAY}"
    node.apply(with_volume("writer", "raw", write, block=True))
    node.wait_log("writer", "records out", within=60)
    node.delete("pod", "writer")
    node.wait_gone("writer")
    node.apply(with_volume("reader", "raw", f"head -c 9 /dev/data; echo; {STAY}", block=True))
    node.wait_log("reader", "raw bytes", within=60)
    node.delete("pod", "reader")
    node.wait_gone("reader")
    wait_until("nothing is left", lambda: not left_behind(node, driver))


def test_an_inline_volume(storage: tuple[Joined, BedDriver, Attacher]) -> None:
    node, driver, _ = storage
    pod = pod_manifest("inline", f"cat /data/context.json; echo; {STAY}", node="disks")
    pod["spec"]["volumes"] = [{"name": "data", "csi": {"driver": DRIVER, "volumeAttributes": {"colour": "green"}}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    node.apply(pod)
    context = json.loads(node.wait_log("inline", "}", within=60))
    assert context["colour"] == "green"
    assert context["csi.storage.k8s.io/pod.name"] == "inline"
    assert context["csi.storage.k8s.io/ephemeral"] == "true"
    node.delete("pod", "inline")
    node.wait_gone("inline")
    wait_until("nothing is left", lambda: not left_behind(node, driver))


def test_a_driver_that_never_answers(storage: tuple[Joined, BedDriver, Attacher]) -> None:
    node, driver, _ = storage
    driver.kill9()
    driver.start(hang="NodeStageVolume")
    node.apply(*a_bound_volume("slow", "folder-3"), with_volume("stuck", "slow", f"echo here; {STAY}"))
    wait_until("the reason is told", lambda: f"driver {DRIVER} has not answered NodeStageVolume" in told(node, "stuck"))
    node.apply(pod_manifest("other", node="disks"))
    node.wait_running("other")
    driver.kill9()
    driver.start()
    node.wait_log("stuck", "here", within=60)
    node.delete("pod", "stuck", "other")
    node.wait_gone("stuck", "other")
    wait_until("nothing is left", lambda: not left_behind(node, driver))


def test_a_disk_of_a_migrated_kind(storage: tuple[Joined, BedDriver, Attacher], tmp_path: Path) -> None:
    """The control plane attaches it by the driver's name too: both must come to the same handle and attachment."""
    node, _, _ = storage
    name, before = "cinder.csi.openstack.org", {DRIVER}
    volume, claim = a_bound_volume("old", "")
    del volume["spec"]["csi"]
    volume["spec"]["cinder"] = {"volumeID": "loop-9", "fsType": "xfs"}
    inline = with_volume("inline-old", "", f"cat /data/file; {STAY}")
    inline["spec"]["volumes"] = [{"name": "data", "cinder": {"volumeID": "loop-9", "fsType": "xfs"}}]
    node.cluster.apply(a_driver(name))
    with bed_driver(tmp_path, node.agent.root, node.cluster, name) as (driver, _):
        wait_until("the driver is listed", lambda: set(drivers_of(node)) == before | {name})
        node.apply(volume, claim, with_volume("claimed", "old", f"echo kept > /data/file; cat /data/file; {STAY}"))
        node.wait_log("claimed", "kept", within=90)
        (attached,) = node.cluster.get("node", node.agent.node)["status"]["volumesAttached"]
        assert attached["name"] == f"kubernetes.io/csi/{name}^loop-9"
        node.agent.kill9()
        node.agent.start()
        node.delete("pod", "claimed")
        node.wait_gone("claimed", within=90)
        wait_until("nothing is left", lambda: not left_behind(node, driver))
        node.apply(inline)
        node.wait_log("inline-old", "kept", within=90)
        figures = asked(node, "metrics")
        node.delete("pod", "inline-old")
        node.wait_gone("inline-old", within=90)
        wait_until("nothing is left", lambda: not left_behind(node, driver))
    assert (
        f'volume_plugin="kubernetes.io/csi:{name}",operation_name="volume_mount",status="success",migrated="true"'
        in figures
    )
    assert_order(driver)
    node.cluster.kubectl("delete", "csidriver", name)
    wait_until("the driver is not listed", lambda: set(drivers_of(node)) == before)


def test_kills_at_any_moment(storage: tuple[Joined, BedDriver, Attacher]) -> None:
    node, driver, _ = storage
    node.apply(*a_bound_volume("tough", "loop-2"))
    dice = random.Random(7)
    for number in range(KILLS // 2):
        node.apply(with_volume(f"round{number}", "tough", f"echo {number} >> /data/rounds; cat /data/rounds; {STAY}"))
        strike(node, driver, dice)
        node.wait_log(f"round{number}", f"{number}\n", within=90)
        node.delete("pod", f"round{number}", "--wait=false")
        strike(node, driver, dice)
        node.wait_gone(f"round{number}", within=90)
        mounts = mounts_below(node.agent.root)
        assert len(mounts) == len(set(mounts))
    node.apply(with_volume("last", "tough", f"cat /data/rounds; {STAY}"))
    lines = node.wait_log("last", f"{KILLS // 2 - 1}\n", within=90).split()
    assert [int(line) for line in dict.fromkeys(lines)] == list(range(KILLS // 2))
    node.delete("pod", "last")
    node.wait_gone("last", within=90)
    wait_until("nothing is left", lambda: not left_behind(node, driver), within=90)
    assert_order(driver)


def strike(node: Joined, driver: BedDriver, dice: random.Random) -> None:
    """Kill the agent or the driver at some moment of what is going on, and start it again."""
    time.sleep(dice.uniform(0.0, 1.2))
    if dice.random() < 0.5:
        node.agent.kill9()
        node.agent.start()
    else:
        driver.kill9()
        driver.start()


def assert_order(driver: BedDriver) -> None:
    """Judged by the driver's own log: never published before staged, never unstaged while published."""
    staged: set[str] = set()
    published: dict[str, set[str]] = {}
    for line in driver.calls():
        volume, target = line["volume"], line["target"]
        if not volume.startswith(("loop", "block")):
            continue
        match line["call"], line["state"]:
            case "NodeStageVolume", "done":
                staged.add(volume)
            case "NodePublishVolume", "begun":
                assert volume in staged, f"{volume} published before it was staged"
            case "NodePublishVolume", "done":
                published.setdefault(volume, set()).add(target)
                assert len(published[volume]) == 1, f"{volume} published twice: {published[volume]}"
            case "NodeUnpublishVolume", "done":
                published.get(volume, set()).discard(target)
            case "NodeUnstageVolume", "begun":
                assert not published.get(volume), f"{volume} unstaged while published"
                staged.discard(volume)
