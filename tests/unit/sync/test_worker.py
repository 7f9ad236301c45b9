"""Pod workers: merging of updates, phases, retries, turns of same-name static pods."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pykubelet.api.types import Pod
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CriError, RuntimeDown
from pykubelet.model.pod import PodUID, name_of
from pykubelet.model.problems import CreateFailed, Problem
from pykubelet.model.runtime_status import ContainerStatus, PodRuntimeStatus
from pykubelet.pods.record import Orphan, Room, StatusChange, WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.recorder import LifeRecorder
from pykubelet.signals import PodFinished
from pykubelet.sync.pod_sync import NetworkNotReady, SyncResult
from pykubelet.sync.worker import KillRequest, PodWorkers, UpdateKind
from tests.builders import a_context, a_pod

BACK_OFF = CreateFailed(reason="CreateContainerError", text="back-off")


class Steps:
    """Records what was done and when; what each step does can be replaced."""

    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.log: list[tuple[float, str]] = []
        self.sync_takes = 0.0
        self.kill_takes = 0.0
        self.on_sync: Callable[[Pod], SyncResult] = lambda pod: SyncResult()
        self.statuses: list[StatusChange] = []

    def done(self, what: str) -> int:
        return sum(1 for _, name in self.log if name == what)

    def _note(self, what: str) -> None:
        self.log.append((round(self.clock.monotonic(), 3), what))

    async def sync(self, pod: Pod, observed: PodRuntimeStatus) -> SyncResult:
        self._note(f"sync {name_of(pod)}")
        await self.clock.sleep(self.sync_takes)
        return self.on_sync(pod)

    async def terminating(self, pod: Pod, observed: PodRuntimeStatus, grace: int, changes: list[StatusChange]) -> None:
        self._note(f"kill {name_of(pod)} {grace}")
        self.statuses = changes
        await self.clock.sleep(self.kill_takes)
        self._note(f"killed {name_of(pod)}")

    async def terminating_orphan(self, orphan: Orphan) -> None:
        self._note(f"kill orphan {orphan.name}")

    async def terminated(self, pod: Pod, observed: PodRuntimeStatus) -> None:
        self._note(f"terminated {name_of(pod)}")


class Inspections:
    """Stands for PLEG."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def status_newer_than(self, uid: str, observed_at: float) -> PodRuntimeStatus:
        if self.error is not None:
            raise self.error
        return PodRuntimeStatus(uid=uid)

    async def wait_listed(self) -> None:
        return


class WorkersFixture:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.table = PodTable()
        self.table.relisted(0.0, changed=())
        self.steps = Steps(self.clock)
        self.pleg = Inspections()
        self.events = EventBroadcaster(clock=self.clock, node_name="node1")
        self.finished: list[str] = []
        self.metrics, self.recorder = Registry(), LifeRecorder(self.clock)
        ctx = a_context(clock=self.clock, events=self.events, recorder=self.recorder, metrics=self.metrics)
        self.workers = PodWorkers(ctx, table=self.table, steps=self.steps, pleg=self.pleg, chance=random.Random(1))
        ctx.signals.subscribe(PodFinished, lambda finished: self.finished.append(finished.uid))

    def what(self) -> list[str]:
        return [name for _, name in self.steps.log]


@asynccontextmanager
async def running_workers() -> AsyncIterator[WorkersFixture]:
    bench = WorkersFixture()
    async with running(bench.workers):
        await asyncio.sleep(0)
        yield bench


async def test_a_pod_lives_and_ends_through_the_three_steps() -> None:
    async with running_workers() as bench:
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1", deletion_grace=10))
        await bench.clock.sleep(1)
        assert bench.what() == ["sync web", "kill web 10", "killed web", "terminated web"]
        assert bench.finished == ["u1"]
        state = bench.table.worker("u1")
        assert state is not None and state.deleted and state.state is WorkerState.FINISHED


