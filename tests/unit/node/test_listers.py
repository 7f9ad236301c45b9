"""Services and runtime classes: read only when asked for, then from a live copy."""

from __future__ import annotations

import pytest

from pykubelet.api.types import Node, ObjectMeta, RuntimeClass, Service
from pykubelet.clients.kube.port import Change, ChangeType
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import PykubeletError
from pykubelet.node.listers import RuntimeClasses, RuntimeClassMissing, ServiceLister
from pykubelet.node.own_node import OwnNode
from tests.builders import a_pod
from tests.fakes.fake_kube import FakeKube


def service(name: str, namespace: str) -> Service:
    return Service(metadata=ObjectMeta(name=name, namespace=namespace))


async def test_services_are_read_when_the_first_pod_asks() -> None:
    clock = LoopClock()
    kube = FakeKube(clock)
    kube.add(service("kubernetes", "default"))
    kube.add(service("web", "shop"))
    lister = ServiceLister(Reflector(client=kube, query=Query(kind=Service), clock=clock))
    async with running(lister):
        await clock.sleep(60)
        assert kube.calls == []
        found = await lister.services("shop")
        assert found is not None and [each.metadata.name for each in found] == ["web"]
        kube.add(service("db", "shop"))
        await clock.sleep(0.1)
        found = await lister.services("shop")
        assert found is not None and len(found) == 2
    assert [call.verb for call in kube.calls] == ["watch"]


async def test_services_that_cannot_be_read_are_unknown() -> None:
    clock = LoopClock()
    kube = FakeKube(clock)
    kube.stop()
    lister = ServiceLister(Reflector(client=kube, query=Query(kind=Service), clock=clock))
    async with running(lister):
        assert await lister.services("shop") is None


def classes(kube: FakeKube, clock: LoopClock) -> RuntimeClasses:
    return RuntimeClasses(Reflector(client=kube, query=Query(kind=RuntimeClass), clock=clock), client=kube)


async def test_a_pod_without_a_class_needs_no_lookup() -> None:
    clock = LoopClock()
    kube = FakeKube(clock)
    found = classes(kube, clock)
    async with running(found):
        assert await found.handler_for(a_pod()) == ""
        await clock.sleep(10)
    assert kube.calls == []


async def test_the_handler_of_a_class_is_found() -> None:
    clock = LoopClock()
    kube = FakeKube(clock)
    kube.add(RuntimeClass(metadata=ObjectMeta(name="strict"), handler="gvisor"))
    found = classes(kube, clock)
    async with running(found):
        assert await found.handler_for(a_pod(runtime_class_name="strict")) == "gvisor"
        with pytest.raises(RuntimeClassMissing, match='RuntimeClass "nope" not found'):
            await found.handler_for(a_pod(runtime_class_name="nope"))
        kube.stop()
        assert await found.handler_for(a_pod(runtime_class_name="strict")) == "gvisor"
        with pytest.raises(PykubeletError, match="failed to lookup RuntimeClass nope"):
            await found.handler_for(a_pod(runtime_class_name="nope"))


def test_of_two_states_of_the_node_the_newer_counts() -> None:
    own = OwnNode("box")
    heard: list[str | None] = []
    own.listen(lambda node: heard.append(node.metadata.resource_version))
    for version in ("9", "10", "9"):
        own.learn(Node(metadata=ObjectMeta(name="box", uid="a", resource_version=version)))
    own.learn(Node(metadata=ObjectMeta(name="box", uid="b", resource_version="1")))
    assert heard == ["9", "10", "1"]
    own.changed(Change(ChangeType.DELETED, Node(metadata=ObjectMeta(name="box", uid="b"))))
    assert own.node is None and own.owner() is None and own.host_ips() == ()
