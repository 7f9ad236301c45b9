"""The life recorder: order, durations, repeats, bounds."""

from __future__ import annotations

import contextlib

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.recorder import ENTRIES_PER_POD, LifeRecorder, Outcome, Step


async def test_a_step_records_its_duration_and_outcome() -> None:
    clock = LoopClock()
    recorder = LifeRecorder(clock)
    with recorder.step("u1", Step.SANDBOX):
        await clock.sleep(2)
    with pytest.raises(ValueError), recorder.step("u1", Step.PULL, "web"):
        await clock.sleep(1)
        raise ValueError("registry says no")
    life = recorder.life("u1")
    assert life is not None
    sandbox, pull = life.entries
    assert (sandbox.outcome, sandbox.seconds) == (Outcome.DONE, 2)
    assert (pull.outcome, pull.seconds, pull.message) == (Outcome.FAILED, 1, "registry says no")


async def test_the_same_note_again_is_counted_not_repeated() -> None:
    clock = LoopClock()
    recorder = LifeRecorder(clock)
    for _ in range(5):
        recorder.note("u1", Step.BACKOFF, "web", reason="CrashLoopBackOff", message="back-off 10s")
        await clock.sleep(1)
    life = recorder.life("u1")
    assert life is not None
    (entry,) = life.entries
    assert entry.repeats == 4
    assert entry.last_at - entry.at == 4


async def test_memory_is_bounded() -> None:
    recorder = LifeRecorder(LoopClock())
    for number in range(ENTRIES_PER_POD * 3):
        recorder.note("u1", Step.EXIT, "web", message=str(number))
    life = recorder.life("u1")
    assert life is not None
    assert len(life.entries) == ENTRIES_PER_POD


async def test_listeners_hear_completed_steps_only() -> None:
    heard = []
    recorder = LifeRecorder(LoopClock())
    recorder.listen(lambda uid, entry: heard.append((uid, entry.step, entry.outcome)))
    with recorder.step("u1", Step.CREATE, "web"):
        assert heard == []
    assert heard == [("u1", Step.CREATE, Outcome.DONE)]


async def test_a_routine_step_is_kept_when_it_is_news() -> None:
    clock = LoopClock()
    recorder = LifeRecorder(clock)
    recorder.note("a", Step.SEEN)

    async def routine(*, takes: float = 0.0, fails: bool = False) -> None:
        with contextlib.suppress(ValueError), recorder.step("a", Step.CGROUP, routine=True):
            await clock.sleep(takes)
            if fails:
                raise ValueError("no space")

    for _ in range(200):
        await routine()
    await routine(takes=1.0)
    await routine(fails=True)
    await routine()
    await routine()
    life = recorder.life("a")
    assert life is not None
    assert [(each.step, each.outcome) for each in life.entries] == [
        (Step.SEEN, Outcome.NOTED),
        (Step.CGROUP, Outcome.DONE),
        (Step.CGROUP, Outcome.DONE),
        (Step.CGROUP, Outcome.FAILED),
        (Step.CGROUP, Outcome.DONE),
    ]