async def test_updates_while_syncing_are_merged_into_one_more_run() -> None:
    async with running_workers() as bench:
        bench.steps.sync_takes = 5
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        for _ in range(10):
            bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1"))
        await bench.clock.sleep(20)
        assert bench.steps.done("sync web") == 2


async def test_an_idle_pod_is_looked_at_once_per_resync_interval() -> None:
    async with running_workers() as bench:
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(3600)
        assert 40 <= bench.steps.done("sync web") <= 60


async def test_a_kill_interrupts_the_sync_and_is_never_overwritten() -> None:
    async with running_workers() as bench:
        bench.steps.sync_takes = 1000
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.KILL, a_pod(uid="u1"))
        bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        assert bench.what() == ["sync web", "kill web 30", "killed web", "terminated web"]
        assert bench.steps.log[1][0] < 2


async def test_a_shorter_grace_restarts_the_kill_a_longer_one_does_not() -> None:
    async with running_workers() as bench:
        bench.steps.kill_takes = 100
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1", deletion_grace=20))
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1", deletion_grace=25))
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1", deletion_grace=5))
        await bench.clock.sleep(200)
        assert bench.what()[1:] == ["kill web 20", "kill web 5", "killed web", "terminated web"]


async def test_errors_are_retried_by_their_kind_and_only_for_that_pod() -> None:
    async with running_workers() as bench:

        def fail(pod: Pod) -> SyncResult:
            if name_of(pod) == "bad":
                raise ValueError("boom")
            if name_of(pod) == "net":
                raise NetworkNotReady("no CNI")
            if name_of(pod) == "loop":
                return SyncResult(problems=[BACK_OFF], retry_at=bench.clock.now() + 3)
            return SyncResult()

        bench.steps.on_sync = fail
        for number, name in enumerate(("bad", "net", "loop", "good")):
            bench.workers.update(UpdateKind.CREATE, a_pod(name, uid=f"u{number}"))
        await bench.clock.sleep(29)
        assert 2 <= bench.steps.done("sync bad") <= 3
        assert 18 <= bench.steps.done("sync net") <= 29
        assert bench.steps.done("sync loop") == 10
        assert bench.steps.done("sync good") == 1
        assert bench.table.worker("u0").last_error == "boom"


async def test_a_status_that_cannot_be_had_is_told_but_not_when_the_whole_runtime_is_away() -> None:
    async with running_workers() as bench:
        bench.pleg.error = CriError("no such sandbox")
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        assert [e.message for e in bench.events.all()] == ["error determining status: no such sandbox"]
        bench.pleg.error = RuntimeDown("connection refused")
        await bench.clock.sleep(30)
        assert len(bench.events.all()) == 1


async def test_a_pod_waits_for_those_that_make_room_but_not_for_ever() -> None:
    async with running_workers() as bench:
        gone, stuck = (asyncio.get_running_loop().create_future() for _ in range(2))
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"), after=Room(stopped=[gone], patience=45))
        bench.workers.update(UpdateKind.CREATE, a_pod("late", uid="u2"), after=Room(stopped=[stuck], patience=45))
        bench.workers.update(UpdateKind.CREATE, a_pod("gone", uid="u3"), after=Room(stopped=[stuck], patience=45))
        await bench.clock.sleep(20)
        assert bench.what() == []
        gone.set_result(None)
        bench.workers.update(UpdateKind.UPDATE, a_pod("gone", uid="u3", deletion_grace=10))
        await bench.clock.sleep(1)
        assert bench.what() == ["sync web", "kill gone 10", "killed gone", "terminated gone"]
        await bench.clock.sleep(25)
        assert bench.steps.log[-1] == (45.0, "sync late")


