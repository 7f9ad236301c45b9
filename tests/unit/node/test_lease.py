from __future__ import annotations

import asyncio
from typing import Any

from pykubelet.api.types import Lease, Node, ObjectMeta
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiConflict, ApiServerError
from pykubelet.node.lease import LeaseKeeper
from pykubelet.node.own_node import OwnNode
from tests.fakes.fake_kube import FakeKube

NAMESPACE = "kube-node-lease"


class LeaseFixture:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        self.own = OwnNode("box")
        self.keeper = LeaseKeeper(client=self.kube, own=self.own, clock=self.clock, duration=40, timeout=10.0)

    def node_appears(self) -> Node:
        node = self.kube.add(Node(metadata=ObjectMeta(name="box")))
        self.own.learn(node)
        return node

    @property
    def lease(self) -> Lease | None:
        return self.kube.find(Lease, "box", NAMESPACE)


async def test_the_lease_belongs_to_the_node_and_waits_for_it() -> None:
    bed = LeaseFixture()
    async with running(bed.keeper):
        await bed.clock.sleep(30)
        assert bed.lease is None
        node = bed.node_appears()
        await bed.clock.sleep(1)
        lease = bed.lease
    assert lease is not None
    assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("box", 40)
    assert lease.spec.renew_time is not None and len(lease.spec.renew_time.partition(".")[2]) == 7
    owner = lease.metadata.owner_references[0]
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Node", "box", node.metadata.uid)


async def test_it_is_renewed_at_a_quarter_of_its_duration_with_one_request() -> None:
    bed = LeaseFixture()
    bed.node_appears()
    async with running(bed.keeper):
        await bed.clock.sleep(56)  # five periods of 10 s and the jitter, not six
    assert len(bed.kube.calls_of("update", Lease)) == 5
    assert len(bed.kube.calls_of("get", Lease)) == 1
    assert len(bed.kube.calls_of("create", Lease)) == 1


async def test_a_lease_found_is_taken_over() -> None:
    bed = LeaseFixture()
    bed.kube.add(Lease(metadata=ObjectMeta(name="box", namespace=NAMESPACE)))
    bed.node_appears()
    async with running(bed.keeper):
        await bed.clock.sleep(1)
        lease = bed.lease
    assert lease is not None and lease.spec.holder_identity == "box"
    assert len(lease.metadata.owner_references) == 1
    assert bed.kube.calls_of("create", Lease) == []


async def test_a_conflict_is_resolved_by_reading_again() -> None:
    bed = LeaseFixture()
    bed.node_appears()
    async with running(bed.keeper):
        await bed.clock.sleep(1)
        bed.kube.fail_next("update", ApiConflict("changed", code=409))
        await bed.clock.sleep(11)
    assert len(bed.kube.calls_of("update", Lease)) == 2
    assert len(bed.kube.calls_of("get", Lease)) == 2


async def test_a_lease_deleted_by_somebody_is_made_again() -> None:
    bed = LeaseFixture()
    bed.node_appears()
    async with running(bed.keeper):
        await bed.clock.sleep(1)
        bed.kube.remove(Lease, "box", NAMESPACE)
        await bed.clock.sleep(11)
        assert bed.lease is not None


async def test_while_the_server_is_away_pauses_grow_and_it_is_back_within_seconds() -> None:
    bed = LeaseFixture()
    bed.node_appears()
    async with running(bed.keeper):
        await bed.clock.sleep(1)
        bed.kube.stop()
        await bed.clock.sleep(120)
        assert len(bed.kube.calls) < 40
        bed.kube.start()
        before = bed.kube.calls_of("update", Lease)
        await bed.clock.sleep(8)
        assert len(bed.kube.calls_of("update", Lease)) > len(before)


async def test_five_failures_lead_to_a_fresh_look() -> None:
    bed = LeaseFixture()
    bed.node_appears()
    async with running(bed.keeper):
        await bed.clock.sleep(1)
        bed.kube.fail_next("update", ApiServerError("etcd", code=500), times=5)
        await bed.clock.sleep(11)
    assert len(bed.kube.calls_of("update", Lease)) == 6
    assert len(bed.kube.calls_of("get", Lease)) == 2


async def test_a_request_that_hangs_is_given_up() -> None:
    bed = LeaseFixture()
    bed.node_appears()

    class Hanging(FakeKube):
        hangs = 1

        async def update(self, obj: Any, *, subresource: str = "") -> Any:
            if self.hangs:
                self.hangs -= 1
                await asyncio.sleep(3600)
            return await super().update(obj, subresource=subresource)

    kube = Hanging(bed.clock)
    kube.add(Lease(metadata=ObjectMeta(name="box", namespace=NAMESPACE)))
    keeper = LeaseKeeper(client=kube, own=bed.own, clock=bed.clock, duration=40, timeout=10.0)
    async with running(keeper):
        await bed.clock.sleep(10.5)
    found = kube.find(Lease, "box", NAMESPACE)
    assert found is not None and found.spec.holder_identity == "box"


async def test_silence_is_told_so_that_other_connections_are_left_too() -> None:
    bed = LeaseFixture()
    bed.node_appears()
    silent: list[float] = []

    async def heard() -> None:
        silent.append(bed.clock.monotonic())

    class Hanging(FakeKube):
        async def update(self, obj: Any, *, subresource: str = "") -> Any:
            await asyncio.sleep(3600)

    bed.kube.add(Lease(metadata=ObjectMeta(name="box", namespace=NAMESPACE)))
    hanging = Hanging(bed.clock)
    hanging.store = bed.kube.store
    keeper = LeaseKeeper(client=hanging, own=bed.own, clock=bed.clock, duration=40, timeout=10.0, on_silence=heard)
    began = bed.clock.monotonic()
    async with running(keeper):
        await bed.clock.sleep(25)
    assert [round(at - began) for at in silent] == [10, 20]
