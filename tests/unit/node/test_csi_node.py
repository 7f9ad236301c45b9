"""The CSINode object and what drivers add to the Node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pykubelet.api.types import AttachedVolume, CSINode, CSINodeDriver, Node, NodeStatus, ObjectMeta, OwnerReference
from pykubelet.clients.plugins.port import CsiNodeInfo
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import TaskSet, running
from pykubelet.node.csi_node import (
    MIGRATED,
    CsiNodeKeeper,
    TopologyConflict,
    entry_of,
    node_metadata,
    with_driver,
)
from pykubelet.node.own_node import NodeAttachments, OwnNode
from pykubelet.signals import NodeStatusChanged, Signals
from tests.builders import a_pod
from tests.fakes.fake_kube import FakeKube


def a_node(uid: str = "u1", **fields: object) -> Node:
    return Node(metadata=ObjectMeta(name="here", uid=uid, **fields))  # type: ignore[arg-type]


@asynccontextmanager
async def keeping(kube: FakeKube) -> AsyncIterator[tuple[CsiNodeKeeper, OwnNode]]:
    own = OwnNode("here")
    keeper = CsiNodeKeeper(client=kube, own=own, clock=LoopClock(), signals=Signals())
    async with running(keeper):
        own.learn(await kube.create(a_node()))
        await asyncio.sleep(1)
        yield keeper, own


async def test_it_is_made_for_this_very_node() -> None:
    kube = FakeKube(LoopClock())
    async with keeping(kube) as (keeper, own):
        made = await kube.get(CSINode, "here")
        assert own.node is not None
        assert [each.uid for each in made.metadata.owner_references] == [own.node.metadata.uid]
        assert made.metadata.annotations[MIGRATED].count(",") == 6
        assert keeper.problems() == ()


async def test_one_of_an_earlier_node_is_replaced() -> None:
    kube = FakeKube(LoopClock())
    old = CSINode(metadata=ObjectMeta(name="here", owner_references=[OwnerReference(uid="gone")]))
    await kube.create(old)
    async with keeping(kube) as (_, own):
        made = await kube.get(CSINode, "here")
        assert own.node is not None
        assert [each.uid for each in made.metadata.owner_references] == [own.node.metadata.uid]


async def test_drivers_come_and_go() -> None:
    kube = FakeKube(LoopClock())
    async with keeping(kube) as (keeper, _):
        await keeper.add_driver("b", CsiNodeInfo(node_id="n2"))
        await keeper.add_driver("a", CsiNodeInfo(node_id="n1", max_volumes=7, topology={"zone": "z1"}))
        made = await kube.get(CSINode, "here")
        assert [(each.name, each.node_id, each.topology_keys) for each in made.spec.drivers] == [
            ("b", "n2", []),
            ("a", "n1", ["zone"]),
        ]
        node = await kube.get(Node, "here")
        assert node.metadata.annotations["csi.volume.kubernetes.io/nodeid"] == '{"a": "n1", "b": "n2"}'
        assert node.metadata.labels["zone"] == "z1"
        await keeper.remove_driver("a")
        await keeper.remove_driver("b")
        assert (await kube.get(CSINode, "here")).spec.drivers == []
        assert "csi.volume.kubernetes.io/nodeid" not in (await kube.get(Node, "here")).metadata.annotations


def test_entries() -> None:
    entry = entry_of("a", CsiNodeInfo(node_id="n", max_volumes=2**40, topology={"z": "1", "r": "2"}))
    assert entry.allocatable is not None and entry.allocatable.count == 2**31 - 1
    assert entry.topology_keys == ["r", "z"]
    assert entry_of("a", CsiNodeInfo(node_id="n")).allocatable is None
    old = CSINodeDriver(name="a", node_id="old")
    assert with_driver([old, CSINodeDriver(name="b")], entry) == [CSINodeDriver(name="b"), entry]


def test_a_label_that_says_something_else_is_a_conflict() -> None:
    node = a_node(labels={"zone": "z1"})
    with pytest.raises(TopologyConflict, match='label zone of this Node is "z1", but driver a says "z2"'):
        node_metadata(node, "a", CsiNodeInfo(node_id="n", topology={"zone": "z2"}))


def test_nothing_to_change() -> None:
    node = a_node(annotations={"csi.volume.kubernetes.io/nodeid": '{"a":"n"}'}, labels={"zone": "z"})
    assert node_metadata(node, "a", CsiNodeInfo(node_id="n", topology={"zone": "z"})) == {}
    assert node_metadata(a_node(), "a", None) == {}


async def test_waiting_for_attachment_needs_both_words() -> None:
    own, asked = OwnNode("here"), []
    signals = Signals()
    signals.subscribe(NodeStatusChanged, lambda signal: asked.append(1))
    attachments = NodeAttachments(own, signals)
    own.listen(attachments.changed)
    waiting = asyncio.ensure_future(attachments.wait_attached(a_pod(), "csi/d^h"))
    await asyncio.sleep(1)
    assert asked == [1]
    attached = NodeStatus(volumes_attached=[AttachedVolume(name="csi/d^h", device_path="/dev/x")])
    own.learn(Node(metadata=ObjectMeta(name="here", uid="u", resource_version="2"), status=attached))
    await asyncio.sleep(1)
    assert not waiting.done()
    attachments.reported(["csi/d^h"])
    assert await waiting == "/dev/x"


async def test_drivers_that_come_at_once_do_not_overwrite_each_other() -> None:
    class SlowKube(FakeKube):
        async def patch(self, *args: Any, **fields: Any) -> Any:
            await asyncio.sleep(1)
            return await super().patch(*args, **fields)

    kube = SlowKube(LoopClock())
    async with keeping(kube) as (keeper, _):
        async with TaskSet("test") as tasks:
            for name in ("a", "b", "c"):
                tasks.spawn(keeper.add_driver(name, CsiNodeInfo(node_id=f"n-{name}")), name=name)
            await asyncio.sleep(30)
        node = await kube.get(Node, "here")
        ids = node.metadata.annotations["csi.volume.kubernetes.io/nodeid"]
        assert ids == '{"a": "n-a", "b": "n-b", "c": "n-c"}'
        assert {each.name for each in (await kube.get(CSINode, "here")).spec.drivers} == {"a", "b", "c"}