async def test_a_pod_that_waited_for_room_starts_as_it_is_by_then() -> None:
    async with running_workers() as bench:
        gone = asyncio.get_running_loop().create_future()
        bench.workers.update(UpdateKind.CREATE, a_pod("old", uid="u1"), after=Room(stopped=[gone], patience=45))
        await bench.clock.sleep(5)
        bench.workers.update(UpdateKind.UPDATE, a_pod("new", uid="u1"))
        await bench.clock.sleep(5)
        gone.set_result(None)
        await bench.clock.sleep(1)
        assert set(bench.what()) == {"sync new"}


async def test_a_status_that_cannot_be_had_counts_as_error() -> None:
    async with running_workers() as bench:
        bench.pleg.error = RuntimeDown("no answer")
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(3)
        assert bench.what() == []
        bench.pleg.error = None
        await bench.clock.sleep(4)
        assert bench.what() == ["sync web"]


async def test_a_runtime_that_is_away_for_long_is_asked_as_often_as_before() -> None:
    async with running_workers() as bench:
        tries: list[float] = []

        async def fresh(uid: str, than: float) -> PodRuntimeStatus:
            tries.append(bench.clock.monotonic())
            raise RuntimeDown("no answer")

        bench.pleg.status_newer_than = fresh  # type: ignore[method-assign]
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(3 * 3600)
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert len(pauses) > 1100 and max(pauses) < 5.1


async def test_a_pod_that_ends_by_itself_is_terminated_but_not_deleted() -> None:
    async with running_workers() as bench:
        bench.steps.on_sync = lambda pod: SyncResult(ended=True)
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        assert bench.what() == ["sync web", "kill web 30", "killed web", "terminated web"]
        state = bench.table.worker("u1")
        assert state is not None and not state.deleted
        bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        assert bench.steps.done("sync web") == 1


async def test_a_pod_that_already_ended_in_the_api_is_only_cleaned_up() -> None:
    async with running_workers() as bench:
        pod = a_pod(uid="u1")
        pod.status.phase = "Succeeded"
        bench.workers.update(UpdateKind.CREATE, pod)
        await bench.clock.sleep(1)
        assert bench.what() == ["terminated web"]


async def test_a_pod_that_ended_in_the_api_and_is_still_up_is_stopped_first() -> None:
    async with running_workers() as bench:
        bench.table.relisted(0.0, changed=(), up=["u1"])
        pod = a_pod(uid="u1")
        pod.status.phase = "Failed"
        bench.workers.update(UpdateKind.CREATE, pod)
        await bench.clock.sleep(1)
        assert bench.what() == ["kill web 30", "killed web", "terminated web"]


async def test_same_name_static_pods_take_turns() -> None:
    async with running_workers() as bench:
        bench.steps.kill_takes = 10
        old, new = a_pod(uid="old", static=True), a_pod(uid="new", static=True)
        bench.workers.update(UpdateKind.CREATE, old)
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.CREATE, new)
        await bench.clock.sleep(5)
        assert bench.steps.done("sync web") == 1
        bench.workers.update(UpdateKind.KILL, old)
        await bench.clock.sleep(5)
        assert bench.steps.done("sync web") == 1
        await bench.clock.sleep(10)
        assert bench.what() == ["sync web", "kill web 30", "killed web", "terminated web", "sync web"]


async def test_a_waiting_static_pod_that_is_removed_never_starts() -> None:
    async with running_workers() as bench:
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="old", static=True))
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="new", static=True))
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.KILL, a_pod(uid="new", static=True))
        await bench.clock.sleep(1)
        assert bench.what() == ["sync web"]
        assert bench.finished == ["new"]


async def test_a_uid_added_again_while_it_ends_is_started_anew_after_it_was_forgotten() -> None:
    async with running_workers() as bench:
        bench.steps.kill_takes = 5
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1", static=True))
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.KILL, a_pod(uid="u1", static=True))
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1", static=True))
        await bench.clock.sleep(10)
        assert bench.workers.forget("u1")
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1", static=True))
        await bench.clock.sleep(1)
        assert bench.steps.done("sync web") == 2


