"""The manager over all policies: admission and its undoing, release, what containers get, keeping cpusets right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, Pod
from pykubelet.cm.admission import NodeNow, PodAdmission
from pykubelet.cm.container_resources import AssignedResources, ContainerResourceSource
from pykubelet.cm.cpu_manager import CpuOptions, StaticCpuPolicy
from pykubelet.cm.errors import NotWritten, Refused, ResourceManagerError
from pykubelet.cm.memory_manager import StaticMemoryPolicy
from pykubelet.cm.metrics import ResourceManagerMetrics
from pykubelet.cm.resource_managers import CpusetReconciler, ResourceManagers, RunningContainer
from pykubelet.cm.state import CpuState, ManagerStates, MemoryState
from pykubelet.cm.topology_manager import Hint, HintProvider, Hints, Merger, TopologyManager, mask_of
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CriError, CriNotFound, RuntimeDown
from pykubelet.model.topology import MemoryShare, Topology
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.settings.gates import Gates
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod
from tests.unit.cm.machines import BIG, GIB, StillClock, a_machine, cpus, guaranteed, owner

TWO = a_machine(sockets=2, cores=4, threads=1, memory=10 * GIB)
"""CPUs 0-3 on node 0, 4-7 on node 1."""


class KnownPods:
    """Stands for the PodTable."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.wanted: set[str] = set()
        self.ready = True

    def could_have_running_containers(self, uid: str) -> bool:
        return uid in self.running

    def is_desired(self, uid: str) -> bool:
        return uid in self.wanted


class Runtime:
    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []
        self.fault: Exception | None = None

    async def update_container_resources(self, container_id: str, resources: cri_pb2.LinuxContainerResources) -> None:
        if self.fault is not None:
            raise self.fault
        self.reported.append((container_id, resources.cpuset_cpus))


class ResourceManagersFixture:
    def __init__(
        self,
        folder: Path,
        *,
        policy: str = "none",
        scope: str = "container",
        topology: Topology = TWO,
        devices: Sequence[HintProvider] = (),
    ) -> None:
        self.registry = Registry()
        metrics = ResourceManagerMetrics(self.registry)
        self.pods, self.runtime = KnownPods(), Runtime()
        self.containers: list[RunningContainer] = []
        self.folder = folder
        self.cpu_state = CpuState(folder / "cpu_manager_state", policy="static", pod_level=False)
        self.memory_state = MemoryState(folder / "memory_manager_state", policy="Static", pod_level=False)
        kept = {node.id: {"memory": GIB} for node in topology.nodes}
        static = StaticCpuPolicy(
            topology=topology, reserved=cpus("0"), options=CpuOptions(), state=self.cpu_state, metrics=metrics
        )
        memory = StaticMemoryPolicy(topology=topology, kept=kept, state=self.memory_state, metrics=metrics)
        self.states = ManagerStates(self.cpu_state, self.memory_state)
        self.reconciler = CpusetReconciler(
            cri=self.runtime, running=lambda: self.containers, states=self.states, period=10.0
        )
        merger = Merger(policy=policy, nodes=tuple(node.id for node in topology.nodes))
        self.manager = ResourceManagers(
            states=self.states,
            cpus=static,
            memory=memory,
            topology=TopologyManager(
                merger=merger,
                scope=scope,
                providers=[*devices, static, memory],
                metrics=metrics,
                clock=StillClock(),
            ),
            reconciler=self.reconciler,
            table=self.pods,
            sources_ready=lambda: self.pods.ready,
        )
        self.manager.open()

    def admit(self, pod: Pod) -> str:
        """The reason and message of a refusal; empty when admitted."""
        try:
            self.is_new = self.manager.admit(pod)
        except Refused as refused:
            return f"{refused.reason}: {refused.message}"
        self.pods.running.add(pod.metadata.uid or "")
        self.pods.wanted.add(pod.metadata.uid or "")
        return ""

    def on_disk(self) -> dict[str, dict[str, str]]:
        entries: dict[str, dict[str, str]] = json.loads((self.folder / "cpu_manager_state").read_text()).get(
            "entries", {}
        )
        return entries


