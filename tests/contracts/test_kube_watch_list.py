"""Watches that begin with the full set, on the fake and on an API server whose etcd is new enough for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing

import pytest

from pykubelet.api.types import ConfigMap
from pykubelet.clients.kube.port import Change, ChangeType, PatchType
from pykubelet.clients.kube.reflector import INITIAL_EVENTS_END
from tests.bed.cluster import Cluster, running_cluster
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
