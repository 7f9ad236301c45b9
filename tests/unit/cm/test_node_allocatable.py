"""Node allocatable: what the groups are limited to, and enforcing it: once written, reported once when refused."""

from __future__ import annotations

import asyncio
import errno

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.cm.cgroups import CgroupRules
from pykubelet.cm.node_allocatable import (
    Enforcement,
    NodeAllocatable,
    NodeAmounts,
    NodeLimits,
    ReservedGroup,
    apart,
    group_limits,
    pods_limits,
    reserved_groups,
)
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.cgroups import CgroupLimits
from pykubelet.model.errors import PykubeletError
from tests.fakes.fake_cgroups import FakeCgroups
from tests.fakes.recorded_events import RecordedEvents

PODS = CgroupLimits(cpu_shares=2048, memory_bytes=1 << 30, pids=1000, hugepages={2 << 20: 0})


class Host(FakeCgroups):
    def __init__(self) -> None:
        super().__init__()
        self.refuses_memory = False

    def apply(self, path: str, limits: CgroupLimits) -> None:
        if self.refuses_memory and limits.memory_bytes is not None:
            raise OSError(errno.EACCES, "Permission denied", "memory.max")
        super().apply(path, limits)


class RecordedSlices:
    def __init__(self) -> None:
        self.held: dict[str, CgroupLimits] = {}
        self.refuses = False

    async def hold(self, path: str, limits: CgroupLimits) -> None:
        if self.refuses:
            raise OSError(errno.EIO, "systemd cannot make the slice", path)
        self.held[path] = limits

    async def drop(self, path: str) -> None:
        del self.held[path]


class NodeAllocatableFixture:
    def __init__(self, limits: NodeLimits, **rules: object) -> None:
        self.host, self.events, self.slices = Host(), RecordedEvents(), RecordedSlices()
        self.node = NodeAllocatable(
            host=self.host,
            rules=CgroupRules(**rules),  # type: ignore[arg-type]
            limits=limits,
            events=self.events,
            clock=LoopClock(),
            slices=self.slices,
        )

    def reported(self) -> list[tuple[str, str]]:
        return self.events.node


async def test_the_limits_are_written_told_once_and_put_right() -> None:
    bench = NodeAllocatableFixture(NodeLimits(pods=PODS))
    async with running(bench.node):
        await asyncio.sleep(1)
        assert bench.host.groups["/kubepods"] == PODS
        bench.host.groups["/kubepods"] = CgroupLimits(memory_bytes=5)
        await asyncio.sleep(61)
        assert bench.host.groups["/kubepods"] == PODS
    assert bench.reported() == [("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")]


async def test_a_refused_write_is_told_once_and_the_rest_is_written(caplog: pytest.LogCaptureFixture) -> None:
    bench = NodeAllocatableFixture(NodeLimits(pods=PODS))
    bench.host.refuses_memory = True
    async with running(bench.node):
        await asyncio.sleep(600)
        assert bench.host.groups["/kubepods"].memory_bytes is None
        assert bench.host.groups["/kubepods"].cpu_shares == 2048
        assert bench.host.groups["/kubepods"].pids == 1000
        ((reason, message),) = bench.reported()
        assert reason == "FailedNodeAllocatableEnforcement" and "memory.max" in message
        assert len([r for r in caplog.records if "not enforced" in r.message]) == 1
        bench.host.refuses_memory = False
        await asyncio.sleep(61)
    assert [reason for reason, _ in bench.reported()] == ["FailedNodeAllocatableEnforcement", "NodeAllocatableEnforced"]


async def test_where_pods_are_not_enforced_nobody_is_told() -> None:
    bench = NodeAllocatableFixture(NodeLimits(pods=PODS, enforced=False))
    async with running(bench.node):
        await asyncio.sleep(1)
        assert bench.host.groups["/kubepods"] == PODS
    assert bench.reported() == []


async def test_without_cgroups_of_our_own_nothing_is_touched() -> None:
    bench = NodeAllocatableFixture(NodeLimits(pods=PODS), enabled=False)
    async with running(bench.node):
        await asyncio.sleep(1)
    assert bench.host.groups == {}


async def test_a_root_that_does_not_exist_is_not_made() -> None:
    bench = NodeAllocatableFixture(NodeLimits(pods=PODS), root="/fleet")
    async with running(bench.node):
        await asyncio.sleep(1)
    assert bench.host.groups == {}


