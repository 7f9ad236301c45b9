"""List and watch on the fake server: nothing is lost, whatever breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from pykubelet.api.types import ConfigMap, ObjectMeta
from pykubelet.clients.kube import reflector as reflector_module
from pykubelet.clients.kube.port import ASK_AGAIN, Change, ChangeType, Sent, WatchLists
from pykubelet.clients.kube.reflector import INITIAL_EVENTS_END, SET_SILENCE, Query, Reflector, list_all
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiDown, ApiServerError, Expired, Forbidden, TooManyRequests
from tests.fakes.fake_kube import Call, FakeKube

QUERY = Query(kind=ConfigMap, namespace="default")


def a_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


@pytest.fixture(params=[True, False], ids=["watch-list", "list"], autouse=True)
def _server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test on a server whose watches may begin with the full set, and on one that lists only."""
    monkeypatch.setattr(FakeKube, "has_watch_lists", request.param)


def full_sets(kube: FakeKube) -> int:
    """How often the full set was asked for in vain or not, in whichever way the server has."""
    if kube.has_watch_lists:
        return len([call for call in kube.calls_of("watch") if call.body in ("0", "")])
    return len(kube.calls_of("list"))


class Heard:
    def __init__(self) -> None:
        self.sets: list[list[str]] = []
        self.changes: list[tuple[str, str]] = []

    def on_set(self, items: Any) -> None:
        self.sets.append([item.metadata.name for item in items])

    def on_change(self, change: Change[ConfigMap]) -> None:
        self.changes.append((change.type.value, change.object.metadata.name or ""))


@asynccontextmanager
async def reflecting(kube: FakeKube, heard: Heard) -> AsyncIterator[Reflector[ConfigMap]]:
    reflector = Reflector(
        client=kube,
        query=QUERY,
        clock=LoopClock(),
        on_set=heard.on_set,
        on_change=heard.on_change,
        source=random.Random(7),
    )
    async with running(reflector):
        yield reflector


async def settle(seconds: float = 0.01) -> None:
    await asyncio.sleep(seconds)


async def test_first_the_full_set_then_every_change() -> None:
    kube, heard = FakeKube(LoopClock()), Heard()
    kube.add(a_map("a"))
    async with reflecting(kube, heard) as reflector:
        assert not reflector.synced
        assert await reflector.wait_synced(within=1)
        await settle()
        kube.add(a_map("b"))
        kube.change(a_map("b", v="2"))
        kube.remove(ConfigMap, "a", "default")
        await settle()
        assert [each.metadata.name for each in reflector.all()] == ["b"]
        found = reflector.get("b", "default")
        assert found is not None and found.data == {"v": "2"}
    assert heard.sets == [["a"], ["a", "b"], ["a", "b"], ["b"]]
    assert heard.changes == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a")]


async def test_empty_set_is_synced_too() -> None:
    heard = Heard()
    async with reflecting(FakeKube(LoopClock()), heard) as reflector:
        assert await reflector.wait_synced(within=1)
    assert heard.sets == [[]]


async def test_ended_watch_resumes_where_it_was_without_listing() -> None:
    kube, heard = FakeKube(LoopClock()), Heard()
    async with reflecting(kube, heard):
        await settle()
        kube.add(a_map("a"))
        await settle(2)
        kube.break_watches()
        kube.add(a_map("b"))
        await settle(2)
    assert heard.changes == [("ADDED", "a"), ("ADDED", "b")]
    assert full_sets(kube) == 1


async def test_bookmarks_move_the_version_and_are_not_told() -> None:
    kube, heard = FakeKube(LoopClock()), Heard()
    async with reflecting(kube, heard):
        await settle()
        kube.compact()
        kube.bookmark()
        await settle()
        kube.break_watches()
        await settle(5)
        kube.add(a_map("a"))
        await settle()
    assert heard.changes == [("ADDED", "a")]
    assert full_sets(kube) == 1, "the bookmark made resuming possible after the compaction"


