"""One object that cannot be read: its neighbours come, the watch goes on, and everybody is told once."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pykubelet.api.types import Pod, SubjectAccessReview, TokenRequest
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.decoding import LARGE, UnreadableObjects
from pykubelet.clients.kube.port import Change, Unreadable
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiServerError
from tests.deep import deep
from tests.fakes.fake_transport import FakeTransport

DEEP = f'"managedFields":[{{"fieldsV1":{deep(4000)}}}]'
YEAR_0 = '"managedFields":[{"time":"0000-01-01T00:00:00Z"}],"creationTimestamp":"0000-01-01T00:00:00Z"'
PATH = "/api/v1/pods"


def pod_json(name: str, version: int, *, more: str = "", spec: str = "{}", uid: str = "") -> str:
    metadata = f'"name":"{name}","namespace":"ns","uid":"{uid or name}","resourceVersion":"{version}"'
    return f'{{"metadata":{{{metadata}{"," if more else ""}{more}}},"spec":{spec}}}'


def bad_pod(name: str, version: int, *, more: str = "", uid: str = "") -> str:
    return pod_json(name, version, more=more, spec='{"containers":"none"}', uid=uid)


def a_list(*items: str, version: int = 1) -> bytes:
    return f'{{"metadata":{{"resourceVersion":"{version}"}},"items":[{",".join(items)}]}}'.encode()


def event(type_: str, obj: str) -> bytes:
    return f'{{"type":"{type_}","object":{obj}}}'.encode()


class Heard:
    def __init__(self) -> None:
        self.metrics = Registry()
        self.unreadable = UnreadableObjects(self.metrics)
        self.told: list[str] = []
        self.changes: list[str] = []
        self._news = asyncio.Event()
        self.unreadable.listen(lambda found: self.told.append(found.shown))

    def on_change(self, change: Change[Pod]) -> None:
        ending = " ending" if change.object.metadata.deletion_timestamp is not None else ""
        self.changes.append(f"{change.type.value} {change.object.metadata.name}{ending}")
        self._news.set()

    async def until(self, change: str) -> None:
        while change not in self.changes:
            self._news.clear()
            await self._news.wait()

    @property
    def counted(self) -> float:
        return self.metrics.counter("pykubelet_unreadable_objects_total", "", ("resource",)).value("pods")


@asynccontextmanager
async def reflecting(transport: FakeTransport, heard: Heard) -> AsyncIterator[Reflector[Pod]]:
    client = RestKubeClient(transport.as_transport, unreadable=heard.unreadable)
    live = Reflector(
        client=client,
        query=Query(kind=Pod),
        clock=LoopClock(),
        on_change=heard.on_change,
        source=random.Random(7),
    )
    try:
        async with running(live):
            await live.wait_synced()
            yield live
    finally:
        await client.close()


async def settle() -> None:
    await asyncio.sleep(0.01)


def names(live: Reflector[Pod]) -> list[str]:
    return sorted(pod.metadata.name or "" for pod in live.all())


@pytest.mark.parametrize("odd", [DEEP, YEAR_0])
async def test_what_a_server_stores_and_go_reads_is_read(odd: str) -> None:
    transport, heard = FakeTransport(a_list(pod_json("a", 1), pod_json("odd", 1, more=odd), pod_json("b", 1))), Heard()
    async with reflecting(transport, heard) as live:
        assert names(live) == ["a", "b", "odd"]
        transport.send(event("ADDED", pod_json("odd2", 2, more=odd)))
        transport.send(event("ADDED", pod_json("c", 3)))
        await settle()
        assert names(live) == ["a", "b", "c", "odd", "odd2"]
    assert heard.told == []


async def test_neighbours_of_an_unreadable_object_are_seen_and_the_watch_goes_on_behind_it() -> None:
    transport, heard = FakeTransport(a_list(pod_json("a", 1), bad_pod("bad", 1), pod_json("b", 1))), Heard()
    async with reflecting(transport, heard) as live:
        assert names(live) == ["a", "b"]
        transport.send(event("ADDED", bad_pod("worse", 7)))
        transport.send(event("ADDED", pod_json("c", 8)))
        transport.send(event("MODIFIED", bad_pod("worse", 9)))
        transport.hang_up()
        await asyncio.sleep(2)
        assert names(live) == ["a", "b", "c"]
        assert transport.watched_from == ["1", "9"], "the version of what cannot be read counts too"
        assert [each.shown for each in heard.unreadable.now()] == ["Pod ns/bad", "Pod ns/worse"]
        assert all("spec.containers" in each.why for each in heard.unreadable.now())
        transport.send(event("MODIFIED", pod_json("worse", 10)))
        transport.send(event("DELETED", bad_pod("bad", 11)))
        await settle()
        assert names(live) == ["a", "b", "c", "worse"]
        assert heard.unreadable.now() == []
    assert heard.told == ["Pod ns/bad", "Pod ns/worse"]
    assert heard.counted == 4


async def test_the_last_readable_version_stays_until_the_object_goes() -> None:
    transport, heard = (
        FakeTransport(a_list(pod_json("a", 1), pod_json("b", 1), pod_json("c", 1), pod_json("d", 1))),
        Heard(),
    )
    async with reflecting(transport, heard) as live:
        heard.changes.clear()
        transport.send(event("MODIFIED", bad_pod("a", 2)))
        transport.send(event("DELETED", bad_pod("b", 3)))
        ending = '"deletionTimestamp":"2024-01-01T00:00:00Z","deletionGracePeriodSeconds":5'
        transport.send(event("MODIFIED", bad_pod("c", 4, more=ending)))
        transport.send(event("MODIFIED", bad_pod("c", 5, more=ending)))
        transport.send(event("ADDED", bad_pod("d", 6, uid="another")))
        await settle()
        assert names(live) == ["a", "c"]
        assert heard.changes == ["DELETED b", "MODIFIED c ending", "DELETED d"]
        kept = live.get("c", "ns")
        assert kept is not None and kept.metadata.deletion_grace_period_seconds == 5
        assert {each.name for each in heard.unreadable.now()} == {"a", "c", "d"}
    assert heard.unreadable.now() == [], "a copy that is no longer kept lacks nothing"


async def test_a_list_keeps_what_it_knew_of_an_object_it_cannot_read() -> None:
    transport, heard = FakeTransport(a_list(pod_json("a", 1), pod_json("b", 1), pod_json("c", 1))), Heard()
    async with reflecting(transport, heard) as live:
        ending = '"deletionTimestamp":"2024-01-01T00:00:00Z"'
        transport.listed = a_list(bad_pod("a", 5), bad_pod("b", 5, more=ending), bad_pod("c", 5, uid="new"), version=9)
        gone = '{"code":410,"reason":"Expired"}'
        transport.send(event("ERROR", gone))
        await asyncio.sleep(1)
        assert names(live) == ["a", "b"]
        assert transport.watched_from == ["1", "9"]
        assert "MODIFIED b ending" in heard.changes and "DELETED c" in heard.changes


async def test_an_event_of_a_new_type_is_left_out() -> None:
    transport, heard = FakeTransport(), Heard()
    async with reflecting(transport, heard) as live:
        transport.send(event("RENAMED", pod_json("a", 2)))
        transport.send(event("ADDED", pod_json("b", 3)))
        await settle()
        assert names(live) == ["b"]


async def test_one_log_line_however_often_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    transport, heard = FakeTransport(a_list(bad_pod("bad", 1))), Heard()
    with caplog.at_level(logging.WARNING):
        async with reflecting(transport, heard):
            for version in range(2, 50):
                transport.send(event("MODIFIED", bad_pod("bad", version)))
            await settle()
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
        "object from the API server cannot be read and is left out"
    ]
    assert heard.counted == 49


async def test_a_single_object_that_cannot_be_read_is_an_error_of_whoever_asked() -> None:
    transport, heard = FakeTransport(), Heard()
    transport.answers = {
        "/api/v1/namespaces/ns/pods/bad": bad_pod("bad", 1).encode(),
        "/api/v1/namespaces/ns/pods/deep": pod_json("deep", 1, more=DEEP).encode(),
        "/apis/authorization.k8s.io/v1/subjectaccessreviews": b'{"status":"yes"}',
        "/api/v1/namespaces/ns/serviceaccounts/me/token": b'{"status":{"token":7}}',
    }
    client = RestKubeClient(transport.as_transport, unreadable=heard.unreadable)
    assert (await client.get(Pod, "deep", "ns")).metadata.name == "deep"
    with pytest.raises(ApiServerError, match=r"spec\.containers"):
        await client.get(Pod, "bad", "ns")
    with pytest.raises(ApiServerError, match="status"):
        await client.create(SubjectAccessReview())
    with pytest.raises(ApiServerError, match=r"status\.token"):
        await client.create_token("ns", "me", TokenRequest())
    assert heard.told[0] == "Pod ns/bad" and len(heard.told) == 3
    await client.close()


@pytest.mark.real_loop
@pytest.mark.parametrize("depth", [3, 5000])
async def test_large_lists_are_read_the_same_way(depth: int) -> None:
    big = f'"annotations":{{"x":"{"y" * LARGE}"}},"managedFields":[{{"fieldsV1":{deep(depth)}}}]'
    transport, heard = (
        FakeTransport(a_list(pod_json("a", 1, more=big), bad_pod("bad", 1), pod_json("b", 1), version=4)),
        Heard(),
    )
    async with reflecting(transport, heard) as live:
        assert names(live) == ["a", "b"]
        transport.send(event("ADDED", pod_json("c", 5, more=big)))
        transport.send(event("ADDED", pod_json("d", 6)))
        async with asyncio.timeout(10):
            await heard.until("ADDED d")
        assert names(live) == ["a", "b", "c", "d"]
        assert transport.watched_from == ["4"]
    assert heard.told == ["Pod ns/bad"]


def test_what_is_told_has_bounds() -> None:
    book = UnreadableObjects()
    told: list[Unreadable] = []
    book.listen(told.append)
    for number in range(3000):
        book.count(Unreadable(kind="Pod", resource="pods", name=str(number), why="x"))
    assert len(told) == 3000
    book.count(Unreadable(kind="Pod", resource="pods", name="2000", why="x"))
    assert len(told) == 3000
    book.count(Unreadable(kind="Pod", resource="pods", name="1999", why="x"))
    assert len(told) == 3001


async def test_words_of_the_server_are_cut() -> None:
    key = "k" * 100_000
    transport, heard = FakeTransport(a_list(pod_json("a", 1, more=f'"labels":{json.dumps({key: {}})}'))), Heard()
    found: list[Any] = []
    heard.unreadable.listen(found.append)
    async with reflecting(transport, heard):
        assert len(found) == 1 and len(found[0].why) <= 300
