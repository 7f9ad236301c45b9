"""Inspections of one pod: sharing, order, deadlines."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import CallTimedOut, CriError
from pykubelet.model.runtime_status import ContainerEvent, EventKind, PodRuntimeStatus
from pykubelet.pleg.pleg import Pleg
from pykubelet.pods.table import PodTable
from pykubelet.signals import ContainerDied, ContainerStarted, InspectionRecovered, PodSignal, Signals
from tests.builders import a_context
from tests.fakes.fake_cri import FakeCri
from tests.unit.pleg.pods import IMAGE, start_pod

HINT = ContainerEvent(container_id="c", kind=EventKind.STARTED, pod_uid="uid-web")


class PlegFixture:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.cri = FakeCri(self.clock, images=[IMAGE])
        self.table, self.signals = PodTable(), Signals()
        self.published: list[PodSignal] = []
        for kind in (ContainerStarted, ContainerDied, InspectionRecovered):
            self.signals.subscribe(kind, self.published.append)
        self.pleg = Pleg(a_context(clock=self.clock, signals=self.signals), self.cri, self.table)

    def has_hint(self) -> bool:
        """Whether a hint waits for an inspection."""
        return self.pleg._due["uid-web"].hinted

    def lists(self) -> int:
        return len(self.cri.called("list_containers"))


async def test_refresh_works_before_the_service_runs() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")
    status = await bench.pleg.inspect("uid-web")
    assert status.running() and bench.table.runtime_status("uid-web") == status
    assert [type(e) for e in bench.published] == [ContainerStarted, ContainerStarted]
    assert all(e.requested for e in bench.published if isinstance(e, ContainerStarted))


async def test_cache_is_renewed_before_events_are_told() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")
    seen: list[bool] = []
    bench.signals.subscribe(
        ContainerStarted, lambda event: seen.append(bool(bench.table.runtime_status("uid-web").running()))
    )
    await bench.pleg.inspect("uid-web")
    assert seen == [True, True]


async def test_nothing_new_tells_nothing() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")
    await bench.pleg.inspect("uid-web")
    bench.published.clear()
    await bench.pleg.inspect("uid-web")
    assert bench.published == []


async def test_callers_share_the_inspection_that_starts_after_they_asked() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")
    bench.cri.slow("list_containers", 1.0)
    results: list[PodRuntimeStatus] = []

    async def ask() -> None:
        results.append(await bench.pleg.inspect("uid-web"))

    async with bench.pleg.inspecting(), TaskSet("callers") as callers:
        callers.spawn(ask(), name="first")
        await bench.clock.sleep(0.5)
        for number in range(5):  # too late for the first one: they share a second
            callers.spawn(ask(), name=f"late {number}")
        await bench.clock.sleep(3)
    assert bench.lists() == 2
    assert [r.observed_at for r in results] == [0.0, *[1.0] * 5]


async def test_a_cancelled_caller_does_not_harm_the_others() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")
    bench.cri.slow("list_containers", 1.0)
    results: list[PodRuntimeStatus] = []

    async def ask() -> None:
        results.append(await bench.pleg.inspect("uid-web"))

    async with bench.pleg.inspecting(), TaskSet("callers") as callers:
        first = callers.spawn(ask(), name="first")
        callers.spawn(ask(), name="second")
        await bench.clock.sleep(0.5)
        first.cancel()
        await bench.clock.sleep(3)
    assert len(results) == 1


async def test_deadline_becomes_an_error_and_the_next_success_a_pod_sync() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")
    await bench.pleg.inspect("uid-web")
    bench.published.clear()
    fault = bench.cri.hang("container_status", "uid-web")
    with pytest.raises(CallTimedOut, match="60s"):
        await bench.pleg.inspect("uid-web")
    with pytest.raises(CallTimedOut):
        await bench.pleg.status_newer_than("uid-web", 0.0)
    fault.release()
    await bench.pleg.inspect("uid-web")
    assert bench.published == [InspectionRecovered("uid-web")]


async def test_a_bug_is_this_pods_trouble_only() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")

    async def broken(container_id: str) -> None:
        raise KeyError("surprise")

    bench.cri.container_status = broken  # type: ignore[assignment,method-assign]
    with pytest.raises(CriError, match="surprise"):
        await bench.pleg.inspect("uid-web")


async def test_stopping_answers_everybody() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")
    bench.cri.hang("list_containers")
    async with bench.pleg.inspecting():
        first = bench.pleg.request("uid-web")
        await bench.clock.sleep(1)
        second = bench.pleg.request("uid-web")
    assert isinstance(first.result(), CriError) and isinstance(second.result(), CriError)


async def test_the_index_follows_what_is_there() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web", "app", "side")
    await bench.pleg.inspect("uid-web")
    assert set(bench.pleg._pod_of.values()) == {"uid-web"} and len(bench.pleg._pod_of) == 3
    await bench.cri.remove_container(bench.cri.container("side").id)
    await bench.pleg.inspect("uid-web")
    assert len(bench.pleg._pod_of) == 2
    await bench.cri.remove_pod_sandbox(bench.cri.sandbox("web").id)
    await bench.pleg.inspect("uid-web")
    assert bench.pleg._pod_of == {}
    assert bench.table.runtime_status("uid-web").sandboxes == ()


async def test_an_outdated_listing_is_not_used() -> None:
    bench = PlegFixture()
    await start_pod(bench.cri, "web")
    async with bench.pleg.inspecting():
        await bench.clock.sleep(1)
        await bench.pleg.inspect("uid-web")
        listing = await _listing(bench)
        bench.cri.calls.clear()
        bench.pleg.hint(HINT)
        await bench.pleg.request("uid-web", listing=listing)
        assert bench.lists() == 1 and bench.pleg.snapshot().due == 0
        await bench.clock.sleep(1)
        bench.cri.exit("app")
        fresh = await _listing(bench)
        bench.cri.calls.clear()
        bench.pleg.hint(HINT)
        await bench.pleg.request("uid-web", listing=fresh)
        # It is as old as its listing: hints that came since are not answered by it.
        assert bench.lists() == 0 and bench.has_hint()
    assert isinstance(bench.published[-1], ContainerDied)


async def _listing(bench: PlegFixture):  # type: ignore[no-untyped-def]
    from pykubelet.pleg.inspect import list_pod

    return await list_pod(bench.cri, "uid-web", started=asyncio.get_running_loop().time())
