"""Pods resized by kubectl on the real control plane and runtime: in place, with a restart, and one that must wait."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.joined import Joined, Manifest, container_manifest, pod_manifest, state_of

pytestmark = pytest.mark.cluster

ROOT = Path("/sys/fs/cgroup")
V2 = (ROOT / "cgroup.controllers").exists()
MIB = 1 << 20


def both(cpu: str, memory: str) -> Manifest:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def start(node: Joined, name: str, resources: Manifest, **container: Any) -> Manifest:
    node.apply(
        pod_manifest(name, node=node.agent.node, containers=[container_manifest(resources=resources, **container)])
    )
    return node.wait_running(name)


def resize(node: Joined, name: str, resources: Manifest) -> None:
    patch = {"spec": {"containers": [{"name": "app", "resources": resources}]}}
    node.cluster.kubectl("patch", "pod", name, "--subresource=resize", "--patch", json.dumps(patch))


def told(pod: Manifest, kind: str) -> Manifest | None:
    found = [each for each in pod["status"].get("conditions", ()) if each["type"] == kind]
    return found[0] if found else None


def resized(pod: Manifest, resources: Manifest) -> bool:
    return bool(state_of(pod).get("resources") == resources) and told(pod, "PodResizeInProgress") is None


def memory_of(node: Joined, group: str) -> int:
    base = node.agent.cgroups.name.strip("/")
    file = ROOT / base / group / "memory.max" if V2 else ROOT / "memory" / base / group / "memory.limit_in_bytes"
    return int(file.read_text())


def quota_of(node: Joined, group: str) -> int:
    base = node.agent.cgroups.name.strip("/")
    file = ROOT / base / group / "cpu.max" if V2 else ROOT / "cpu" / base / group / "cpu.cfs_quota_us"
    return int(file.read_text().split()[0])


def test_a_pod_is_resized_in_place_up_and_down(node: Joined) -> None:
    before = start(node, "elastic", both("200m", "64Mi"))
    group = f"kubepods/pod{before['metadata']['uid']}"
    container = state_of(before)["containerID"].removeprefix("containerd://")
    for cpu, memory, quota, size in (("400m", "128Mi", 40_000, 128), ("100m", "96Mi", 10_000, 96)):
        resize(node, "elastic", both(cpu, memory))
        after = node.wait_pod("elastic", partial(resized, resources=both(cpu, memory)), "resized")
        for each in (group, f"{group}/{container}"):
            assert (memory_of(node, each), quota_of(node, each)) == (size * MIB, quota)
        assert state_of(after)["containerID"] == state_of(before)["containerID"]
        assert state_of(after)["restartCount"] == 0
        assert state_of(after)["allocatedResources"] == {"cpu": cpu, "memory": memory}
        assert after["status"]["observedGeneration"] == after["metadata"]["generation"]
    node.wait_events("elastic", "ResizeStarted", "ResizeCompleted")


def test_a_resize_policy_restarts_the_container(node: Joined) -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    start(node, "stiff", both("100m", "64Mi"), resizePolicy=policy)
    resize(node, "stiff", both("100m", "96Mi"))
    after = node.wait_pod(
        "stiff", lambda pod: resized(pod, both("100m", "96Mi")) and state_of(pod)["restartCount"] > 0, "resized"
    )
    assert state_of(after)["restartCount"] == 1


def test_a_resize_without_room_waits_over_a_restart_until_there_is_some(node: Joined) -> None:
    allocatable = node.cluster.get("node", node.agent.node)["status"]["allocatable"]["cpu"]
    cores = int(allocatable.removesuffix("m")) // 1000 if allocatable.endswith("m") else int(allocatable)
    half, most = f"{cores * 400}m", f"{cores * 800}m"
    start(node, "first", {"requests": {"cpu": half}})
    start(node, "second", {"requests": {"cpu": half}})
    resize(node, "first", {"requests": {"cpu": most}})
    waiting = node.wait_pod("first", lambda pod: told(pod, "PodResizePending"), "waits")
    condition = told(waiting, "PodResizePending")
    assert condition is not None and condition["reason"] == "Deferred"
    assert condition["message"].startswith("Node didn't have enough resource: cpu, requested: ")
    assert condition["observedGeneration"] == waiting["metadata"]["generation"]
    assert state_of(waiting)["allocatedResources"] == {"cpu": half}
    node.agent.kill9()
    node.agent.start()
    node.delete("pod", "second")
    after = node.wait_pod("first", lambda pod: told(pod, "PodResizePending") is None, "goes ahead")
    after = node.wait_pod("first", lambda pod: state_of(pod)["allocatedResources"] == {"cpu": most}, "has it")
    assert state_of(after)["restartCount"] == 0


def test_the_api_server_shows_a_pod_whose_memory_cannot_shrink(node: Joined) -> None:
    hog = "dd if=/dev/zero of=/dev/shm/x bs=1M count=40 2>/dev/null; echo full; trap 'exit 0' TERM; sleep 100000 & wait"
    node.apply(
        pod_manifest(
            "full", node=node.agent.node, containers=[container_manifest(hog, resources=both("100m", "64Mi"))]
        ),
    )
    node.wait_running("full")
    node.wait_log("full", "full")
    resize(node, "full", both("100m", "16Mi"))
    stuck = node.wait_pod(
        "full", lambda pod: (found := told(pod, "PodResizeInProgress")) and found.get("reason") == "Error", "refused"
    )
    condition = told(stuck, "PodResizeInProgress")
    assert condition is not None and condition["message"].startswith("cannot decrease memory limits: ")
    resize(node, "full", both("100m", "64Mi"))
    node.wait_pod("full", lambda pod: resized(pod, both("100m", "64Mi")), "taken back")
