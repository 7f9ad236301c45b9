"""Which CPUs are taken: tables for packed and distributed, and the 128-CPU machine."""

from __future__ import annotations

import pytest

from pykubelet.cm.cpu_assignment import take_distributed, take_packed
from pykubelet.cm.errors import NotEnoughCpus
from pykubelet.model.topology import Cpu, NumaNode, Topology
from tests.unit.cm.machines import BIG, a_machine, cpus

SMALL = a_machine(sockets=2, cores=3, threads=2)
"""Cores 0-2 on socket 0, 3-5 on socket 1; siblings are 6 apart."""
FOUR_NODES = a_machine(sockets=2, nodes_per_socket=2, cores=4, threads=2)
"""NUMA nodes 0, 1 on socket 0, and 2, 3 on socket 1; 4 cores each; siblings are 16 apart."""
CACHED = a_machine(sockets=1, cores=8, threads=2, caches_per_node=2)
"""Cores 0-3 share a cache, cores 4-7 another; siblings are 8 apart."""


@pytest.mark.parametrize(
    ("free", "count", "taken"),
    [
        ("0-127", 0, ""),
        ("0-127", 1, "0"),
        ("0-127", 2, "0,64"),
        ("0-127", 3, "0-1,64"),
        ("0-127", 64, "0-31,64-95"),
        ("0-127", 66, "0-32,64-96"),
        ("0-127", 128, "0-127"),
        # Socket 0 has fewer left: it is filled before the other is touched.
        ("1-63,65-127", 2, "1,65"),
        ("1-127", 1, "64"),
        ("10-127", 4, "10-11,74-75"),
        # A whole socket is wanted and only the second is whole.
        ("1-127", 64, "32-63,96-127"),
        # Single threads come from cores that are broken already.
        ("0-3,65-67", 1, "0"),
    ],
)
def test_packed_on_two_sockets(free: str, count: int, taken: str) -> None:
    assert take_packed(BIG, cpus(free), count) == cpus(taken)


@pytest.mark.parametrize(
    ("free", "count", "taken"),
    [
        ("0-31", 16, "0-7,16-23"),  # the whole of socket 0, which is NUMA nodes 0 and 1
        ("0-31", 8, "0-3,16-19"),  # a NUMA node
        ("1-31", 8, "4-7,20-23"),
        ("1-31", 2, "1,17"),
        ("0-31", 24, "0-11,16-27"),
    ],
)
def test_sockets_come_first_where_they_are_coarser(free: str, count: int, taken: str) -> None:
    assert take_packed(FOUR_NODES, cpus(free), count) == cpus(taken)


@pytest.mark.parametrize(
    ("free", "count", "taken"),
    [("0-11", 2, "0-1"), ("0-11", 4, "0-2,6"), ("0-11", 6, "0-2,6-8"), ("1-11", 3, "1-2,6")],
)
def test_spread_over_cores(free: str, count: int, taken: str) -> None:
    assert take_packed(SMALL, cpus(free), count, spread=True) == cpus(taken)


@pytest.mark.parametrize(
    ("free", "count", "taken"),
    [
        ("0-15", 8, "0-3,8-11"),
        # Fits into the broken cache as a whole.
        ("1-7,9-15", 6, "1-3,9-11"),
        # As upstream: of a cache only its lowest cores are looked at, and here they are not whole.
        ("1-15", 6, "4-6,12-14"),
        # Does not: goes to the one that is whole, rather than over both.
        ("1-15", 8, "4-7,12-15"),
        ("0-15", 3, "0-1,8"),
        # Nothing holds all of it: as without the option.
        ("2-7,10-15", 12, "2-7,10-15"),
    ],
)
def test_by_cache(free: str, count: int, taken: str) -> None:
    assert take_packed(CACHED, cpus(free), count, by_cache=True) == cpus(taken)


@pytest.mark.parametrize(
    ("free", "count", "group", "taken"),
    [
        ("0-31", 4, 1, "0-1,16-17"),  # one node holds it
        ("0-31", 10, 1, "0-2,4-6,16-17,20-21"),  # 5 and 5 rather than 8 and 2
        ("0-31", 12, 2, "0-2,4-6,16-18,20-22"),
        ("0-31", 26, 2, "0-3,4-6,8-10,12-14,16-19,20-22,24-26,28-30"),
        ("0-31", 5, 2, "0-2,16-17"),  # does not divide: packed
        ("0-31", 32, 2, "0-31"),
    ],
)
def test_distributed_over_numa_nodes(free: str, count: int, group: int, taken: str) -> None:
    assert take_distributed(FOUR_NODES, cpus(free), count, group=group) == cpus(taken)


def test_not_enough_is_said_in_upstreams_words() -> None:
    for take in (take_packed, take_distributed):
        with pytest.raises(NotEnoughCpus) as caught:
            take(BIG, cpus("0-3"), 5)
        assert str(caught.value) == "not enough cpus available to satisfy request: requested=5, available=4"


def test_a_core_with_more_threads_than_most_is_not_taken_half_owned() -> None:
    """Performance cores with two threads beside small ones with one: half a core is never taken for a whole."""
    threads = [(0, 0), (1, 0), (2, 2), (3, 3), (4, 4)]
    hybrid = Topology(
        cpus=tuple(Cpu(id=cpu, core=core, socket=0, numa=0, cache=0) for cpu, core in threads),
        nodes=(NumaNode(id=0),),
    )
    assert take_packed(hybrid, cpus("1-4"), 1) <= cpus("1-4")
    assert take_packed(hybrid, cpus("1-4"), 4) == cpus("1-4")


def test_groups_that_do_not_fit_a_node_do_not_loop_for_ever() -> None:
    free = cpus("0-1,16,4-5,20")  # three on each of two nodes, groups of two
    assert take_distributed(FOUR_NODES, free, 6, group=2) == free
