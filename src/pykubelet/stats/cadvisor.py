"""/metrics/cadvisor: the container_* and machine_* series dashboards are built on. Pure.

Tens of thousands of lines per scrape: a row's labels are put together once, families are tables of name and getter,
and lines are made by formatting alone. Every series carries the time it was measured. Names and labels are upstream's.
Task states and load exist for the machine only: per container upstream always reports zero. Of disks, the machine's row
has the kernel's counters of every disk and the filesystems the node uses; a container's row has what its cgroup read
and wrote, and its writable layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pykubelet.clients.host.port import Machine
from pykubelet.kit.metrics import render_labels
from pykubelet.model.stats import (
    CgroupDetail,
    CgroupUsage,
    DeviceIo,
    DiskCounters,
    FsUsage,
    InterfaceCounters,
    Measurement,
    MemoryUsage,
    TaskCounts,
)
from pykubelet.stats.snapshot import ContainerSample, Group, NodeSample, PodItem, PodSample, Snapshot

BASE_LABELS = ("container", "id", "image", "name", "namespace", "pod")


class Row(Measurement, frozen=True, kw_only=True):
    """One cgroup of the exposition with its rendered labels."""

    labels: str
    """Without the braces."""
    at: int
    """Milliseconds."""
    group: Group
    usage: CgroupUsage
    memory: MemoryUsage | None = None
    detail: CgroupDetail | None = None
    pod: PodSample | None = None
    """Set on the row that carries the pod's network."""
    container: ContainerSample | None = None
    created_ns: int = 0


Number = int | float
Getter = Callable[[Row], Number | None]


def _memory(pick: Callable[[MemoryUsage], Number | None]) -> Getter:
    return lambda row: pick(row.memory) if row.memory is not None else None


def _detail(pick: Callable[[CgroupDetail], Number | None]) -> Getter:
    return lambda row: pick(row.detail) if row.detail is not None else None


