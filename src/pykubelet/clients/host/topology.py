"""The machine's topology, read once from /sys: NUMA nodes, sockets, cores, shared caches, memory, distances.

Read below a root folder, so that tests describe other machines with a few files. Numbers agree with those of
upstream's kubelet (which asks cAdvisor): checkpoints of the memory manager hold them. A kernel without NUMA gives
one node for each socket; a host that tells nothing at all is one flat node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from pykubelet.clients.host.port import Machine
from pykubelet.model.topology import Cpu, NumaNode, Topology, flat_topology, parse_cpu_list

CPU_FOLDER = re.compile(r"^cpu(\d+)$")
NODE_FOLDER = re.compile(r"^node(\d+)$")
HUGEPAGE_FOLDER = re.compile(r"^hugepages-(\d+)kB$")
MEMORY_LINE = re.compile(r"MemTotal:\s+(\d+) kB")
LAST_PRIVATE_CACHE = 2
"""Caches above this level are shared between cores."""


class _Thread(Struct, frozen=True):
    id: int
    core_id: int
    socket: int


def read_topology(machine: Machine, root: Path = Path("/")) -> Topology:
    cpu_root, node_root = root / "sys/devices/system/cpu", root / "sys/devices/system/node"
    threads = [each for number in _numbers(cpu_root, CPU_FOLDER) if (each := _thread(cpu_root, number)) is not None]
    if not threads:
        return flat_topology(machine.cpus, machine.memory_bytes, machine.hugepages)
    by_id = {each.id: each for each in threads}
    folders = _numbers(node_root, NODE_FOLDER)
    if not folders:
        return _without_numa(cpu_root, threads, machine)
    nodes: list[NumaNode] = []
    cpus: list[Cpu] = []
    placed: set[int] = set()
    for node in folders:
        folder = node_root / f"node{node}"
        nodes.append(_node(folder, node))
        own = [by_id[number] for number in _numbers(folder, CPU_FOLDER) if number in by_id]
        placed.update(each.id for each in own)
        cpus += _placed(cpu_root, own, node)
    cpus += _placed(cpu_root, [each for each in threads if each.id not in placed], folders[0])
    return Topology(cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)), nodes=tuple(nodes))


def _without_numa(cpu_root: Path, threads: list[_Thread], machine: Machine) -> Topology:
    sockets = sorted({each.socket for each in threads})
    cpus = [cpu for socket in sockets for cpu in _placed(cpu_root, [t for t in threads if t.socket == socket], socket)]
    # Nothing tells where the memory is; with one socket there is only one place.
    alone = len(sockets) == 1
    nodes = tuple(
        NumaNode(
            id=socket,
            memory_bytes=machine.memory_bytes if alone else 0,
            hugepages=machine.hugepages if alone else (),
        )
        for socket in sockets
    )
    return Topology(cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)), nodes=nodes)


def _placed(cpu_root: Path, threads: list[_Thread], node: int) -> list[Cpu]:
    cores: dict[tuple[int, int], list[int]] = {}
    for each in threads:
        cores.setdefault((each.socket, each.core_id), []).append(each.id)
    found = []
    for (socket, _), members in cores.items():
        cache = _shared_cache(cpu_root / f"cpu{min(members)}" / "cache", node_threads=len(cores) * len(members))
        found += [
            Cpu(id=each, core=min(members), socket=socket, numa=node, cache=socket if cache is None else cache)
            for each in members
        ]
    return found


def _shared_cache(folder: Path, *, node_threads: int) -> int | None:
    """The id of a cache shared by several cores but not by the whole node; None where there is none."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith("index"))
    except OSError:
        return None
    for name in names:
        level, shared = _number(folder / name / "level"), _list(folder / name / "shared_cpu_list")
        if level is not None and level > LAST_PRIVATE_CACHE and shared and len(shared) != node_threads:
            own = _number(folder / name / "id")
            return own if own is not None else min(shared)
    return None


def _thread(cpu_root: Path, number: int) -> _Thread | None:
    """None for a CPU that is offline or does not say where it is."""
    folder = cpu_root / f"cpu{number}"
    if _number(folder / "online") == 0:
        return None
    core, socket = _number(folder / "topology/core_id"), _number(folder / "topology/physical_package_id")
    return None if core is None or socket is None else _Thread(number, core, socket)


def _node(folder: Path, number: int) -> NumaNode:
    match = MEMORY_LINE.search(_text(folder / "meminfo"))
    pages = []
    for size in _numbers(folder / "hugepages", HUGEPAGE_FOLDER):
        count = _number(folder / "hugepages" / f"hugepages-{size}kB" / "nr_hugepages")
        pages.append((size * 1024, count or 0))
    distances = _text(folder / "distance").split()
    return NumaNode(
        id=number,
        memory_bytes=int(match.group(1)) * 1024 if match else 0,
        hugepages=tuple(pages),
        distances=tuple(int(each) for each in distances if each.isdigit()),
    )


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names: Iterable[str] = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match.group(1)) for name in names if (match := pattern.match(name)))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _list(path: Path) -> frozenset[int]:
    try:
        return parse_cpu_list(_text(path).strip())
    except ValueError:
        return frozenset()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