@pytest.mark.parametrize(
    ("driver", "name", "path"),
    [
        ("cgroupfs", "/system.slice", "/system.slice"),
        ("systemd", "system.slice", "/system.slice"),
        ("systemd", "/a-b.slice", "/a.slice/a-b.slice"),
    ],
)
async def test_reserved_groups_are_limited_where_they_are(driver: str, name: str, path: str) -> None:
    limits = CgroupLimits(cpu_shares=512, memory_bytes=1 << 20)
    group = ReservedGroup(setting="systemReservedCgroup", name=name, limits=limits)
    bench = NodeAllocatableFixture(NodeLimits(reserved=[group]), driver=driver)
    bench.host.create(path, CgroupLimits())
    async with running(bench.node):
        await asyncio.sleep(1)
    assert bench.host.groups[path] == limits
    assert bench.slices.held[path] == limits, "systemd would write its own at the next change"


async def test_a_reserved_group_that_is_missing_or_refuses_ends_the_agent() -> None:
    group = ReservedGroup(setting="kubeReservedCgroup", name="/kube", limits=CgroupLimits(memory_bytes=5))
    bench = NodeAllocatableFixture(NodeLimits(reserved=[group]))
    with pytest.raises(PykubeletError, match="kubeReservedCgroup: the cgroup /kube does not exist"):
        await bench.node.run()
    bench.host.create("/kube", CgroupLimits())
    bench.host.refuses_memory = True
    with pytest.raises(PykubeletError, match=r"kubeReservedCgroup: the limits of /kube cannot be set: .*denied"):
        await bench.node.run()
    bench.slices.refuses = True
    with pytest.raises(PykubeletError, match=r"kubeReservedCgroup: the limits of /kube cannot be set: .*systemd"):
        await bench.node.run()


def test_limits_apart_are_the_same_limits() -> None:
    together = CgroupLimits()
    for each in apart(PODS):
        together = each.over(together)
    assert together == PODS and len(apart(PODS)) == 4


# --- the limits -----------------------------------------------------------------------------------------------


GIB = 1 << 30


def amounts(**texts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity.parse(text) for name, text in texts.items()}


def an_enforcement(*what: str) -> Enforcement:
    return Enforcement(what=frozenset(what), system_group="/sys", kube_group="/kube")


CAPACITY = amounts(cpu="4", memory="8Gi", pid="32768", hugepages_2Mi="64Mi", pods="110")
SYSTEM, KUBE = amounts(cpu="500m", memory="1Gi", pid="100"), amounts(cpu="1", memory="512Mi")
NODE = NodeAmounts(
    capacity=CAPACITY, system=SYSTEM, kube=KUBE, reserved=amounts(cpu="1500m", memory="1536Mi", pid="100")
)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (
            ("pods",),
            CgroupLimits(
                cpu_shares=2560, memory_bytes=8 * GIB - 1536 * (1 << 20), pids=32668, hugepages={2 << 20: 64 << 20}
            ),
        ),
        (
            ("none",),
            CgroupLimits(cpu_shares=4096, memory_bytes=8 * GIB, pids=32768, hugepages={2 << 20: 64 << 20}),
        ),
    ],
)
def test_all_pods_get_what_is_not_reserved(what: tuple[str, ...], expected: CgroupLimits) -> None:
    assert pods_limits(NODE, an_enforcement(*what)) == expected


def test_more_reserved_than_there_is_leaves_nothing_and_no_limit_of_zero() -> None:
    node = NodeAmounts(capacity=amounts(cpu="1", memory="1Gi"), reserved=amounts(cpu="2", memory="2Gi"))
    assert pods_limits(node, an_enforcement("pods")) == CgroupLimits(cpu_shares=2)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (("pods",), []),
        (
            ("pods", "system-reserved"),
            [("systemReservedCgroup", "/sys", CgroupLimits(cpu_shares=512, memory_bytes=GIB, pids=100))],
        ),
        (("system-reserved-compressible",), [("systemReservedCgroup", "/sys", CgroupLimits(cpu_shares=512))]),
        (
            ("kube-reserved", "system-reserved-compressible"),
            [
                ("systemReservedCgroup", "/sys", CgroupLimits(cpu_shares=512)),
                ("kubeReservedCgroup", "/kube", CgroupLimits(cpu_shares=1024, memory_bytes=GIB // 2)),
            ],
        ),
    ],
)
def test_reserved_groups(what: tuple[str, ...], expected: list[tuple[str, str, CgroupLimits]]) -> None:
    found = reserved_groups(NODE, an_enforcement(*what))
    assert [(each.setting, each.name, each.limits) for each in found] == expected


def test_what_is_not_named_is_left_alone() -> None:
    assert group_limits({}) == CgroupLimits()
