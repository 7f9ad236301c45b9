"""Requests and limits as cgroup numbers."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import Container, ResourceRequirements
from pykubelet.cm.container_resources import ContainerResources
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.runtime.spec.resources import (
    container_resources,
    oom_score,
    overhead_resources,
    page_size_name,
    quota,
    sandbox_resources,
    shares,
)
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod, a_sidecar

GI = 1 << 30
NODE = NodeSpec(memory_bytes=10 * GI, swap_bytes=4 * GI)


def asks(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> ResourceRequirements:
    return ResourceRequirements(requests=requests or {}, limits=limits or {})


def resources(
    held: ResourceRequirements | None, node: NodeSpec = NODE, granted: ContainerResources | None = None, **spec: Any
) -> cri_pb2.LinuxContainerResources:
    pod = a_pod(containers=[a_container(resources=held)], **spec)
    return container_resources(pod, pod.spec.containers[0], node, granted or ContainerResources())


@pytest.mark.parametrize(
    ("milli", "wanted"), [(0, 2), (1, 2), (2, 2), (3, 3), (100, 102), (1000, 1024), (10**6, 262144)]
)
def test_shares(milli: int, wanted: int) -> None:
    assert shares(milli) == wanted


@pytest.mark.parametrize(
    ("milli", "period", "wanted"),
    [
        (0, 100_000, 0),
        (1, 100_000, 1000),
        (10, 100_000, 1000),
        (11, 100_000, 1100),
        (2500, 100_000, 250_000),
        (100, 5_000, 1000),
        (1000, 5_000, 5_000),
    ],
)
def test_quota(milli: int, period: int, wanted: int) -> None:
    assert quota(milli, period) == wanted


@pytest.mark.parametrize(
    ("held", "cpu_shares", "cpu_quota", "memory"),
    [
        (None, 2, 0, 0),
        (asks({"cpu": "500m", "memory": "1Gi"}), 512, 0, 0),
        (asks({}, {"cpu": "2", "memory": "1Gi"}), 2048, 200_000, GI),
        (asks({"cpu": "1"}, {"cpu": "2"}), 1024, 200_000, 0),
        (asks({"cpu": 0}, {"cpu": "2"}), 2, 200_000, 0),
        (asks({}, {"memory": "100E"}), 2, 0, 2**63 - 1),
        (asks({}, {"cpu": "1E", "memory": "1.5"}), 262144, 2**63 - 1, 2),
    ],
)
def test_cpu_and_memory(held: ResourceRequirements | None, cpu_shares: int, cpu_quota: int, memory: int) -> None:
    found = resources(held)
    assert (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes) == (cpu_shares, cpu_quota, memory)
    assert found.cpu_period == 100_000


def test_without_quota_enforcement_neither_quota_nor_period_is_set() -> None:
    found = resources(asks({}, {"cpu": "2"}), NodeSpec(cpu_cfs_quota=False))
    assert (found.cpu_quota, found.cpu_period) == (0, 0)


def test_the_period_is_the_nodes() -> None:
    found = resources(asks({}, {"cpu": "2"}), NodeSpec(cpu_period_us=10_000))
    assert (found.cpu_quota, found.cpu_period) == (20_000, 10_000)


def test_exclusive_cpus_are_not_throttled() -> None:
    granted = ContainerResources(exclusive_cpus=True, cpuset_cpus="1-2", cpuset_mems="0")
    found = resources(asks({}, {"cpu": "2"}), granted=granted)
    assert (found.cpu_quota, found.cpuset_cpus, found.cpuset_mems) == (-1, "1-2", "0")
    kept = NodeSpec(exclusive_cpus_unthrottled=False)
    assert resources(asks({}, {"cpu": "2"}), kept, granted).cpu_quota == 200_000


def test_pod_level_limits_stand_in_for_missing_ones() -> None:
    whole = asks({}, {"cpu": "3", "memory": "2Gi"})
    found = resources(None, resources=whole)
    assert (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes) == (3072, 300_000, 2 * GI)
    own = resources(asks({}, {"cpu": "1", "memory": "1Gi"}), resources=whole)
    assert (own.cpu_quota, own.memory_limit_in_bytes) == (100_000, GI)


# --- out of memory ----------------------------------------------------------------------------------


def score(container: Container, *others: Container, init: tuple[Container, ...] = (), **spec: Any) -> int:
    regular = [c for c in (container, *others) if c not in init]
    return oom_score(a_pod(containers=regular, init=init, **spec), container, 10 * GI)


def memory(amount: str, name: str = "app") -> Container:
    return a_container(name, resources=asks({"memory": amount}))


FULL = asks({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"})


@pytest.mark.parametrize(
    ("container", "spec", "wanted"),
    [
        (a_container(), {}, 1000),
        (a_container(resources=FULL), {}, -997),
        (memory("1Gi"), {}, 900),
        (memory("1Mi"), {}, 999),
        (a_container(resources=asks({"cpu": "1"})), {}, 999),
        (memory("10Gi"), {}, 3),
        (memory("20Gi"), {}, 3),
        (memory("1Gi"), {"priority": 2_000_001_000, "priority_class_name": "system-node-critical"}, -997),
        (memory("1Gi"), {"priority": 2_000_000_000, "priority_class_name": "system-cluster-critical"}, 900),
        (a_container(), {"priority": 2_000_001_000, "priority_class_name": "system-node-critical"}, -997),
    ],
)
def test_oom_score(container: Container, spec: dict[str, Any], wanted: int) -> None:
    assert score(container, **spec) == wanted


def test_pod_level_requests_are_shared_out() -> None:
    # 4 of 6 Gi are claimed; the other two go to the two containers.
    whole = asks({"memory": "6Gi"})
    assert score(memory("1Gi"), memory("3Gi", "b"), resources=whole) == 800
    assert score(memory("1Gi"), memory("3Gi", "b"), resources=asks({"cpu": "1"})) == 900


def test_a_sidecar_is_not_killed_before_the_containers_it_serves() -> None:
    small = a_sidecar(resources=asks({"memory": "1Mi"}))
    big = a_sidecar(resources=asks({"memory": "5Gi"}))
    assert score(small, memory("3Gi"), memory("2Gi", "b"), init=(small,)) == 800
    assert score(big, memory("3Gi"), init=(big,)) == 500
    assert score(small, memory("2Gi"), init=(small,), resources=asks({"memory": "6Gi"})) < 800
    # The same definition as an ordinary init container gets no such favour.
    plain = a_container("init", resources=asks({"memory": "1Mi"}))
    assert score(plain, memory("3Gi"), init=(plain,)) == 999
    # A regular container that says restartPolicy Always is no sidecar.
    regular = a_container("app", restart_policy="Always", resources=asks({"memory": "1Mi"}))
    assert score(regular, memory("3Gi", "b")) == 999


def test_an_unknown_capacity_does_not_break() -> None:
    pod = a_pod(containers=[memory("1Gi")])
    assert oom_score(pod, pod.spec.containers[0], 0) == 3


# --- huge pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "name"), [(64 << 10, "64KB"), (1 << 20, "1MB"), (2 << 20, "2MB"), (512 << 20, "512MB"), (GI, "1GB")]
)
def test_page_size_names(size: int, name: str) -> None:
    assert page_size_name(size) == name


@pytest.mark.parametrize(
    ("own", "whole", "wanted"),
    [
        (None, None, {"2MB": 0, "1GB": 0}),
        ({"hugepages-2Mi": "4Mi"}, None, {"2MB": 4 << 20, "1GB": 0}),
        (None, {"hugepages-1Gi": "1Gi"}, {"2MB": 0, "1GB": GI}),
        ({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "8Mi"}, {"2MB": 4 << 20, "1GB": 0}),
        ({"hugepages-4Mi": "4Mi"}, None, {"2MB": 0, "1GB": 0}),
    ],
)
def test_hugepages(own: dict[str, Any] | None, whole: dict[str, Any] | None, wanted: dict[str, int]) -> None:
    node = NodeSpec(hugepage_sizes=(2 << 20, GI))
    found = resources(asks({}, own), node, resources=asks({}, whole) if whole else None)
    assert {each.page_size: each.limit for each in found.hugepage_limits} == wanted


# --- swap, groups, memory QoS -----------------------------------------------------------------------

LIMITED = NodeSpec(
    memory_bytes=10 * GI, swap_bytes=4 * GI, cgroup_v2=True, swap_controller=True, swap_behavior="LimitedSwap"
)


@pytest.mark.parametrize(
    ("held", "spec", "wanted"),
    [
        (asks({"memory": "1Gi"}), {}, int(0.1 * 4 * GI)),
        (asks({"memory": "1Gi"}, {"memory": "2Gi"}), {}, int(0.1 * 4 * GI)),
        (asks({"memory": "1Gi"}, {"memory": "1Gi"}), {}, 0),
        (asks({"cpu": "1"}), {}, 0),
        (None, {}, 0),
        (FULL, {}, 0),
        (asks({"memory": "11Gi"}), {}, 0),
        (asks({"memory": "1Gi"}), {"static": True}, 0),
        (asks({"memory": "1Gi"}), {"priority": 2_000_000_000}, 0),
    ],
)
def test_limited_swap(held: ResourceRequirements | None, spec: dict[str, Any], wanted: int) -> None:
    assert resources(held, LIMITED, **spec).unified == {"memory.swap.max": str(wanted)}


@pytest.mark.parametrize("behavior", ["", "NoSwap"])
def test_no_swap(behavior: str) -> None:
    v2 = NodeSpec(memory_bytes=10 * GI, cgroup_v2=True, swap_controller=True, swap_behavior=behavior)
    assert resources(asks({"memory": "1Gi"}), v2).unified == {"memory.swap.max": "0"}
    v1 = NodeSpec(memory_bytes=10 * GI, swap_controller=True, swap_behavior=behavior)
    found = resources(asks({}, {"memory": "1Gi"}), v1)
    assert found.memory_swap_limit_in_bytes == GI and not found.unified
    without = resources(asks({}, {"memory": "1Gi"}), NodeSpec(cgroup_v2=True, swap_behavior=behavior))
    assert not without.unified and without.memory_swap_limit_in_bytes == 0


def test_killing_the_whole_group_needs_cgroup_v2() -> None:
    assert resources(None, NodeSpec(cgroup_v2=True, single_process_oom_kill=False)).unified == {"memory.oom.group": "1"}
    assert not resources(None, NodeSpec(single_process_oom_kill=False)).unified
    assert not resources(None, NodeSpec(cgroup_v2=True)).unified


@pytest.mark.parametrize(
    ("held", "tiered", "wanted"),
    [
        (asks({"memory": "1Gi"}, {"memory": "2Gi"}), False, ("0", "0", str((GI + GI * 9 // 10) // 4096 * 4096))),
        (asks({"memory": "1Gi"}, {"memory": "2Gi"}), True, (None, str(GI), str((GI + GI * 9 // 10) // 4096 * 4096))),
        (FULL, True, (str(GI), None, None)),
        (asks({"memory": "1Gi"}), False, ("0", "0", str((GI + 7 * GI * 9 // 10) // 4096 * 4096))),
        (None, False, ("0", "0", None)),
    ],
)
def test_memory_qos(held: ResourceRequirements | None, tiered: bool, wanted: tuple[str | None, ...]) -> None:
    node = NodeSpec(
        cgroup_v2=True,
        memory_qos=True,
        tiered_memory_reservation=tiered,
        memory_for_pods_bytes=8 * GI,
    )
    found = resources(held, node).unified
    assert tuple(found.get(f"memory.{file}") for file in ("min", "low", "high")) == wanted


# --- sandboxes --------------------------------------------------------------------------------------


def test_sandbox_resources_are_the_pods_without_overhead() -> None:
    pod = a_pod(
        containers=[
            a_container(resources=asks({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"})),
            a_container("b", resources=asks({"cpu": "500m"}, {"cpu": "1", "memory": "1Gi"})),
        ],
        init=[a_container("i", resources=asks({"cpu": "4"}))],
        overhead={"cpu": "1", "memory": "1Gi"},
    )
    found = sandbox_resources(pod, NODE)
    assert (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes) == (4096, 300_000, 2 * GI)
    assert sandbox_resources(pod, NODE, exclusive_cpus=True).cpu_quota == -1


def test_pod_level_resources_replace_the_sums_of_a_sandbox() -> None:
    pod = a_pod(containers=[a_container(resources=asks({"cpu": "1"}))], resources=asks({"cpu": "2"}, {"memory": "3Gi"}))
    found = sandbox_resources(pod, NODE)
    assert (found.cpu_shares, found.memory_limit_in_bytes) == (2048, 3 * GI)


def test_overhead() -> None:
    assert overhead_resources(a_pod(), NODE) == cri_pb2.LinuxContainerResources()
    found = overhead_resources(a_pod(overhead={"cpu": "250m", "memory": "120Mi"}), NODE)
    assert (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes) == (256, 25_000, 120 << 20)
    assert overhead_resources(a_pod(overhead={"memory": "120Mi"}), NODE).cpu_shares == 2
