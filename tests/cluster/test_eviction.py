"""A real node that runs short: pods of the API server, a real kernel, a small disk. The right one goes, nothing else.

One containerd and one agent on a disk of 1 GiB, which holds images, writable layers, logs and volumes alike. All pods
together may use 1 GiB of memory: what else runs on the machine does not matter then. (The machine's own memory is
measured by bench/eviction.py.)
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pykubelet.clients.host.machine import read_machine
from pykubelet.standalone.images import parse_listing
from pykubelet.standalone.packer import File, Image, architecture, pack
from tests.bed.cluster import Cluster
from tests.bed.machine import wait_for
from tests.bed.runtime import BUSYBOX, BedContainerd, running_containerd
from tests.bed.small_disk import small_disk
from tests.cluster.joined import (
    Joined,
    Manifest,
    condition,
    container_manifest,
    is_ready,
    joined,
    phase,
    pod_manifest,
    state_of,
)

pytestmark = pytest.mark.cluster

MIB = 1 << 20
EATS = 900
"""MiB, of the 1024 that all pods have; the threshold is at 200 left."""
UNUSED = "pykubelet.local/unused:1"
NAME = "short-of"


@pytest.fixture(scope="module")
def small_containerd() -> Iterator[BedContainerd]:
    with small_disk(1024) as disk, running_containerd(below=disk) as running:
        yield running


@pytest.fixture(scope="module")
def short_node(cluster: Cluster, small_containerd: BedContainerd) -> Iterator[Joined]:
    reserved = read_machine().memory_bytes // MIB - 1024
    changes: dict[str, Any] = {
        "evictionHard": {
            "memory.available": "200Mi",
            "nodefs.available": "300Mi",
            "imagefs.available": "300Mi",
        },
        "enforceNodeAllocatable": ["pods"],
        "systemReserved": {"memory": f"{reserved}Mi"},
        "evictionPressureTransitionPeriod": "1s",
        "imageGCHighThresholdPercent": 100,
    }
    folder = small_containerd.state_dir / "node"
    folder.mkdir()
    with joined(cluster, small_containerd, folder, name=NAME, ready_within=60, **changes) as made:
        yield made


@pytest.fixture
def node(short_node: Joined) -> Iterator[Joined]:
    yield short_node
    short_node.clean()
    wait_for(lambda: eased(short_node), "the agent takes pods in again", within=60)
    short_node.nodes.wait("no pressure", lambda found: not pressure(found[NAME]), 60)
    short_node.nodes.wait("no taints", lambda found: not found[NAME]["spec"].get("taints"), 60)


def pressure(found: Manifest) -> list[str]:
    return [kind for kind in ("MemoryPressure", "DiskPressure", "PIDPressure") if condition(found, kind) == "True"]


def with_resources(name: str, script: str, **resources: Any) -> Manifest:
    return pod_manifest(name, node=NAME, containers=[container_manifest(script, resources=resources)])


def guaranteed(name: str) -> Manifest:
    amounts = {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "50Mi"}
    pod = with_resources(name, "trap 'exit 0' TERM; sleep 100000 & wait", requests=amounts, limits=amounts)
    return pod


def writes_to_memory(name: str, megabytes: int) -> Manifest:
    """Eats memory as soon as a file `go` is there: a volume in memory, which counts as the container's."""
    script = (
        "trap 'exit 0' TERM; while [ ! -e /hold/go ]; do sleep 0.1; done; "
        f"dd if=/dev/zero of=/hold/x bs=1M count={megabytes}; sleep 100000 & wait"
    )
    mounts = [{"name": "hold", "mountPath": "/hold"}]
    volumes = [{"name": "hold", "emptyDir": {"medium": "Memory"}}]
    return pod_manifest(name, node=NAME, containers=[container_manifest(script, volumeMounts=mounts)], volumes=volumes)


def writes_to_disk(name: str, megabytes: int, limit: str = "") -> Manifest:
    script = f"trap 'exit 0' TERM; dd if=/dev/zero of=/data/x bs=1M count={megabytes}; sleep 100000 & wait"
    empty_dir = {"sizeLimit": limit} if limit else {}
    mounts = [{"name": "data", "mountPath": "/data"}]
    volumes = [{"name": "data", "emptyDir": empty_dir}]
    return pod_manifest(name, node=NAME, containers=[container_manifest(script, volumeMounts=mounts)], volumes=volumes)


def evicted(pod: Manifest) -> bool:
    return phase(pod) == "Failed" and pod["status"].get("reason") == "Evicted"


def event_of(node: Joined, name: str, reason: str) -> Manifest:
    deadline = time.monotonic() + 30
    while True:
        found = node.cluster.get("events", "--field-selector", f"involvedObject.name={name},reason={reason}")
        if found["items"]:
            return dict(found["items"][0])
        if time.monotonic() > deadline:
            raise AssertionError(f"no event {reason} of {name}\n{node.agent.tail()}")
        time.sleep(0.2)


def stay(node: Joined, *names: str) -> None:
    """Nobody touched these."""
    for name in names:
        if not is_ready(node.pod(name)):
            told = [line for line in node.agent.log().splitlines() if "manager.py" in line]
            raise AssertionError(f"{name} does not run any more: {node.pod(name)['status']}\n" + "\n".join(told[-20:]))


def wait_log(node: Joined, text: str, within: float = 60.0) -> None:
    """Until the agent says so."""
    deadline = time.monotonic() + within
    while text not in node.agent.log():
        if time.monotonic() > deadline:
            raise AssertionError(f"the agent does not say {text!r}:\n{node.agent.tail()}")
        time.sleep(0.1)


def eased(node: Joined) -> bool:
    """The agent itself is past the pressure it told of: the API server may not have heard of it yet, or still."""
    told = [line for line in node.agent.log().splitlines() if "pressure on the node" in line]
    return not told or told[-1].endswith('now="[]"')


