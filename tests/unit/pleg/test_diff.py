"""Two inspections of a pod become signals: the whole table."""

from __future__ import annotations

import pytest

from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    ContainerStatus,
    Life,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
    SandboxStatus,
)
from pykubelet.pleg.diff import Observed, agrees, listed_lives, lives, plan_signals
from pykubelet.signals import ContainerDied, ContainerRemoved, ContainerStarted

R, E, X = Life.RUNNING, Life.ENDED, Life.OTHER
STARTED, DIED, REMOVED = ContainerStarted, ContainerDied, ContainerRemoved


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, R, [STARTED]),
        (None, E, [DIED]),
        (None, X, []),
        (R, R, []),
        (E, E, []),
        (X, X, []),
        (X, R, [STARTED]),
        (R, E, [DIED]),
        (X, E, [DIED]),
        (R, X, []),
        (E, None, [REMOVED]),
        (R, None, [DIED, REMOVED]),
        (X, None, [DIED, REMOVED]),
    ],
)
def test_one_container(old: Life | None, new: Life | None, expected: list[type]) -> None:
    before = {} if old is None else {"c": Observed(old, "app")}
    after = {} if new is None else {"c": Observed(new, "app")}
    events = plan_signals("u", before, after)
    assert [type(event) for event in events] == expected
    assert all((e.uid, e.container_id, e.name, e.sandbox) == ("u", "c", "app", False) for e in events)


def test_a_restart_reads_in_order() -> None:
    events = plan_signals(
        "u", {"a": Observed(R, "app")}, {"b": Observed(R, "app"), "a": Observed(E, "app")}, requested=True
    )
    assert [(type(e), e.container_id, e.requested) for e in events] == [(DIED, "a", True), (STARTED, "b", True)]


def test_sandboxes_are_told_of_like_containers() -> None:
    [event] = plan_signals("u", {"s": Observed(R, sandbox=True)}, {"s": Observed(E, sandbox=True)})
    assert event == ContainerDied(uid="u", container_id="s", sandbox=True)


def test_sight_and_listing_agree_on_what_matters() -> None:
    status = PodRuntimeStatus(
        uid="u",
        sandboxes=(SandboxStatus(id="s", pod_uid="u", pod_name="p", pod_namespace="n", state=SandboxState.NOT_READY),),
        containers=tuple(ContainerStatus(id=s.value, name="c", state=s) for s in ContainerState),
    )
    observed = {id: each.life for id, each in lives(status).items()}
    assert observed == {"s": E, "created": X, "running": R, "exited": E, "unknown": X}
    records = [
        ContainerRecord(id=s.value, sandbox_id="s", pod_uid="u", pod_name="p", pod_namespace="n", name="c", state=s)
        for s in ContainerState
    ]
    foreign = ContainerRecord(id="x", sandbox_id="y", pod_uid="", pod_name="", pod_namespace="", name="")
    box = SandboxRecord(id="s", pod_uid="u", pod_name="p", pod_namespace="n", state=SandboxState.NOT_READY)
    assert listed_lives([box], [*records, foreign]) == {"u": observed}


STATES = {R: ContainerState.RUNNING, E: ContainerState.EXITED, X: ContainerState.CREATED}


@pytest.mark.parametrize(
    ("known", "listed", "now", "expected"),
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
def test_a_listing_agrees(
    known: dict[str, Life], listed: dict[str, Life], now: dict[str, Life], expected: bool
) -> None:
    containers = tuple(ContainerStatus(id=id, name="app", state=STATES[life]) for id, life in known.items())
    assert agrees(PodRuntimeStatus(uid="u", containers=containers), listed, now) is expected
