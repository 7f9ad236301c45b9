"""Places when there are too many callers: who loses one, who gets one, whose turn it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pykubelet.server.admission import FairSlots, PendingConnection, PendingConnections, Shares, address_of


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.1", 4), "10.0.0.1"),
        (("::ffff:10.0.0.1", 4, 0, 0), "10.0.0.1"),
        (("2001:db8:0:1:aa::1", 4, 0, 0), "2001:0db8:0000:0001::/64"),
        (("2001:db8:0:1:bb::2", 4, 0, 0), "2001:0db8:0000:0001::/64"),
        (("fe80::1%eth0", 4, 0, 2), "fe80:0000:0000:0000::/64"),
        ("", "local"),
    ],
)
def test_whom_a_connection_counts_for(peer: Any, address: str) -> None:
    assert address_of(peer) == address


def test_the_address_with_the_most_loses_its_oldest() -> None:
    dropped: list[str] = []
    pending_connections = PendingConnections(4)

    def arrive(address: str, name: str) -> PendingConnection:
        pending = PendingConnection(address, drop=lambda: dropped.append(name))
        pending_connections.enter(pending)
        return pending

    good = arrive("10.0.0.1", "good")
    for number in range(10):
        arrive("10.0.0.2", f"bad {number}")
    assert dropped == [f"bad {number}" for number in range(7)]
    assert len(pending_connections) == 4
    pending_connections.leave(good)
    pending_connections.leave(good)
    assert len(pending_connections) == 3
    arrive("10.0.0.3", "other")
    assert pending_connections.drop_one()
    assert dropped[-1] == "bad 7"
    for _ in range(3):
        assert pending_connections.drop_one()
    assert not pending_connections.drop_one()


def test_everybody_may_have_as_many_requests_as_are_free() -> None:
    shares = Shares(100)
    taken = [key for key in ("a",) * 200 + ("b",) * 200 + ("c",) * 200 if shares.take(key)]
    assert [taken.count(key) for key in "abc"] == [50, 25, 13]
    assert shares.take("somebody new")
    for key in taken:
        shares.give_back(key)
    assert sum(shares.take("d") for _ in range(200)) == 50


async def test_addresses_take_turns() -> None:
    turns, order = FairSlots(), list[str]()

    async def work(address: str, name: str) -> None:
        async with turns.slot(address):
            order.append(name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(work("crowd", f"crowd {number}"))
        group.create_task(work("one", "one"))
    assert order == ["crowd 0", "crowd 1", "one", "crowd 2", "crowd 3", "crowd 4"]


async def test_who_gives_up_waiting_takes_no_turn() -> None:
    turns, done = FairSlots(), list[int]()
    tasks: list[asyncio.Task[None]] = []

    async def work(number: int) -> None:
        async with turns.slot("x"):
            done.append(number)
            await asyncio.sleep(1)
        if number == 0:
            tasks[2].cancel()  # its turn has just come, and it does not know yet

    tasks += [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0.5)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert done == [0, 3]
    async with asyncio.timeout(1), turns.slot("y"):
        done.append(9)
    assert done == [0, 3, 9]
