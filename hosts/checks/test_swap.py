"""Swap: who may use how much of it, what is used, and an agent that refuses to start with it.

Static pods are critical and never swap: the pods here come from an API server beside the guest.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bed.cluster import Cluster

from hosts.machine import CommandFailed, Disk, Kind
from hosts.node import UNIT, Node, Record, a_pod, node_on

MIB = 1 << 20
LIMITED = {"failSwapOn": False, "memorySwap": {"swapBehavior": "LimitedSwap"}}
FILL = "yes | head -c 67108864 | tail -c 67108864 | sleep 1000000"
"""tail keeps 64 MiB in its memory, more than the container may have. Not zeros: a page of zeros in a huge page is not
swapped, the kernel gives it back."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="swap", cpus=2, memory="2G", disks=(Disk(name="swap", size="1G"),))) as node:
        node.start_runtime()
        node.machine.run("mkswap /dev/disk/by-id/virtio-swap && swapon /dev/disk/by-id/virtio-swap")
        yield node


def meminfo(node: Node) -> dict[str, int]:
    lines = node.machine.get("/proc/meminfo").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def swap_file(node: Node, pod: str, name: str = "memory.swap.max") -> str:
    return node.files(node.cgroup(node.pid(pod, "main")), name)[name]


def amounts(request: str, limit: str) -> dict[str, Any]:
    return {"resources": {"requests": {"memory": request, "cpu": "10m"}, "limits": {"memory": limit, "cpu": "1"}}}


def plain(name: str, command: str = "sleep 1000000", **spec: Any) -> dict[str, Any]:
    return a_pod(name, command, automountServiceAccountToken=False, **spec)


def pods(command: str) -> list[dict[str, Any]]:
    same = {"memory": "40Mi", "cpu": "200m"}
    guaranteed = {"resources": {"requests": same, "limits": same}}
    burst = amounts("32Mi", "52Mi")
    mounted = {"volumeMounts": [{"name": "mem", "mountPath": "/mem"}]}
    return [
        plain("burst", command, container=burst),
        plain("level", container=amounts("40Mi", "40Mi")),
        plain("exact", container=guaranteed),
        plain("effort", container=mounted, volumes=[{"name": "mem", "emptyDir": {"medium": "Memory"}}]),
        plain("vital", container=burst, priorityClassName="system-node-critical"),
    ]


NAMES = ("burst", "level", "exact", "effort", "vital")


def test_the_agent_refuses_to_start_while_swap_is_on(node: Node, record_property: Record) -> None:
    with pytest.raises(CommandFailed):
        node.start({})
    node.machine.run(f"systemctl stop {UNIT}")
    lines = [line for line in node.log(200).splitlines() if "swap is on" in line and "failSwapOn" in line]
    assert lines, node.log(50)
    record_property("error", lines[-1])


def test_burstable_pods_get_their_part_of_the_swap_and_others_none(
    node: Node, cluster: Cluster, record_property: Record
) -> None:
    node.join(cluster, LIMITED)
    node.create(cluster, *pods(FILL))
    for name in NAMES:
        node.running(name)
    total = meminfo(node)
    part = int(32 * MIB / total["MemTotal"] * total["SwapTotal"]) // 4096 * 4096
    assert {name: swap_file(node, name) for name in NAMES} == {
        "burst": str(part),
        "level": "0",
        "exact": "0",
        "effort": "0",
        "vital": "0",
    }
    assert part > 12 * MIB
    record_property("burst", part)


def test_memory_in_files_is_not_swapped(node: Node) -> None:
    uid = node.pods()["effort"]["metadata"]["uid"]
    (line,) = [line for line in node.machine.get("/proc/mounts").splitlines() if f"{uid}/volumes" in line]
    assert "noswap" in line.split()[3].split(",")


def of_pod(node: Node, shown: Any, name: str) -> Any:
    """The pod's part of a summary."""
    uid = node.pods()[name]["metadata"]["uid"]
    return next(each for each in shown["pods"] if each["podRef"]["uid"] == uid)


def test_what_is_swapped_is_counted(node: Node, record_property: Record) -> None:
    limit = int(swap_file(node, "burst"))

    def settled() -> tuple[int, Any, str]:
        """What is swapped, the summary and the metrics, when the kernel says the same before and after."""
        used = int(swap_file(node, "burst", "memory.swap.current"))
        time.sleep(1.5)  # one reading of the agent serves all requests of a second
        shown, text = json.loads(node.get("/stats/summary")), node.get("/metrics/resource")
        same = used == int(swap_file(node, "burst", "memory.swap.current"))
        return (used, shown, text) if same and used > 4 * MIB else (0, None, "")

    used, shown, text = node.wait(lambda: (found := settled())[0] and found, "swap in use that does not change")
    pod = of_pod(node, shown, "burst")
    assert pod["containers"][0]["swap"]["swapUsageBytes"] == used
    assert pod["containers"][0]["swap"]["swapAvailableBytes"] == limit - used
    assert pod["swap"]["swapUsageBytes"] == used
    total = meminfo(node)
    whole = shown["node"]["swap"]
    assert whole["swapUsageBytes"] + whole["swapAvailableBytes"] == total["SwapTotal"]
    assert abs(whole["swapUsageBytes"] - (total["SwapTotal"] - total["SwapFree"])) < 4 * MIB
    labels = r'\{container="main",namespace="default",pod="burst"\}'
    assert re.search(rf"^container_swap_usage_bytes{labels} {used} ", text, re.MULTILINE)
    assert re.search(rf"^container_swap_limit_bytes{labels} {limit} ", text, re.MULTILINE)
    record_property("swapped bytes", used)


def test_without_limited_swap_nobody_swaps(node: Node, cluster: Cluster) -> None:
    node.remove(cluster, *NAMES)
    node.stop()
    node.join(cluster, {"failSwapOn": False})
    node.create(cluster, *pods("sleep 1000000"))
    for name in NAMES:
        node.running(name)
    assert {name: swap_file(node, name) for name in NAMES} == dict.fromkeys(NAMES, "0")
    node.remove(cluster, *NAMES)
