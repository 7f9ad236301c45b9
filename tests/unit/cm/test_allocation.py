"""Promises and waiting resizes: order, conditions, the disk, preemption."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pykubelet.api.types import Pod, PodCondition, PodStatus, ResourceRequirements
from pykubelet.cm.allocation import POD_UPDATED, AllocationManager
from pykubelet.cm.resize import ResizeRules
from pykubelet.kit.tasks import running
from pykubelet.model.pod import uid_of
from pykubelet.model.pod_resources import effect_of
from pykubelet.signals import PodPreempted, ResizeChanged
from tests.builders import a_container, a_container_status, a_context, a_pod, a_runtime_status, at
from tests.fakes.recorded_events import RecordedEvents


@dataclass(frozen=True)
class Said:
    rejection: Said | None = None
    victims: tuple[Pod, ...] = ()
    short_of: str = "cpu"
    message: str = ""


def asking(name: str, cpu: str, *, priority: int = 0, generation: int = 1, status: PodStatus | None = None) -> Pod:
    held = ResourceRequirements(requests={"cpu": cpu})
    container = a_container("app", resources=held)
    return a_pod(name, containers=[container], priority=priority, generation=generation, status=status)


class Bench:
    """`room` is how much cpu one pod may ask for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.room = 1
        self.victims: tuple[Pod, ...] = ()
        self.judged: list[str] = []
        self.ready = True
        self.pods: dict[str, Pod] = {}
        self.events = RecordedEvents()
        self.woken: list[str] = []
        self.gone: list[tuple[str, str]] = []
        self.again()

    def again(self) -> None:
        ctx = a_context(events=self.events)
        self.metrics = ctx.metrics
        self.allocations = AllocationManager(
            ctx,
            root=self.folder,
            admission=self,
            table=self,
            sources_ready=lambda: self.ready,
            rules=ResizeRules(),
        )
        self.actuated = self.allocations.actuation
        ctx.signals.subscribe(ResizeChanged, lambda changed: self.woken.append(changed.uid))
        ctx.signals.subscribe(
            PodPreempted, lambda preempted: self.gone.append((uid_of(preempted.pod), preempted.resource))
        )

    def active_pods(self) -> list[Pod]:
        return list(self.pods.values())

    def pod(self, uid: str) -> Pod | None:
        return self.pods.get(uid)

    def decide(self, pod: Pod, others: Sequence[Pod]) -> Said:
        assert all(uid_of(other) != uid_of(pod) for other in others)
        self.judged.append(uid_of(pod).removeprefix("uid-"))
        assert pod.spec.containers[0].resources is not None
        fits = int(pod.spec.containers[0].resources.requests["cpu"]) <= self.room
        return Said(victims=self.victims) if fits else Said(rejection=Said(message="too big"))

    def run(self, pod: Pod) -> None:
        self.pods[uid_of(pod)] = pod
        self.allocations.admitted(pod)
        self.actuated.put(uid_of(pod), effect_of(pod))

    def wish(self, pod: Pod) -> None:
        old = self.pods.get(uid_of(pod))
        self.pods[uid_of(pod)] = pod
        self.allocations.updated(old, pod)

    def promised(self, name: str) -> str:
        held = self.allocations.allocated(self.pods[f"uid-{name}"]).spec.containers[0].resources
        assert held is not None
        return str(held.requests["cpu"])

    def reasons(self, name: str) -> list[str | None]:
        return [each.reason for each in self.allocations.conditions(f"uid-{name}", terminal=False)]


async def test_a_wish_that_fits_becomes_the_promise_on_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.room = 4
    bench.run(asking("a", "1"))
    bench.wish(asking("a", "2", generation=2))
    assert bench.promised("a") == "2"
    assert bench.events.about == [("a", "ResizeStarted")] and bench.woken == ["uid-a"]
    bench.again()
    assert bench.promised("a") == "2"


