"""Events as every Kubernetes recorder tells them: counted, combined, limited; never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykubelet.api.codec import encode_json
from pykubelet.api.types import Event, ObjectMeta, Pod
from pykubelet.events import sink as module
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.events.correlation import COMBINED
from pykubelet.events.sink import ApiEventSink
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiServerError, Forbidden
from tests.fakes.fake_kube import FakeKube

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u1", resource_version="7"))


class EventSinkFixture:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        self.metrics = Registry()
        self.sink = ApiEventSink(kube=self.kube, clock=self.clock, node_name="n1", metrics=self.metrics)
        self.events = EventBroadcaster(clock=self.clock, node_name="n1", sink=self.sink)

    def publish(self, message: str = "hello", reason: str = "Pulled", path: str = "") -> None:
        self.events.pod_event(POD, "Normal", reason, message, field_path=path)

    def stored(self) -> list[Event]:
        return list(self.kube.everything(Event))

    def dropped(self, reason: str) -> float:
        return self.metrics.counter("pykubelet_events_dropped_total", "", ("reason",)).value(reason)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        async with running(self.sink):
            yield


async def settle(seconds: float = 0.01) -> None:
    await asyncio.sleep(seconds)


async def test_event_has_every_field_tools_look_at() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        bed.publish(path="spec.containers{main}")
        await settle()
    (event,) = bed.stored()
    involved = event.involved_object
    assert involved is not None and event.source is not None
    assert (involved.kind, involved.namespace, involved.name, involved.uid) == ("Pod", "shop", "web", "u1")
    assert (involved.field_path, involved.api_version, involved.resource_version) == (
        "spec.containers{main}",
        "v1",
        "7",
    )
    assert (event.type, event.reason, event.message, event.count) == ("Normal", "Pulled", "hello", 1)
    assert (event.source.component, event.source.host) == ("kubelet", "n1")
    assert (event.reporting_component, event.reporting_instance) == ("kubelet", "n1")
    assert event.metadata.namespace == "shop" and (event.metadata.name or "").startswith("web.")
    assert event.first_timestamp == event.last_timestamp is not None


async def test_node_event_goes_to_the_default_namespace() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        bed.events.node_event("Normal", "Starting", "Starting kubelet.")
        await settle()
    (event,) = bed.stored()
    assert event.metadata.namespace == "default"
    assert event.involved_object is not None
    assert (event.involved_object.kind, event.involved_object.uid) == ("Node", "n1")


async def test_equal_events_are_counted_into_one() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        for _ in range(3):
            bed.publish()
            await settle(60)
    (event,) = bed.stored()
    assert event.count == 3
    assert event.first_timestamp is not None and event.last_timestamp is not None
    assert (event.last_timestamp - event.first_timestamp).total_seconds() == 120
    assert set(bed.kube.calls_of("patch")[0].body) == {"count", "lastTimestamp", "message"}


async def test_counted_event_that_expired_is_created_again_with_its_count() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        bed.publish()
        await settle()
        bed.kube.remove(Event, bed.stored()[0].metadata.name or "", "shop")
        bed.publish()
        await settle()
    (event,) = bed.stored()
    assert event.count == 2


async def test_different_field_paths_are_different_events() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        bed.publish(path="spec.containers{a}")
        bed.publish(path="spec.containers{b}")
        await settle()
    assert [event.count for event in bed.stored()] == [1, 1]


async def test_tenth_similar_event_starts_a_combined_one() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        for index in range(15):
            bed.publish(f"message {index}")
            await settle()
    plain = [event for event in bed.stored() if not (event.message or "").startswith(COMBINED)]
    combined = [event for event in bed.stored() if (event.message or "").startswith(COMBINED)]
    assert len(plain) == 9
    assert [(event.count, event.message) for event in combined] == [(6, COMBINED + "message 14")]


async def test_similar_events_far_apart_are_not_combined() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        for index in range(12):
            bed.publish(f"message {index}")
            await settle(601)
    assert not [event for event in bed.stored() if (event.message or "").startswith(COMBINED)]


async def test_one_object_gets_25_events_and_then_one_in_five_minutes() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        for index in range(40):
            bed.publish("same", reason=f"Reason{index}")
        await settle()
        assert len(bed.stored()) == 25
        assert bed.dropped("spam") == 15
        bed.events.node_event("Normal", "NodeReady", "other objects are not touched")
        await settle(301)
        bed.publish("later", reason="Late")
        await settle()
    assert len(bed.stored()) == 27


async def test_events_wait_while_the_server_is_away() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        bed.kube.stop()
        bed.publish("one")
        bed.publish("two")
        await settle(60)
        assert bed.stored() == []
        bed.kube.start()
        await settle(16)
        assert [event.message for event in bed.stored()] == ["one", "two"]
        assert [event.count for event in bed.stored()] == [1, 1]


async def test_refused_event_is_dropped_and_the_next_one_sent() -> None:
    bed = EventSinkFixture()
    bed.kube.fail_next("create", Forbidden("namespace is ending", code=403))
    async with bed.sending():
        bed.publish("one")
        bed.publish("two")
        await settle()
    assert [event.message for event in bed.stored()] == ["two"]
    assert bed.dropped("refused") == 1


async def test_server_that_always_fails_costs_the_event_not_the_queue() -> None:
    bed = EventSinkFixture()
    bed.kube.fail_next("create", ApiServerError("oops", code=500), times=module.TRIES)
    async with bed.sending():
        bed.publish("one")
        bed.publish("two")
        await settle(600)
    assert [event.message for event in bed.stored()] == ["two"]
    assert bed.dropped("unreachable") == 1


async def test_full_queue_drops_and_counts() -> None:
    bed = EventSinkFixture()
    for index in range(module.QUEUED + 5):
        bed.publish(f"m{index}")
    assert bed.dropped("queue full") == 5


async def test_last_events_are_sent_on_the_way_out() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        await settle()
        bed.publish("bye")
    assert [(event.message, event.count) for event in bed.stored()] == [("bye", 1)]


async def test_leaving_while_the_server_is_away_does_not_hang() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        bed.kube.stop()
        bed.publish("bye")
        await settle(5)
        before = bed.clock.monotonic()
    assert bed.clock.monotonic() - before < 3


async def test_names_are_unique_even_within_one_nanosecond() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        for index in range(5):
            bed.publish(f"m{index}")
        await settle()
    assert len({event.metadata.name for event in bed.stored()}) == 5


async def test_texts_of_any_length_are_cut_and_still_told_apart() -> None:
    bed = EventSinkFixture()
    async with bed.sending():
        for end in ("a", "b", "b"):
            bed.publish("x" * 9000 + end, "Unhealthy")
        bed.events.node_event("Warning", "Odd", "y" * 400_000)
        await settle()
    told = {(event.reason, event.message[-1:] if event.message else ""): event for event in bed.stored()}
    assert told["Unhealthy", "a"].count == 1 and told["Unhealthy", "b"].count == 2
    assert max(len(event.message or "") for event in told.values()) < 10 * 1024 + 40


async def test_bytes_that_are_no_text_do_not_end_the_sink() -> None:
    """A secret's value may be in a message, by way of a subPathExpr."""
    bed = EventSinkFixture()
    async with bed.sending():
        bed.publish("subPath \udcff/.. must not contain '..'")
        await settle()
    (event,) = bed.stored()
    assert event.message == "subPath ?/.. must not contain '..'"
    assert encode_json(event)
