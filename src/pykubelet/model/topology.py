"""Where a machine's CPUs and memory sit: threads in cores, cores in sockets and NUMA nodes, caches they share.

Values only, read by `clients/host/machine.py` and used by the CPU, memory and topology managers. CPUs that are
offline are not in it. Sets of CPUs are plain frozensets of their numbers; as text they are lists such as `0-3,8,10-11`,
the form the kernel and the configuration use. What single containers have of the machine is here as the podresources
service reports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from msgspec import Struct

Cpus = frozenset[int]
Level = Literal["core", "cache", "socket", "numa"]

NO_CPUS: Cpus = frozenset()


class Cpu(Struct, frozen=True, kw_only=True):
    """One hardware thread."""

    id: int
    core: int
    """The lowest thread number of its core: unique on the machine, unlike the kernel's core ids."""
    socket: int
    numa: int
    cache: int
    """The last-level cache it shares with some, but not all, CPUs of its NUMA node; else its socket."""


class NumaNode(Struct, frozen=True, kw_only=True):
    id: int
    memory_bytes: int = 0
    hugepages: tuple[tuple[int, int], ...] = ()
    """(size in bytes, count) set aside on this node."""
    distances: tuple[int, ...] = ()
    """To each NUMA node, in their order; empty when the machine does not say."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]
    """Also those without a CPU."""

    @cached_property
    def by_id(self) -> dict[int, Cpu]:
        return {cpu.id: cpu for cpu in self.cpus}

    @cached_property
    def all_cpus(self) -> Cpus:
        return frozenset(self.by_id)

    @cached_property
    def _groups(self) -> dict[Level, dict[int, Cpus]]:
        levels: tuple[Level, ...] = ("core", "cache", "socket", "numa")
        return {level: _grouped(self.cpus, level) for level in levels}

    def groups(self, level: Level) -> dict[int, Cpus]:
        """Every core, cache, socket or NUMA node that has CPUs, with all of them."""
        return self._groups[level]

    def within(self, level: Level, ids: Iterable[int]) -> Cpus:
        """The CPUs of these cores, caches, sockets or NUMA nodes."""
        groups = self._groups[level]
        return frozenset().union(*(groups.get(each, NO_CPUS) for each in ids))

    def spanned(self, level: Level, cpus: Iterable[int]) -> frozenset[int]:
        """Which cores, caches, sockets or NUMA nodes these CPUs are in."""
        return frozenset(getattr(self.by_id[each], level) for each in cpus)

    @cached_property
    def cpu_nodes(self) -> tuple[int, ...]:
        """NUMA nodes that have CPUs, in order."""
        return tuple(sorted(self._groups["numa"]))

    @cached_property
    def threads_per_core(self) -> int:
        return len(self.cpus) // len(self._groups["core"]) if self.cpus else 0

    @cached_property
    def cpus_per_cache(self) -> int:
        return len(self.cpus) // len(self._groups["cache"]) if self.cpus else 0

    @cached_property
    def is_numa_coarser(self) -> bool:
        """Whether a NUMA node holds one or more sockets, rather than a socket several NUMA nodes."""
        return len(self._groups["socket"]) >= len(self._groups["numa"])


def _grouped(cpus: Iterable[Cpu], level: Level) -> dict[int, Cpus]:
    found: dict[int, set[int]] = {}
    for cpu in cpus:
        found.setdefault(getattr(cpu, level), set()).add(cpu.id)
    return {key: frozenset(ids) for key, ids in found.items()}


def flat_topology(cpus: int, memory_bytes: int, hugepages: tuple[tuple[int, int], ...] = ()) -> Topology:
    """A machine that says nothing about itself: one node, one socket, every CPU a core."""
    return Topology(
        cpus=tuple(Cpu(id=each, core=each, socket=0, numa=0, cache=0) for each in range(cpus)),
        nodes=(NumaNode(id=0, memory_bytes=memory_bytes, hugepages=hugepages, distances=(10,)),),
    )


# More than any kernel is built for; keeps a typing error from filling the memory.
MAX_CPU = 65535

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPU numbers in the text; raises ValueError that says which part is wrong."""
    cpus: set[int] = set()
    if not text:
        return frozenset()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a CPU number or a range such as 0-3")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first or last > MAX_CPU:
            raise ValueError(f"{part!r} is not a range of CPU numbers up to {MAX_CPU}")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest text for these CPUs: {0, 1, 2, 5} -> 0-2,5."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class DeviceShare(Struct, frozen=True, kw_only=True):
    """Devices of one resource that sit on the same NUMA nodes."""

    resource: str
    ids: tuple[str, ...]
    numa: tuple[int, ...] = ()
    """Empty when the plugin does not say."""


class MemoryShare(Struct, frozen=True, kw_only=True):
    """Memory of one kind (memory, hugepages-2Mi, ...) on some NUMA nodes."""

    kind: str
    size: int
    numa: tuple[int, ...]


class ClaimedDevice(Struct, frozen=True, kw_only=True):
    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()
    """Names in the container device interface."""
    share_id: str = ""


class ClaimShare(Struct, frozen=True, kw_only=True):
    """What one resource claim gives a container."""

    namespace: str
    name: str
    devices: tuple[ClaimedDevice, ...]