def _seconds(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1e9 if nanoseconds is not None else None


def _throttle(pick: Callable[[CgroupDetail], Number | None]) -> Getter:
    """Only with a quota: without one the counters never change and mislead."""
    return lambda row: (
        pick(row.detail)
        if row.detail is not None and row.group.bounds is not None and row.group.bounds.quota_us is not None
        else None
    )


def _kernel(row: Row) -> Number | None:
    if row.detail is not None and row.detail.kernel is not None:
        return row.detail.kernel
    return row.memory.kernel if row.memory is not None else None


def _threads_max(row: Row) -> Number | None:
    if row.detail is None or row.group.bounds is None:
        return None
    return row.group.bounds.pids or 0


FAMILIES: tuple[tuple[str, str, str, Getter], ...] = (
    (
        "container_cpu_user_seconds_total",
        "counter",
        "CPU time spent in user code, in seconds",
        _detail(lambda d: _seconds(d.user_ns)),
    ),
    (
        "container_cpu_system_seconds_total",
        "counter",
        "CPU time spent in the kernel, in seconds",
        _detail(lambda d: _seconds(d.system_ns)),
    ),
    (
        "container_cpu_cfs_periods_total",
        "counter",
        "Enforcement periods that passed",
        _throttle(lambda d: d.periods),
    ),
    (
        "container_cpu_cfs_throttled_periods_total",
        "counter",
        "Enforcement periods in which the quota ran out",
        _throttle(lambda d: d.throttled_periods),
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Time tasks were held back by the quota, in seconds",
        _throttle(lambda d: _seconds(d.throttled_ns)),
    ),
    ("container_memory_usage_bytes", "gauge", "Memory in use with all caches, in bytes", _memory(lambda m: m.usage)),
    (
        "container_memory_working_set_bytes",
        "gauge",
        "Memory in use that cannot be dropped easily, in bytes",
        _memory(lambda m: m.working_set),
    ),
    ("container_memory_rss", "gauge", "Anonymous memory, in bytes", _memory(lambda m: m.rss)),
    ("container_memory_cache", "gauge", "Page cache, in bytes", _memory(lambda m: m.cache)),
    ("container_memory_swap", "gauge", "Swap in use, in bytes", _memory(lambda m: m.swap)),
    ("container_memory_mapped_file", "gauge", "Mapped files, in bytes", _memory(lambda m: m.mapped_file)),
    (
        "container_memory_total_active_file_bytes",
        "gauge",
        "Page cache in recent use, in bytes",
        _memory(lambda m: m.active_file),
    ),
    (
        "container_memory_total_inactive_file_bytes",
        "gauge",
        "Page cache not in recent use, in bytes",
        _memory(lambda m: m.inactive_file),
    ),
    ("container_memory_kernel_usage", "gauge", "Memory the kernel holds for the group, in bytes", _kernel),
    (
        "container_memory_max_usage_bytes",
        "gauge",
        "Most memory ever in use, in bytes",
        _detail(lambda d: d.max_usage),
    ),
    ("container_memory_failcnt", "counter", "Times the memory limit was hit", _detail(lambda d: d.limit_hits)),
    (
        "container_oom_events_total",
        "counter",
        "Processes killed for lack of memory",
        _detail(lambda d: d.oom_kills),
    ),
    ("container_processes", "gauge", "Processes in the container", _detail(lambda d: d.processes)),
    ("container_threads", "gauge", "Threads in the container", _detail(lambda d: d.threads)),
    ("container_threads_max", "gauge", "Threads the container may have, 0 for no limit", _threads_max),
    (
        "container_file_descriptors",
        "gauge",
        "Open file descriptors",
        lambda row: (
            row.container.processes.descriptors
            if row.container is not None and row.container.processes is not None
            else None
        ),
    ),
    (
        "container_sockets",
        "gauge",
        "Open sockets",
        lambda row: (
            row.container.processes.sockets
            if row.container is not None and row.container.processes is not None
            else None
        ),
    ),
    (
        "container_start_time_seconds",
        "gauge",
        "When the container was made, in unix seconds",
        lambda row: row.created_ns / 1e9 if row.created_ns else None,
    ),
    (
        "container_last_seen",
        "gauge",
        "When the container was last looked at, in unix seconds",
        lambda row: row.at // 1000,
    ),
    (
        "container_spec_cpu_period",
        "gauge",
        "Enforcement period of the CPU quota, in microseconds",
        lambda row: row.group.bounds.period_us if row.group.bounds is not None else None,
    ),
    (
        "container_spec_cpu_quota",
        "gauge",
        "CPU quota per period, in microseconds",
        lambda row: row.group.bounds.quota_us if row.group.bounds is not None else None,
    ),
    (
        "container_spec_cpu_shares",
        "gauge",
        "CPU shares",
        lambda row: row.group.bounds.shares if row.group.bounds is not None else None,
    ),
    (
        "container_spec_memory_limit_bytes",
        "gauge",
        "Memory limit in bytes, 0 for none",
        lambda row: row.group.bounds.memory or 0 if row.group.bounds is not None else None,
    ),
    (
        "container_spec_memory_reservation_limit_bytes",
        "gauge",
        "Memory reserved in bytes, 0 for none",
        lambda row: row.group.bounds.memory_soft or 0 if row.group.bounds is not None else None,
    ),
    (
        "container_spec_memory_swap_limit_bytes",
        "gauge",
        "Swap limit in bytes, 0 for none",
        lambda row: row.group.bounds.swap or 0 if row.group.bounds is not None else None,
    ),
)

NETWORK: tuple[tuple[str, str, Callable[[InterfaceCounters], int]], ...] = (
    ("container_network_receive_bytes_total", "Bytes received", lambda i: i.rx_bytes),
    ("container_network_receive_packets_total", "Packets received", lambda i: i.rx_packets),
    ("container_network_receive_packets_dropped_total", "Received packets dropped", lambda i: i.rx_dropped),
    ("container_network_receive_errors_total", "Errors while receiving", lambda i: i.rx_errors),
    ("container_network_transmit_bytes_total", "Bytes sent", lambda i: i.tx_bytes),
    ("container_network_transmit_packets_total", "Packets sent", lambda i: i.tx_packets),
    ("container_network_transmit_packets_dropped_total", "Packets dropped while sending", lambda i: i.tx_dropped),
    ("container_network_transmit_errors_total", "Errors while sending", lambda i: i.tx_errors),
)

PRESSURE: tuple[tuple[str, Callable[[CgroupDetail], object]], ...] = (
    ("cpu", lambda d: d.cpu_pressure),
    ("memory", lambda d: d.memory_pressure),
    ("io", lambda d: d.io_pressure),
)


def render_cadvisor(snapshot: Snapshot, *, machine: str, disks: DiskNames, failed: bool = False) -> str:
    """`machine` are the machine_* lines, which never change; `failed`: disk stats are old."""
    rows = [*_node_rows(snapshot), *(row for pod in snapshot.pods for row in _pod_rows(pod))]
    root = next((row for row in rows if row.group.path == "/"), None)
    return "\n".join(_chunks(rows, root, snapshot.node, disks, failed)) + f"\n{machine}\n"


def _chunks(rows: list[Row], root: Row | None, node: NodeSample, disks: DiskNames, failed: bool) -> Iterator[str]:
    """Family by family, so that never more than one is in memory as single lines."""
    for name, kind, help_text, getter in FAMILIES:
        lines = [_head(name, kind, help_text)]
        lines += [f"{name}{{{row.labels}}} {value} {row.at}" for row in rows if (value := getter(row)) is not None]
        yield "\n".join(lines)
    for make in (_cpu_lines, _memory_failure_lines, _pressure_lines, _hugepage_lines, _ulimit_lines):
        lines = []
        make(lines, rows)
        if lines:
            yield "\n".join(lines)
    yield "\n".join(_network_lines(rows, root, node))
    if root is not None and node.tasks is not None:
        yield "\n".join(_load_lines(root, node.tasks, node.load))
    for family in _disk_lines(root, [row for row in rows if row is not root], node, disks):
        yield "\n".join(family)
    yield "# HELP container_scrape_error 1 if some figures could not be had, else 0"
    yield f"# TYPE container_scrape_error gauge\ncontainer_scrape_error {int(failed)}"


# --- rows ---------------------------------------------------------------------------------------------------------


def _node_rows(snapshot: Snapshot) -> Iterator[Row]:
    node = snapshot.node
    seen = set()
    for group in (node.root, *node.system.values(), *node.classes):
        if group.usage is not None and group.path not in seen:
            seen.add(group.path)
            created = node.boot_seconds * 1_000_000_000 if group.path == "/" else group.created_ns
            yield _row(group, group.usage, ("", group.path, "", "", "", ""), created_ns=created)


def _pod_rows(pod: PodSample) -> Iterator[Row]:
    item = pod.item
    if pod.group.usage is not None and pod.group.path:
        labels = ("", pod.group.path, "", "", item.namespace, item.name)
        carries = pod if pod.sandbox is None or pod.sandbox.usage is None else None
        yield _row(pod.group, pod.group.usage, labels, created_ns=item.created_ns, pod=carries)
    if pod.sandbox is not None and pod.sandbox.usage is not None:
        labels = ("", pod.sandbox.path, item.sandbox_image, item.sandbox_id, item.namespace, item.name)
        yield _row(pod.sandbox, pod.sandbox.usage, labels, created_ns=item.created_ns, pod=pod)
    for container in pod.containers:
        if container.group.usage is not None:
            yield _container_row(item, container, container.group.usage)


def _container_row(pod: PodItem, container: ContainerSample, usage: CgroupUsage) -> Row:
    item = container.item
    labels = (item.name, container.group.path, item.image, item.id, pod.namespace, pod.name)
    return _row(container.group, usage, labels, created_ns=item.created_ns, container=container)


def _row(
    group: Group,
    usage: CgroupUsage,
    labels: tuple[str, ...],
    *,
    created_ns: int,
    pod: PodSample | None = None,
    container: ContainerSample | None = None,
) -> Row:
    return Row(
        labels=render_labels(BASE_LABELS, labels)[1:-1],
        at=usage.time_ns // 1_000_000,
        group=group,
        usage=usage,
        memory=usage.memory,
        detail=group.detail,
        pod=pod,
        container=container,
        created_ns=created_ns,
    )


# --- families with labels of their own --------------------------------------------------------------------------


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}"


