"""Node allocatable on the whole agent: what the Node shows, what cgroups get, what admission grants, what is told."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from msgspec import structs

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import EmptyDirVolumeSource, ResourceRequirements, Volume, VolumeMount
from pykubelet.model.cgroups import CgroupLimits
from tests.builders import a_container, a_pod
from tests.fakes.fake_cgroups import FakeCgroups
from tests.harness import MACHINE, NodeHarness
from tests.scenarios.cluster_node import ClusterHarness

MIB, GIB = 1 << 20, 1 << 30
BIG = structs.replace(
    MACHINE,
    cpus=8,
    memory_bytes=16 * GIB,
    swap_bytes=2 * GIB,
    pids=32768,
    hugepage_sizes=(2 * MIB,),
    hugepages=((2 * MIB, 512),),
)
RESERVED = {
    "systemReserved": {"cpu": "500m", "memory": "1Gi", "pid": "200", "ephemeral-storage": "5Gi"},
    "kubeReserved": {"cpu": "1", "memory": "512Mi"},
    "evictionHard": {"memory.available": "256Mi", "nodefs.available": "10%"},
}


class StubbornCgroups(FakeCgroups):
    def apply(self, path: str, limits: CgroupLimits) -> None:
        if limits.memory_bytes is not None:
            raise OSError(errno.EROFS, "Read-only file system", path)
        super().apply(path, limits)


def a_config(folder: Path, **settings: object) -> str:
    file = folder / "config.json"
    head = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    file.write_text(json.dumps({**head, **settings}))
    return f"--config={file}"


def shown(amounts: dict[str, object]) -> dict[str, Quantity]:
    return {name: Quantity.parse(value) for name, value in amounts.items()}  # type: ignore[arg-type]


async def test_the_node_shows_capacity_and_what_pods_may_have_of_it(tmp_path: Path) -> None:
    node = ClusterHarness(tmp_path, a_config(tmp_path, **RESERVED))
    node.machine = BIG
    await node.start()
    try:
        await node.until(node.is_ready)
        status = node.api_node().status
        capacity, usable = shown(dict(status.capacity)), shown(dict(status.allocatable))
        assert capacity["memory"].value() == 16 * GIB and capacity["hugepages-2Mi"].value() == GIB
        assert usable["cpu"].milli_value() == 6500
        # Less both reservations, the eviction threshold and the huge pages, which are taken out of memory at boot.
        assert usable["memory"].value() == 16 * GIB - GIB - 512 * MIB - 256 * MIB - GIB
        assert usable["hugepages-2Mi"].value() == GIB
        assert usable["ephemeral-storage"].value() == 100 * GIB - 5 * GIB - 10 * GIB
        assert "pid" not in capacity
        assert status.node_info is not None and status.node_info.swap is not None
        assert status.node_info.swap.capacity == 2 * GIB
        held = node.cgroups.groups["/kubepods"]
        assert held.memory_bytes == 16 * GIB - GIB - 512 * MIB
        assert (held.cpu_shares, held.pids, held.hugepages) == (6656, 32568, {2 * MIB: GIB})
        assert "NodeAllocatableEnforced" in node.event_reasons()
    finally:
        await node.kill()


async def test_cpus_reserved_by_number_stand_in_for_both_reservations(tmp_path: Path) -> None:
    node = ClusterHarness(tmp_path, a_config(tmp_path, **RESERVED, reservedSystemCPUs="0-2"))
    node.machine = BIG
    await node.start()
    try:
        await node.until(node.is_ready)
        assert shown(dict(node.api_node().status.allocatable))["cpu"].milli_value() == 5000
        assert node.cgroups.groups["/kubepods"].cpu_shares == 5120
    finally:
        await node.kill()


async def test_a_node_without_an_api_server_keeps_its_reserve_too(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path, a_config(tmp_path, **RESERVED))
    node.machine = BIG
    await node.start()
    try:
        big = a_pod("big", uid="b", containers=[a_container(resources=ResourceRequirements(requests={"cpu": "7"}))])
        fits = a_pod("fits", uid="f", containers=[a_container(resources=ResourceRequirements(requests={"cpu": "6"}))])
        refused, taken = node.run(big), node.run(fits)
        await node.until_running(taken)
        status = node.status(refused)
        assert status.phase == "Failed" and "cpu" in (status.message or "")
    finally:
        await node.kill()


async def test_a_host_that_refuses_is_told_once_and_pods_run(tmp_path: Path) -> None:
    node = ClusterHarness(tmp_path, a_config(tmp_path, **RESERVED))
    node.cgroups = StubbornCgroups()
    await node.start()
    try:
        node.bind("web")
        await node.until(lambda: node.phase("web") == "Running")
        await node.clock.sleep(900)
        assert len(node.events("FailedNodeAllocatableEnforcement")) == 1
        assert node.events("NodeAllocatableEnforced") == []
        assert node.cgroups.groups["/kubepods"].cpu_shares is not None
        assert node.is_ready()
    finally:
        await node.kill()


class RecordedSlices:
    """systemd as the groups see it; it can be away."""

    def __init__(self) -> None:
        self.held: dict[str, CgroupLimits] = {}
        self.away = False

    async def hold(self, path: str, limits: CgroupLimits) -> None:
        if self.away:
            raise OSError(errno.EIO, "systemd cannot make the slice", path)
        self.held[path] = limits.over(self.held.get(path, CgroupLimits()))

    async def drop(self, path: str) -> None:
        if self.away:
            raise OSError(errno.EIO, "systemd cannot stop the slice", path)
        self.held.pop(path, None)


async def test_with_systemd_every_group_is_a_slice_and_the_runtime_hears_its_name(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path, "--cgroup-driver=systemd", "--kube-reserved=memory=1Gi")
    node.slices = slices = RecordedSlices()
    await node.start()
    try:
        held = ResourceRequirements(requests={"cpu": "500m"})
        pod = node.run(a_pod("web", uid="1-2", containers=[a_container(resources=held)]))
        await node.until_running(pod)
        path = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"
        (call,) = node.cri.called("run_pod_sandbox")
        assert call.args["config"].linux.cgroup_parent == path
        assert slices.held[path].cpu_shares == 512
        assert slices.held["/kubepods.slice/kubepods-burstable.slice"].cpu_shares == 512
        assert slices.held["/kubepods.slice"].memory_bytes == 7 * GIB
        assert set(slices.held) == set(node.cgroups.groups)
        node.remove("web")
        await node.until(lambda: path not in slices.held and path not in node.cgroups.groups)
        assert slices.held["/kubepods.slice/kubepods-burstable.slice"].cpu_shares == 2
    finally:
        await node.kill()


async def test_a_systemd_that_is_away_holds_up_new_pods_and_no_others(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path, "--cgroup-driver=systemd")
    node.slices = slices = RecordedSlices()
    await node.start()
    try:
        first = node.run(a_pod("first", uid="1"))
        await node.until_running(first)
        slices.away = True
        second = node.run(a_pod("second", uid="2"))
        await node.until(lambda: bool(node.events("FailedCreatePodContainer")))
        assert node.running() == ["first/app"]
        slices.away = False
        await node.until_running(first, second)
    finally:
        await node.kill()


@pytest.mark.parametrize("kind", [NodeHarness, ClusterHarness])
async def test_memory_volumes_are_bounded_by_what_pods_may_have(tmp_path: Path, kind: type[NodeHarness]) -> None:
    node = kind(tmp_path, a_config(tmp_path, **RESERVED))
    node.machine = BIG
    await node.start()
    try:
        volume = Volume(name="mem", empty_dir=EmptyDirVolumeSource(medium="Memory"))
        mounts = [VolumeMount(name="mem", mount_path="/mem")]
        pod = a_pod("web", uid="w", volumes=[volume], containers=[a_container(volume_mounts=mounts)])
        await node.until_running(node.run(pod))
        sizes = {size for path, size in node.mounts.sizes.items() if path.endswith("/mem")}
        assert sizes == {16 * GIB - GIB - 512 * MIB - 256 * MIB - GIB}
    finally:
        await node.kill()
