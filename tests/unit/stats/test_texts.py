"""/metrics/cadvisor and /metrics/resource, read back with Prometheus' own parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pykubelet.model.stats import CgroupBounds, CgroupDetail, CgroupUsage, MemoryUsage
from pykubelet.stats.cadvisor import render_cadvisor
from pykubelet.stats.snapshot import (
    ContainerItem,
    ContainerSample,
    Group,
    Look,
    NodeSample,
    PodItem,
    PodSample,
    Snapshot,
)
from pykubelet.stats.source import render_resource
from tests.unit.stats.making import StatsFixture

BOTH = pytest.mark.parametrize("version", [1, 2])

DASHBOARD_NAMES = """
container_cpu_usage_seconds_total container_cpu_user_seconds_total container_cpu_system_seconds_total
container_cpu_cfs_periods_total container_cpu_cfs_throttled_periods_total container_cpu_cfs_throttled_seconds_total
container_cpu_load_average_10s container_tasks_state container_memory_usage_bytes container_memory_working_set_bytes
container_memory_rss container_memory_cache container_memory_swap container_memory_mapped_file
container_memory_max_usage_bytes container_memory_kernel_usage container_memory_total_active_file_bytes
container_memory_total_inactive_file_bytes container_memory_failcnt container_memory_failures_total
container_fs_usage_bytes container_fs_limit_bytes container_fs_inodes_free container_fs_inodes_total
container_fs_io_current container_fs_reads_total container_fs_reads_bytes_total container_fs_writes_total
container_fs_writes_bytes_total container_fs_read_seconds_total container_fs_write_seconds_total
container_fs_io_time_seconds_total container_fs_io_time_weighted_seconds_total container_fs_sector_reads_total
container_fs_sector_writes_total container_fs_reads_merged_total container_fs_writes_merged_total
container_blkio_device_usage_total container_network_receive_bytes_total container_network_receive_packets_total
container_network_receive_packets_dropped_total container_network_receive_errors_total
container_network_transmit_bytes_total container_network_transmit_packets_total
container_network_transmit_packets_dropped_total container_network_transmit_errors_total container_processes
container_threads container_threads_max container_file_descriptors container_sockets container_ulimits_soft
container_oom_events_total container_last_seen container_start_time_seconds container_spec_cpu_period
container_spec_cpu_quota container_spec_cpu_shares container_spec_memory_limit_bytes
container_spec_memory_reservation_limit_bytes container_spec_memory_swap_limit_bytes container_scrape_error
container_pressure_cpu_stalled_seconds_total container_pressure_cpu_waiting_seconds_total
container_pressure_memory_stalled_seconds_total container_pressure_memory_waiting_seconds_total
container_pressure_io_stalled_seconds_total container_pressure_io_waiting_seconds_total machine_cpu_cores
machine_cpu_physical_cores machine_cpu_sockets machine_memory_bytes machine_swap_bytes cadvisor_version_info
"""


def samples(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def one(found: list[Sample], name: str, **labels: str) -> Sample:
    (match,) = [each for each in found if each.name == name and labels.items() <= each.labels.items()]
    return match


@BOTH
async def test_the_row_of_the_sandbox_names_its_image(version: int, tmp_path: Path) -> None:
    """Dashboards ask for network series by `image!=""`, as upstream has one there."""
    bed = await scraped_bed(version, tmp_path)
    found = samples(await bed.source.cadvisor())
    network = [each for each in found if each.name == "container_network_receive_bytes_total"]
    of_pods = [each for each in network if each.labels["pod"]]
    assert of_pods and {each.labels["image"] for each in of_pods} == {"registry.example/pause:3"}
    await bed.clock.sleep(60)
    await bed.source.cadvisor()
    assert bed.runtime.asked_images == ["box-web"], "asked once"


async def test_inodes_are_the_machines_alone(tmp_path: Path) -> None:
    """A container has none of its own; upstream has these series for the machine only."""
    bed = await scraped_bed(2, tmp_path)
    found = samples(await bed.source.cadvisor())
    of_containers = {each.name for each in found if each.labels.get("container")}
    assert "container_fs_usage_bytes" in of_containers
    assert not {name for name in of_containers if "inodes" in name}
    assert {each.labels["id"] for each in found if "inodes" in each.name} == {"/"}


async def scraped_bed(version: int, tmp_path: Path) -> StatsFixture:
    bed = StatsFixture(version, tmp_path)
    bed.add("web")
    (bed.proc / "41/fd").mkdir(parents=True)
    (bed.proc / "41/limits").write_text("Max open files            1024                 4096                 files\n")
    return bed


async def scraped(version: int, tmp_path: Path) -> list[Sample]:
    return samples(await (await scraped_bed(version, tmp_path)).source.cadvisor())


@BOTH
async def test_every_name_dashboards_use(version: int, tmp_path: Path) -> None:
    bed = await scraped_bed(version, tmp_path)
    text = await bed.source.cadvisor()
    # Not by the parser: it renames counters whose names do not end in _total, of which upstream has one.
    found = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert set(DASHBOARD_NAMES.split()) - found == set()


@BOTH
async def test_container_series(version: int, tmp_path: Path) -> None:
    found = await scraped(version, tmp_path)
    cpu = one(found, "container_cpu_usage_seconds_total", container="app")
    path = "/kubepods/besteffort/poduid-web"
    assert cpu.labels == {
        "container": "app",
        "cpu": "total",
        "id": f"{path}/con-web",
        "image": 'img"1',
        "name": "con-web",
        "namespace": "ns",
        "pod": "web",
    }
    assert cpu.value == 5.0 and cpu.timestamp is not None
    assert one(found, "container_memory_working_set_bytes", id=path).labels["pod"] == "web"
    assert one(found, "container_cpu_usage_seconds_total", id="/").labels["pod"] == ""
    received = one(found, "container_network_receive_bytes_total", pod="web")
    assert (received.labels["name"], received.labels["interface"], received.value) == ("box-web", "eth0", 1000)
    reads = one(found, "container_fs_reads_bytes_total", container="app")
    assert (reads.labels["device"], reads.value) == ("/dev/sda", 4096)
    assert one(found, "container_fs_reads_bytes_total", id="/", device="/dev/sda").value == 80 * 512
    assert one(found, "container_spec_cpu_quota", container="app").value == 50_000
    assert one(found, "container_oom_events_total", container="app").value == 2
    assert one(found, "container_threads_max", container="app").value == 100
    assert one(found, "container_ulimits_soft", container="app").labels["ulimit"] == "max_open_files"
    assert one(found, "container_fs_usage_bytes", container="app").value == 8192
    assert one(found, "machine_cpu_physical_cores").value == 2


async def test_layers_that_are_mounted_one_by_one_are_no_filesystems_of_the_machine(tmp_path: Path) -> None:
    """CRI-O names each container's own mount as the place of its layer; every such mount is a device to the kernel."""
    bed = StatsFixture(1, tmp_path)
    bed.add("web")
    snapshot = await bed.provider.snapshot(Look.EVERYTHING)
    [whole] = snapshot.node.filesystems.values()
    layers = {f"/{number}": replace(whole, device=number, device_name="overlay") for number in (901, 902)}
    node = replace(snapshot.node, filesystems=snapshot.node.filesystems | layers)
    text = render_cadvisor(replace(snapshot, node=node), machine="", disks=bed.host.device_name)
    of_machine = [
        line for line in text.splitlines() if line.startswith("container_fs_limit_bytes{") and 'id="/"' in line
    ]
    assert len(of_machine) == 1 and "overlay" not in of_machine[0]


