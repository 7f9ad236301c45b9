"""The feed: which stream is followed, what a break does, and when it counts as working."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from pykubelet.clients.cri.port import EventSource
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import RuntimeDown, Unimplemented
from pykubelet.model.runtime_status import ContainerEvent, EventKind
from pykubelet.pleg.events import LONGEST_PAUSE, TRIAL, UNOFFERED_PAUSE, EventFeed

EVENT = ContainerEvent(container_id="c", kind=EventKind.STARTED)
Step = float | Exception | ContainerEvent


class Script:
    """A source whose every opening plays the next list of waits, events and errors; the last one repeats."""

    def __init__(self, name: str, *plays: list[Step]) -> None:
        self.plays = list(plays)
        self.opened: list[float] = []
        self.closed = 0
        self.source = EventSource(name=name, open=self.stream)

    async def stream(self) -> AsyncIterator[ContainerEvent]:
        loop = asyncio.get_running_loop()
        self.opened.append(loop.time())
        play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
        try:
            for step in play:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, ContainerEvent):
                    yield step
                else:
                    await LoopClock().sleep(step)
        finally:
            self.closed += 1


class Followed:
    def __init__(self, script: Script) -> None:
        self.events: list[ContainerEvent] = []
        self.changes: list[tuple[float, bool]] = []
        self.metrics = Registry()
        self.feed = EventFeed(
            metrics=self.metrics,
            source=script.source,
            clock=LoopClock(),
            on_event=self.events.append,
            on_change=lambda active: self.changes.append((asyncio.get_running_loop().time(), active)),
        )

    async def during(self, seconds: float, look: Callable[[], None] | None = None) -> None:
        async with TaskSet("feed") as tasks:
            tasks.spawn(self.feed.run(), name="feed")
            await LoopClock().sleep(seconds)
            if look is not None:
                look()


async def test_a_silent_stream_counts_after_its_trial() -> None:
    script = Script("cri", [1000.0])
    followed = Followed(script)
    await followed.during(TRIAL + 1, lambda: pytest.fail("inactive") if followed.feed.source != "cri" else None)
    assert followed.changes == [(TRIAL, True), (TRIAL + 1, False)]
    assert script.closed == 1


async def test_an_event_proves_the_stream() -> None:
    followed = Followed(Script("cri", [0.5, EVENT, 1000.0]))
    await followed.during(1)
    assert followed.events == [EVENT]
    assert followed.changes[0] == (0.5, True)


async def test_nothing_offered_is_asked_again_seldom() -> None:
    script = Script("cri", [Unimplemented("no")])
    followed = Followed(script)
    await followed.during(2 * UNOFFERED_PAUSE + 1)
    assert script.opened == [0.0, UNOFFERED_PAUSE, 2 * UNOFFERED_PAUSE]
    assert followed.changes == []


async def test_a_broken_stream_is_opened_again_with_growing_pauses() -> None:
    script = Script("cri", [RuntimeDown("gone")])
    followed = Followed(script)
    await followed.during(60)
    pauses = [round(b - a, 3) for a, b in zip(script.opened, script.opened[1:], strict=False)]
    assert pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE]
    assert followed.changes == []


async def test_a_working_stream_resets_the_pauses() -> None:
    script = Script("cri", [RuntimeDown("gone")], [EVENT, 10.0, RuntimeDown("restarted")], [EVENT, 1000.0])
    followed = Followed(script)
    await followed.during(20)
    assert [round(at, 3) for at in script.opened] == [0.0, 0.1, 10.2]
    assert [active for _, active in followed.changes] == [True, False, True, False]


async def test_a_stream_that_just_ends_is_opened_again() -> None:
    script = Script("cri", [EVENT], [EVENT, 1000.0])
    followed = Followed(script)
    await followed.during(1)
    assert len(followed.events) == 2


async def test_streams_are_counted_and_events_timed() -> None:
    late = ContainerEvent(container_id="c", kind=EventKind.STARTED, created_at=int((LoopClock().now() - 3) * 1e9))
    followed = Followed(Script("cri", [late, RuntimeDown("gone")], [EVENT, 1000.0]))
    await followed.during(1)
    prefix = "kubelet_evented_pleg_connection"
    assert followed.metrics.counter(f"{prefix}_success_count", "").value() == 2
    assert followed.metrics.counter(f"{prefix}_error_count", "").value() == 1
    exposed = followed.metrics.expose().splitlines()
    assert f"{prefix}_latency_seconds_sum 3" in exposed and f"{prefix}_latency_seconds_count 1" in exposed