def _cpu_lines(lines: list[str], rows: list[Row]) -> None:
    name = "container_cpu_usage_seconds_total"
    lines.append(_head(name, "counter", "CPU time used, in core-seconds"))
    lines += [
        f'{name}{{{row.labels},cpu="total"}} {row.usage.cpu_ns / 1e9!r} {row.at}'
        for row in rows
        if row.usage.cpu_ns is not None
    ]


def _memory_failure_lines(lines: list[str], rows: list[Row]) -> None:
    name = "container_memory_failures_total"
    lines.append(_head(name, "counter", "Page faults, by kind and by whether groups below count"))
    for row in rows:
        memory = row.memory
        if memory is None or row.detail is None:
            continue
        for kind, scope, value in (
            ("pgfault", "container", memory.own_faults),
            ("pgfault", "hierarchy", memory.faults),
            ("pgmajfault", "container", memory.own_major_faults),
            ("pgmajfault", "hierarchy", memory.major_faults),
        ):
            lines.append(f'{name}{{{row.labels},failure_type="{kind}",scope="{scope}"}} {value} {row.at}')


def _network_lines(rows: list[Row], root: Row | None, node: NodeSample) -> list[str]:
    carriers = [(row, row.pod.network) for row in rows if row.pod is not None and row.pod.network is not None]
    if root is not None and node.network is not None:
        carriers.insert(0, (root, node.network))
    found = [
        (f"{row.labels},{render_labels(('interface',), (each.name,))[1:-1]}", each, network.time_ns // 1_000_000)
        for row, network in carriers
        for each in network.interfaces
    ]
    lines: list[str] = []
    for name, help_text, pick in NETWORK:
        lines.append(_head(name, "counter", help_text))
        lines += [f"{name}{{{labels}}} {pick(each)} {at}" for labels, each, at in found]
    return lines


def _pressure_lines(lines: list[str], rows: list[Row]) -> None:
    for kind, pick in PRESSURE:
        found = [(row, pressure) for row in rows if row.detail is not None and (pressure := pick(row.detail))]
        for state, side, meaning in (
            ("stalled", "full", "nobody in the group got on"),
            ("waiting", "some", "some waited"),
        ):
            name = f"container_pressure_{kind}_{state}_seconds_total"
            lines.append(_head(name, "counter", f"Time in which {meaning} for lack of {kind}, in seconds"))
            lines += [
                f"{name}{{{row.labels}}} {getattr(pressure, side).total / 1e6!r} {row.at}" for row, pressure in found
            ]


def _hugepage_lines(lines: list[str], rows: list[Row]) -> None:
    found = [(row, each) for row in rows if row.detail is not None for each in row.detail.hugepages]
    if not found:
        return
    for name, kind, help_text, pick in (
        ("container_hugetlb_usage_bytes", "gauge", "Huge pages in use, in bytes", "usage"),
        ("container_hugetlb_max_usage_bytes", "gauge", "Most huge pages ever in use, in bytes", "max_usage"),
        ("container_hugetlb_failcnt", "counter", "Times the huge page limit was hit", "failures"),
    ):
        lines.append(_head(name, kind, help_text))
        for row, each in found:
            value = getattr(each, pick)
            if value is not None:
                lines.append(f'{name}{{{row.labels},pagesize="{each.page_size}"}} {value} {row.at}')


def _ulimit_lines(lines: list[str], rows: list[Row]) -> None:
    name = "container_ulimits_soft"
    lines.append(_head(name, "gauge", "Soft limits of the first process, -1 for unlimited"))
    for row in rows:
        found = row.container.processes if row.container is not None else None
        if found is not None and found.open_files_limit is not None:
            lines.append(f'{name}{{{row.labels},ulimit="max_open_files"}} {found.open_files_limit} {row.at}')


def _load_lines(root: Row, tasks: TaskCounts, load: float) -> list[str]:
    lines: list[str] = []
    name = "container_cpu_load_average_10s"
    lines.append(_head(name, "gauge", "Running tasks over the last ten seconds, in thousandths"))
    lines.append(f"{name}{{{root.labels}}} {int(load * 1000)} {root.at}")
    name = "container_tasks_state"
    lines.append(_head(name, "gauge", "Tasks in a state"))
    states = {
        "running": tasks.running,
        "uninterruptible": tasks.blocked,
        "sleeping": max(0, tasks.tasks - tasks.running - tasks.blocked),
        "stopped": 0,
        "iowaiting": tasks.blocked,
    }
    return lines + [f'{name}{{{root.labels},state="{state}"}} {count} {root.at}' for state, count in states.items()]


def machine_lines(machine: Machine, *, physical_cores: int, sockets: int, version: str) -> str:
    """What the machine is; rendered once."""
    labels = render_labels(
        ("boot_id", "machine_id", "system_uuid"), (machine.boot_id, machine.machine_id, machine.system_uuid)
    )
    values: Mapping[str, tuple[str, int]] = {
        "machine_cpu_cores": ("Logical CPU cores", machine.cpus),
        "machine_cpu_physical_cores": ("Physical CPU cores", physical_cores),
        "machine_cpu_sockets": ("CPU sockets", sockets),
        "machine_memory_bytes": ("Memory installed, in bytes", machine.memory_bytes),
        "machine_swap_bytes": ("Swap configured, in bytes", machine.swap_bytes),
        "machine_scrape_error": ("1 if facts about the machine could not be had, else 0", 0),
    }
    lines: list[str] = []
    for name, (help_text, value) in values.items():
        lines.append(_head(name, "gauge", help_text))
        lines.append(f"{name}{labels if name != 'machine_scrape_error' else ''} {value}")
    lines.append(_head("cadvisor_version_info", "gauge", "Versions of kernel, system and exporter, as labels"))
    names = ("cadvisorRevision", "cadvisorVersion", "dockerVersion", "kernelVersion", "osVersion")
    labels = render_labels(names, ("", version, "", machine.kernel, machine.os_image))
    lines.append(f"cadvisor_version_info{labels} 1")
    return "\n".join(lines)


SECTOR = 512
DiskNames = Callable[[int, int], str]
"""Major and minor number to device name, '' when unknown."""

Pick = Callable[[DeviceIo], int]

SHARED: tuple[tuple[str, str, Pick, Callable[[DiskCounters], int]], ...] = (
    ("container_fs_reads_bytes_total", "Bytes read", lambda d: d.read_bytes, lambda c: c.sectors_read * SECTOR),
    ("container_fs_reads_total", "Reads finished", lambda d: d.reads, lambda c: c.reads),
    ("container_fs_writes_bytes_total", "Bytes written", lambda d: d.write_bytes, lambda c: c.sectors_written * SECTOR),
    ("container_fs_writes_total", "Writes finished", lambda d: d.writes, lambda c: c.writes),
)
MACHINE_ONLY: tuple[tuple[str, str, str, Callable[[DiskCounters], float]], ...] = (
    ("container_fs_sector_reads_total", "counter", "Sectors read", lambda c: c.sectors_read),
    ("container_fs_sector_writes_total", "counter", "Sectors written", lambda c: c.sectors_written),
    ("container_fs_reads_merged_total", "counter", "Reads merged into others", lambda c: c.reads_merged),
    ("container_fs_writes_merged_total", "counter", "Writes merged into others", lambda c: c.writes_merged),
    ("container_fs_read_seconds_total", "counter", "Time spent reading, in seconds", lambda c: c.read_ms / 1e3),
    ("container_fs_write_seconds_total", "counter", "Time spent writing, in seconds", lambda c: c.write_ms / 1e3),
    ("container_fs_io_current", "gauge", "Requests under way", lambda c: c.in_progress),
    (
        "container_fs_io_time_seconds_total",
        "counter",
        "Time with requests under way, in seconds",
        lambda c: c.io_ms / 1e3,
    ),
    (
        "container_fs_io_time_weighted_seconds_total",
        "counter",
        "Time requests were under way, each counted, in seconds",
        lambda c: c.weighted_io_ms / 1e3,
    ),
)
SPACE: tuple[tuple[str, str, Callable[[int, FsUsage], int]], ...] = (
    ("container_fs_usage_bytes", "Bytes held on the filesystem", lambda used, fs: used),
    ("container_fs_limit_bytes", "Bytes the filesystem has", lambda used, fs: fs.capacity),
)
INODES: tuple[tuple[str, str, Callable[[int, FsUsage], int]], ...] = (
    ("container_fs_inodes_total", "Inodes the filesystem has", lambda used, fs: fs.inodes),
    ("container_fs_inodes_free", "Inodes left on the filesystem", lambda used, fs: fs.inodes_free),
)
"""Of the machine's filesystems alone: a container has no inodes of its own, and upstream shows none for it."""


def _disk_lines(root: Row | None, rows: Sequence[Row], node: NodeSample, names: DiskNames) -> Iterator[list[str]]:
    """One list per family; `root` is the machine's row."""
    devices = [(row, io) for row in rows if row.detail is not None for io in row.detail.io]
    labelled = [(f"{row.labels},{_device(names(io.major, io.minor))}", row.at, io) for row, io in devices]
    disks = [(f"{root.labels},{_device(disk.name)}", root.at, disk) for disk in node.disks] if root is not None else []
    for name, help_text, of_group, of_disk in SHARED:
        lines = [_head(name, "counter", help_text)]
        lines += [f"{name}{{{labels}}} {of_disk(disk)} {at}" for labels, at, disk in disks]
        lines += [f"{name}{{{labels}}} {of_group(io)} {at}" for labels, at, io in labelled]
        yield lines
    for name, kind, help_text, value in MACHINE_ONLY:
        yield [
            _head(name, kind, help_text),
            *[f"{name}{{{labels}}} {value(disk)} {at}" for labels, at, disk in disks],
        ]
    yield _blkio(devices, names)
    yield from _space(root, rows, node)


def _blkio(devices: Sequence[tuple[Row, DeviceIo]], names: DiskNames) -> list[str]:
    name = "container_blkio_device_usage_total"
    lines = [_head(name, "counter", "Bytes read and written, by device and operation")]
    for row, io in devices:
        labels = f'{row.labels},{_device(names(io.major, io.minor))},major="{io.major}",minor="{io.minor}"'
        lines.append(f'{name}{{{labels},operation="Read"}} {io.read_bytes} {row.at}')
        lines.append(f'{name}{{{labels},operation="Write"}} {io.write_bytes} {row.at}')
    return lines


def _space(root: Row | None, rows: Sequence[Row], node: NodeSample) -> Iterator[list[str]]:
    machine: list[tuple[str, int, int, FsUsage]] = []
    if root is not None:
        # Not those of layers: each may be a mount of its own.
        of_runtime = [fs.whole for fs in (node.image_fs, node.container_fs) if fs is not None]
        seen: dict[int, FsUsage] = {}
        for whole in (node.fs, *of_runtime):
            if whole is not None:
                seen.setdefault(whole.device, whole)
        machine += [(f"{root.labels},{_device(fs.device_name)}", root.at, fs.used, fs) for fs in seen.values()]
    found = list(machine)
    for row in rows:
        layer = row.container.layer if row.container is not None else None
        fs = node.filesystems.get(layer.mountpoint) if layer is not None else None
        if layer is not None and fs is not None:
            found.append((f"{row.labels},{_device(fs.device_name)}", row.at, layer.used, fs))
    for families, owners in ((SPACE, found), (INODES, machine)):
        for name, help_text, pick in families:
            yield [
                _head(name, "gauge", help_text),
                *[f"{name}{{{labels}}} {pick(used, fs)} {at}" for labels, at, used, fs in owners],
            ]


def _device(name: str) -> str:
    return render_labels(("device",), (name,))[1:-1]
