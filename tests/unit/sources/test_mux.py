from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.clock import LoopClock
from pykubelet.model.pod import (
    MIRROR_ANNOTATION,
    SEEN_ANNOTATION,
    SOURCE_ANNOTATION,
    Operation,
    PodsChanged,
    Source,
    name_of,
)
from pykubelet.sources.mux import PodMux
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.sources.doubles import a_delivered_pod

FILE, API, HTTP = Source.FILE, Source.API, Source.HTTP


class Fixed(LoopClock):
    def now_ns(self) -> int:
        return 1_700_000_000_000_000_005


def _mux(*sources: Source, events: RecordedEvents | None = None) -> PodMux:
    return PodMux(sources=sources or (FILE,), events=events or RecordedEvents(), clock=Fixed())


def _ops(changes: list[PodsChanged]) -> list[tuple[str, list[str]]]:
    return [(change.op.value, [name_of(pod) for pod in change.pods]) for change in changes]


def _deliver(mux: PodMux, *pods: Pod, source: Source = FILE) -> list[PodsChanged]:
    mux.deliver(source, pods)
    return mux.take_nowait()


def test_new_pods_are_added_in_order_with_source_and_time() -> None:
    given_pod = a_delivered_pod("b")
    changes = _deliver(_mux(), given_pod, a_delivered_pod("a"))
    assert _ops(changes) == [("add", ["b", "a"])]
    annotations = changes[0].pods[0].metadata.annotations
    assert annotations == {SOURCE_ANNOTATION: "file", SEEN_ANNOTATION: "2023-11-14T22:13:20.000000005Z"}
    assert given_pod.metadata.annotations == {}, "what a source delivers is never changed"


def test_the_first_empty_set_is_told_later_ones_are_not() -> None:
    mux = _mux()
    assert _ops(_deliver(mux)) == [("add", [])]
    assert _deliver(mux) == []


def test_the_same_again_is_no_news() -> None:
    mux = _mux()
    _deliver(mux, a_delivered_pod("a"))
    assert _deliver(mux, a_delivered_pod("a")) == []


def test_update_keeps_what_is_ours() -> None:
    mux = _mux(API)
    mirror = {MIRROR_ANNOTATION: "h1", "x": "1"}
    added = _deliver(mux, a_delivered_pod("a", annotations=mirror), source=API)[0].pods[0]
    newer = a_delivered_pod(
        "a", image="new", annotations={MIRROR_ANNOTATION: "h2", "y": "2"}, labels={"l": "1"}, generation=2
    )
    changes = _deliver(mux, newer, source=API)
    assert _ops(changes) == [("update", ["a"])]
    pod = changes[0].pods[0]
    assert pod.spec.containers[0].image == "new"
    assert pod.metadata.labels == {"l": "1"}
    assert pod.metadata.generation == 2
    kept = {key: added.metadata.annotations[key] for key in (SOURCE_ANNOTATION, SEEN_ANNOTATION, MIRROR_ANNOTATION)}
    assert pod.metadata.annotations == {**kept, "y": "2"}
    assert added.spec.containers[0].image == "i", "a pod that was handed out is never changed"


@pytest.mark.parametrize(
    ("changed", "op"),
    [
        (a_delivered_pod("a", image="x"), "update"),
        (a_delivered_pod("a", labels={"l": "1"}), "update"),
        (a_delivered_pod("a", annotations={"n": "1"}), "update"),
        (a_delivered_pod("a", deletionGracePeriodSeconds=3), "update"),
        (a_delivered_pod("a", deletionTimestamp=datetime(2024, 1, 1, tzinfo=UTC)), "delete"),
        (a_delivered_pod("a", annotations={SEEN_ANNOTATION: "never"}), None),
        (a_delivered_pod("a", resourceVersion="9"), None),
        (msgspec.structs.replace(a_delivered_pod("a"), status=PodStatus(phase="Running")), "reconcile"),
    ],
)
def test_what_counts_as_which_change(changed: Pod, op: str | None) -> None:
    mux = _mux(API)
    _deliver(mux, a_delivered_pod("a"), source=API)
    assert _ops(_deliver(mux, changed, source=API)) == ([(op, ["a"])] if op else [])
    assert _deliver(mux, changed, source=API) == []


def test_order_of_emission() -> None:
    mux = _mux(API)
    _deliver(
        mux, a_delivered_pod("gone"), a_delivered_pod("up"), a_delivered_pod("del"), a_delivered_pod("rec"), source=API
    )
    changes = _deliver(
        mux,
        msgspec.structs.replace(a_delivered_pod("rec"), status=PodStatus(phase="Running")),
        a_delivered_pod("del", deletionTimestamp=datetime(2024, 1, 1, tzinfo=UTC)),
        a_delivered_pod("up", image="x"),
        a_delivered_pod("new"),
        source=API,
    )
    assert _ops(changes) == [
        ("remove", ["gone"]),
        ("add", ["new"]),
        ("update", ["up"]),
        ("delete", ["del"]),
        ("reconcile", ["rec"]),
    ]