async def test_expired_version_lists_again_and_tells_the_differences() -> None:
    kube, heard = FakeKube(LoopClock()), Heard()
    first = kube.add(a_map("gone"))
    kube.add(a_map("changed"))
    kube.add(a_map("same"))
    again = kube.add(a_map("again"))
    async with reflecting(kube, heard):
        await settle()
        heard.changes.clear()
        kube.break_watches(Expired("too old resource version", code=410))
        kube.down = True
        kube.remove(ConfigMap, "gone", "default")
        kube.change(a_map("changed", v="2"))
        kube.remove(ConfigMap, "again", "default")
        kube.add(msgspec.structs.replace(again, metadata=ObjectMeta(name="again", namespace="default")))
        kube.compact()
        kube.down = False
        await settle(5)
    assert first.metadata.uid
    assert sorted(heard.changes) == [
        ("ADDED", "again"),
        ("DELETED", "again"),
        ("DELETED", "gone"),
        ("MODIFIED", "changed"),
    ]


async def test_watch_survives_everything_the_server_may_say() -> None:
    kube, heard = FakeKube(LoopClock()), Heard()
    for error in (Forbidden("no"), ApiServerError("oops"), TooManyRequests("later", retry_after=7.0), ApiDown("gone")):
        kube.fail_next("list", error)
        kube.fail_next("watch", error)
    async with reflecting(kube, heard) as reflector:
        assert await reflector.wait_synced(within=300)
        await settle(300)
        kube.add(a_map("a"))
        await settle()
    assert heard.changes == [("ADDED", "a")]


async def test_server_that_is_back_is_noticed_within_seconds() -> None:
    kube, heard = FakeKube(LoopClock()), Heard()
    async with reflecting(kube, heard):
        await settle()
        kube.stop()
        await settle(600)
        asked = len(kube.calls_of("watch"))
        assert asked < 300
        kube.add(a_map("a"))
        kube.start()
        await settle(6.1)
        assert heard.changes == [("ADDED", "a")]


async def test_many_watches_come_back_after_outages_without_a_stampede_and_lose_nothing() -> None:
    """Below them is the limit of requests a second; here they must spread by themselves."""
    clock, source = LoopClock(), random.Random(5)
    kube = FakeKube(clock)
    names = [f"m{number}" for number in range(100)]
    for name in names:
        kube.add(a_map(name, v="0"))
    reflectors = [
        Reflector(
            client=kube,
            query=Query(kind=ConfigMap, namespace="default", field_selector=f"metadata.name={name}"),
            clock=clock,
            source=random.Random(number),
        )
        for number, name in enumerate(names)
    ]
    async with running(*reflectors):
        for outage in range(1, 6):
            await settle(20)
            kube.stop()
            for name in names:
                kube.change(a_map(name, v=str(outage)))
            await settle(source.uniform(15, 60))
            if outage % 2:
                kube.compact()  # as after a restart: what was missed cannot be asked for
            before = len(kube.calls)
            kube.start()
            seconds = []
            for _ in range(8):
                await settle(1)
                seconds.append(len(kube.calls) - before)
                before += seconds[-1]
            # Once to go on; after a restart to learn that it cannot, for the full set, and to go on from there.
            most = 3 if outage % 2 else 1
            assert 100 <= sum(seconds) <= 100 * most + 1
            assert max(seconds) < 45 * most, seconds
            for reflector, name in zip(reflectors, names, strict=True):
                found = reflector.get(name, "default")
                assert found is not None and found.data == {"v": str(outage)}


async def test_refusals_are_asked_less_and_less_often() -> None:
    kube = FakeKube(LoopClock())
    kube.fail_next("list", Forbidden("no"), times=1000)
    kube.fail_next("watch", Forbidden("no"), times=1000)
    async with reflecting(kube, Heard()):
        await settle(600)
    assert 10 <= len(kube.calls) <= 30


