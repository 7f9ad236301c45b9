"""Turns at the runtime: how many, whose, and that nobody is held up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet
from pykubelet.recorder import LifeRecorder, Outcome, Step
from pykubelet.runtime.pacing import OLDEST_EVERY, STOPS_PER_CPU, Pacer, Rank, Width
from tests.builders import a_context


class Bench:
    """A pacer on one processor that is as idle as the test says, and calls that take as long as it says."""

    def __init__(self, *, idle: float = 0.0, cpus: int = 1) -> None:
        self.clock = LoopClock()
        self.recorder = LifeRecorder(self.clock)
        self.metrics = Registry()
        self.width = Width(cpus, self.clock, idle=lambda: idle * cpus * self.clock.monotonic())
        ctx = a_context(clock=self.clock, recorder=self.recorder, metrics=self.metrics)
        self.pacer = Pacer(ctx, self.width)
        self.begun: list[str] = []
        self.at: dict[str, float] = {}
        self.running = self.most = 0

    async def call(self, uid: str, rank: Rank = Rank.CONTAINER, size: int = 1, seconds: float = 1.0) -> None:
        async with self.pacer.turn(uid, rank, size):
            self.begun.append(uid)
            self.at[uid] = self.clock.monotonic()
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.clock.sleep(seconds)
            finally:
                self.running -= 1

    async def all(self, *calls: asyncio._CoroutineLike[None]) -> None:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)  # type: ignore[arg-type]


async def test_two_calls_go_for_each_processor() -> None:
    bench = Bench(cpus=2)
    await bench.all(*(bench.call(f"pod{n}", seconds=0.2) for n in range(20)))
    assert bench.most == 4
    assert bench.clock.monotonic() == pytest.approx(1.0)


async def test_a_free_place_costs_nothing() -> None:
    bench = Bench()
    await bench.call("a")
    assert bench.recorder.life("a") is None


async def test_who_goes_first() -> None:
    bench = Bench()
    waiting = [
        ("new", Rank.NEW, 1),
        ("big", Rank.NEW, 3),
        ("critical", Rank.CRITICAL, 2),
        ("container", Rank.CONTAINER, 0),
        ("restart", Rank.RESTART, 0),
    ]
    first = [bench.call(f"first{n}", seconds=0.1) for n in range(2)]
    await bench.all(*first, *(bench.call(uid, rank, size, 0.1) for uid, rank, size in waiting))
    assert bench.begun[2:] == ["restart", "container", "critical", "new", "big"]


async def test_a_pod_with_its_sandbox_keeps_the_place_for_its_container() -> None:
    bench = Bench()

    async def start(uid: str) -> None:
        await bench.call(f"{uid}", Rank.NEW)
        await bench.clock.sleep(0.05)
        await bench.call(uid, Rank.CONTAINER)

    await bench.all(*(start(f"pod{n}") for n in range(4)))
    assert bench.begun == ["pod0", "pod1", "pod0", "pod1", "pod2", "pod3", "pod2", "pod3"]
    assert bench.clock.monotonic() == pytest.approx(4.1)


async def test_a_place_is_not_kept_for_long_nor_after_a_failure() -> None:
    bench = Bench()

    async def fails(uid: str) -> None:
        with pytest.raises(ValueError):
            async with bench.pacer.turn(uid, Rank.NEW):
                await bench.clock.sleep(1.0)
                raise ValueError("no sandbox")

    await bench.all(
        bench.call("pulls", Rank.NEW), fails("broken"), bench.call("a", Rank.NEW), bench.call("b", Rank.NEW)
    )
    assert (bench.at["a"], bench.at["b"]) == (pytest.approx(1.0), pytest.approx(1.1))


async def test_nobody_starves_behind_more_important_calls() -> None:
    bench = Bench()

    async def crashing(uid: str) -> None:
        for _ in range(20):
            await bench.call(uid, Rank.RESTART, seconds=0.1)

    await bench.all(crashing("a"), crashing("b"), crashing("c"), bench.call("new", Rank.NEW, seconds=0.1))
    assert bench.begun.index("new") <= 2 + OLDEST_EVERY


async def test_what_hangs_gives_its_place_up() -> None:
    bench = Bench()
    hanging = [bench.call(f"hangs{n}", seconds=100.0) for n in range(2)]
    await bench.all(*hanging, *(bench.call(f"pod{n}", seconds=0.5) for n in range(4)))
    assert bench.at["pod0"] == pytest.approx(2.0)
    assert bench.at["pod3"] == pytest.approx(2.5)


async def test_on_a_slow_machine_slow_is_usual() -> None:
    bench = Bench()
    await bench.all(*(bench.call(f"warm{n}", seconds=4.0) for n in range(2)))
    begun = bench.clock.monotonic()
    await bench.all(*(bench.call(f"pod{n}", seconds=4.0) for n in range(6)))
    assert bench.most == 2
    assert bench.clock.monotonic() - begun == pytest.approx(12.0)


async def test_the_width_grows_while_all_calls_take_long() -> None:
    bench = Bench(idle=0.95)
    await bench.all(*(bench.call(f"warm{n}", Rank.NEW, seconds=10.0) for n in range(2)))
    begun = bench.clock.monotonic()
    await bench.all(*(bench.call(f"pod{n}", Rank.NEW, seconds=10.0) for n in range(8)))
    assert bench.most == 8
    assert bench.clock.monotonic() - begun < 12.0


async def test_calls_that_failed_do_not_make_slow_usual() -> None:
    bench = Bench()

    async def hangs(uid: str) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(240), bench.pacer.turn(uid, Rank.NEW):
                await bench.clock.sleep(1000.0)

    await bench.all(hangs("a"), hangs("b"))
    begun = bench.clock.monotonic()
    await bench.all(hangs("c"), hangs("d"), bench.call("critical", Rank.CRITICAL))
    assert bench.at["critical"] - begun == pytest.approx(2.0)


async def test_a_pod_that_ran_before_uses_the_place_kept_for_its_container() -> None:
    bench = Bench()

    async def start(uid: str) -> None:
        await bench.call(uid, Rank.NEW)
        await bench.call(uid, Rank.RESTART)

    await bench.all(*(start(f"pod{n}") for n in range(4)))
    assert bench.clock.monotonic() == pytest.approx(4.0)


async def test_starts_and_stops_do_not_wait_for_each_other() -> None:
    bench = Bench()
    starts = [bench.call(f"start{n}", Rank.NEW) for n in range(2)]
    stops = [bench.call(f"stop{n}", Rank.STOP) for n in range(STOPS_PER_CPU)]
    await bench.all(*starts, *stops, bench.call("last", Rank.STOP))
    assert {bench.at[f"stop{n}"] for n in range(STOPS_PER_CPU)} == {0.0}
    assert bench.at["last"] == pytest.approx(0.5), "a stop holds its place for a moment only"


@pytest.mark.parametrize(
    ("idle", "expected"),
    [(0.0, 2), (0.1, 2), (0.9, 8)],
    ids=["busy processors", "nearly busy", "the calls wait for something else"],
)
async def test_the_width_follows_what_processors_do(idle: float, expected: int) -> None:
    bench = Bench(idle=idle)
    await bench.all(*(bench.call(f"pod{n}", seconds=0.2) for n in range(200)))
    assert bench.most == expected
    assert bench.width.now == 2, "the next burst begins as this one did"


async def test_the_width_shrinks_when_processors_become_busy() -> None:
    bench = Bench()
    share = 0.9
    total = 0.0
    last = 0.0

    def idle() -> float:
        nonlocal total, last
        now = bench.clock.monotonic()
        total, last = total + share * (now - last), now
        return total

    bench.width = Width(1, bench.clock, idle=idle)
    for _ in range(10):
        await bench.clock.sleep(0.3)
        bench.width.crowded()
    assert bench.width.now == 8
    share = 0.0
    for _ in range(10):
        await bench.clock.sleep(0.3)
        bench.width.crowded()
    assert bench.width.now == 2


async def test_a_kernel_that_does_not_tell() -> None:
    bench = Bench()
    width = Width(3, bench.clock, idle=lambda: None)
    width.crowded()
    assert width.now == 6


async def test_who_gives_up_waiting_takes_nothing_along() -> None:
    bench = Bench()
    async with TaskSet("test") as tasks:
        for n in range(2):
            tasks.spawn(bench.call(f"first{n}", seconds=1.0), name=f"first{n}")
        given_up = tasks.spawn(bench.call("gone", Rank.RESTART), name="gone")
        tasks.spawn(bench.call("next"), name="next")
        await bench.clock.sleep(0.5)
        given_up.cancel()
        await bench.clock.sleep(1.0)
        assert bench.begun == ["first0", "first1", "next"]
    assert bench.pacer.position("gone") is None


async def test_who_is_cancelled_as_its_turn_comes_gives_it_back() -> None:
    bench = Bench()
    async with TaskSet("test") as tasks:
        first = [tasks.spawn(bench.call(f"first{n}", seconds=50.0), name=f"first{n}") for n in range(2)]
        await asyncio.sleep(0)
        waits = tasks.spawn(bench.call("gone"), name="gone")
        await asyncio.sleep(0)
        for each in first:
            each.cancel()
        await asyncio.sleep(0)  # the places were given on, and who got one has not run yet
        waits.cancel()
        await bench.clock.sleep(0.01)
        assert "gone" not in bench.begun
        await bench.all(*(bench.call(f"later{n}") for n in range(2)))
        assert bench.at["later1"] == pytest.approx(0.01)


async def test_the_place_in_the_line_and_what_is_recorded() -> None:
    bench = Bench()
    async with TaskSet("test") as tasks:

        def begin(uid: str, rank: Rank = Rank.CONTAINER) -> None:
            tasks.spawn(bench.call(uid, rank), name=uid)

        for uid in ("a", "b", "c", "d"):
            begin(uid)
        begin("e", Rank.RESTART)
        await bench.clock.sleep(0.1)
        positions: Callable[[], list[int | None]] = lambda: [bench.pacer.position(uid) for uid in "abcde"]  # noqa: E731
        assert positions() == [None, None, 2, 3, 1]
        life = bench.recorder.life("d")
        assert life is not None and [(e.step, e.outcome) for e in life.entries] == [(Step.TURN, Outcome.BEGUN)]
        shown = bench.metrics.expose()
        assert 'pykubelet_runtime_turns{state="waiting"} 3' in shown
        assert 'pykubelet_runtime_turns{state="taken"} 2' in shown
        await bench.clock.sleep(10.0)
        assert positions() == [None] * 5
        assert life.entries[0].outcome is Outcome.DONE and life.entries[0].seconds == pytest.approx(2.0)
