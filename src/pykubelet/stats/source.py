"""What the server shows: the summary, the texts of /metrics/cadvisor and /metrics/resource, and metrics about stats.

In /metrics/resource a container without CPU and memory stats is left out whole: metrics-server drops a pod of which
it sees half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from pykubelet.clients.host.port import Machine
from pykubelet.kit.metrics import Registry, render_labels
from pykubelet.stats.cadvisor import DiskNames, render_cadvisor
from pykubelet.stats.provider import StatsProvider
from pykubelet.stats.runtime_metrics import RuntimeMetrics
from pykubelet.stats.snapshot import Group, Look, PodSample, Snapshot
from pykubelet.stats.summary import Summary, summarize
from pykubelet.stats.volumes import PodVolumeStats, VolumeStatsCalculator

VOLUME_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("kubelet_volume_stats_capacity_bytes", "Bytes the volume has", "capacity_bytes"),
    ("kubelet_volume_stats_available_bytes", "Bytes left on the volume", "available_bytes"),
    ("kubelet_volume_stats_used_bytes", "Bytes used on the volume", "used_bytes"),
    ("kubelet_volume_stats_inodes", "Inodes the volume has", "inodes"),
    ("kubelet_volume_stats_inodes_free", "Inodes left on the volume", "inodes_free"),
    ("kubelet_volume_stats_inodes_used", "Inodes used on the volume", "inodes_used"),
)


class NodeStatsSource:
    def __init__(
        self,
        *,
        provider: StatsProvider,
        volumes: VolumeStatsCalculator,
        machine: Machine,
        machine_text: str,
        node_name: str,
        disk_names: DiskNames,
        runtime_metrics: RuntimeMetrics | None = None,
        shows_hidden: bool = False,
    ) -> None:
        """`machine_text`: what /metrics/cadvisor says about the machine. With `runtime_metrics` the runtime measures
        pods, not we. `shows_hidden`: metrics that are deprecated for long, too."""
        self._runtime_metrics = runtime_metrics
        self._shows_hidden = shows_hidden
        self._provider = provider
        self._volumes = volumes
        self._machine = machine
        self._node_name = node_name
        self._disk_names = disk_names
        self._machine_text = machine_text
        self._encoder = msgspec.json.Encoder()

    async def summary_value(self, *, only_cpu_and_memory: bool) -> Summary:
        snapshot = await self._provider.snapshot(Look.USAGE if only_cpu_and_memory else Look.SUMMARY)
        return summarize(
            snapshot,
            node_name=self._node_name,
            memory_bytes=self._machine.memory_bytes,
            swap_bytes=self._machine.swap_bytes,
            volumes=self._pod_volumes(),
            full=not only_cpu_and_memory,
        )

    async def summary(self, *, only_cpu_and_memory: bool) -> bytes:
        return self._encoder.encode(await self.summary_value(only_cpu_and_memory=only_cpu_and_memory))

    async def cadvisor(self) -> str:
        """Return the text of /metrics/cadvisor; it shows when disk stats are old because the runtime did not answer."""
        if self._runtime_metrics is not None:
            return f"{await self._runtime_metrics.text()}{self._machine_text}\n"
        snapshot = await self._provider.snapshot(Look.EVERYTHING, stale_disk=True)
        return render_cadvisor(
            snapshot,
            machine=self._machine_text,
            disks=self._disk_names,
            failed=self._provider.disk_problem is not None,
        )

    async def resource(self) -> str:
        snapshot = await self._provider.snapshot(Look.USAGE)
        return render_resource(snapshot if snapshot.node.root.usage is not None else None, hidden=self._shows_hidden)

    def _pod_volumes(self) -> Mapping[str, PodVolumeStats]:
        return self._volumes.all()

    def add_instruments(self, registry: Registry, *, cgroup_version: int) -> None:
        provider = "cri" if self._runtime_metrics is not None else "cadvisor"
        registry.gauge("kubelet_metrics_provider", "Where container figures come from", ("provider",)).set(1, provider)
        registry.gauge("kubelet_cgroup_version", "Version of cgroups on this host").set(cgroup_version)
        registry.on_scrape(self._volume_gauges(registry))
        registry.on_scrape(self._log_gauge(registry))

    def _volume_gauges(self, registry: Registry) -> Callable[[], None]:
        labels = ("namespace", "persistentvolumeclaim")
        gauges = [(registry.gauge(name, text, labels), field) for name, text, field in VOLUME_GAUGES]
        health = registry.gauge(
            "kubelet_volume_stats_health_status_abnormal", "1 for a volume its driver finds abnormal, else 0", labels
        )

        def refresh() -> None:
            claimed = [
                (volume.claim, volume)
                for pod in self._pod_volumes().values()
                for volume in pod.volumes
                if volume.claim is not None
            ]
            for gauge, field in gauges:
                gauge.replace({claim: float(getattr(volume, field)) for claim, volume in claimed})
            health.replace({claim: float(volume.abnormal) for claim, volume in claimed if volume.abnormal is not None})

        return refresh

    def _log_gauge(self, registry: Registry) -> Callable[[], None]:
        gauge = registry.gauge(
            "kubelet_container_log_filesystem_used_bytes",
            "Bytes the container's logs take",
            ("uid", "namespace", "pod", "container"),
        )

        def refresh() -> None:
            disk = self._provider.disk
            gauge.replace(
                {
                    (pod.uid, pod.namespace, pod.name, container.name): float(found.bytes)
                    for pod in disk.pods
                    for container in pod.containers
                    if (found := disk.logs.get((pod.uid, container.name))) is not None
                }
            )

        return refresh


FAMILIES = (
    ("container_cpu_usage_seconds_total", "counter", "CPU time the container used, in core-seconds"),
    ("container_memory_working_set_bytes", "gauge", "Memory of the container that cannot be dropped, in bytes"),
    ("container_start_time_seconds", "gauge", "When the container was created, in unix seconds"),
    ("container_swap_limit_bytes", "gauge", "Swap the container may use, in bytes"),
    ("container_swap_usage_bytes", "gauge", "Swap the container uses, in bytes"),
    ("node_cpu_usage_seconds_total", "counter", "CPU time the node used, in core-seconds"),
    ("node_memory_working_set_bytes", "gauge", "Memory of the node that cannot be dropped, in bytes"),
    ("node_swap_usage_bytes", "gauge", "Swap the node uses, in bytes"),
    ("pod_cpu_usage_seconds_total", "counter", "CPU time the pod used, in core-seconds"),
    ("pod_memory_working_set_bytes", "gauge", "Memory of the pod that cannot be dropped, in bytes"),
    ("pod_swap_usage_bytes", "gauge", "Swap the pod uses, in bytes"),
    ("resource_scrape_error", "gauge", "1 if the figures could not be had, else 0"),
    ("scrape_error", "gauge", "(Deprecated since 1.29.0) 1 if the figures could not be had, else 0"),
)


def render_resource(snapshot: Snapshot | None, *, hidden: bool = False) -> str:
    """Without a snapshot only the scrape error is shown; `hidden`: also by the name it had before 1.29."""
    lines: dict[str, list[str]] = {name: [] for name, _, _ in FAMILIES}
    if hidden:
        lines["scrape_error"].append(f"scrape_error {0 if snapshot is not None else 1}")
    lines["resource_scrape_error"].append(f"resource_scrape_error {0 if snapshot is not None else 1}")
    if snapshot is not None:
        _group(lines, "node", snapshot.node.root, "")
        for pod in snapshot.pods:
            _pod(lines, pod)
    return "\n".join(_text(lines)) + "\n"


def _text(lines: dict[str, list[str]]) -> Iterator[str]:
    for name, kind, help_text in FAMILIES:
        if lines[name]:
            yield f"# HELP {name} {help_text}"
            yield f"# TYPE {name} {kind}"
            yield from lines[name]


def _pod(lines: dict[str, list[str]], pod: PodSample) -> None:
    item = pod.item
    _group(lines, "pod", pod.group, render_labels(("namespace", "pod"), (item.namespace, item.name)))
    for container in pod.containers:
        group, usage = container.group, container.group.usage
        if usage is None or usage.cpu_ns is None or usage.memory is None:
            continue
        names = (container.item.name, item.namespace, item.name)
        labels = render_labels(("container", "namespace", "pod"), names)
        _group(lines, "container", group, labels)
        if container.item.created_ns > 0:
            lines["container_start_time_seconds"].append(
                f"container_start_time_seconds{labels} {container.item.created_ns / 1e9!r}"
            )
        if group.bounds is not None and group.bounds.swap is not None:
            lines["container_swap_limit_bytes"].append(
                f"container_swap_limit_bytes{labels} {group.bounds.swap} {usage.time_ns // 1_000_000}"
            )


def _group(lines: dict[str, list[str]], kind: str, group: Group, labels: str) -> None:
    usage = group.usage
    if usage is None:
        return
    at = usage.time_ns // 1_000_000
    if usage.cpu_ns is not None:
        name = f"{kind}_cpu_usage_seconds_total"
        lines[name].append(f"{name}{labels} {usage.cpu_ns / 1e9!r} {at}")
    if usage.memory is not None:
        name = f"{kind}_memory_working_set_bytes"
        lines[name].append(f"{name}{labels} {usage.memory.working_set} {at}")
        if usage.memory.swap is not None:
            name = f"{kind}_swap_usage_bytes"
            lines[name].append(f"{name}{labels} {usage.memory.swap} {at}")