def is_known(containerd: BedContainerd, image: str) -> bool:
    return parse_listing(containerd.ctr("images", "ls")).get(image, ("", False))[1]


def test_the_pod_that_eats_memory_goes_and_the_others_stay(node: Joined) -> None:
    small = with_resources("small", "trap 'exit 0' TERM; sleep 100000 & wait", requests={"memory": "32Mi"})
    node.apply(guaranteed("guarded"), small, writes_to_memory("greedy", EATS))
    for name in ("guarded", "small", "greedy"):
        node.wait_running(name, within=60)
    uid = node.pod("greedy")["metadata"]["uid"]
    (node.agent.root / "pods" / uid / "volumes/kubernetes.io~empty-dir/hold/go").touch()
    gone = node.wait_pod("greedy", evicted, "is evicted", within=60)
    message = gone["status"]["message"]
    assert message.startswith("The node was low on resource: memory. Threshold quantity: 200Mi, available: ")
    assert "Container app was using " in message and "request is 0, has larger consumption of memory. " in message
    told = [each for each in gone["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    assert told[0]["status"] == "True" and told[0]["reason"] == "TerminationByKubelet"
    event = event_of(node, "greedy", "Evicted")
    assert "allocatableMemory.available " in event["message"] and "this one is first: it uses " in event["message"]
    assert event["metadata"]["annotations"]["starved_resource"] == "memory"
    node.nodes.wait("memory is back", lambda found: not pressure(found[NAME]), 60)
    stay(node, "guarded", "small")


def test_pods_over_limits_of_their_own_go_without_any_pressure(node: Joined) -> None:
    loud = "yes 0123456789012345678901234567890123456789 | head -c 8000000; sleep 100000"
    layered = "dd if=/dev/zero of=/big bs=1M count=20; sleep 100000"
    node.apply(
        writes_to_disk("scratch", 20, limit="10Mi"),
        writes_to_disk("within", 5, limit="10Mi"),
        with_resources("loud", loud, limits={"ephemeral-storage": "5Mi"}),
        with_resources("layered", layered, limits={"ephemeral-storage": "10Mi"}),
        guaranteed("guarded"),
    )
    for name in ("within", "guarded"):
        node.wait_running(name, within=90)
    said = {
        "scratch": 'Usage of EmptyDir volume "data" exceeds the limit "10Mi". ',
        "loud": "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. ",
        "layered": "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
    }
    for name, message in said.items():
        gone = node.wait_pod(name, evicted, "is evicted", within=90)
        assert gone["status"]["message"] == message
        assert condition(gone, "DisruptionTarget") == ""
    stay(node, "guarded", "within")
    assert not pressure(node.nodes.objects[NAME])


def test_unused_images_go_first_and_then_the_pod_that_fills_the_disk(
    node: Joined, small_containerd: BedContainerd
) -> None:
    node.apply(guaranteed("guarded"), writes_to_disk("some", 30))
    for name in ("guarded", "some"):
        node.wait_running(name, within=60)
    image = Image(name=UNUSED, entries={"big": File(os.urandom(150 * MIB), 0o644)}, command=["/big"], environment={})
    small_containerd.ctr("images", "import", "-", stdin=pack(image, architecture()).data)
    wait_for(lambda: is_known(small_containerd, UNUSED), "the runtime offers the image to the agent, too", within=60)
    ballast = small_containerd.state_dir / "ballast"
    left = shutil.disk_usage(small_containerd.state_dir).free
    with ballast.open("wb") as file:  # fills the disk to 200 MiB, which the image's 300 MiB make good
        os.posix_fallocate(file.fileno(), 0, left - 200 * MIB)
    wait_log(node, "enough was freed without ending a pod")
    ballast.unlink()
    assert UNUSED not in small_containerd.ctr("images", "ls", "-q")
    assert BUSYBOX in small_containerd.ctr("images", "ls", "-q")
    stay(node, "guarded", "some")
    wait_for(lambda: eased(node), "the agent sees no pressure any more and takes pods in again", within=60)
    node.nodes.wait("no taints", lambda found: not found[NAME]["spec"].get("taints"), 60)

    node.apply(writes_to_disk("filler", 700))
    gone = node.wait_pod("filler", evicted, "is evicted", within=90)
    assert gone["status"]["message"].startswith("The node was low on resource: ephemeral-storage. ")
    assert "Removing dead containers and unused images was not enough" in event_of(node, "filler", "Evicted")["message"]
    wait_for(lambda: eased(node), "the disk has room again", within=60)
    node.nodes.wait("the node says so", lambda found: not pressure(found[NAME]), 60)
    stay(node, "guarded", "some")


def test_the_kernel_kills_a_main_process_and_a_child(node: Joined) -> None:
    limits = {"memory": "32Mi"}
    node.apply(
        with_resources("whole", "exec tail /dev/zero", limits=limits),
        with_resources("child", "sleep 1; tail /dev/zero; echo survived; sleep 100000", limits=limits),
    )
    node.wait_pod(
        "whole",
        lambda pod: any(
            state_of(pod).get(kind, {}).get("terminated", {}).get("reason") == "OOMKilled"
            for kind in ("state", "lastState")
        ),
        "was killed",
        within=60,
    )
    event = event_of(node, "child", "OOMKilling")
    assert event["involvedObject"]["fieldPath"] == "spec.containers{app}"
    assert "the kernel killed process tail (pid " in event["message"]
    assert "of container app, which runs on without it (" in event["message"]
    node.wait_log("child", "survived")
    assert state_of(node.wait_running("child"))["restartCount"] == 0
    assert "which ends with it" in event_of(node, "whole", "OOMKilling")["message"]
