"""CPUs and memory nodes of containers on the host's own CPUs, and checkpoints handed to and fro with the Go kubelet.

Works on any host with two CPUs or more: one is the system's, one goes to a pod, the others stay shared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pykubelet.model.topology import format_cpu_list, parse_cpu_list
from pykubelet.wire import podresources_v1_pb2
from tests.bed.agent import BedAgent, bed_agent
from tests.bed.cluster import go_programs
from tests.bed.runtime import BUSYBOX, BedContainerd
from tests.grpc_services import Stub

pytestmark = pytest.mark.node

ONLINE = parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text().strip())
SYSTEM, *REST = sorted(ONLINE)
LOOK = "while true; do grep -E 'Cpus_allowed_list|Mems_allowed_list' /proc/self/status; sleep 0.3; done"
STATIC: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": str(SYSTEM),
    "cpuManagerReconcilePeriod": "3s",
    "kubeReserved": {"memory": "100Mi"},
    "memoryManagerPolicy": "Static",
    # What is kept from pods anyway: kubeReserved and the eviction threshold of the bed.
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "101Mi"}}],
    "topologyManagerPolicy": "best-effort",
}


def a_manifest(name: str, cpu: int = 0, *, pod_level: bool = False) -> dict[str, Any]:
    """A pod that tells again and again where it may run; with `cpu` it is Guaranteed."""
    amounts = {"cpu": str(cpu), "memory": "32Mi"}
    resources = {"requests": amounts, "limits": amounts} if cpu else {}
    container = {
        "name": "app",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", LOOK],
        "resources": {} if pod_level else resources,
    }
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    if pod_level:
        spec["resources"] = resources
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def wait_for(question: Callable[[], Any], what: Callable[[], str], within: float = 60.0) -> Any:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {within:g} s: {what()}")


def told(agent: BedAgent, pod: str, what: str = "Cpus") -> str:
    """What the container said last; empty while it has said nothing."""
    found = [path for folder in agent.pod_logs.glob(f"default_{pod}-*") for path in folder.glob("app/*.log")]
    lines = found[-1].read_text().splitlines() if found else []
    said = [line.split("\t")[-1] for line in lines if f"{what}_allowed_list" in line]
    return said[-1].strip() if said else ""


def wait_cpus(agent: BedAgent, **expected: str) -> None:
    wait_for(
        lambda: {pod: told(agent, pod) for pod in expected} == expected,
        lambda: f"{expected}, but {[(pod, told(agent, pod)) for pod in expected]}\n{agent.tail()}",
    )


def books(agent: BedAgent) -> tuple[dict[str, Any], dict[str, Any]]:
    read = [json.loads((agent.root / name).read_text()) for name in ("cpu_manager_state", "memory_manager_state")]
    return read[0], read[1]


def owned(agent: BedAgent) -> list[str]:
    """CPUs of all containers and pods that own some."""
    book = books(agent)[0]
    entries = (book.get("entries") or {}).values(), (book.get("podEntries") or {}).values()
    return [cpus for kind in entries for each in kind for cpus in each.values()]


def pod_resources(agent: BedAgent) -> dict[str, podresources_v1_pb2.ContainerResources]:
    """What the podresources service says about each pod's container."""
    with grpc.insecure_channel(f"unix://{agent.root}/pod-resources/kubelet.sock") as channel:
        stub = Stub(channel, podresources_v1_pb2, "PodResourcesLister")
        answer = stub.List(podresources_v1_pb2.ListPodResourcesRequest(), timeout=30)
    return {pod.name.removesuffix(f"-{agent.node}"): pod.containers[0] for pod in answer.pod_resources}


@contextmanager
def another(agent: BedAgent, containerd: BedContainerd, program: Path | None, **changes: Any) -> Iterator[BedAgent]:
    """A second kubelet on the folders of the first, which must have ended."""
    other = BedAgent(agent.folder, containerd, agent.cgroups, program=program, **changes)
    other.start()
    try:
        yield other
    finally:
        other.kill9()