async def test_waiting_wishes_are_judged_in_their_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("low", "high", "down"):
        bench.run(asking(name, "2"))
    bench.wish(asking("low", "3"))
    bench.wish(asking("high", "3", priority=10))
    bench.room = 0
    bench.wish(asking("down", "1"))
    bench.judged.clear()
    bench.allocations.retry(POD_UPDATED)
    assert bench.judged == ["down", "high", "low"]
    assert bench.reasons("low") == ["Deferred"]
    # The same answer again is no news for anybody.
    count = len(bench.woken)
    bench.allocations.retry(POD_UPDATED)
    assert len(bench.woken) == count
    assert bench.events.about.count(("low", "ResizeDeferred")) == 1


async def test_nothing_is_judged_before_every_source_was_heard(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.room = 4
    bench.run(asking("a", "1"))
    bench.ready = False
    bench.wish(asking("a", "2"))
    assert bench.judged == []
    async with running(bench.allocations):
        await asyncio.sleep(29)
        bench.ready = True
        await asyncio.sleep(2)
        assert bench.promised("a") == "2"


async def test_waiting_wishes_are_judged_again_every_three_minutes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(asking("a", "1"))
    async with running(bench.allocations):
        bench.wish(asking("a", "2"))
        bench.room = 2
        await asyncio.sleep(25)
        assert bench.promised("a") == "1"
        await asyncio.sleep(10)
        assert bench.promised("a") == "2"
        exposed = bench.metrics.expose()
        assert 'kubelet_pod_deferred_accepted_resizes_total{retry_trigger="periodic_retry"} 1' in exposed


async def test_a_promise_that_cannot_be_written_is_not_given(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "not-there")
    bench.room = 4
    bench.run(asking("a", "1"))
    bench.wish(asking("a", "2"))
    assert bench.promised("a") == "1" and bench.events.all == []
    (tmp_path / "not-there").mkdir()
    bench.allocations.retry(POD_UPDATED)
    assert bench.promised("a") == "2"


async def test_victims_of_a_critical_pod_are_handed_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.room = 4
    other = asking("b", "1")
    bench.run(other)
    bench.run(asking("a", "1"))
    bench.victims = (other,)
    bench.wish(asking("a", "2"))
    assert bench.gone == [("uid-b", "cpu")]


async def test_conditions_from_before_a_restart_are_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(asking("a", "1"))
    async with running(bench.allocations):
        await asyncio.sleep(0)
    bench.again()
    told = PodCondition(
        type="PodResizePending", status="True", reason="Deferred", message="too big", last_transition_time=at(5)
    )
    wish = asking("a", "2", status=PodStatus(conditions=[told]))
    bench.pods["uid-a"] = wish
    bench.allocations.added([wish])
    (condition,) = bench.allocations.conditions("uid-a", terminal=False)
    assert condition.last_transition_time == at(5) and bench.promised("a") == "1"
    assert bench.allocations.conditions("uid-a", terminal=True) == ()


async def test_an_unfinished_resize_shows_until_the_record_says_it_is_done(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.room = 4
    bench.run(asking("a", "1"))
    wish = asking("a", "2", generation=2)
    bench.wish(wish)
    seen = a_runtime_status(wish, a_container_status(wish))
    bench.allocations.review(wish, seen)
    assert bench.reasons("a") == [None]
    bench.allocations.failed(wish, "busy")
    bench.allocations.failed(wish, "busy")
    bench.allocations.review(wish, seen)
    assert bench.reasons("a") == ["Error"]
    bench.actuated.put("uid-a", effect_of(wish))
    bench.allocations.review(wish, seen)
    assert bench.reasons("a") == []
    assert bench.events.reasons() == ["ResizeStarted", "ResizeError", "ResizeCompleted"]


async def test_what_belongs_to_no_pod_is_forgotten(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(asking("a", "1"))
    bench.wish(asking("a", "2"))
    bench.allocations.keep_only([])
    assert bench.actuated.get("uid-a") is None and bench.allocations.conditions("uid-a", terminal=False) == ()
    bench.judged.clear()
    bench.allocations.retry(POD_UPDATED)
    assert bench.judged == []