@BOTH
async def test_series_are_unique(version: int, tmp_path: Path) -> None:
    found = await scraped(version, tmp_path)
    keys = [(each.name, tuple(sorted(each.labels.items()))) for each in found]
    assert len(keys) == len(set(keys))


async def test_a_failing_runtime_shows(tmp_path: Path) -> None:
    bed = StatsFixture(1, tmp_path)
    bed.add("web")
    bed.runtime.broken = True
    assert one(samples(await bed.source.cadvisor()), "container_scrape_error").value == 1


@BOTH
async def test_resource_metrics(version: int, tmp_path: Path) -> None:
    bed = StatsFixture(version, tmp_path)
    bed.add("web")
    found = samples(await bed.source.resource())
    assert one(found, "node_cpu_usage_seconds_total").value == 90.0
    assert one(found, "node_memory_working_set_bytes").value == 497_000
    labels = {"namespace": "ns", "pod": "web"}
    cpu = one(found, "container_cpu_usage_seconds_total")
    assert cpu.labels == labels | {"container": "app"} and cpu.timestamp is not None
    assert one(found, "pod_memory_working_set_bytes", **labels).value == 17_000
    start = one(found, "container_start_time_seconds", container="app")
    assert start.value == 1_700_000_105 and start.timestamp is None
    assert one(found, "container_swap_limit_bytes", container="app").value == 32_768
    assert one(found, "resource_scrape_error").value == 0


def test_no_figures_at_all() -> None:
    assert [(each.name, each.value) for each in samples(render_resource(None))] == [("resource_scrape_error", 1.0)]


count = st.integers(min_value=0, max_value=2**63)
maybe = st.none() | count
usages = st.builds(
    CgroupUsage,
    time_ns=count,
    cpu_ns=maybe,
    memory=st.none() | st.builds(MemoryUsage, usage=count, working_set=count, swap=maybe),
)
groups = st.builds(
    Group,
    path=st.text(),
    usage=st.none() | usages,
    detail=st.none() | st.builds(CgroupDetail, user_ns=maybe, oom_kills=maybe, processes=maybe),
    bounds=st.none() | st.builds(CgroupBounds, quota_us=maybe, memory=maybe, swap=maybe),
)
containers = st.builds(
    ContainerSample, item=st.builds(ContainerItem, id=st.text(), name=st.text(), image=st.text()), group=groups
)
pods = st.builds(
    PodSample,
    item=st.builds(PodItem, uid=st.text(), name=st.text(), namespace=st.text()),
    group=groups,
    sandbox=st.none() | groups,
    containers=st.tuples(containers),
)
nodes = st.builds(NodeSample, boot_seconds=st.integers(0, 2**40), root=groups, system=st.fixed_dictionaries({}))
snapshots = st.builds(Snapshot, time_ns=count, node=nodes, pods=st.tuples(pods))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshots)
def test_whatever_the_figures_the_text_parses(snapshot: Snapshot) -> None:
    samples(render_cadvisor(snapshot, machine="", disks=lambda major, minor: ""))
    samples(render_resource(snapshot))


@pytest.mark.parametrize("shown", [False, True])
async def test_a_hidden_metric_is_shown_on_request(tmp_path: Path, shown: bool) -> None:
    """showHiddenMetricsForVersion: the only one of a kubelet is the older name of resource_scrape_error."""
    text = await StatsFixture(2, tmp_path, shows_hidden=shown).source.resource()
    assert ("\nscrape_error 0\n" in text) is shown
    assert "\nresource_scrape_error 0\n" in text
