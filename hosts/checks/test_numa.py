"""Two NUMA nodes: which CPUs and which memory a process really has under the static policies.

CPUs 0 and 1 are on node 0, 2 and 3 on node 1; CPU 0 is kept for the system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hosts.machine import CommandFailed, Kind
from hosts.node import CONFIG, UNIT, Node, Record, a_pod, node_on
from pykubelet.standalone.images import BUSYBOX

MIB = 1 << 20
STATE = "/var/lib/kubelet"
POLICIES: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "cpuManagerReconcilePeriod": "2s",
    "memoryManagerPolicy": "Static",
    "topologyManagerPolicy": "single-numa-node",
    "topologyManagerScope": "container",
    "reservedSystemCPUs": "0",
    "systemReserved": {"memory": "156Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "256Mi"}}],
}
HOLD = "head -c 33554432 /dev/zero | tail -c 33554432 | sleep 1000000"
"""tail keeps 32 MiB in its memory for as long as nobody reads them."""
ASK = """
import grpc, json
from google.protobuf.json_format import MessageToDict
from pykubelet.wire import podresources_v1_pb2 as v1

with grpc.insecure_channel("unix:///var/lib/kubelet/pod-resources/kubelet.sock") as channel:
    def ask(method, request, answer):
        call = channel.unary_unary(
            "/v1.PodResourcesLister/" + method,
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return MessageToDict(call(request(), timeout=60))

    print(json.dumps([
        ask("List", v1.ListPodResourcesRequest, v1.ListPodResourcesResponse),
        ask("GetAllocatableResources", v1.AllocatableResourcesRequest, v1.AllocatableResourcesResponse),
    ]))
"""


def equal(cpu: str, memory: str) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory}
    return {"resources": {"requests": amounts, "limits": amounts}}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="numa", cpus=4, memory="4G", numa=True)) as node:
        node.start_runtime()
        node.start(POLICIES)
        yield node


def allowed(node: Node, pod: str, container: str = "main") -> tuple[str, str]:
    """CPUs and memory nodes of the container's process, as the kernel has them."""
    status = node.machine.get(f"/proc/{node.pid(pod, container)}/status")
    found = dict(re.findall(r"^(Cpus|Mems)_allowed_list:\t(\S+)$", status, re.MULTILINE))
    return found["Cpus"], found["Mems"]


def memory_of(node: Node, number: str) -> int:
    """Bytes of a NUMA node, as the kernel has them."""
    listed = node.machine.get(f"/sys/devices/system/node/node{number}/meminfo")
    return int(re.findall(r"MemTotal: +(\d+) kB", listed)[0]) * 1024


def states(node: Node) -> tuple[Any, Any]:
    names = ("cpu_manager_state", "memory_manager_state")
    cpus, memory = (json.loads(node.machine.get(f"{STATE}/{name}")) for name in names)
    return cpus, memory


def test_the_guest_has_two_nodes(node: Node, record_property: Record) -> None:
    listed = node.files("/sys/devices/system/node", "node0/cpulist", "node1/cpulist")
    assert listed == {"node0/cpulist": "0-1", "node1/cpulist": "2-3"}
    record_property("numactl", node.machine.run("numactl --hardware | head -1").strip())


def test_a_pod_that_no_node_can_hold_is_refused(node: Node, record_property: Record) -> None:
    node.apply(a_pod("wide", container=equal("3", "2300Mi")))
    status = node.phase("wide", "Failed")["status"]
    assert status["reason"] == "TopologyAffinityError"
    assert "containerStatuses" not in status or not any(
        "running" in each["state"] for each in status["containerStatuses"]
    )
    record_property("message", status["message"])
    node.delete("wide")


def test_a_guaranteed_pod_has_cpus_and_memory_of_one_node(node: Node, record_property: Record) -> None:
    node.apply(a_pod("shared"))
    node.running("shared")
    assert allowed(node, "shared") == ("0-3", "0-1")
    node.apply(a_pod("pair", HOLD, container=equal("2", "200Mi")))
    node.running("pair")
    assert allowed(node, "pair") == ("2-3", "1")
    folder = node.cgroup(node.pid("pair", "main"))
    assert node.files(folder, "cpuset.cpus", "cpuset.mems") == {"cpuset.cpus": "2-3", "cpuset.mems": "1"}
    record_property("pair", "CPUs 2-3, node 1")


def test_its_memory_is_on_that_node(node: Node, record_property: Record) -> None:
    folder = node.cgroup(node.pid("pair", "main"))
    maps = f"cat $(sed 's|.*|/proc/&/numa_maps|' {folder}/cgroup.procs) | grep anon= | grep -v file="

    def pages() -> dict[str, int]:
        """Anonymous pages of the container's processes by node."""
        found = {"N0": 0, "N1": 0}
        for name, count in re.findall(r"\b(N[01])=(\d+)", node.machine.run(maps, check=False)):
            found[name] += int(count)
        return found if sum(found.values()) > 8000 else {}

    found = node.wait(pages, "32 MiB in the memory of the pod")
    assert found["N0"] == 0, found
    record_property("pages", found)


def test_others_share_what_is_left(node: Node) -> None:
    node.wait(lambda: allowed(node, "shared") == ("0-1", "0-1"), "the shared pod without the pair's CPUs")
    node.apply(a_pod("one", container=equal("1", "64Mi")))
    node.running("one")
    assert allowed(node, "one") == ("1", "0")
    node.wait(lambda: allowed(node, "shared") == ("0", "0-1"), "the shared pod on the system's CPU only")


def test_the_state_files_have_the_assignments(node: Node) -> None:
    cpus, memory = states(node)
    pods = {name: node.pods()[name]["metadata"]["annotations"]["kubernetes.io/config.hash"] for name in ("pair", "one")}
    assert cpus["policyName"] == "static" and cpus["defaultCpuSet"] == "0"
    assert cpus["entries"] == {pods["pair"]: {"main": "2-3"}, pods["one"]: {"main": "1"}}
    blocks = {
        uid: [(block["numaAffinity"], block["type"], block["size"]) for block in each["main"]]
        for uid, each in memory["entries"].items()
    }
    assert blocks == {pods["pair"]: [([1], "memory", 200 * MIB)], pods["one"]: [([0], "memory", 64 * MIB)]}
    for number, (kept, given) in {"0": (256 * MIB, 64 * MIB), "1": (0, 200 * MIB)}.items():
        total = memory_of(node, number)
        assert memory["machineState"][number]["memoryMap"]["memory"] == {
            "total": total,
            "systemReserved": kept,
            "allocatable": total - kept,
            "reserved": given,
            "free": total - kept - given,
        }


def test_the_podresources_socket_tells_the_same(node: Node) -> None:
    node.machine.put("/run/ask.py", ASK)
    listed, allocatable = json.loads(node.machine.run("/opt/pykubelet/bin/python /run/ask.py"))
    found = {pod["name"]: pod["containers"][0] for pod in listed["podResources"]}
    assert found["pair-guest"]["cpuIds"] == ["2", "3"] and found["one-guest"]["cpuIds"] == ["1"]
    assert "cpuIds" not in found["shared-guest"]
    (memory,) = found["pair-guest"]["memory"]
    assert (memory["size"], memory["topology"]) == (str(200 * MIB), {"nodes": [{"ID": "1"}]})
    assert allocatable["cpuIds"] == ["1", "2", "3"]
    sizes = [int(each["size"]) for each in allocatable["memory"] if each["memoryType"] == "memory"]
    assert sizes == [memory_of(node, "0") - 256 * MIB, memory_of(node, "1")]


def test_a_restarted_agent_leaves_everything_as_it_was(node: Node) -> None:
    before = states(node), [node.pid(name, "main") for name in ("pair", "one", "shared")]
    for how in (f"systemctl restart {UNIT}", f"systemctl kill -s KILL {UNIT}; sleep 5; systemctl start {UNIT}"):
        node.machine.run(how)
        for name in ("pair", "one", "shared"):
            node.running(name)
        assert [node.pid(name, "main") for name in ("pair", "one", "shared")] == before[1]
        assert [allowed(node, name) for name in ("pair", "one")] == [("2-3", "1"), ("1", "0")]
        assert states(node) == before[0]


def test_what_a_pod_had_goes_back_to_the_others(node: Node) -> None:
    node.delete("pair")
    node.wait(lambda: allowed(node, "shared") == ("0,2-3", "0-1"), "the shared pod with the pair's CPUs")
    node.delete("one", "shared")

    def given_back() -> bool:
        cpus, memory = states(node)
        return cpus["defaultCpuSet"] == "0-3" and not cpus.get("entries") and not memory.get("entries")

    node.wait(given_back, "state files without assignments")


def test_containers_of_a_pod_share_a_node_with_scope_pod(node: Node) -> None:
    node.stop()
    node.start(POLICIES | {"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"})
    twins = a_pod("twins", container=equal("1", "64Mi"))
    other = {"name": "other", "image": BUSYBOX, "command": ["sleep", "1000000"]} | equal("1", "64Mi")
    twins["spec"]["containers"].append(other)
    node.apply(twins)
    node.running("twins")
    found = {allowed(node, "twins"), allowed(node, "twins", "other")}
    assert found == {("2", "1"), ("3", "1")}
    node.delete("twins")


def test_restricted_admits_what_needs_two_nodes_and_refuses_what_need_not(node: Node) -> None:
    assert '"restricted"' in node.machine.get(CONFIG)
    node.apply(a_pod("spread", container=equal("3", "64Mi")))
    assert node.phase("spread", "Failed")["status"]["reason"] == "TopologyAffinityError"
    node.delete("spread")
    node.apply(a_pod("wide", container=equal("3", "2300Mi")))
    node.running("wide")
    assert allowed(node, "wide") == ("1-3", "0-1")
    node.delete("wide")


def test_a_changed_policy_is_refused_until_its_state_is_removed(node: Node) -> None:
    node.stop()
    with pytest.raises(CommandFailed, match="cpu_manager_state"):
        node.start(POLICIES | {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None", "reservedMemory": []})
    node.machine.run(f"systemctl stop {UNIT}; rm {STATE}/cpu_manager_state {STATE}/memory_manager_state")
    node.start(POLICIES | {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None", "reservedMemory": []})
