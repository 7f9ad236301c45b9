"""The disk families of /metrics/cadvisor: what is read, written and held, by device. Pure.

The machine's row has the kernel's counters of every disk and the filesystems the node uses; a container's row has
what its cgroup read and wrote, and its writable layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pykubelet.kit.metrics import render_labels
from pykubelet.model.figures import CgroupDetail, DeviceIo, DiskCounters, FsFigures
from pykubelet.stats.snapshot import ContainerFigures, NodeFigures

SECTOR = 512
DiskNames = Callable[[int, int], str]
"""Major and minor number to device name, '' when unknown."""
DiskRow = tuple[str, int, CgroupDetail | None, ContainerFigures | None]

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
SPACE: tuple[tuple[str, str, Callable[[int, FsFigures], int]], ...] = (
    ("container_fs_usage_bytes", "Bytes held on the filesystem", lambda used, fs: used),
    ("container_fs_limit_bytes", "Bytes the filesystem has", lambda used, fs: fs.capacity),
    ("container_fs_inodes_total", "Inodes the filesystem has", lambda used, fs: fs.inodes),
    ("container_fs_inodes_free", "Inodes left on the filesystem", lambda used, fs: fs.inodes_free),
)


def disk_lines(
    root: DiskRow | None, rows: Sequence[DiskRow], node: NodeFigures, names: DiskNames
) -> Iterator[list[str]]:
    """One list per family; `root` is the machine's row."""
    devices = [(row, io) for row in rows if row[2] is not None for io in row[2].io]
    labelled = [(f"{row[0]},{_device(names(io.major, io.minor))}", row[1], io) for row, io in devices]
    disks = [(f"{root[0]},{_device(disk.name)}", root[1], disk) for disk in node.disks] if root is not None else []
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


def _blkio(devices: Sequence[tuple[DiskRow, DeviceIo]], names: DiskNames) -> list[str]:
    name = "container_blkio_device_usage_total"
    lines = [_head(name, "counter", "Bytes read and written, by device and operation")]
    for row, io in devices:
        labels = f'{row[0]},{_device(names(io.major, io.minor))},major="{io.major}",minor="{io.minor}"'
        lines.append(f'{name}{{{labels},operation="Read"}} {io.read_bytes} {row[1]}')
        lines.append(f'{name}{{{labels},operation="Write"}} {io.write_bytes} {row[1]}')
    return lines


def _space(root: DiskRow | None, rows: Sequence[DiskRow], node: NodeFigures) -> Iterator[list[str]]:
    found: list[tuple[str, int, int, FsFigures]] = []
    if root is not None:
        seen: dict[int, FsFigures] = {}
        for whole in (node.fs, *node.filesystems.values()):
            if whole is not None:
                seen.setdefault(whole.device, whole)
        found += [(f"{root[0]},{_device(fs.device_name)}", root[1], fs.used, fs) for fs in seen.values()]
    for labels, at, _, container in rows:
        layer = container.layer if container is not None else None
        fs = node.filesystems.get(layer.mountpoint) if layer is not None else None
        if layer is not None and fs is not None:
            found.append((f"{labels},{_device(fs.device_name)}", at, layer.used, fs))
    for name, help_text, pick in SPACE:
        yield [
            _head(name, "gauge", help_text),
            *[f"{name}{{{labels}}} {pick(used, fs)} {at}" for labels, at, used, fs in found],
        ]


def _device(name: str) -> str:
    return render_labels(("device",), (name,))[1:-1]


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}"