def test_a_new_uid_under_the_same_name_is_another_pod() -> None:
    mux = _mux()
    _deliver(mux, a_delivered_pod("a", uid="1"))
    changes = _deliver(mux, a_delivered_pod("a", uid="2"))
    assert [(c.op, c.pods[0].metadata.uid) for c in changes] == [(Operation.REMOVE, "1"), (Operation.ADD, "2")]


def test_sources_do_not_touch_each_other() -> None:
    mux = _mux(FILE, HTTP)
    _deliver(mux, a_delivered_pod("a"))
    mux.deliver(HTTP, [a_delivered_pod("b")])
    mux.deliver(FILE, [])
    assert [(c.source, c.op.value) for c in mux.take_nowait()] == [(HTTP, "add"), (FILE, "remove")]


def test_duplicates_are_dropped_and_told_once() -> None:
    events = RecordedEvents()
    mux = _mux(events=events)
    first, second, same_uid = (
        a_delivered_pod("a", uid="1"),
        a_delivered_pod("a", uid="2"),
        a_delivered_pod("z", uid="1"),
    )
    assert _ops(_deliver(mux, first, second, same_uid)) == [("add", ["a"])]
    assert _deliver(mux, first, second, same_uid) == []
    assert [(event.about, event.message) for event in events.all] == [
        ("a", 'Error validating pod a_default(2) from file due to duplicate pod name "a", ignoring'),
        ("z", 'Error validating pod z_default(1) from file due to duplicate pod UID "1", ignoring'),
    ]
    assert {event[1:3] for event in events.all} == {("Warning", "FailedValidation")}
    _deliver(mux, first)
    _deliver(mux, first, second)
    assert len(events.all) == 3, "told again when it comes back"


def test_the_second_takes_over_when_the_first_goes() -> None:
    mux = _mux()
    _deliver(mux, a_delivered_pod("a", uid="1"), a_delivered_pod("a", uid="2"))
    assert _ops(_deliver(mux, a_delivered_pod("a", uid="2"))) == [("remove", ["a"]), ("add", ["a"])]


def test_a_pod_that_was_gone_in_between_is_removed_and_added_however_slow_the_reader() -> None:
    mux = _mux()
    _deliver(mux, a_delivered_pod("a"), a_delivered_pod("b"))
    mux.deliver(FILE, [a_delivered_pod("b")])
    mux.deliver(FILE, [a_delivered_pod("a"), a_delivered_pod("b")])
    assert _ops(mux.take_nowait()) == [("remove", ["a"]), ("add", ["a"])]
    assert _deliver(mux, a_delivered_pod("a"), a_delivered_pod("b")) == []
    mux.deliver(FILE, [a_delivered_pod("b")])
    assert _ops(mux.take_nowait()) == [("remove", ["a"])]


def test_a_source_is_ready_when_its_first_set_was_handled() -> None:
    mux = _mux(FILE, HTTP)
    assert not mux.all_ready()
    for source in (FILE, HTTP):
        mux.deliver(source, [])
        assert not mux.seen(source)
        for change in mux.take_nowait():
            assert mux.seen(source)
            assert not mux.all_ready()
            mux.mark_ready(change.source)
    assert mux.all_ready()
    assert [(each.source, each.ready) for each in mux.snapshot()] == [(FILE, True), (HTTP, True)]


def test_without_sources_all_is_ready() -> None:
    assert PodMux(sources=(), events=RecordedEvents(), clock=Fixed()).all_ready()


def test_a_source_that_is_not_configured_is_a_bug() -> None:
    with pytest.raises(ValueError, match="http"):
        _mux(FILE).deliver(HTTP, [])


async def test_the_reader_sleeps_until_something_is_delivered() -> None:
    mux = _mux()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(mux.next_changes())
        await asyncio.sleep(1)
        assert not reading.done()
        mux.deliver(FILE, [a_delivered_pod("a")])
    assert _ops(reading.result()) == [("add", ["a"])]


async def test_a_slow_reader_gets_one_merged_answer() -> None:
    mux = _mux()
    for i in range(1000):
        mux.deliver(FILE, [a_delivered_pod("a", image=f"i{i}"), a_delivered_pod("b")])
    changes = await mux.next_changes()
    assert _ops(changes) == [("add", ["a", "b"])]
    assert changes[0].pods[0].spec.containers[0].image == "i999"


_sets = st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12"), st.sampled_from("xy")), max_size=4))


@given(sets=_sets)
def test_replaying_the_changes_gives_the_last_set(sets: list[list[tuple[str, str, str]]]) -> None:
    mux = _mux()
    replayed: dict[str, tuple[str, str | None]] = {}
    for delivered in sets:
        pods = [a_delivered_pod(name, uid=name + uid, image=image) for name, uid, image in delivered]
        for change in _deliver(mux, *pods):
            for pod in change.pods:
                uid = pod.metadata.uid or ""
                assert (uid in replayed) is (change.op is not Operation.ADD)
                replayed.pop(uid, None)
                if change.op is not Operation.REMOVE:
                    replayed[uid] = (name_of(pod), pod.spec.containers[0].image)
        first: dict[str, tuple[str, str]] = {}
        for name, uid, image in delivered:
            if name not in {known for known, _ in first.values()}:
                first[name + uid] = (name, image)
        assert replayed == first
