"""Ending a pod for the node's sake: events, status and how long it waits."""

from __future__ import annotations

from typing import cast

import pytest

from pykubelet.api.types import Pod, PodStatus
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.eviction.manager import EvictionOrder
from pykubelet.eviction.ranking import EvictionText
from pykubelet.kit.clock import LoopClock
from pykubelet.model.pod import full_name, uid_of
from pykubelet.pods.record import PodWorker, WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.recorder import Step
from pykubelet.sync.evict import PodEvictor
from pykubelet.sync.worker import KillRequest, PodWorkers, UpdateKind
from tests.builders import a_context, a_pod

TEXT = EvictionText(message="The node was low on resource: memory. ", why="memory.available 1Mi is below.")


def an_order(*, grace: int = 1, disruption: bool = True) -> EvictionOrder:
    return EvictionOrder(text=TEXT, grace=grace, signal="memory.available", disruption=disruption)


class Workers:
    """Takes one kill and obeys it, or does not."""

    def __init__(self, *, obeys: bool) -> None:
        self.obeys = obeys
        self.kills: list[KillRequest] = []

    def update(self, kind: UpdateKind, pod: Pod, kill: KillRequest | None = None) -> None:
        assert kind is UpdateKind.KILL and kill is not None and kill.done is not None
        self.kills.append(kill)
        if self.obeys:
            kill.done.set_result(None)


class EvictorFixture:
    def __init__(self, *, obeys: bool = True) -> None:
        self.clock = LoopClock()
        self.workers, self.table = Workers(obeys=obeys), PodTable()
        self.events = EventBroadcaster(clock=self.clock, node_name="n1")
        ctx = a_context(clock=self.clock, events=self.events)
        self.recorder = ctx.recorder
        self.pod = a_pod("web")
        self.active = [self.pod]
        self.worker = PodWorker(uid_of(self.pod), full_name(self.pod), self.pod)
        self.table.add_worker(self.worker)
        self.evictor = PodEvictor(
            ctx, workers=cast(PodWorkers, self.workers), table=self.table, active=lambda: self.active
        )

    def texts(self, reason: str) -> list[str]:
        return [event.message for event in self.events.all() if event.reason == reason]


@pytest.mark.parametrize("disruption", [True, False])
async def test_status_event_and_story(disruption: bool) -> None:
    bed = EvictorFixture()
    await bed.evictor.evict(bed.pod, an_order(disruption=disruption))
    (kill,) = bed.workers.kills
    assert kill.evicted and kill.grace_override == 1 and kill.change_status is not None
    status = PodStatus()
    kill.change_status(status)
    assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", TEXT.message)
    assert [c.reason for c in status.conditions] == (["TerminationByKubelet"] if disruption else [])
    assert bed.texts("Evicted") == ["The node was low on resource: memory. memory.available 1Mi is below."]
    life = bed.recorder.life(uid_of(bed.pod))
    assert life is not None and life.entries[-1].step is Step.EVICTION
    assert life.entries[-1].message == "memory.available 1Mi is below."


async def test_a_runtime_that_does_not_obey_is_told_and_not_waited_for() -> None:
    bed = EvictorFixture(obeys=False)
    await bed.evictor.evict(bed.pod, an_order(grace=20))
    assert bed.clock.monotonic() == 30
    assert bed.texts("ExceededGracePeriod") == ["Container runtime did not kill the pod within specified grace period."]


async def test_waiting_until_everything_is_back() -> None:
    bed = EvictorFixture()
    assert not await bed.evictor.cleaned_up(bed.pod, within=30)
    assert bed.clock.monotonic() >= 30
    bed.worker.move(WorkerState.FINISHED, "test")
    assert await bed.evictor.cleaned_up(bed.pod, within=30)
    bed.table.forget_worker(bed.worker.uid)
    assert await bed.evictor.cleaned_up(bed.pod, within=30)


def test_a_pod_that_was_evicted_is_no_candidate() -> None:
    bed = EvictorFixture()
    bed.active.append(a_pod("other"))
    assert bed.evictor.candidates() == bed.active
    bed.worker.evicted = True
    assert bed.evictor.candidates() == bed.active[1:]
