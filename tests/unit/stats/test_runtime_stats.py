"""Pods measured by the runtime (gate PodAndContainerStatsFromCRI): the summary, and the runtime's own series."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import CriError, RuntimeDown, Unimplemented
from pykubelet.model.runtime_status import NamespaceMode
from pykubelet.stats.runtime_metrics import render
from pykubelet.stats.snapshot import Look
from pykubelet.wire import cri_pb2 as pb
from tests.unit.stats.making import CREATED, StatsFixture, container_stats


def number(value: int) -> pb.UInt64Value:
    return pb.UInt64Value(value=value)


def an_interface(name: str, received: int) -> pb.NetworkInterfaceUsage:
    return pb.NetworkInterfaceUsage(
        name=name, rx_bytes=number(received), rx_errors=number(1), tx_bytes=number(2), tx_errors=number(3)
    )


def pressure(total: int) -> pb.PsiStats:
    return pb.PsiStats(Some=pb.PsiData(Total=total, Avg10=0.5), Full=pb.PsiData(Total=1))


def pod_stats(name: str, *, cpu_ns: int = 70, mountpoint: str = "") -> pb.PodSandboxStats:
    container = container_stats(f"con-{name}", cpu_ns=cpu_ns - 10, mountpoint=mountpoint)
    container.cpu.usage_nano_cores.value = 33
    container.memory.available_bytes.value = 1000
    container.swap.timestamp = CREATED
    container.swap.swap_usage_bytes.value = 600
    container.swap.swap_available_bytes.value = 400
    linux = pb.LinuxPodSandboxStats(
        cpu=pb.CpuUsage(timestamp=CREATED, usage_core_nano_seconds=number(cpu_ns), psi=pressure(9)),
        memory=pb.MemoryUsage(timestamp=CREATED, working_set_bytes=number(5000), usage_bytes=number(9000)),
        network=pb.NetworkUsage(
            timestamp=CREATED,
            default_interface=an_interface("eth0", 11),
            interfaces=[an_interface("eth0", 11), an_interface("net1", 12)],
        ),
        process=pb.ProcessUsage(timestamp=CREATED, process_count=number(4)),
        containers=[container, container_stats("of-no-one")],
    )
    return pb.PodSandboxStats(attributes=pb.PodSandboxAttributes(id=f"box-{name}"), linux=linux)


def a_bed(folder: Path, **settings: Any) -> StatsFixture:
    bed = StatsFixture(2, folder, from_runtime=True, **settings)
    bed.add("web")
    bed.runtime.pod_stats = [pod_stats("web", mountpoint=bed.runtime.mountpoint), pod_stats("stranger")]
    return bed


async def summary_of(bed: StatsFixture, *, quick: bool = False) -> Any:
    return json.loads(await bed.source.summary(only_cpu_and_memory=quick))


async def test_the_summary_has_the_runtimes_figures(tmp_path: Path) -> None:
    summary = await summary_of(a_bed(tmp_path))
    [pod] = summary["pods"]
    assert pod["podRef"]["name"] == "web"
    assert (pod["cpu"]["usageCoreNanoSeconds"], pod["memory"]["workingSetBytes"]) == (70, 5000)
    assert pod["cpu"]["psi"]["some"] == {"total": 9, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0}
    assert pod["memory"]["usageBytes"] == 9000 and "availableBytes" not in pod["memory"]
    assert pod["swap"]["swapUsageBytes"] == 600
    assert pod["process_stats"]["process_count"] == 4
    assert (pod["network"]["name"], pod["network"]["rxBytes"]) == ("eth0", 11)
    assert [(each["name"], each["rxBytes"]) for each in pod["network"]["interfaces"]] == [("eth0", 11), ("net1", 12)]
    [container] = pod["containers"]
    assert (container["name"], container["cpu"]["usageNanoCores"]) == ("app", 33)
    assert container["cpu"]["usageCoreNanoSeconds"] == 60
    assert container["memory"]["availableBytes"] == 1000
    assert container["swap"] | {"time": ""} == {"time": "", "swapUsageBytes": 600, "swapAvailableBytes": 400}
    assert container["rootfs"]["usedBytes"] == 8192 and container["rootfs"]["capacityBytes"] > 0
    assert container["logs"]["usedBytes"] >= 9000
    assert summary["node"]["cpu"]["usageCoreNanoSeconds"] == 90_000_000_000


async def test_no_cgroup_of_a_pod_is_looked_at(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    looked_at: list[str] = []
    usage = bed.cgroups.usage

    def noted(path: str, now: int) -> Any:
        looked_at.append(path)
        return usage(path, now)

    bed.cgroups.usage = noted
    await bed.provider.snapshot(Look.EVERYTHING)
    assert "/" in looked_at and not [path for path in looked_at if "poduid" in path]
    assert bed.runtime.asked_images == []


async def test_a_quick_look_asks_the_runtime_once(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    [pod] = (await summary_of(bed, quick=True))["pods"]
    assert pod["memory"]["workingSetBytes"] == 5000 and "network" not in pod
    assert (bed.runtime.pod_calls, bed.runtime.calls) == (1, 0)
    text = await bed.source.resource()
    assert 'container_memory_working_set_bytes{container="app",namespace="ns",pod="web"} 4321' in text
    assert bed.runtime.pod_calls == 1


async def test_a_rate_that_the_runtime_does_not_know_comes_from_two_readings(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    first = await bed.provider.snapshot(Look.USAGE)
    assert first.pods[0].group.rate is None
    await bed.clock.sleep(2)
    bed.runtime.pod_stats = [pod_stats("web", cpu_ns=1_000_000_070)]
    bed.runtime.pod_stats[0].linux.cpu.timestamp = CREATED + 2_000_000_000
    second = await bed.provider.snapshot(Look.USAGE)
    assert second.pods[0].group.rate == 500_000_000


async def test_a_pod_without_figures_of_its_own_is_the_sum_of_its_containers(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    bed.runtime.pod_stats[0].linux.ClearField("cpu")
    [pod] = (await bed.provider.snapshot(Look.EVERYTHING)).pods
    assert pod.group.usage is not None and pod.group.usage.cpu_ns == 60
    assert pod.group.usage.memory is not None and pod.group.usage.memory.working_set == 4321


async def test_pods_on_the_hosts_network_have_no_network_figures(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    bed.add("host", network=NamespaceMode.NODE)
    bed.runtime.pod_stats.append(pod_stats("host"))
    by_name = {pod.item.name: pod for pod in (await bed.provider.snapshot(Look.EVERYTHING)).pods}
    assert by_name["host"].network is None and by_name["web"].network is not None


async def test_a_runtime_that_does_not_measure_pods(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bed = a_bed(tmp_path)
    bed.runtime.pod_problem = Unimplemented("unknown method ListPodSandboxStats")
    for _ in range(2):
        [pod] = (await bed.provider.snapshot(Look.EVERYTHING)).pods
        assert pod.group.usage is not None and pod.group.usage.cpu_ns == 5_000_000_000
        await bed.clock.sleep(2)
    assert [record.getMessage() for record in caplog.records] == ["the runtime does not measure pods, cgroups are read"]


async def test_a_runtime_that_is_away_is_an_error(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    bed.runtime.pod_problem = RuntimeDown("connection refused")
    with pytest.raises(CriError, match="connection refused"):
        await bed.source.summary(only_cpu_and_memory=False)


async def test_eviction_sees_memory_while_the_runtime_is_away(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    bed.runtime.pod_problem = RuntimeDown("connection refused")
    [pod] = (await bed.provider.snapshot(Look.USAGE)).pods
    assert pod.group.usage is not None and pod.group.usage.cpu_ns == 5_000_000_000


async def test_eviction_counts_the_processes_the_runtime_counts(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    use = (await bed.signals.pods(disks=True))["uid-web"]
    assert (use.memory, use.processes) == (5000, 4)


# --- /metrics/cadvisor


def described(name: str, *keys: str, help: str = "what it is") -> pb.MetricDescriptor:
    return pb.MetricDescriptor(name=name, help=help, label_keys=keys)


def a_metric(name: str, value: int, *labels: str, kind: int = pb.GAUGE, at: int = 0) -> pb.Metric:
    return pb.Metric(name=name, timestamp=at, metric_type=kind, label_values=labels, value=number(value))


async def test_series_of_the_runtime(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    bed.runtime.descriptors = [described("container_b", "pod"), described("container_a", help="two\nlines")]
    bed.runtime.pod_metrics = [
        pb.PodSandboxMetrics(
            pod_sandbox_id="box-web",
            metrics=[a_metric("container_b", 5, 'we"b', at=1_500_000_000), a_metric("unknown", 1)],
            container_metrics=[
                pb.ContainerMetrics(
                    metrics=[
                        a_metric("container_a", 7, kind=pb.COUNTER),
                        a_metric("container_b", 6, "x", "too", "many"),
                    ]
                )
            ],
        )
    ]
    for _ in range(2):
        text = await bed.source.cadvisor()
        assert text.startswith(
            "# HELP container_a two\\nlines\n# TYPE container_a counter\ncontainer_a 7\n"
            '# HELP container_b what it is\n# TYPE container_b gauge\ncontainer_b{pod="we\\"b"} 5 1500\n'
            "# HELP machine_cpu_cores"
        )
        assert "container_cpu_user_seconds_total" not in text
    assert bed.runtime.descriptor_calls == 1


async def test_series_of_a_newer_kind_and_series_that_come_twice(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    bed.runtime.descriptors = [described("container_a", "pod")]
    metric = a_metric("container_a", 7, "web")
    metric.metric_type = 9
    bed.runtime.pod_metrics = [pb.PodSandboxMetrics(metrics=[metric, a_metric("container_a", 8, "web")])]
    assert (await bed.source.cadvisor()).startswith(
        '# HELP container_a what it is\n# TYPE container_a untyped\ncontainer_a{pod="web"} 8\n# HELP machine'
    )


async def test_without_series_only_the_machine_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bed = a_bed(tmp_path)
    bed.runtime.pod_problem = Unimplemented("unknown method ListMetricDescriptors")
    for _ in range(3):
        assert (await bed.source.cadvisor()).startswith("# HELP machine_cpu_cores")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize(("name", "key"), [("a b", "k"), ("", "k"), ("a", "k-k"), ("a\n", "k"), ("a", 'k"')])
async def test_a_name_that_no_scraper_reads_is_left_out(tmp_path: Path, name: str, key: str) -> None:
    bed = a_bed(tmp_path)
    bed.runtime.descriptors = [described(name, key)]
    bed.runtime.pod_metrics = [pb.PodSandboxMetrics(metrics=[a_metric(name, 1, "v")])]
    assert (await bed.source.cadvisor()).startswith("# HELP machine_cpu_cores")


def test_nothing_is_an_empty_text() -> None:
    assert render({}, []) == ""


@pytest.mark.parametrize(("from_runtime", "provider"), [(True, "cri"), (False, "cadvisor")])
def test_the_provider_is_named(tmp_path: Path, from_runtime: bool, provider: str) -> None:
    registry = Registry()
    StatsFixture(2, tmp_path, from_runtime=from_runtime).source.add_instruments(registry, cgroup_version=2)
    assert f'kubelet_metrics_provider{{provider="{provider}"}} 1' in registry.expose()
