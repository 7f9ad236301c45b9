"""Inspections of one pod: sharing, order, and what a record agrees with."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import CallTimedOut, CriError
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pleg.cache import PodStatusCache
from pykubelet.pleg.diff import ContainerDied, ContainerStarted, Life, PodSync, RuntimeEvent, Seen
from pykubelet.pleg.refresh import Answer, PodInspections, PodRecord
from tests.fakes.fake_cri import FakeCri
from tests.unit.pleg.pods import IMAGE, start_pod

R, E, X = Life.RUNNING, Life.ENDED, Life.OTHER


@pytest.mark.parametrize(
    ("sight", "listed", "now", "agrees"),
    [
        ({"a": R}, {"a": R}, {"a": R}, True),
        ({"a": R}, {"a": R}, {"a": E}, False),
        ({"a": R}, {"a": R}, {}, False),
        ({"a": R}, {"a": R}, {"a": R, "b": R}, False),
        # The status read after the listing saw the end already: neither answer is news.
        ({"a": E}, {"a": R}, {"a": E}, True),
        ({"a": E}, {"a": R}, {"a": R}, True),
        ({"a": E}, {"a": R}, {"a": X}, False),
        # Listed, but without a status: gone by then, or a runtime that contradicts itself.
        ({}, {"a": E}, {}, True),
        ({}, {"a": E}, {"a": E}, True),
    ],
)
def test_record_agrees(sight: dict[str, Life], listed: dict[str, Life], now: dict[str, Life], agrees: bool) -> None:
    record = PodRecord(
        status=PodRuntimeStatus(uid="u"), sight={id: Seen(life) for id, life in sight.items()}, listed=listed
    )
    assert record.agrees_with(now) is agrees


class Bench:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.cri = FakeCri(self.clock, images=[IMAGE])
        self.cache = PodStatusCache()
        self.told: list[RuntimeEvent] = []
        self.answers: list[Answer] = []
        self.begun: list[str] = []
        self.inspections = PodInspections(
            cri=self.cri,
            cache=self.cache,
            clock=self.clock,
            deadline=60.0,
            tell=self.told.append,
            begun=self.begun.append,
            inspected=lambda uid, answer: self.answers.append(answer),
        )

    def lists(self) -> int:
        return len(self.cri.called("list_containers"))


async def test_refresh_works_before_the_service_runs() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")
    status = await bench.inspections.refresh("uid-web")
    assert status.running() and bench.cache.get("uid-web") == status
    assert [type(e) for e in bench.told] == [ContainerStarted, ContainerStarted]
    assert all(e.asked for e in bench.told if isinstance(e, ContainerStarted))


async def test_cache_is_renewed_before_events_are_told() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")
    seen: list[bool] = []
    bench.inspections._tell = lambda event: seen.append(bool(bench.cache.get("uid-web").running()))
    await bench.inspections.refresh("uid-web")
    assert seen == [True, True]


async def test_nothing_new_tells_nothing() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")
    await bench.inspections.refresh("uid-web")
    bench.told.clear()
    await bench.inspections.refresh("uid-web")
    assert bench.told == []


async def test_callers_share_the_inspection_that_starts_after_they_asked() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")
    bench.cri.slow("list_containers", 1.0)
    results: list[PodRuntimeStatus] = []

    async def ask() -> None:
        results.append(await bench.inspections.refresh("uid-web"))

    async with bench.inspections.running(), TaskSet("callers") as callers:
        callers.spawn(ask(), name="first")
        await bench.clock.sleep(0.5)
        for number in range(5):  # too late for the first one: they share a second
            callers.spawn(ask(), name=f"late {number}")
        await bench.clock.sleep(3)
    assert bench.lists() == 2
    assert [r.observed_at for r in results] == [0.0, *[1.0] * 5]


async def test_a_cancelled_caller_does_not_harm_the_others() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")
    bench.cri.slow("list_containers", 1.0)
    results: list[PodRuntimeStatus] = []

    async def ask() -> None:
        results.append(await bench.inspections.refresh("uid-web"))

    async with bench.inspections.running(), TaskSet("callers") as callers:
        first = callers.spawn(ask(), name="first")
        callers.spawn(ask(), name="second")
        await bench.clock.sleep(0.5)
        first.cancel()
        await bench.clock.sleep(3)
    assert len(results) == 1


async def test_deadline_becomes_an_error_and_the_next_success_a_pod_sync() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")
    await bench.inspections.refresh("uid-web")
    bench.told.clear()
    fault = bench.cri.hang("container_status", "uid-web")
    with pytest.raises(CallTimedOut, match="60s"):
        await bench.inspections.refresh("uid-web")
    with pytest.raises(CallTimedOut):
        bench.cache.get("uid-web")
    fault.release()
    await bench.inspections.refresh("uid-web")
    assert bench.told == [PodSync(pod_uid="uid-web")]


async def test_a_bug_is_this_pods_trouble_only() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")

    async def broken(container_id: str) -> None:
        raise KeyError("surprise")

    bench.cri.container_status = broken  # type: ignore[assignment,method-assign]
    with pytest.raises(CriError, match="surprise"):
        await bench.inspections.refresh("uid-web")


async def test_stopping_answers_everybody() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")
    bench.cri.hang("list_containers")
    async with bench.inspections.running():
        first = bench.inspections.request("uid-web")
        await bench.clock.sleep(1)
        second = bench.inspections.request("uid-web")
    assert isinstance(first.result(), CriError) and isinstance(second.result(), CriError)


async def test_the_index_follows_what_is_there() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web", "app", "side")
    await bench.inspections.refresh("uid-web")
    assert set(bench.inspections.pod_of.values()) == {"uid-web"} and len(bench.inspections.pod_of) == 3
    await bench.cri.remove_container(bench.cri.container("side").id)
    await bench.inspections.refresh("uid-web")
    assert len(bench.inspections.pod_of) == 2
    await bench.cri.remove_pod_sandbox(bench.cri.sandbox("web").id)
    await bench.inspections.refresh("uid-web")
    assert bench.inspections.pod_of == {} and bench.inspections.records == {}
    assert bench.cache.get("uid-web").sandboxes == ()


async def test_an_outdated_listing_is_not_used() -> None:
    bench = Bench()
    await start_pod(bench.cri, "web")
    async with bench.inspections.running():
        await bench.clock.sleep(1)
        await bench.inspections.refresh("uid-web")
        listing = await _listing(bench)
        bench.cri.calls.clear()
        bench.begun.clear()
        await bench.inspections.request("uid-web", listing=listing)
        assert bench.lists() == 1 and bench.begun == ["uid-web"]
        await bench.clock.sleep(1)
        bench.cri.exit("app")
        fresh = await _listing(bench)
        bench.cri.calls.clear()
        bench.begun.clear()
        await bench.inspections.request("uid-web", listing=fresh)
        # It is as old as its listing: hints that came since are not answered by it.
        assert bench.lists() == 0 and bench.begun == []
    assert isinstance(bench.told[-1], ContainerDied)


async def _listing(bench: Bench):  # type: ignore[no-untyped-def]
    from pykubelet.pleg.inspect import list_pod

    return await list_pod(bench.cri, "uid-web", started=asyncio.get_running_loop().time())
