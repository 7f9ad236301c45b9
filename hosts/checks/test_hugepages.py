"""Huge pages: what the node has, a process in a pod that maps them, and one that wants more than it asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from hosts.machine import Kind
from hosts.node import Node, a_pod, node_on

MIB = 1 << 20
PAGES = 64
MAP = (
    "import mmap, os, time; f = os.open('/mnt/pages', os.O_RDWR | os.O_CREAT); os.ftruncate(f, {0}); "
    "m = mmap.mmap(f, {0}); "
)
MAPPED = "stdout F mapped"
"""As the runtime writes the program's word into the log."""
TOUCH = "[m.__setitem__(at, 1) for at in range(0, {0}, 4096)]; print('mapped', flush=True); time.sleep(100000)"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="hugepages", cpus=2, memory="2G", arguments=f"hugepages={PAGES}")) as node:
        node.start_runtime()
        node.start()
        yield node


def mapper(name: str, *, limit: str, size: int) -> dict[str, Any]:
    """A pod whose process maps a file on huge pages; the program is the guest's own Python."""
    program = f"python3 -c {shlex.quote((MAP + TOUCH).format(size))}"
    limits = {"hugepages-2Mi": limit, "memory": "64Mi"}
    container = {
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}, {"name": "pages", "mountPath": "/host/mnt"}],
    }
    volumes = [
        {"name": "host", "hostPath": {"path": "/"}},
        {"name": "pages", "emptyDir": {"medium": "HugePages"}},
    ]
    command = f"exec chroot /host {program}"
    return a_pod(name, command, container=container, volumes=volumes, restartPolicy="Never")


def free_pages(node: Node) -> int:
    return int(node.machine.run("awk '/^HugePages_Free/ {print $2}' /proc/meminfo"))


def test_the_node_counts_its_pages(node: Node) -> None:
    assert free_pages(node) == PAGES
    limit = {"hugetlb.2MB.max": str(PAGES * 2 * MIB)}
    # systemd hears that the agent is ready a moment before the limits of all pods are set.
    node.wait(lambda: node.files("/sys/fs/cgroup/kubepods.slice", *limit) == limit, f"{limit} for all pods")


def test_a_pod_maps_pages_of_its_own(node: Node, record_property: Any) -> None:
    node.apply(mapper("maps", limit="16Mi", size=12 * MIB))
    node.running("maps")
    node.wait(lambda: MAPPED in node.machine.run("cat /var/log/pods/*maps*/main/*.log", check=False), "pages mapped")
    pid = node.pid("maps", "main")
    folder = node.cgroup(pid).rpartition("/")[0]  # containerd leaves the limit to the pod's group in its defaults
    assert free_pages(node) == PAGES - 6
    files = node.files(folder, "hugetlb.2MB.max", "hugetlb.2MB.current")
    assert files == {"hugetlb.2MB.max": str(16 * MIB), "hugetlb.2MB.current": str(12 * MIB)}
    assert f"{12 * 1024} kB" in node.machine.run(f"grep -h HugetlbPages /proc/{pid}/status")
    mounted = node.machine.run(f"awk '$5 ~ \"/mnt$\"' /proc/{pid}/mountinfo")
    assert "hugetlbfs" in mounted and "pagesize=2M" in mounted
    metrics = node.get("/metrics/cadvisor")
    (line,) = [
        line
        for line in metrics.splitlines()
        if line.startswith("container_hugetlb_usage_bytes{") and 'container="main"' in line and 'pagesize="2MB"' in line
    ]
    assert float(line.rpartition("}")[2].split()[0]) == 12 * MIB
    record_property("free pages of 64", free_pages(node))


def test_its_pages_come_back(node: Node) -> None:
    node.delete("maps")
    assert node.wait(lambda: free_pages(node) == PAGES, "all pages free")
    assert "hugetlbfs" not in node.machine.run("grep /var/lib/kubelet /proc/mounts", check=False)


def test_a_pod_cannot_map_more_than_its_limit(node: Node, record_property: Any) -> None:
    node.apply(mapper("greedy", limit="4Mi", size=12 * MIB))
    ended = node.phase("greedy", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] in (1, 135), ended  # mmap refused, or SIGBUS at the page too many
    assert MAPPED not in node.machine.run("cat /var/log/pods/*greedy*/main/*.log")
    assert free_pages(node) == PAGES
    record_property("exit code", ended["exitCode"])
    node.delete("greedy")


def test_a_pod_that_wants_more_than_the_node_has_is_refused(node: Node, record_property: Any) -> None:
    node.apply(mapper("giant", limit=f"{PAGES * 2 + 2}Mi", size=2 * MIB))
    status = node.phase("giant", "Failed")["status"]
    # Static pods are critical: the agent looked for pods to end for it, and there was none.
    assert status["reason"] == "UnexpectedAdmissionError" and "hugepages-2Mi, q: 2097152" in status["message"], status
    record_property("message", status["message"])
    node.delete("giant")
