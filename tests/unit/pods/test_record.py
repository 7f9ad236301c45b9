"""The table of worker states, the grace rules and the questions others ask."""

from __future__ import annotations

import pytest

from pykubelet.api.types import Pod
from pykubelet.model.errors import IllegalMove
from pykubelet.model.pod import PodUID
from pykubelet.pods.record import NEXT, PodWorker, WorkerState
from pykubelet.pods.table import PodTable
from tests.builders import a_pod


def worker(state: WorkerState = WorkerState.SYNCING, **facts: object) -> PodWorker:
    made = PodWorker(PodUID("u1"), "web_default", None)
    made.state = state
    for name, value in facts.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("start", list(WorkerState))
@pytest.mark.parametrize("to", list(WorkerState))
def test_only_moves_of_the_table_are_possible(start: WorkerState, to: WorkerState) -> None:
    made = worker(start)
    if to in NEXT[start]:
        made.move(to, "test")
        assert made.state is to
    else:
        with pytest.raises(IllegalMove, match=f"{start.value} -> {to.value}"):
            made.move(to, "test")


@pytest.mark.parametrize(
    ("current", "pod", "override", "grace", "shorter"),
    [
        (None, a_pod(grace=30), None, 30, False),
        (None, a_pod(grace=30, deletion_grace=10), None, 10, False),
        (None, a_pod(grace=30, deletion_grace=0), None, 1, False),
        (None, a_pod(grace=30, deletion_grace=0), 20, 1, False),
        (None, a_pod(grace=0), None, 1, False),
        (None, a_pod(grace=None), None, 1, False),
        (None, a_pod(grace=30), 5, 5, False),
        (None, a_pod(grace=30), 0, 1, False),
        (30, a_pod(grace=30, deletion_grace=0), None, 1, True),
        (30, a_pod(grace=30), 0, 1, True),
        (1, a_pod(grace=30, deletion_grace=0), None, 1, False),
        (30, a_pod(grace=30, deletion_grace=10), None, 10, True),
        (10, a_pod(grace=30, deletion_grace=60), None, 10, False),
        (10, a_pod(grace=30), 60, 10, False),
        (10, a_pod(grace=30), 3, 3, True),
        (1, None, None, 1, False),
    ],
)
def test_grace_only_ever_shrinks(
    current: int | None, pod: Pod | None, override: int | None, grace: int, shorter: bool
) -> None:
    made = worker(grace=current, pod=pod)
    assert made.shorten_grace(override) is shorter
    assert made.grace == grace


@pytest.mark.parametrize(
    ("state", "facts", "running", "content", "runtime", "finished"),
    [
        (WorkerState.SYNCING, {}, True, False, False, False),
        (WorkerState.TERMINATING, {"deleted": True}, True, False, False, False),
        (WorkerState.TERMINATED, {}, False, False, True, False),
        (WorkerState.TERMINATED, {"deleted": True}, False, True, True, False),
        (WorkerState.FINISHED, {"evicted": True}, False, True, True, True),
        (WorkerState.FINISHED, {}, False, False, True, True),
    ],
)
def test_questions_about_a_known_pod(
    state: WorkerState,
    facts: dict[str, object],
    running: bool,
    content: bool,
    runtime: bool,
    finished: bool,
) -> None:
    table = PodTable()
    table.add_worker(worker(state, **facts))
    assert table.could_have_running_containers("u1") is running
    assert table.should_remove_content("u1") is content
    assert table.should_remove_runtime("u1") is runtime
    assert table.is_finished("u1") is finished


def test_nothing_is_removed_before_the_first_housekeeping() -> None:
    table = PodTable()
    assert table.could_have_running_containers("stranger")
    assert not table.should_remove_content("stranger")
    assert not table.should_remove_runtime("stranger")
    table.mark_synced()
    assert not table.could_have_running_containers("stranger")
    assert table.should_remove_content("stranger")
    assert table.should_remove_runtime("stranger")
