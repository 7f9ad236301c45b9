"""Machines and pods for tests of the resource managers: sockets, NUMA nodes, cores, threads and caches by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pykubelet.api.types import Container, Pod, ResourceRequirements
from pykubelet.cm.cpu_manager import CpuOptions, StaticCpuPolicy
from pykubelet.cm.metrics import ResourceManagerMetrics
from pykubelet.cm.state import CpuState
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.topology import Cpu, Cpus, NumaNode, Topology, parse_cpu_list
from tests.builders import a_container, a_pod

GIB = 1 << 30


def a_machine(
    *,
    sockets: int = 1,
    nodes_per_socket: int = 1,
    sockets_per_node: int = 1,
    cores: int = 2,
    threads: int = 2,
    caches_per_node: int = 1,
    memory: int = 16 * GIB,
    hugepages: tuple[tuple[int, int], ...] = (),
) -> Topology:
    """`cores` of each NUMA node (of each socket where a node spans several); siblings are numbered one row apart."""
    groups = sockets * nodes_per_socket
    rows = groups * cores
    cpus = []
    for group in range(groups):
        socket = group // nodes_per_socket
        numa = group if sockets_per_node == 1 else socket // sockets_per_node
        for index in range(cores):
            core = group * cores + index
            cache = numa * caches_per_node + index * caches_per_node // cores if caches_per_node > 1 else socket
            for thread in range(threads):
                cpus.append(Cpu(id=core + thread * rows, core=core, socket=socket, numa=numa, cache=cache))
    count = len({cpu.numa for cpu in cpus})
    nodes = tuple(
        NumaNode(
            id=node,
            memory_bytes=memory,
            hugepages=hugepages,
            distances=tuple(
                10
                if node == other
                else 12
                if node // nodes_per_socket == other // nodes_per_socket
                else 20 + abs(node - other)
                for other in range(count)
            ),
        )
        for node in range(count)
    )
    return Topology(cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)), nodes=nodes)


BIG = a_machine(sockets=2, cores=32, threads=2)
"""Two sockets, a NUMA node each, 64 cores, 128 CPUs; siblings are 64 apart."""


def cpus(text: str) -> Cpus:
    return parse_cpu_list(text)


def whole(cpu: int | str, memory: str = "1Gi", **more: str) -> ResourceRequirements:
    amounts: dict[str, Any] = {
        "cpu": str(cpu),
        "memory": memory,
        **{name.replace("_", "-"): v for name, v in more.items()},
    }
    return ResourceRequirements(requests=dict(amounts), limits=dict(amounts))


def owner(name: str = "app", cpu: int | str = 1, memory: str = "1Gi", **fields: Any) -> Container:
    """A container that asks for whole CPUs."""
    return a_container(name, resources=whole(cpu, memory), **fields)


def guaranteed(name: str = "web", cpu: int | str = 1, memory: str = "1Gi") -> Pod:
    return a_pod(name, containers=[owner("app", cpu, memory)])


def static_cpus(
    folder: Path, topology: Topology, reserved: str = "0", options: CpuOptions | None = None, *, pod_level: bool = False
) -> tuple[StaticCpuPolicy, CpuState]:
    state = CpuState(folder / "cpu_manager_state", policy="static", pod_level=pod_level)
    policy = StaticCpuPolicy(
        topology=topology,
        reserved=cpus(reserved),
        options=options or CpuOptions(),
        state=state,
        metrics=ResourceManagerMetrics(Registry()),
        pod_level=pod_level,
    )
    state.load()
    policy.start()
    return policy, state


class StillClock(SystemClock):
    """For tests without a loop; no time passes."""

    def monotonic(self) -> float:
        return 0.0
