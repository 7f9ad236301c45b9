"""The JSON of /stats/summary: field names and what is left out are upstream's (facts/server.md 7)."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Shape(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Fields without a default are always there."""


class PsiData(Shape, kw_only=True):
    total: int
    avg10: float
    avg60: float
    avg300: float


class PsiStats(Shape, kw_only=True):
    full: PsiData
    some: PsiData


class CpuStats(Shape, kw_only=True):
    time: datetime
    usage_nano_cores: int | None = None
    usage_core_nano_seconds: int | None = None
    psi: PsiStats | None = None


class MemoryStats(Shape, kw_only=True):
    time: datetime
    available_bytes: int | None = None
    usage_bytes: int | None = None
    working_set_bytes: int | None = None
    rss_bytes: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    psi: PsiStats | None = None


class IoStats(Shape, kw_only=True):
    time: datetime
    psi: PsiStats | None = None


class SwapStats(Shape, kw_only=True):
    time: datetime
    swap_available_bytes: int | None = None
    swap_usage_bytes: int | None = None


class InterfaceStats(Shape, kw_only=True):
    name: str
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None


class NetworkStats(Shape, kw_only=True):
    time: datetime
    name: str
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None
    interfaces: list[InterfaceStats] = []


class FsStats(Shape, kw_only=True):
    time: datetime
    available_bytes: int | None = None
    capacity_bytes: int | None = None
    used_bytes: int | None = None
    inodes_free: int | None = None
    inodes: int | None = None
    inodes_used: int | None = None


class PvcReference(Shape, kw_only=True):
    name: str
    namespace: str


class VolumeStats(FsStats, kw_only=True):
    name: str
    pvc_ref: PvcReference | None = None


class ContainerStats(Shape, kw_only=True):
    name: str
    start_time: datetime | None
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    rootfs: FsStats | None = None
    logs: FsStats | None = None
    swap: SwapStats | None = None


class PodReference(Shape, kw_only=True):
    name: str
    namespace: str
    uid: str


class ProcessStats(Shape, kw_only=True, rename="lower"):
    process_count: int | None = None


class PodStats(Shape, kw_only=True):
    pod_ref: PodReference
    start_time: datetime | None
    containers: list[ContainerStats]
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    network: NetworkStats | None = None
    volume: list[VolumeStats] = []
    ephemeral_storage: FsStats | None = msgspec.field(default=None, name="ephemeral-storage")
    process_stats: ProcessStats | None = msgspec.field(default=None, name="process_stats")
    swap: SwapStats | None = None


class RuntimeStats(Shape, kw_only=True):
    image_fs: FsStats | None = None
    container_fs: FsStats | None = None


class RlimitStats(Shape, kw_only=True):
    time: datetime
    maxpid: int | None = None
    curproc: int | None = None


class NodeStats(Shape, kw_only=True):
    node_name: str
    start_time: datetime | None
    system_containers: list[ContainerStats] = []
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    network: NetworkStats | None = None
    fs: FsStats | None = None
    runtime: RuntimeStats | None = None
    rlimit: RlimitStats | None = None
    swap: SwapStats | None = None


class Summary(Shape, kw_only=True):
    node: NodeStats
    pods: list[PodStats]