async def test_lists_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector_module, "PAGE_SIZE", 2)
    kube = FakeKube(LoopClock())
    for index in range(5):
        kube.add(a_map(f"m{index}"))
    listed = await list_all(kube, QUERY)
    assert [item.metadata.name for item in listed.items] == [f"m{index}" for index in range(5)]
    assert len(kube.calls_of("list")) == 3


async def test_expired_token_starts_over_without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector_module, "PAGE_SIZE", 2)
    kube = FakeKube(LoopClock())
    for index in range(5):
        kube.add(a_map(f"m{index}"))
    asked = kube.list

    async def compacting(*words: Any, **named: Any) -> Any:
        page = await asked(*words, **named)
        kube.compact()
        return page

    monkeypatch.setattr(kube, "list", compacting)
    listed = await list_all(kube, QUERY)
    assert len(listed.items) == 5


async def test_sets_are_an_iterator_for_sources() -> None:
    kube = FakeKube(LoopClock())
    reflector = Reflector(client=kube, query=QUERY, clock=LoopClock())
    sets = reflector.sets()
    assert list(await anext(sets)) == []
    kube.add(a_map("a"))
    assert [each.metadata.name for each in await anext(sets)] == ["a"]
    await sets.aclose()
    assert kube.open_watches == []


async def test_selected_object_that_leaves_the_selection_is_deleted_for_the_watcher() -> None:
    kube = FakeKube(LoopClock())
    seen: list[ChangeType] = []
    query = Query(kind=ConfigMap, label_selector="team=a")
    reflector = Reflector(client=kube, query=query, clock=LoopClock(), on_change=lambda c: seen.append(c.type))
    async with running(reflector):
        await settle()
        made = kube.add(ConfigMap(metadata=ObjectMeta(name="x", namespace="default", labels={"team": "a"})))
        kube.change(msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels={})))
        await settle()
    assert seen == [ChangeType.ADDED, ChangeType.DELETED]


WITH_WATCH_LISTS = pytest.mark.parametrize("_server", [True], indirect=True)
WITHOUT_WATCH_LISTS = pytest.mark.parametrize("_server", [False], indirect=True)


class OddKube(FakeKube):
    """Begins its watches with the full set in its own way: a list of changes, then `after`."""

    def __init__(self, beginning: list[Change[ConfigMap]], after: str) -> None:
        super().__init__(LoopClock())
        self.beginning = beginning
        self.after = after

    async def watch(self, *words: Any, **named: Any) -> AsyncGenerator[Any, None]:
        if not named["initial_events"]:
            async for change in super().watch(*words, **named):
                yield change
            return
        self.calls.append(Call("watch", words[0], body=named["resource_version"]))
        named["sent"](True)
        for change in self.beginning:
            yield change
        if self.after == "silence":
            await asyncio.Event().wait()
        elif self.after == "down":
            self.after = "end"
            raise ApiDown("connection reset")


def added(name: str, version: str, kind: ChangeType = ChangeType.ADDED, **annotations: str) -> Change[ConfigMap]:
    metadata = ObjectMeta(name=name, namespace="default", resource_version=version, annotations=annotations)
    return Change(kind, ConfigMap(metadata=metadata))


END = added("", "9", ChangeType.BOOKMARK, **{INITIAL_EVENTS_END: "true"})


@WITH_WATCH_LISTS
async def test_full_set_and_changes_are_one_request() -> None:
    kube, heard = FakeKube(LoopClock()), Heard()
    kube.add(a_map("a"))
    kube.add(a_map("b"))
    async with reflecting(kube, heard):
        await settle()
        kube.add(a_map("c"))
        await settle()
    assert heard.sets == [["a", "b"], ["a", "b", "c"]]
    assert [(call.verb, call.body) for call in kube.calls] == [("watch", "0")]


@WITH_WATCH_LISTS
@pytest.mark.parametrize("after", ["end", "silence", "down"])
async def test_half_a_set_is_never_shown(after: str) -> None:
    kube, heard = OddKube([added("half", "3")], after), Heard()
    kube.add(a_map("a"))
    kube.add(a_map("b"))
    async with reflecting(kube, heard) as reflector:
        await settle(0.5)
        assert reflector.synced == (after == "end")
        await settle(SET_SILENCE + 5)
        kube.add(a_map("c"))
        await settle()
    assert heard.sets == [["a", "b"], ["a", "b", "c"]]
    assert heard.changes == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]