@pytest.mark.skipif(len(ONLINE) < 2, reason="needs two CPUs")
def test_a_guaranteed_pod_owns_a_cpu_and_keeps_it(tmp_path: Path, containerd: BedContainerd) -> None:
    mine, others = str(REST[0]), format_cpu_list(ONLINE - {REST[0]})
    with bed_agent(tmp_path, containerd, **STATIC) as agent:
        agent.put("plain", a_manifest("plain"))
        wait_cpus(agent, plain=format_cpu_list(ONLINE))
        agent.put("owner", a_manifest("owner", cpu=1))
        wait_cpus(agent, owner=mine, plain=others)
        wait_for(lambda: told(agent, "owner", "Mems") == "0", agent.tail)  # its line comes after the one of the CPUs
        shown = pod_resources(agent)["owner"]
        assert (list(shown.cpu_ids), [each.size for each in shown.memory]) == ([REST[0]], [32 << 20])
        agent.put("greedy", a_manifest("greedy", cpu=len(REST)))
        wait_for(lambda: "pod rejected" in agent.log(), lambda: f"the greedy pod is refused\n{agent.tail()}")
        assert "not enough cpus available to satisfy request" in agent.log()
        kept = books(agent)

        agent.kill9()
        agent.start()
        agent.put("late", a_manifest("late"))
        wait_cpus(agent, late=others, owner=mine, plain=others)
        assert books(agent) == kept and len(list(agent.pod_logs.glob("default_owner-*/app/*.log"))) == 1
        agent.drop("owner")
        wait_cpus(agent, late=format_cpu_list(ONLINE), plain=format_cpu_list(ONLINE))
        wait_for(lambda: owned(agent) == [], agent.tail)

        assert agent.stop() == 0
        with another(agent, containerd, None, **STATIC | {"cpuManagerPolicy": "none"}) as refused:
            wait_for(lambda: refused.status is not None, lambda: f"another policy is refused\n{refused.tail()}")
            assert refused.status == 1 and "Traceback" not in refused.log()
            assert (
                'configured policy "none" differs from state checkpoint policy "static", please drain this node and '
                f'delete the CPU manager checkpoint file "{agent.root}/cpu_manager_state"'
            ) in refused.log()


@pytest.mark.skipif(len(ONLINE) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("pod_level", [False, True], ids=["containers", "pod-level"])
def test_checkpoints_go_to_and_fro_with_the_go_kubelet(
    tmp_path: Path, containerd: BedContainerd, pod_level: bool
) -> None:
    """With the gate for pod-level amounts the files have another form and another checksum."""
    go = go_programs("controlplane") / "kubelet"
    mine, others = str(REST[0]), format_cpu_list(ONLINE - {REST[0]})
    settings = STATIC | {"topologyManagerScope": "pod", "featureGates": {"PodLevelResourceManagers": pod_level}}
    limits: dict[str, Any] = {"maxOpenFiles": 10_000, "localStorageCapacityIsolation": False}
    limits["volumePluginDir"] = str(tmp_path / "plugins")
    with bed_agent(tmp_path, containerd, program=go, **settings, **limits) as first:
        first.put("owner", a_manifest("owner", cpu=1, pod_level=pod_level))
        wait_cpus(first, owner=mine)
        first.kill9()
        kept = books(first)
        key = "podEntries" if pod_level else "entries"
        assert kept[0][key] and kept[1][key], "the Go kubelet has written both"

        with another(first, containerd, None, **settings) as ours:
            ours.put("plain", a_manifest("plain"))
            wait_cpus(ours, owner=mine, plain=others)
            assert books(ours) == kept, "read and left as it was"
            ours.drop("owner")
            wait_for(lambda: owned(ours) == [], lambda: f"the CPU is free again\n{ours.tail()}")
            ours.put("next", a_manifest("next", cpu=1))
            wait_cpus(ours, next=mine, plain=others)
            ours.kill9()
            kept = books(ours)
        assert owned(first) == [mine]

        with another(first, containerd, go, **settings, **limits) as again:
            again.put("late", a_manifest("late"))
            wait_cpus(again, late=others, next=mine)
            assert again.status is None and books(again) == kept, "the Go kubelet goes on with our files"
