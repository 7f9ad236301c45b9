"""Watches that begin with the full set, on the fake and on an API server whose etcd is new enough for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from pykubelet.api.types import ConfigMap
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import load_kubeconfig
from pykubelet.clients.kube.port import Change, ChangeType, PatchType
from pykubelet.clients.kube.reflector import INITIAL_EVENTS_END, Query, Reflector
from pykubelet.clients.kube.transport import Transport
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import running
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.rough_wire import rough_wire
from tests.contracts.test_kube_contract import (
    NAMESPACE,
    REAL,
    ClusterSubject,
    FakeSubject,
    Subject,
    a_map,
    a_name,
    follows,
    made,
    next_change,
)


@pytest.fixture(scope="module")
def new_cluster() -> Iterator[Cluster]:
    with running_cluster(new_etcd=True) as cluster:
        yield cluster


@pytest.fixture(params=["fake", *(pytest.param(name, marks=pytest.mark.cluster) for name in REAL)])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return FakeSubject()
    return ClusterSubject(request.getfixturevalue("new_cluster"), REAL[request.param])


@pytest.mark.parametrize("version", ["0", ""], ids=["any", "newest"])
async def test_watch_may_begin_with_the_full_set(subject: Subject, version: str) -> None:
    async with subject.open() as kube:
        name = a_name()
        async with made(kube, a_map(name, v="1")) as first:
            # "0" gives what the server has at hand: with a watch it is known to have the object.
            selector = f"metadata.name={name}"
            seen = kube.watch(ConfigMap, NAMESPACE, resource_version="0", field_selector=selector)
            async with aclosing(seen):
                assert (await next_change(seen)).object == first
            changes = kube.watch(
                ConfigMap, NAMESPACE, resource_version=version, field_selector=selector, initial_events=True
            )
            async with aclosing(changes):
                added = await next_change(changes)
                assert (added.type, added.object) == (ChangeType.ADDED, first)
                end = await anext(changes)
                assert isinstance(end, Change) and end.type is ChangeType.BOOKMARK
                assert end.object.metadata.annotations == {INITIAL_EVENTS_END: "true"}
                assert int(end.object.metadata.resource_version) >= int(first.metadata.resource_version)
                await kube.patch(ConfigMap, name, {"data": {"v": "2"}}, patch_type=PatchType.MERGE, namespace=NAMESPACE)
                changed = await next_change(changes)
                assert (changed.type, changed.object.data) == (ChangeType.MODIFIED, {"v": "2"})


async def test_reflector_needs_one_watch_and_no_list(subject: Subject) -> None:
    async with subject.open() as kube:
        await follows(kube, subject.clock)
        assert kube.watch_lists.usable(subject.clock.monotonic()), "the server was found to have no such watches"


@pytest.mark.cluster
async def test_restarts_behind_a_rough_wire_lose_nothing(new_cluster: Cluster) -> None:
    """The long form of it: bench/restarts.py."""
    clock, source = SystemClock(), random.Random(11)
    names = [a_name() for _ in range(30)]
    admin = ClusterSubject(new_cluster, {})
    async with admin.open() as kube, rough_wire(new_cluster.port, clock=clock, source=source) as wire:
        wire.delay = 0.02
        login = load_kubeconfig(new_cluster.kubeconfig("rough", ["system:masters"], port=wire.port))
        client = RestKubeClient(Transport(ServerConnections(login, clock=clock, environ={}), agent="contract"))
        live = [
            Reflector(
                client=client,
                query=Query(kind=ConfigMap, namespace=NAMESPACE, field_selector=f"metadata.name={name}"),
                clock=clock,
            )
            for name in names
        ]
        for name in names:
            await kube.create(a_map(name, v="0"))
        async with running(*live):
            for restart in (1, 2):
                wire.drop(0.5)
                await asyncio.to_thread(new_cluster.stop_apiserver)
                await asyncio.to_thread(new_cluster.start_apiserver)
                for name in names:
                    await kube.update(a_map(name, v=str(restart)))
                async with asyncio.timeout(60):
                    while not all(_value(each, name) == str(restart) for each, name in zip(live, names, strict=True)):
                        await clock.sleep(0.1)
        await client.close()


def _value(live: Reflector[ConfigMap], name: str) -> str:
    found = live.get(name, NAMESPACE)
    return found.data.get("v", "") if found is not None else ""
