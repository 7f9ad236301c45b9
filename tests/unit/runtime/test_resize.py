"""The arithmetic of a resize, and what happens when a step of it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.cgroups import CgroupLimits
from pykubelet.model.errors import CriError, RuntimeDown
from pykubelet.model.pod_resources import PodResourceInfo, effect_of
from pykubelet.runtime.plan import ContainerResize, PodPlan
from pykubelet.runtime.resize import PodResizer, ResizeProblem, in_order, lowered_limit, with_amount, without_overhead
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod
from tests.fakes.fake_cri import FakeCri

MIB = 1 << 20


def both(cpu: str, memory: str) -> ResourceRequirements:
    return ResourceRequirements(requests={"cpu": cpu, "memory": memory}, limits={"cpu": cpu, "memory": memory})


def change(name: str, before: ResourceRequirements, after: ResourceRequirements) -> ContainerResize:
    return ContainerResize(
        id=name, name=name, wanted=after, actuated=before, resources=("memory", "cpu"), needs_restart=False
    )


def test_one_resource_changes_at_a_time() -> None:
    mixed = with_amount(both("1", "1Gi"), both("2", "2Gi"), "memory")
    assert mixed.requests == {"cpu": "1", "memory": "2Gi"} and mixed.limits == {"cpu": "1", "memory": "2Gi"}
    assert with_amount(both("1", "1Gi"), ResourceRequirements(), "memory").limits == {"cpu": "1"}


def test_those_that_shrink_come_first_and_the_rest_keep_their_order() -> None:
    up, also_up = change("up", both("1", "1Gi"), both("2", "1Gi")), change("more", both("1", "1Gi"), both("3", "1Gi"))
    down = change("down", both("2", "1Gi"), both("1", "1Gi"))
    assert [each.name for each in in_order([up, also_up, down], "cpu")] == ["down", "up", "more"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"memory": "2Gi"}, {"memory": "1Gi"}, 1 << 30),
        ({}, {"memory": "1Gi"}, 1 << 30),
        ({"memory": "1Gi"}, {"memory": "2Gi"}, 0),
        ({"memory": "1Gi"}, {}, 0),
    ],
)
def test_which_limits_are_lowered(before: dict[str, str], after: dict[str, str], expected: int) -> None:
    one = change("app", ResourceRequirements(limits={**before}), ResourceRequirements(limits={**after}))
    assert lowered_limit(one) == expected


def test_the_runtime_hears_of_the_pod_without_its_overhead() -> None:
    pod = a_pod(overhead={"cpu": "250m", "memory": "64Mi"})
    limits = CgroupLimits(cpu_shares=1280, cpu_quota_us=125_000, memory_bytes=320 * MIB)
    told = without_overhead(limits, pod, NodeSpec())
    assert (told.cpu_shares, told.cpu_quota, told.memory_limit_in_bytes) == (1024, 100_000, 256 * MIB)
    none = without_overhead(CgroupLimits(cpu_shares=2, cpu_quota_us=-1, memory_bytes=-1), pod, NodeSpec())
    assert (none.cpu_shares, none.cpu_quota, none.memory_limit_in_bytes) == (2, 0, 0)


class Groups:
    def __init__(self, wanted: CgroupLimits, current: CgroupLimits | None) -> None:
        self._wanted, self._current = wanted, current
        self.refuses = False
        self.changes: list[CgroupLimits] = []

    def wanted(self, pod: Pod) -> CgroupLimits:
        return self._wanted

    def current(self, pod: Pod) -> CgroupLimits | None:
        return self._current

    def memory_usage(self, pod: Pod) -> int | None:
        return 0

    async def change(self, pod: Pod, limits: CgroupLimits) -> None:
        if self.refuses:
            raise OSError("device or resource busy")
        self.changes.append(limits)


class Record:
    def __init__(self) -> None:
        self.held: dict[str, PodResourceInfo] = {}

    def get(self, uid: str) -> PodResourceInfo | None:
        return self.held.get(uid)

    def put(self, uid: str, held: PodResourceInfo) -> None:
        self.held[uid] = held

    def put_container(self, uid: str, name: str, resources: ResourceRequirements) -> None:
        old = self.held[uid]
        self.held[uid] = PodResourceInfo(containers={**old.containers, name: resources}, pod=old.pod)

    def put_pod_level(self, uid: str, resources: ResourceRequirements | None) -> None:
        self.held[uid] = PodResourceInfo(containers=self.held[uid].containers, pod=resources)


OLD, NEW = both("1", "128Mi"), both("2", "256Mi")
SMALL = CgroupLimits(cpu_shares=1024, cpu_quota_us=100_000, memory_bytes=128 * MIB)
LARGE = CgroupLimits(cpu_shares=2048, cpu_quota_us=200_000, memory_bytes=256 * MIB)


class ResizerFixture:
    def __init__(self, *, grouped: bool = True, exclusive: bool = False) -> None:
        self.cri = FakeCri(LoopClock(), images=["busybox:1"])
        self.groups = Groups(LARGE, SMALL if grouped else None)
        self.record = Record()
        self.pod = a_pod(containers=[a_container("app", resources=NEW)])
        self.record.put("uid-web", effect_of(a_pod(containers=[a_container("app", resources=OLD)])))
        self.resizer = PodResizer(
            cri=self.cri,
            groups=self.groups,
            record=self.record,
            node=NodeSpec(memory_bytes=1 << 34),
            clock=LoopClock(),
            metrics=Registry(),
            exclusive=lambda pod, container: exclusive,
        )

    async def resize(self) -> None:
        sandbox = cri_pb2.PodSandboxConfig(
            metadata=cri_pb2.PodSandboxMetadata(name="web", namespace="d", uid="uid-web")
        )
        box = await self.cri.run_pod_sandbox(sandbox)
        config = cri_pb2.ContainerConfig(
            metadata=cri_pb2.ContainerMetadata(name="app"), image=cri_pb2.ImageSpec(image="busybox:1")
        )
        container = await self.cri.create_container(box, config, sandbox)
        await self.cri.start_container(container)
        one = ContainerResize(
            id=container, name="app", wanted=NEW, actuated=OLD, resources=("memory", "cpu"), needs_restart=False
        )
        await self.resizer.resize(self.pod, PodPlan(resize=(one,), sandbox_id=box), box)

    def sandbox_memory(self) -> list[int]:
        calls = self.cri.called("update_pod_sandbox_resources")
        return [call.args["resources"].memory_limit_in_bytes // MIB for call in calls]


async def test_each_step_of_a_pod_changes_one_thing() -> None:
    bench = ResizerFixture()
    await bench.resize()
    assert bench.groups.changes == [
        CgroupLimits(memory_bytes=256 * MIB),
        CgroupLimits(cpu_quota_us=200_000),
        CgroupLimits(cpu_shares=2048),
    ]
    assert bench.sandbox_memory() == [256, 256, 256]
    assert bench.record.held["uid-web"].containers["app"] == NEW


@pytest.mark.parametrize(("exclusive", "quotas"), [(True, [-1, -1]), (False, [100_000, 200_000])])
async def test_who_owns_its_cpus_is_not_throttled_after_a_resize(exclusive: bool, quotas: list[int]) -> None:
    bench = ResizerFixture(exclusive=exclusive)
    await bench.resize()
    sent = [call.args["resources"].cpu_quota for call in bench.cri.called("update_container_resources")]
    assert sent == quotas


async def test_a_kernel_that_refuses_is_taken_back_with_the_runtime() -> None:
    bench = ResizerFixture()
    bench.groups.refuses = True
    with pytest.raises(ResizeProblem, match="busy"):
        await bench.resize()
    assert bench.sandbox_memory() == [256, 128]
    assert bench.cri.called("update_container_resources") == []
    assert bench.record.held["uid-web"].containers["app"] == OLD


async def test_a_runtime_that_refuses_leaves_the_kernel_alone() -> None:
    bench = ResizerFixture()
    bench.cri.fail_next("update_pod_sandbox_resources", CriError("vm too small"))
    with pytest.raises(ResizeProblem, match="vm too small"):
        await bench.resize()
    assert bench.groups.changes == []


async def test_the_record_says_how_far_it_got() -> None:
    bench = ResizerFixture()
    fault = bench.cri.fail_next("update_container_resources", CriError("busy"), times=None)
    fault.left = 0

    original = bench.record.put_container

    def then_fail(uid: str, name: str, resources: ResourceRequirements) -> None:
        original(uid, name, resources)
        fault.left = 1

    bench.record.put_container = then_fail  # type: ignore[method-assign]
    with pytest.raises(ResizeProblem):
        await bench.resize()
    assert bench.record.held["uid-web"].containers["app"] == with_amount(OLD, NEW, "memory")


async def test_a_runtime_that_is_away_is_nobodys_fault() -> None:
    bench = ResizerFixture()
    bench.cri.fail_next("update_container_resources", RuntimeDown("gone"))
    with pytest.raises(RuntimeDown):
        await bench.resize()


async def test_without_groups_of_their_own_only_containers_change() -> None:
    bench = ResizerFixture(grouped=False)
    await bench.resize()
    assert bench.groups.changes == [] and bench.sandbox_memory() == []
    assert len(bench.cri.called("update_container_resources")) == 2


def test_a_pod_without_a_record_counts_as_right(tmp_path: Path) -> None:
    bench = ResizerFixture()
    bench.record.held.clear()
    assert not bench.resizer.is_due(bench.pod, PodPlan(start_regular=tuple(bench.pod.spec.containers)))
    assert bench.resizer.begin(bench.pod) == {"app": NEW}
    assert not bench.resizer.is_due(bench.pod, PodPlan(start_regular=tuple(bench.pod.spec.containers)))


def test_a_container_that_starts_larger_makes_its_pod_larger() -> None:
    bench = ResizerFixture()
    plan = PodPlan(start_regular=tuple(bench.pod.spec.containers))
    assert bench.resizer.is_due(bench.pod, plan)
    bench.resizer.starting(bench.pod, bench.pod.spec.containers[0])
    assert not bench.resizer.is_due(bench.pod, plan)
