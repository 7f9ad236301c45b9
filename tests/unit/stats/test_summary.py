"""The JSON of /stats/summary."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import Pod, Volume
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.stats.volumes import VolumeStatsCalculator
from tests.builders import a_pod
from tests.unit.stats.making import StatsFixture

BOTH = pytest.mark.parametrize("version", [1, 2])


@dataclass(frozen=True, kw_only=True)
class Use:
    name: str
    used_bytes: int = 100
    capacity_bytes: int = 1000
    available_bytes: int = 900
    inodes: int = 50
    inodes_free: int = 40
    inodes_used: int = 10
    claim: tuple[str, str] | None = None
    on_node_disk: bool = False
    complete: bool = True
    abnormal: bool | None = None
    condition: str = ""


class FakeMeter:
    """Gives every pod a volume on disk and one by claim; takes `seconds` for it."""

    def __init__(self, clock: LoopClock, seconds: float = 0.0) -> None:
        self.clock, self.seconds = clock, seconds
        self.measured: list[str] = []
        self.error: Exception | None = None
        self.abnormal: bool | None = None
        self.condition = ""

    async def usage(self, pod: Pod) -> Sequence[Use]:
        self.measured.append(pod.metadata.name or "")
        await self.clock.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return [
            Use(name="tmp", on_node_disk=True),
            Use(name="data", claim=("ns", "claim"), abnormal=self.abnormal, condition=self.condition),
        ]


class Pods:
    def __init__(self, *names: str) -> None:
        self.names = names

    def pods(self) -> list[Pod]:
        made = [a_pod(name, namespace="ns") for name in self.names]
        for pod in made:
            pod.spec.volumes = [Volume(name="tmp")]
        return made


async def full_summary(
    version: int, folder: Path, *, abnormal: bool | None = None
) -> tuple[dict[str, Any], StatsFixture]:
    clock = LoopClock()
    meter = FakeMeter(clock)
    meter.abnormal = abnormal
    volumes = VolumeStatsCalculator(meter=meter, table=Pods("web"), clock=clock, metrics=Registry())
    await volumes.measure_due()
    bed = StatsFixture(version, folder, volumes)
    bed.add("web")
    await bed.source.summary(only_cpu_and_memory=False)
    await bed.clock.sleep(2)
    return json.loads(await bed.source.summary(only_cpu_and_memory=False)), bed


@BOTH
async def test_the_node(version: int, tmp_path: Path) -> None:
    summary, _ = await full_summary(version, tmp_path)
    node = summary["node"]
    assert (node["nodeName"], node["startTime"]) == ("n1", "2023-11-14T22:13:20Z")
    assert node["cpu"].keys() == {"time", "usageNanoCores", "usageCoreNanoSeconds", "psi"}
    assert node["cpu"]["psi"]["some"] == {"total": 2500000, "avg10": 1.5, "avg60": 0.25, "avg300": 0.0}
    memory = node["memory"]
    assert memory["availableBytes"] == 1_000_000 - memory["workingSetBytes"] == 503_000
    assert node["swap"]["swapAvailableBytes"] == 102_400 - 1024
    assert node["rlimit"].keys() == {"time", "maxpid", "curproc"}
    assert (node["rlimit"]["maxpid"], node["rlimit"]["curproc"]) == (10_000, 250)
    assert (node["network"]["name"], node["network"]["rxBytes"]) == ("eth0", 1000)
    assert [each["name"] for each in node["network"]["interfaces"]] == ["eth0"]
    assert [each["name"] for each in node["systemContainers"]] == ["pods"]
    assert node["fs"]["inodesUsed"] == node["fs"]["inodes"] - node["fs"]["inodesFree"]
    assert node["runtime"]["imageFs"] == node["runtime"]["containerFs"]
    assert node["runtime"]["imageFs"]["usedBytes"] == 777
    assert node["runtime"]["imageFs"]["capacityBytes"] == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize


@BOTH
async def test_a_pod(version: int, tmp_path: Path) -> None:
    summary, _ = await full_summary(version, tmp_path)
    (pod,) = summary["pods"]
    assert pod["podRef"] == {"name": "web", "namespace": "ns", "uid": "uid-web"}
    assert pod["startTime"] == "2023-11-14T22:15:00Z"
    assert pod["network"]["rxErrors"] == 1
    assert pod["process_stats"] == {"process_count": 2}
    assert {each["name"]: each.get("pvcRef") for each in pod["volume"]} == {
        "tmp": None,
        "data": {"name": "claim", "namespace": "ns"},
    }
    (container,) = pod["containers"]
    assert container["startTime"] == "2023-11-14T22:15:05Z"
    assert container["cpu"]["usageCoreNanoSeconds"] == 5_000_000_000
    assert container["memory"] | {"time": "", "psi": None} == {
        "time": "",
        "psi": None,
        "availableBytes": 65_536 - 17_000,
        "usageBytes": 20_000,
        "workingSetBytes": 17_000,
        "rssBytes": 8192,
        "pageFaults": 70,
        "majorPageFaults": 10,
    }
    assert container["rootfs"]["usedBytes"] == 8192 and container["logs"]["usedBytes"] >= 9000
    rest = 2  # pod-level log folder and hosts file
    assert pod["ephemeral-storage"]["inodesUsed"] == 5 + container["logs"]["inodesUsed"] + 10 + rest
    assert pod["ephemeral-storage"]["usedBytes"] >= 8192 + 9000 + 100
    assert container["swap"].keys() == {"time", "swapAvailableBytes", "swapUsageBytes"}


async def test_cpu_and_memory_only(tmp_path: Path) -> None:
    _, bed = await full_summary(2, tmp_path)
    summary = json.loads(await bed.source.summary(only_cpu_and_memory=True))
    assert summary["node"].keys() == {"nodeName", "startTime", "systemContainers", "cpu", "memory", "swap"}
    (pod,) = summary["pods"]
    assert pod.keys() == {"podRef", "startTime", "containers", "cpu", "memory", "swap"}
    assert pod["containers"][0].keys() == {"name", "startTime", "cpu", "memory", "swap"}
    assert "psi" not in pod["cpu"]


async def test_no_pods_is_an_empty_list(tmp_path: Path) -> None:
    bed = StatsFixture(2, tmp_path)
    assert json.loads(await bed.source.summary(only_cpu_and_memory=False))["pods"] == []


# --- volumes ------------------------------------------------------------------------------------------------------


async def test_volumes_are_measured_once_a_period(tmp_path: Path) -> None:
    clock = LoopClock()
    meter, pods = FakeMeter(clock), Pods("a", "b", "c")
    volumes = VolumeStatsCalculator(meter=meter, table=pods, clock=clock, metrics=Registry(), period=60)
    await volumes.measure_due()
    assert meter.measured == ["a", "b", "c"]  # new pods do not wait
    await clock.sleep(59)
    await volumes.measure_due()
    assert len(meter.measured) == 3
    await clock.sleep(1)
    await volumes.measure_due()
    assert len(meter.measured) == 4  # a share at a time
    pods.names = ("b",)
    await volumes.measure_due()
    assert set(volumes.all()) == {"uid-b"}


async def test_a_volume_that_its_driver_finds_abnormal() -> None:
    clock, reported = LoopClock(), list[str]()
    meter = FakeMeter(clock)
    volumes = VolumeStatsCalculator(
        meter=meter,
        table=Pods("a"),
        clock=clock,
        metrics=Registry(),
        period=60,
        is_limited=lambda pod: True,
        on_abnormal=lambda pod, volume: reported.append(f"{pod.metadata.name} {volume.name} {volume.condition}"),
    )

    async def measured(abnormal: bool | None, condition: str) -> list[str]:
        meter.abnormal, meter.condition = abnormal, condition
        reported.clear()
        await volumes.measure_due()
        await clock.sleep(10)  # pods with limits are measured this often
        return list(reported)

    assert await measured(None, "") == []
    assert await measured(False, "fine") == []
    assert await measured(True, "") == ["a data "]
    assert await measured(True, "it rattles") == ["a data it rattles"]
    assert await measured(True, "it rattles") == []
    await clock.sleep(50)
    assert await measured(True, "it rattles") == ["a data it rattles"]
    assert await measured(False, "") == []
    assert await measured(True, "it rattles") == ["a data it rattles"]


async def test_a_slow_walk_rests_long(tmp_path: Path) -> None:
    clock = LoopClock()
    meter = FakeMeter(clock, seconds=3)
    volumes = VolumeStatsCalculator(meter=meter, table=Pods("a"), clock=clock, metrics=Registry(), period=60)
    await volumes.measure_due()
    await clock.sleep(296)
    await volumes.measure_due()
    assert len(meter.measured) == 1
    await clock.sleep(2)
    await volumes.measure_due()
    assert len(meter.measured) == 2


async def test_pods_with_limits_are_measured_more_often_and_even_where_measuring_is_off() -> None:
    clock = LoopClock()
    meter = FakeMeter(clock)
    volumes = VolumeStatsCalculator(
        meter=meter,
        table=Pods("a", "limited"),
        clock=clock,
        metrics=Registry(),
        period=0,
        is_limited=lambda pod: pod.metadata.name == "limited",
    )
    for _ in range(3):
        await volumes.measure_due()
        await clock.sleep(10)
    assert meter.measured == ["limited"] * 3
    meter.seconds = 30
    for _ in range(10):
        await volumes.measure_due()
        await clock.sleep(30)
    assert meter.measured.count("limited") == 3 + 10, "a long walk does not buy more than a minute"


async def test_an_unexpected_error_about_one_pod_does_not_end_the_measuring() -> None:
    class Odd(FakeMeter):
        async def usage(self, pod: Pod) -> Sequence[Use]:
            if pod.metadata.name == "odd":
                raise ValueError("an unexpected value")
            return await super().usage(pod)

    clock = LoopClock()
    meter = Odd(clock)
    volumes = VolumeStatsCalculator(meter=meter, table=Pods("odd", "web"), clock=clock, metrics=Registry(), period=60)
    async with running(volumes):
        await clock.sleep(200)
    assert meter.measured == ["web"] * 4


async def test_a_volume_that_is_counted_in_passes_is_not_left_alone_for_long() -> None:
    class Counting(FakeMeter):
        async def usage(self, pod: Pod) -> Sequence[Use]:
            return [replace(each, complete=len(self.measured) > 3) for each in await super().usage(pod)]

    clock = LoopClock()
    meter = Counting(clock, seconds=1.0)
    volumes = VolumeStatsCalculator(
        meter=meter, table=Pods("a"), clock=clock, metrics=Registry(), period=60, is_limited=lambda pod: True
    )
    async with running(volumes):
        await clock.sleep(39)
        assert len(meter.measured) == 4, "a pass every ten seconds"
        await clock.sleep(40)
        assert len(meter.measured) == 4, "all is counted: now it rests"
        await clock.sleep(30)
        assert len(meter.measured) == 5


class HangingMeter(FakeMeter):
    """Volumes of pod `dead` never answer, as if nothing had a deadline."""

    async def usage(self, pod: Pod) -> Sequence[Use]:
        if pod.metadata.name == "dead":
            await asyncio.Event().wait()
        return await super().usage(pod)


async def test_a_pod_whose_volumes_hang_delays_no_other() -> None:
    clock = LoopClock()
    meter = HangingMeter(clock)
    volumes = VolumeStatsCalculator(
        meter=meter, table=Pods("dead", "b", "c"), clock=clock, metrics=Registry(), period=60
    )
    async with running(volumes):
        await clock.sleep(130)
        assert meter.measured.count("b") == 3 and meter.measured.count("c") == 3
        assert set(volumes.all()) == {"uid-b", "uid-c"}
        began = clock.monotonic()
        await volumes.renew(within=2)
        assert clock.monotonic() - began <= 2 and meter.measured.count("b") == 4


async def test_a_failed_measurement_keeps_the_old_one(tmp_path: Path) -> None:
    clock = LoopClock()
    meter = FakeMeter(clock)
    volumes = VolumeStatsCalculator(meter=meter, table=Pods("a"), clock=clock, metrics=Registry(), period=60)
    await volumes.measure_due()
    meter.error = OSError("the disk is away")
    await clock.sleep(60)
    await volumes.measure_due()
    assert len(meter.measured) == 2 and volumes.of_pod("uid-a") is not None


@pytest.mark.parametrize("abnormal", [True, False])
async def test_the_health_of_volumes_is_shown(tmp_path: Path, abnormal: bool) -> None:
    summary, bed = await full_summary(1, tmp_path, abnormal=abnormal)
    (pod,) = summary["pods"]
    shown = {volume["name"]: volume.get("volumeHealthStats") for volume in pod["volume"]}
    assert shown == {"tmp": None, "data": {"abnormal": abnormal}}
    registry = Registry()
    bed.source.add_instruments(registry, cgroup_version=1)
    labels = 'namespace="ns",persistentvolumeclaim="claim"'
    assert f"kubelet_volume_stats_health_status_abnormal{{{labels}}} {int(abnormal)}\n" in registry.expose()


async def test_volume_gauges(tmp_path: Path) -> None:
    _, bed = await full_summary(1, tmp_path)
    registry = Registry()
    bed.source.add_instruments(registry, cgroup_version=1)
    text = registry.expose()
    labels = 'namespace="ns",persistentvolumeclaim="claim"'
    assert f"kubelet_volume_stats_capacity_bytes{{{labels}}} 1000\n" in text
    assert f"kubelet_volume_stats_inodes_used{{{labels}}} 10\n" in text
    assert f"kubelet_volume_stats_health_status_abnormal{{{labels}}}" not in text
    assert "kubelet_cgroup_version 1\n" in text
    used = 'kubelet_container_log_filesystem_used_bytes{uid="uid-web",namespace="ns",pod="web",container="app"}'
    assert used in text