async def test_who_asked_for_a_kill_learns_when_nothing_runs_any_more() -> None:
    async with running_workers() as bench:
        bench.steps.kill_takes = 3
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(1)
        done = asyncio.get_running_loop().create_future()
        begun = bench.clock.monotonic()
        request = KillRequest(grace_override=4, evicted=True, done=done, change_status=lambda status: None)
        bench.workers.update(UpdateKind.KILL, a_pod(uid="u1"), request)
        await done
        assert round(bench.clock.monotonic() - begun) == 3
        state = bench.table.worker("u1")
        assert state is not None and state.evicted and not state.deleted
        assert len(bench.steps.statuses) == 1
        again = asyncio.get_running_loop().create_future()
        await bench.clock.sleep(1)
        bench.workers.update(UpdateKind.KILL, a_pod(uid="u1"), KillRequest(done=again))
        await again


async def test_a_pod_first_seen_when_it_is_deleted_is_stopped_in_case_an_earlier_agent_started_it() -> None:
    async with running_workers() as bench:
        bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1", deletion_grace=30))
        await bench.clock.sleep(1)
        assert bench.what() == ["kill web 30", "killed web", "terminated web"]
        assert bench.finished == ["u1"]


async def test_an_orphan_is_killed_once_and_forgotten() -> None:
    async with running_workers() as bench:
        orphan = Orphan(uid=PodUID("lost"), name="lost", namespace="default")
        bench.workers.kill_orphan(orphan)
        bench.workers.kill_orphan(orphan)
        await bench.clock.sleep(1)
        assert bench.what() == ["kill orphan lost"]
        bench.workers.forget("lost")
        assert bench.table.worker("lost") is None


async def test_a_deadline_brings_the_next_run_forward() -> None:
    async with running_workers() as bench:
        bench.steps.on_sync = lambda pod: SyncResult(retry_at=bench.clock.now() + 7)
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(8)
        assert [at for at, _ in bench.steps.log] == pytest.approx([0, 7], abs=1e-5)


@pytest.mark.parametrize("problems", [[], [BACK_OFF]])
async def test_passes_that_change_nothing_are_not_repeated_without_a_pause(problems: list[Problem]) -> None:
    async with running_workers() as bench:
        bench.steps.on_sync = lambda pod: SyncResult(problems=problems, retry_at=bench.clock.now())
        bench.steps.sync_takes = 0.01
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(10)
        assert 8 <= bench.steps.done("sync web") <= 12


async def test_a_pod_that_changes_is_synced_without_a_pause() -> None:
    async with running_workers() as bench:

        async def fresh(uid: str, than: float) -> PodRuntimeStatus:
            number = bench.steps.done("sync web")
            return PodRuntimeStatus(uid=uid, containers=(ContainerStatus(id=f"c{number}", name="app"),))

        bench.pleg.status_newer_than = fresh  # type: ignore[method-assign]
        bench.steps.on_sync = lambda pod: SyncResult(
            retry_at=None if bench.steps.done("sync web") == 5 else bench.clock.now()
        )
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(0.1)
        assert bench.steps.done("sync web") == 5


async def test_steps_are_timed() -> None:
    async with running_workers() as bench:
        bench.steps.sync_takes, bench.steps.kill_takes = 1, 2
        bench.workers.update(UpdateKind.CREATE, a_pod(uid="u1"))
        await bench.clock.sleep(5)
        bench.workers.sync_now("u1")
        await bench.clock.sleep(5)
        bench.workers.update(UpdateKind.UPDATE, a_pod(uid="u1", deletion_grace=10))
        await bench.clock.sleep(5)
        text = bench.metrics.expose()
        for kind in ("create", "sync", "kill", "terminated"):
            assert f'kubelet_pod_worker_duration_seconds_count{{operation_type="{kind}"}} 1' in text
        assert "kubelet_pod_worker_start_duration_seconds_count 1" in text