class FarKube(FakeKube):
    """Every watch needs long to be sent, and its first sending is given back."""

    async def watch(self, *words: Any, sent: Sent | None = None, **named: Any) -> AsyncGenerator[Any, None]:
        await asyncio.sleep(2 * SET_SILENCE)
        if sent is not None:
            sent(True)
            sent(False)
        await asyncio.sleep(2 * SET_SILENCE)
        async with aclosing(super().watch(*words, sent=sent, **named)) as changes:
            async for change in changes:
                yield change


@WITH_WATCH_LISTS
async def test_server_is_not_blamed_for_the_time_in_which_it_is_not_asked() -> None:
    kube, heard = FarKube(LoopClock()), Heard()
    kube.add(a_map("a"))
    async with reflecting(kube, heard) as reflector:
        assert await reflector.wait_synced(within=5 * SET_SILENCE)
    assert heard.sets == [["a"]]
    assert [call.verb for call in kube.calls] == ["watch"]


@WITH_WATCH_LISTS
async def test_changes_before_the_end_of_the_set_belong_to_it() -> None:
    beginning = [
        added("a", "1"),
        added("b", "2"),
        added("", "3", ChangeType.BOOKMARK),
        added("a", "4", ChangeType.DELETED),
        added("b", "5", ChangeType.MODIFIED),
        added("c", "6"),
        END,
    ]
    kube, heard = OddKube(beginning, "silence"), Heard()
    async with reflecting(kube, heard) as reflector:
        assert await reflector.wait_synced(within=1)
        found = reflector.get("b", "default")
        assert found is not None and found.metadata.resource_version == "5"
    assert heard.sets == [["b", "c"]]
    assert kube.calls_of("list") == []


@WITH_WATCH_LISTS
async def test_lost_events_ask_for_the_newest_set() -> None:
    kube, heard = FakeKube(LoopClock()), Heard()
    async with reflecting(kube, heard):
        await settle()
        kube.add(a_map("a"))
        kube.compact()
        kube.break_watches(Expired("too old resource version", code=410))
        await settle(1)
    assert [call.body for call in kube.calls_of("watch")] == ["0", ""]
    assert heard.changes == [("ADDED", "a")]


@WITH_WATCH_LISTS
async def test_object_of_the_set_that_cannot_be_read_is_left_out_and_known() -> None:
    kube = FakeKube(LoopClock())
    kube.add(a_map("a"))
    kube.add(a_map("odd"))
    kube.spoil(ConfigMap, "odd", "default", why="data: Expected `object`")
    async with reflecting(kube, Heard()) as reflector:
        assert await reflector.wait_synced(within=1)
        assert [each.metadata.name for each in reflector.all()] == ["a"]
        assert [each.name for each in kube.unreadable.now()] == ["odd"]


@WITHOUT_WATCH_LISTS
async def test_server_that_cannot_is_asked_once_for_all_and_again_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = FakeKube(LoopClock())
    async with reflecting(kube, Heard()):
        await settle()
        async with reflecting(kube, Heard()), reflecting(kube, Heard()):
            await settle()
        assert [call.body for call in kube.calls_of("watch")] == ["0", "100", "100", "100"]
        monkeypatch.setattr(FakeKube, "has_watch_lists", True)
        await settle(ASK_AGAIN)
        kube.break_watches(Expired("too old resource version", code=410))
        await settle(1)
    assert kube.calls[-1].verb == "watch" and kube.calls[-1].body == ""


@WITH_WATCH_LISTS
async def test_gate_switches_it_off() -> None:
    kube = FakeKube(LoopClock())
    kube.watch_lists = WatchLists(enabled=False)
    async with reflecting(kube, Heard()):
        await settle()
    assert [call.verb for call in kube.calls] == ["list", "watch"]
