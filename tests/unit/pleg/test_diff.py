"""Two looks at a pod become events: the whole table."""

from __future__ import annotations

import pytest

from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    ContainerStatus,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
    SandboxStatus,
)
from pykubelet.pleg.diff import (
    ContainerChanged,
    ContainerDied,
    ContainerRemoved,
    ContainerStarted,
    Life,
    Seen,
    listed_lives,
    plan_events,
    sight_of,
)

R, E, X = Life.RUNNING, Life.ENDED, Life.OTHER
STARTED, DIED, REMOVED, CHANGED = ContainerStarted, ContainerDied, ContainerRemoved, ContainerChanged


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, R, [STARTED]),
        (None, E, [DIED]),
        (None, X, [CHANGED]),
        (R, R, []),
        (E, E, []),
        (X, X, []),
        (X, R, [STARTED]),
        (R, E, [DIED]),
        (X, E, [DIED]),
        (R, X, [CHANGED]),
        (E, None, [REMOVED]),
        (R, None, [DIED, REMOVED]),
        (X, None, [DIED, REMOVED]),
    ],
)
def test_one_container(old: Life | None, new: Life | None, expected: list[type]) -> None:
    before = {} if old is None else {"c": Seen(old, "app")}
    after = {} if new is None else {"c": Seen(new, "app")}
    events = plan_events("u", before, after)
    assert [type(event) for event in events] == expected
    assert all((e.pod_uid, e.container_id, e.name, e.sandbox) == ("u", "c", "app", False) for e in events)


def test_a_restart_reads_in_order() -> None:
    events = plan_events("u", {"a": Seen(R, "app")}, {"b": Seen(R, "app"), "a": Seen(E, "app")}, asked=True)
    assert [(type(e), e.container_id, e.asked) for e in events] == [(DIED, "a", True), (STARTED, "b", True)]


def test_sandboxes_are_told_of_like_containers() -> None:
    [event] = plan_events("u", {"s": Seen(R, sandbox=True)}, {"s": Seen(E, sandbox=True)})
    assert event == ContainerDied(pod_uid="u", container_id="s", sandbox=True)


def test_sight_and_listing_agree_on_what_matters() -> None:
    status = PodRuntimeStatus(
        uid="u",
        sandboxes=(SandboxStatus(id="s", pod_uid="u", pod_name="p", pod_namespace="n", state=SandboxState.NOT_READY),),
        containers=tuple(ContainerStatus(id=s.value, name="c", state=s) for s in ContainerState),
    )
    seen = {id: seen.life for id, seen in sight_of(status).items()}
    assert seen == {"s": E, "created": X, "running": R, "exited": E, "unknown": X}
    records = [
        ContainerRecord(id=s.value, sandbox_id="s", pod_uid="u", pod_name="p", pod_namespace="n", name="c", state=s)
        for s in ContainerState
    ]
    foreign = ContainerRecord(id="x", sandbox_id="y", pod_uid="", pod_name="", pod_namespace="", name="")
    box = SandboxRecord(id="s", pod_uid="u", pod_name="p", pod_namespace="n", state=SandboxState.NOT_READY)
    assert listed_lives([box], [*records, foreign]) == {"u": seen}
