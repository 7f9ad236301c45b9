"""What pods use as the runtime measures it (gate PodAndContainerStatsFromCRI), in place of a look at their cgroups.

What the runtime says it has left of memory or swap stands for the limit. Figures that it does not give stay None, where
upstream shows 0: a zero that was not measured misleads autoscalers.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.model.stats import (
    CgroupBounds,
    CgroupDetail,
    InterfaceCounters,
    NetworkCounters,
    Pressure,
    PressureLine,
)
from pykubelet.stats.disk import DiskSample, layer_of, usage_of
from pykubelet.stats.snapshot import ContainerSample, Group, PodItem, PodSample, sum_of
from pykubelet.wire import cri_pb2 as pb

Rate = Callable[[str, int, int], int | None]
"""Key, time and counter to CPU nanoseconds per second."""


def sample_of(item: PodItem, stats: pb.PodSandboxStats, disk: DiskSample, rate: Rate) -> PodSample:
    """The pod by the runtime's figures; containers that it does not name are left out, as upstream does."""
    linux = stats.linux
    measured = {each.attributes.id: each for each in linux.containers}
    containers = [
        ContainerSample(
            item=each,
            group=_group(each.id, one, rate),
            layer=layer_of(one.writable_layer) if one.HasField("writable_layer") else disk.layers.get(each.id),
            logs=disk.logs.get((item.uid, each.name)),
        )
        for each in item.containers
        if (one := measured.get(each.id)) is not None
    ]
    group = _group(item.sandbox_id, linux, rate)
    return PodSample(
        item=item,
        # CRI-O has no figures of a pod whose cgroup it cannot read.
        group=group if group.usage is not None else sum_of(containers, ""),
        network=_network(linux.network) if linux.HasField("network") and not item.host_network else None,
        containers=tuple(containers),
        own_logs=disk.own_logs.get(item.uid),
        etc_hosts=disk.etc_hosts.get(item.uid),
        counted=linux.process.process_count.value if linux.process.HasField("process_count") else None,
    )


def _group(key: str, stats: pb.ContainerStats | pb.LinuxPodSandboxStats, rate: Rate) -> Group:
    usage = usage_of(stats)
    if usage is None:
        return Group(path="")
    per_second = None
    if stats.cpu.HasField("usage_nano_cores"):
        per_second = stats.cpu.usage_nano_cores.value
    elif usage.cpu_ns is not None:
        per_second = rate(key, usage.time_ns, usage.cpu_ns)
    detail = CgroupDetail(
        cpu_pressure=_pressure(stats.cpu), memory_pressure=_pressure(stats.memory), io_pressure=_pressure(stats.io)
    )
    return Group(path="", usage=usage, rate=per_second, detail=detail, bounds=_bounds(stats))


def _bounds(stats: pb.ContainerStats | pb.LinuxPodSandboxStats) -> CgroupBounds:
    memory = swap = None
    if stats.memory.HasField("available_bytes"):
        memory = stats.memory.available_bytes.value + stats.memory.working_set_bytes.value
    if isinstance(stats, pb.ContainerStats) and stats.swap.HasField("swap_available_bytes"):
        swap = stats.swap.swap_available_bytes.value + stats.swap.swap_usage_bytes.value
    return CgroupBounds(memory=memory, swap=swap)


def _pressure(measured: pb.CpuUsage | pb.MemoryUsage | pb.IoUsage) -> Pressure | None:
    return Pressure(some=_line(measured.psi.Some), full=_line(measured.psi.Full)) if measured.HasField("psi") else None


def _line(data: pb.PsiData) -> PressureLine:
    return PressureLine(avg10=data.Avg10, avg60=data.Avg60, avg300=data.Avg300, total=data.Total)


def _network(usage: pb.NetworkUsage) -> NetworkCounters:
    """The pod's main interface first."""
    found = {each.name: each for each in (usage.default_interface, *usage.interfaces) if each.name}
    return NetworkCounters(time_ns=usage.timestamp, interfaces=tuple(_interface(each) for each in found.values()))


def _interface(usage: pb.NetworkInterfaceUsage) -> InterfaceCounters:
    """The runtime counts bytes and errors alone."""
    return InterfaceCounters(
        name=usage.name,
        rx_bytes=usage.rx_bytes.value,
        rx_packets=0,
        rx_errors=usage.rx_errors.value,
        rx_dropped=0,
        tx_bytes=usage.tx_bytes.value,
        tx_packets=0,
        tx_errors=usage.tx_errors.value,
        tx_dropped=0,
    )
