"""Swap: who may use how much of it, what is used, and an agent that refuses to start with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hosts.machine import CommandFailed, Disk, Kind
from hosts.node import UNIT, Node, a_pod, node_on

MIB = 1 << 20
LIMITED = {"failSwapOn": False, "memorySwap": {"swapBehavior": "LimitedSwap"}}
FILL = "head -c 67108864 /dev/zero | tail -c 67108864 | sleep 1000000"
"""tail keeps 64 MiB in its memory, more than the container's limit."""


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


def pods() -> list[dict[str, Any]]:
    same = {"memory": "40Mi", "cpu": "10m"}
    guaranteed = {"resources": {"requests": same, "limits": same}}
    return [
        a_pod("burst", FILL, container=amounts("32Mi", "52Mi")),
        a_pod("level", container=amounts("40Mi", "40Mi")),
        a_pod("exact", container=guaranteed),
        a_pod("effort", volumes=[{"name": "mem", "emptyDir": {"medium": "Memory"}}]),
        a_pod(
            "vital", container=amounts("32Mi", "52Mi"), priorityClassName="system-node-critical", priority=2000001000
        ),
    ]


NAMES = ("burst", "level", "exact", "effort", "vital")


def test_the_agent_refuses_to_start_while_swap_is_on(node: Node, record_property: Any) -> None:
    with pytest.raises(CommandFailed):
        node.start({})
    node.machine.run(f"systemctl stop {UNIT}")
    (line,) = {line.partition("] ")[2] for line in node.log(200).splitlines() if "swap is on" in line}
    assert "failSwapOn" in line
    record_property("error", line)


def test_burstable_pods_get_their_part_of_the_swap_and_others_none(node: Node, record_property: Any) -> None:
    node.start(LIMITED)
    node.apply(*pods())
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
    uid = node.pods()["effort"]["metadata"]["annotations"]["kubernetes.io/config.hash"]
    (line,) = [line for line in node.machine.get("/proc/mounts").splitlines() if f"{uid}/volumes" in line]
    assert "noswap" in line.split()[3].split(",")


def test_what_is_swapped_is_counted(node: Node, record_property: Any) -> None:
    def settled() -> int:
        first = int(swap_file(node, "burst", "memory.swap.current"))
        shown = json.loads(node.get("/stats/summary"))
        uid = node.pods()["burst"]["metadata"]["annotations"]["kubernetes.io/config.hash"]
        pod = next(each for each in shown["pods"] if each["podRef"]["uid"] == uid)
        same = first == int(swap_file(node, "burst", "memory.swap.current"))
        return first if same and first > 4 * MIB and pod["containers"][0]["swap"]["swapUsageBytes"] == first else 0

    used = node.wait(settled, "the container's swap in the summary as the kernel has it")
    limit = int(swap_file(node, "burst"))
    uid = node.pods()["burst"]["metadata"]["annotations"]["kubernetes.io/config.hash"]
    shown = json.loads(node.get("/stats/summary"))
    pod = next(each for each in shown["pods"] if each["podRef"]["uid"] == uid)
    assert pod["containers"][0]["swap"]["swapAvailableBytes"] == limit - used
    assert pod["swap"]["swapUsageBytes"] == used
    total = meminfo(node)
    whole = shown["node"]["swap"]
    assert whole["swapUsageBytes"] + whole["swapAvailableBytes"] == total["SwapTotal"]
    assert abs(whole["swapUsageBytes"] - (total["SwapTotal"] - total["SwapFree"])) < 4 * MIB
    text = node.get("/metrics/resource")
    labels = r'\{container="main",namespace="default",pod="burst-guest"\}'
    assert re.search(rf"^container_swap_usage_bytes{labels} {used} ", text, re.MULTILINE)
    assert re.search(rf"^container_swap_limit_bytes{labels} {limit} ", text, re.MULTILINE)
    record_property("swapped bytes", used)


def test_without_limited_swap_nobody_swaps(node: Node) -> None:
    node.delete(*NAMES)
    node.stop()
    node.start({"failSwapOn": False})
    node.apply(*(each for each in pods() if each["metadata"]["name"] != "burst"))
    node.apply(a_pod("burst", container=amounts("32Mi", "52Mi")))
    for name in NAMES:
        node.running(name)
    assert {name: swap_file(node, name) for name in NAMES} == dict.fromkeys(NAMES, "0")
    node.delete(*NAMES)