async def test_what_is_admitted_is_on_disk_before_a_container_is_made(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path)
    assert bench.admit(guaranteed("a", 2, "4Gi")) == ""
    await bench.states.written()
    assert bench.on_disk() == {"uid-a": {"app": "1-2"}}
    pinned = bench.manager.pinned(guaranteed("a", 2, "4Gi"), owner("app", 2))
    assert (pinned.cpus, pinned.memory_nodes, pinned.exclusive) == ("1-2", "0", True)
    shared = bench.manager.pinned(a_pod("other"), a_container("app"))
    assert (shared.cpus, shared.memory_nodes, shared.exclusive) == ("0,3-7", "", False)
    async with running(bench.manager):
        bench.manager.release("uid-a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert bench.on_disk() == {}


def test_a_refusal_leaves_nothing_behind(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path)
    pod = a_pod("a", containers=[owner("one", 5, "1Gi"), owner("two", 5, "1Gi")])
    assert bench.admit(pod) == (
        "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: requested=5, "
        "available=2, which is unexpected"
    )
    assert bench.cpu_state.entries == {} and bench.memory_state.entries == {}
    assert bench.cpu_state.shared == cpus("0-7")
    # Enough CPUs, but not enough memory: the CPUs go back as well.
    assert bench.admit(guaranteed("b", 2, "30Gi")).startswith(
        "UnexpectedAdmissionError: Allocate failed due to [memorymanager] failed to get the default NUMA affinity"
    )
    assert bench.cpu_state.entries == {}


async def test_a_later_check_may_undo_it_but_not_for_a_pod_that_runs(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path)
    room = {"pods": Quantity.of(1)}
    admission = PodAdmission(
        node=NodeNow(info=lambda: NodeInfo(name="node1", labels={}, allocatable=room)),
        sysctls=SysctlAllowList.for_kernel("6.1.0", ()),
        gates=Gates({}),
        managers=bench.manager,
    )
    pod = guaranteed("a", 2)
    assert bench.admit(pod) == "" and bench.is_new
    bench.manager.release("uid-a")
    assert not admission.decide(pod, [a_pod("other")]).admitted
    await bench.states.written()
    assert bench.on_disk() == {}
    assert bench.admit(pod) == "" and bench.admit(pod) == "" and not bench.is_new
    assert not admission.decide(pod, [a_pod("other")]).admitted
    await bench.states.written()
    assert bench.on_disk() == {"uid-a": {"app": "1-2"}}


async def test_pods_that_are_gone_give_back_and_those_that_leave_make_room(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path)
    assert bench.admit(guaranteed("a", 4)) == "" and bench.admit(guaranteed("b", 3)) == ""
    assert bench.admit(guaranteed("c", 1)) != ""
    bench.pods.wanted.remove("uid-b")  # left its source, still stopping
    await bench.manager.sweep()
    assert "uid-b" in bench.cpu_state.entries
    assert bench.admit(guaranteed("c", 1)) == "", "as for other resources, it counts as gone when room is needed"
    bench.pods.running.remove("uid-a")
    bench.pods.ready = False
    await bench.manager.sweep()
    assert "uid-a" in bench.cpu_state.entries, "until every source was heard nobody is gone"
    bench.pods.ready = True
    await bench.manager.sweep()
    await bench.states.written()
    assert set(bench.on_disk()) == {"uid-c"}


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    first = ResourceManagersFixture(tmp_path, policy="single-numa-node")
    for name in ("a", "b"):
        assert first.admit(guaranteed(name, 3, "5Gi")) == ""
    await first.states.written()
    second = ResourceManagersFixture(tmp_path, policy="single-numa-node")
    second.pods.ready = False
    for name in ("b", "a"):
        assert second.admit(guaranteed(name, 3, "5Gi")) == ""
    assert second.cpu_state.entries == first.cpu_state.entries
    assert second.memory_state.machine == first.memory_state.machine


def test_a_second_life_is_served_when_its_container_is_made(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path)
    pod = guaranteed("a", 2)
    assert bench.admit(pod) == ""
    bench.manager.release("uid-a")
    assert bench.manager.pinned(pod, pod.spec.containers[0]).cpus == "1-2"
    bench.manager.release("uid-a")
    assert bench.admit(guaranteed("b", 7)) == ""
    with pytest.raises(Refused, match="not enough cpus"):
        bench.manager.pinned(pod, pod.spec.containers[0])


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize(
    ("policy", "cpu", "memory", "refusal"),
    [
        ("single-numa-node", 4, "5Gi", ""),
        ("single-numa-node", 5, "5Gi", "TopologyAffinityError: Resources cannot be allocated with Topology locality"),
        ("restricted", 5, "5Gi", "TopologyAffinityError: Resources cannot be allocated with Topology locality"),
        ("restricted", 5, "12Gi", ""),
        ("best-effort", 5, "5Gi", ""),
    ],
)
def test_topology_policies(tmp_path: Path, scope: str, policy: str, cpu: int, memory: str, refusal: str) -> None:
    bench = ResourceManagersFixture(tmp_path, policy=policy, scope=scope)
    assert bench.admit(guaranteed("a", cpu, memory)) == refusal
    if not refusal and policy == "single-numa-node":
        assert bench.cpu_state.owned("uid-a", "app") == cpus("4-7"), "node 0 has only three left"
        assert [block.nodes for block in bench.memory_state.blocks("uid-a", "app") or ()] == [(1,)]


def test_in_pod_scope_all_containers_share_a_place(tmp_path: Path) -> None:
    pod = a_pod("a", containers=[owner("one", 2, "2Gi"), owner("two", 2, "2Gi")])
    for scope, places in (("container", {(0,), (1,)}), ("pod", {(1,)})):
        folder = tmp_path / scope
        folder.mkdir()
        bench = ResourceManagersFixture(folder, policy="single-numa-node", scope=scope)
        assert bench.admit(pod) == ""
        nodes = {tuple(TWO.spanned("numa", each)) for each in bench.cpu_state.entries["uid-a"].values()}
        assert nodes == places


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_two_sockets_of_64_cpus_are_filled_socket_by_socket(tmp_path: Path, scope: str) -> None:
    bench = ResourceManagersFixture(tmp_path, policy="single-numa-node", scope=scope, topology=BIG)
    assert bench.admit(guaranteed("a", 40, "8Gi")) == "" and bench.admit(guaranteed("b", 40, "8Gi")) == ""
    places = [BIG.spanned("numa", bench.cpu_state.entries[f"uid-{name}"]["app"]) for name in "ab"]
    assert sorted(map(set, places), key=min) == [{0}, {1}]
    # 47 CPUs are free, but no socket has 40 of them.
    assert bench.admit(guaranteed("c", 40, "1Gi")).startswith("TopologyAffinityError")
    assert bench.admit(guaranteed("d", 23, "1Gi")) == ""
    nodes = {block.nodes for block in bench.memory_state.blocks("uid-d", "app") or ()}
    assert nodes == {tuple(BIG.spanned("numa", bench.cpu_state.entries["uid-d"]["app"]))}
    for name in "abd":
        bench.manager.release(f"uid-{name}")
    assert bench.cpu_state.shared == BIG.all_cpus


class Devices:
    """A provider of something else: one device, on node 1."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Hint]] = []

    def hints(self, pod: Pod, container: Container) -> Hints:
        return {"vendor/dev": (Hint(mask_of([1]), True), Hint(mask_of([0, 1]), False))}

    def pod_hints(self, pod: Pod) -> Hints:
        return self.hints(pod, pod.spec.containers[0])

    def allocate(self, pod: Pod, container: Container, place: Hint) -> None:
        self.given.append((container.name or "", place))

    def allocate_pod(self, pod: Pod, place: Hint) -> None: ...

    def holders(self) -> frozenset[str]:
        return frozenset()

    def release(self, uid: str) -> None: ...


def test_other_providers_have_a_say(tmp_path: Path) -> None:
    devices = Devices()
    bench = ResourceManagersFixture(tmp_path, policy="single-numa-node", devices=[devices])
    assert bench.admit(guaranteed("a", 2)) == ""
    assert devices.given == [("app", Hint(mask_of([1]), True))]
    assert bench.cpu_state.owned("uid-a", "app") == cpus("4-5")


def test_the_podresources_service_gets_what_containers_have(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path)
    assert bench.admit(guaranteed("a", 2, "4Gi")) == ""
    view = AssignedResources(bench.manager, None, None)
    assert view.cpus_of("uid-a", "app") == cpus("1-2") and view.cpus_of("uid-b", "app") == cpus("")
    assert view.allocatable_cpus() == cpus("1-7")
    assert view.memory_of("uid-a", "app") == [MemoryShare(kind="memory", size=4 * GIB, numa=(0,))]
    assert [share.size // GIB for share in view.allocatable_memory()] == [9, 9]


def test_figures(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path, policy="single-numa-node")
    bench.admit(guaranteed("a", 2))
    bench.admit(guaranteed("b", 6))
    text = bench.registry.expose()
    for line in (
        "kubelet_cpu_manager_pinning_requests_total 1",
        "kubelet_cpu_manager_shared_pool_size_millicores 5000",
        "kubelet_cpu_manager_exclusive_cpu_allocation_count 2",
        'kubelet_cpu_manager_allocation_per_numa{numa_node="0"} 2',
        "kubelet_memory_manager_pinning_requests_total 1",
        "kubelet_topology_manager_admission_requests_total 2",
        "kubelet_topology_manager_admission_errors_total 1",
        'kubelet_container_aligned_compute_resources_count{scope="container",boundary="numa_node"} 1',
        'kubelet_container_aligned_compute_resources_failure_count{scope="container",boundary="numa_node"} 1',
        "kubelet_topology_manager_admission_duration_ms_count 2",
    ):
        assert line in text.splitlines(), line


async def test_no_container_is_made_or_moved_by_what_is_not_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    bench = ResourceManagersFixture(folder)
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
    pod = guaranteed("a", 2)
    assert bench.admit(pod) == ""
    with pytest.raises(NotWritten, match="cannot be written"):
        await ContainerResourceSource(bench.manager).container_resources(pod, pod.spec.containers[0])
    bench.containers = [RunningContainer(pod_uid="uid-other", name="app", id="id-other")]
    await bench.reconciler.bring_up_to_date()
    assert bench.runtime.reported == []
    with pytest.raises(ResourceManagerError, match="cannot be kept"):
        ResourceManagersFixture(folder)
    folder.mkdir()
    await bench.reconciler.bring_up_to_date()
    assert bench.runtime.reported == [("id-other", "0,3-7")] and bench.on_disk() == {"uid-a": {"app": "1-2"}}
    assert (
        await ContainerResourceSource(bench.manager).container_resources(pod, pod.spec.containers[0])
    ).cpuset_cpus == "1-2"


# --- cpusets of running containers ------------------------------------------------------------------------------


def ran(*names: str) -> Sequence[RunningContainer]:
    return [RunningContainer(pod_uid=f"uid-{name}", name="app", id=f"id-{name}") for name in names]


async def test_containers_are_moved_when_the_pool_changes(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path)
    assert bench.manager.pinned(a_pod("other"), a_container("app")).cpus == "0-7"
    bench.containers = list(ran("other"))
    await bench.reconciler.bring_up_to_date()
    assert bench.runtime.reported == [], "it was created with the right set"
    assert bench.admit(guaranteed("a", 2)) == ""
    bench.manager.pinned(guaranteed("a", 2), owner("app", 2))
    bench.containers = list(ran("other", "a"))
    await bench.reconciler.bring_up_to_date()
    assert bench.runtime.reported == [("id-other", "0,3-7")]
    bench.manager.release("uid-a")
    bench.containers = list(ran("other"))
    await bench.reconciler.bring_up_to_date()
    assert bench.runtime.reported[1:] == [("id-other", "0-7")]


async def test_after_a_restart_every_container_is_updated_once(tmp_path: Path) -> None:
    bench = ResourceManagersFixture(tmp_path)
    bench.containers = list(ran("x", "y"))
    await bench.reconciler.bring_up_to_date()
    await bench.reconciler.bring_up_to_date()
    assert bench.runtime.reported == [("id-x", "0-7"), ("id-y", "0-7")]


@pytest.mark.parametrize("fault", [CriError("no"), CriNotFound("gone"), RuntimeDown("down")])
async def test_what_the_runtime_refuses_is_tried_again(tmp_path: Path, fault: Exception) -> None:
    bench = ResourceManagersFixture(tmp_path)
    bench.containers = list(ran("x"))
    bench.runtime.fault = fault
    await bench.reconciler.bring_up_to_date()
    bench.runtime.fault = None
    await bench.reconciler.bring_up_to_date()
    assert bench.runtime.reported == [("id-x", "0-7")]


def test_what_never_ran_is_forgotten_with_its_pod(tmp_path: Path) -> None:
    node = ResourceManagersFixture(tmp_path)
    pod = a_pod("web")
    node.manager.pinned(pod, pod.spec.containers[0])
    assert node.reconciler._created
    node.manager.release("uid-web")
    assert not node.reconciler._created
