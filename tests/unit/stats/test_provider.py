"""Snapshots of a node made of folders, and CPU rates from two readings."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.kit.clock import LoopClock
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ContainerState, NamespaceMode
from pykubelet.stats.provider import CpuRates
from pykubelet.stats.snapshot import CgroupNames, Look, Snapshot, pod_item
from pykubelet.stats.summary import summarize
from tests.builders import a_pod
from tests.unit.stats.making import StatsFixture, a_status, an_observed_container

BOTH = pytest.mark.parametrize("version", [1, 2])


@BOTH
async def test_a_full_look(version: int, tmp_path: Path) -> None:
    bed = StatsFixture(version, tmp_path)
    path = bed.add("web")
    snapshot = await bed.provider.snapshot(Look.EVERYTHING)
    (pod,) = snapshot.pods
    (container,) = pod.containers
    assert (pod.group.path, container.group.path) == (path, f"{path}/con-web")
    assert pod.sandbox is not None and pod.sandbox.path == f"{path}/box-web"
    assert pod.network is not None and pod.network.interfaces[0].rx_bytes == 1000
    assert container.group.usage is not None and container.group.usage.cpu_ns == 5_000_000_000
    assert container.group.detail is not None and container.group.detail.processes == 2
    assert container.group.bounds is not None and container.group.bounds.memory == 65_536
    assert container.layer is not None and container.layer.used == 8192
    assert container.logs is not None and container.logs.bytes >= 9000
    assert container.processes is not None
    assert pod.etc_hosts is not None and pod.own_logs is not None
    assert snapshot.node.root.usage is not None and snapshot.node.system.keys() == {"pods"}
    assert snapshot.node.tasks is not None and snapshot.node.tasks.tasks == 250


@BOTH
async def test_a_quick_look_asks_the_runtime_nothing(version: int, tmp_path: Path) -> None:
    bed = StatsFixture(version, tmp_path)
    bed.add("web")
    bed.runtime.broken = True
    snapshot = await bed.provider.snapshot(Look.USAGE)
    assert snapshot.pods[0].containers[0].group.usage is not None
    assert snapshot.pods[0].network is None and bed.runtime.calls == 0


@BOTH
async def test_the_summary_is_the_same_without_the_counters_of_dashboards(version: int, tmp_path: Path) -> None:
    bed = StatsFixture(version, tmp_path)
    path = bed.add("web")
    shown = []
    for look in (Look.SUMMARY, Look.EVERYTHING):
        snapshot = await bed.provider.snapshot(look, at_most=-1.0)
        shown.append(summarize(snapshot, node_name="n", memory_bytes=1 << 30, swap_bytes=0, volumes={}, full=True))
        detail = snapshot.pods[0].containers[0].group.detail
        assert detail is not None and (detail.max_usage is None) == (look is Look.SUMMARY), path
    assert shown[0] == shown[1]


async def test_a_look_serves_those_who_want_less(tmp_path: Path) -> None:
    bed = StatsFixture(1, tmp_path)
    bed.add("web")
    summary = await bed.provider.snapshot(Look.SUMMARY)
    assert await bed.provider.snapshot(Look.USAGE) is summary
    everything = await bed.provider.snapshot(Look.EVERYTHING)
    assert everything is not summary


async def test_snapshots_that_fall_together_are_one(tmp_path: Path) -> None:
    bed = StatsFixture(1, tmp_path)
    bed.add("web")
    snapshots: list[Snapshot] = await asyncio.gather(*[bed.provider.snapshot(Look.EVERYTHING) for _ in range(5)])
    assert all(each is snapshots[0] for each in snapshots) and bed.runtime.calls == 1
    assert await bed.provider.snapshot(Look.USAGE) is snapshots[0]
    assert await bed.provider.snapshot(Look.USAGE, at_most=0.0) is snapshots[0]  # no time has passed at all
    await bed.clock.sleep(1.5)
    assert await bed.provider.snapshot(Look.EVERYTHING) is not snapshots[0]
    assert bed.runtime.calls == 1  # disks are read every ten seconds only
    await bed.clock.sleep(10)
    await bed.provider.snapshot(Look.EVERYTHING)
    assert bed.runtime.calls == 2


async def test_cpu_rate_from_two_snapshots(tmp_path: Path) -> None:
    bed = StatsFixture(2, tmp_path)
    path = bed.add("web")
    first = await bed.provider.snapshot(Look.USAGE)
    assert first.pods[0].group.rate is None
    await bed.clock.sleep(4)
    bed.group(f"{path}/con-web", cpu_ns=7_000_000_000)
    second = await bed.provider.snapshot(Look.USAGE)
    assert second.pods[0].containers[0].group.rate == pytest.approx(500_000_000, rel=1e-6)
    assert second.pods[0].group.rate == 0


async def test_a_runtime_that_fails(tmp_path: Path) -> None:
    bed = StatsFixture(1, tmp_path)
    bed.add("web")
    bed.runtime.broken = True
    with pytest.raises(CriError):
        await bed.provider.snapshot(Look.EVERYTHING)
    snapshot = await bed.provider.snapshot(Look.EVERYTHING, stale_disk=True)
    assert snapshot.pods[0].containers[0].layer is None and bed.provider.disk_problem is not None
    with pytest.raises(CriError):
        await bed.provider.snapshot(Look.EVERYTHING)
    bed.runtime.broken = False
    assert (await bed.provider.snapshot(Look.EVERYTHING)).pods[0].containers[0].layer is not None
    assert bed.provider.disk_problem is None


async def test_containers_without_a_cgroup_have_the_runtimes_figures(tmp_path: Path) -> None:
    bed = StatsFixture(1, tmp_path)
    bed.add("web", groups=False)
    snapshot = await bed.provider.snapshot(Look.EVERYTHING)
    (pod,) = snapshot.pods
    assert pod.containers[0].group.usage is not None and pod.group.usage is not None
    assert pod.containers[0].group.usage.cpu_ns == 3
    assert pod.group.usage.memory is not None and pod.group.usage.memory.working_set == 4321
    bed.runtime.calls = 0
    await bed.clock.sleep(11)
    await bed.provider.snapshot(Look.USAGE)
    assert bed.runtime.calls == 1  # also a quick snapshot needs them now


async def test_pods_on_the_hosts_network_have_no_network_of_their_own(tmp_path: Path) -> None:
    bed = StatsFixture(1, tmp_path)
    bed.add("web", network=NamespaceMode.NODE)
    assert (await bed.provider.snapshot(Look.EVERYTHING)).pods[0].network is None


@BOTH
@pytest.mark.parametrize("has_group", [True, False])
async def test_a_sandbox_without_a_process_has_the_network_of_its_containers(
    version: int, has_group: bool, tmp_path: Path
) -> None:
    """CRI-O starts no program for a sandbox whose containers have process namespaces of their own."""
    bed = StatsFixture(version, tmp_path)
    path = bed.add("web")
    for procs in bed.cgroup_root.glob(f"**{path}/box-web/cgroup.procs"):
        procs.write_text("")
    if not has_group:
        for box in list(bed.cgroup_root.glob(f"**{path}/box-web")):
            shutil.rmtree(box)
    (pod,) = (await bed.provider.snapshot(Look.EVERYTHING)).pods
    assert pod.network is not None and pod.network.interfaces[0].rx_bytes == 1000


async def test_pods_come_and_go(tmp_path: Path) -> None:
    bed = StatsFixture(1, tmp_path)
    bed.add("web")
    bed.add("old")
    assert len((await bed.provider.snapshot(Look.USAGE)).pods) == 2
    del bed.statuses["uid-old"]
    bed.statuses["uid-stranger"] = a_status("stranger", an_observed_container("x", "y"))
    await bed.clock.sleep(2)
    assert [pod.item.name for pod in (await bed.provider.snapshot(Look.USAGE)).pods] == ["web"]


async def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    bed = StatsFixture(1, tmp_path)
    bed.add("web", groups=False)
    bed.runtime.stats = []
    empty = StatsFixture(1, tmp_path / "b")
    empty.cgroups = bed.cgroups
    snapshot = await bed.provider.snapshot(Look.EVERYTHING)
    assert snapshot.pods[0].group.usage is None
    assert "web" in (await bed.source.summary(only_cpu_and_memory=False)).decode()
    await bed.source.cadvisor()
    assert "web" not in await bed.source.resource()


def test_only_running_containers_count() -> None:
    gone = an_observed_container("init", "c0", ContainerState.EXITED)
    item = pod_item(a_status("web", an_observed_container("app", "c1"), gone), "/g")
    assert item is not None and [each.name for each in item.containers] == ["app"]
    assert pod_item(a_status("web", gone), "/g") is None
    bare = pod_item(a_status("web", an_observed_container("app", "c1"), sandbox=False), None)
    assert bare is not None and bare.sandbox_id == "" and bare.created_ns > 0


def test_group_names() -> None:
    pod = a_pod("web", uid="a-b", namespace="ns")
    assert CgroupNames(root="/x").pod(pod) == "/x/kubepods/besteffort/poda-b"
    assert CgroupNames(root="/x").classes() == ("/x/kubepods/burstable", "/x/kubepods/besteffort")
    systemd = CgroupNames(driver="systemd")
    assert systemd.pods() == "/kubepods.slice"
    assert systemd.pod(pod) == "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"
    assert CgroupNames(per_qos=False).pod(pod) is None
    assert CgroupNames(root="/x", per_qos=False).pods() == "/x"


async def test_a_caller_that_goes_spoils_nothing(tmp_path: Path) -> None:
    clock, reads = LoopClock(), []

    async def slowly(work: Callable[[], Any]) -> Any:
        await clock.sleep(5)
        reads.append(clock.monotonic())
        return work()

    bed = StatsFixture(1, tmp_path, run=slowly)
    bed.add("web")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await bed.provider.snapshot(Look.USAGE)
    assert len(reads) == 1  # it was read to the end before the next may begin
    assert len((await bed.provider.snapshot(Look.USAGE)).pods) == 1


SECOND = 1_000_000_000


def test_a_rate_needs_two_readings_a_second_apart() -> None:
    rates = CpuRates()
    assert rates.update("a", 0, 0) is None
    assert rates.update("a", SECOND // 2, SECOND) is None
    assert rates.update("a", 2 * SECOND, SECOND) == SECOND // 2
    rates.update("a", 12 * SECOND, 11 * SECOND)  # the new base
    assert rates.update("a", 12 * SECOND + 1, 11 * SECOND + 1) == 11 * SECOND // 12


def test_the_base_moves_on() -> None:
    rates = CpuRates()
    rates.update("a", 0, 0)
    rates.update("a", 20 * SECOND, 20 * SECOND)
    assert rates.update("a", 30 * SECOND, 20 * SECOND) == 0


def test_a_counter_that_falls_begins_anew() -> None:
    rates = CpuRates()
    rates.update("a", 0, 5 * SECOND)
    assert rates.update("a", 2 * SECOND, SECOND) is None
    assert rates.update("a", 4 * SECOND, 2 * SECOND) == SECOND // 2


def test_a_clock_that_falls_begins_anew() -> None:
    rates = CpuRates()
    rates.update("a", 10 * SECOND, 0)
    assert rates.update("a", 5 * SECOND, SECOND) is None


def test_what_is_gone_is_forgotten() -> None:
    rates = CpuRates()
    rates.update("a", 0, 0)
    rates.update("b", 0, 0)
    rates.keep({"b"})
    assert rates.update("a", 2 * SECOND, 2 * SECOND) is None
    assert rates.update("b", 2 * SECOND, 2 * SECOND) == SECOND


@given(st.lists(st.integers(min_value=1, max_value=30 * SECOND), min_size=2, max_size=40), st.floats(0, 64))
def test_a_steady_load_always_shows_its_rate(steps: list[int], cores: float) -> None:
    rates, now = CpuRates(), 0
    for step in steps:
        now += step
        found = rates.update("a", now, int(now * cores))
        assert found is None or abs(found - cores * SECOND) <= 2
