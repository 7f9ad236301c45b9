"""The machine's topology read from a made-up /sys."""

from __future__ import annotations

from pathlib import Path

from pykubelet.clients.host.machine import read_topology
from pykubelet.model.topology import Cpu, NumaNode
from tests.harness import MACHINE

GIB = 1 << 30


def write(root: Path, **files: str) -> None:
    for path, text in files.items():
        file = root / "sys/devices/system" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def add_cpu(root: Path, number: int, *, core: int, socket: int, node: int | None = None, **more: str) -> None:
    files = {"topology/core_id": str(core), "topology/physical_package_id": str(socket), **more}
    write(root, **{f"cpu/cpu{number}/{name}": text for name, text in files.items()})
    if node is not None:
        (root / f"sys/devices/system/node/node{node}/cpu{number}").mkdir(parents=True)


def add_node(root: Path, number: int, memory_kb: int, distance: str, pages: int = 0) -> None:
    write(
        root,
        **{
            f"node/node{number}/meminfo": f"Node {number} MemTotal:    {memory_kb} kB\nNode {number} MemFree: 1 kB",
            f"node/node{number}/distance": distance,
            f"node/node{number}/hugepages/hugepages-2048kB/nr_hugepages": str(pages),
        },
    )


def test_two_sockets_with_siblings_and_memory(tmp_path: Path) -> None:
    for node in (0, 1):
        add_node(tmp_path, node, 8 << 20, "10 21" if node == 0 else "21 10", pages=node * 4)
        for thread in (0, 1):
            # Both sockets count their cores from 0.
            add_cpu(tmp_path, node + thread * 2, core=0, socket=node, node=node)
    found = read_topology(MACHINE, tmp_path)
    assert [(cpu.id, cpu.core, cpu.socket, cpu.numa) for cpu in found.cpus] == [
        (0, 0, 0, 0),
        (1, 1, 1, 1),
        (2, 0, 0, 0),
        (3, 1, 1, 1),
    ]
    assert found.nodes == (
        NumaNode(id=0, memory_bytes=8 * GIB, hugepages=((2 << 20, 0),), distances=(10, 21)),
        NumaNode(id=1, memory_bytes=8 * GIB, hugepages=((2 << 20, 4),), distances=(21, 10)),
    )
    assert found.threads_per_core == 2


def test_offline_cpus_do_not_count(tmp_path: Path) -> None:
    add_node(tmp_path, 0, 1024, "10")
    add_cpu(tmp_path, 0, core=0, socket=0, node=0)
    add_cpu(tmp_path, 1, core=1, socket=0, node=0, online="0")
    add_cpu(tmp_path, 2, core=2, socket=0, node=0, online="1")
    assert read_topology(MACHINE, tmp_path).all_cpus == {0, 2}


def test_caches_shared_by_some_cores_of_a_node(tmp_path: Path) -> None:
    add_node(tmp_path, 0, 1024, "10")
    for cpu in range(4):
        shared = "0-1" if cpu < 2 else "2-3"
        own = {"cache/index0/level": "1", "cache/index0/shared_cpu_list": str(cpu), "cache/index0/id": str(cpu)}
        last = {"cache/index3/level": "3", "cache/index3/shared_cpu_list": shared, "cache/index3/id": str(cpu // 2 + 7)}
        add_cpu(tmp_path, cpu, core=cpu, socket=0, node=0, **own, **last)
    assert [cpu.cache for cpu in read_topology(MACHINE, tmp_path).cpus] == [7, 7, 8, 8]


def test_a_cache_of_the_whole_node_says_nothing(tmp_path: Path) -> None:
    add_node(tmp_path, 0, 1024, "10")
    for cpu in range(2):
        last = {"cache/index3/level": "3", "cache/index3/shared_cpu_list": "0-1", "cache/index3/id": "5"}
        add_cpu(tmp_path, cpu, core=cpu, socket=3, node=0, **last)
    assert [cpu.cache for cpu in read_topology(MACHINE, tmp_path).cpus] == [3, 3]


def test_a_kernel_without_numa(tmp_path: Path) -> None:
    for cpu in range(2):
        add_cpu(tmp_path, cpu, core=cpu, socket=0)
    found = read_topology(MACHINE, tmp_path)
    assert found.cpu_nodes == (0,) and found.nodes[0].memory_bytes == MACHINE.memory_bytes


def test_a_host_that_tells_nothing_is_flat(tmp_path: Path) -> None:
    found = read_topology(MACHINE, tmp_path)
    assert found.cpus == tuple(Cpu(id=each, core=each, socket=0, numa=0, cache=0) for each in range(MACHINE.cpus))
    assert found.nodes[0].memory_bytes == MACHINE.memory_bytes


def test_this_host_is_read() -> None:
    found = read_topology(MACHINE)
    assert found.cpus and found.nodes
    assert {cpu.numa for cpu in found.cpus} <= {node.id for node in found.nodes}
