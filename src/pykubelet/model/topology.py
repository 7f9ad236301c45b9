"""Where a machine's CPUs and memory sit: threads in cores, cores in sockets and NUMA nodes, caches they share.

Values only, read by `clients/host/topology.py` and used by everything that pins. CPUs that are offline are not in
it. Sets of CPUs are plain frozensets of their numbers; `settings/cpu_list.py` reads and writes them as text.
"""

from __future__ import annotations

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
