"""Garbage collection: what is chosen."""

from __future__ import annotations

import msgspec
import pytest

from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    ContainerStatus,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
)
from pykubelet.runtime.gc import GcPolicy, plan_containers, plan_prune, plan_sandboxes

SECOND = 1_000_000_000
CREATED, RUNNING, EXITED, UNKNOWN = (
    ContainerState.CREATED,
    ContainerState.RUNNING,
    ContainerState.EXITED,
    ContainerState.UNKNOWN,
)


def rec(pod: str, name: str, at: int, state: ContainerState = EXITED, box: str = "") -> ContainerRecord:
    return ContainerRecord(
        id=f"{pod}/{name}/{at}",
        sandbox_id=box or f"{pod}/box",
        pod_uid=pod,
        pod_name=pod,
        pod_namespace="ns",
        name=name,
        created_at=at * SECOND,
        state=state,
    )


def box(pod: str, at: int, *, ready: bool = False) -> SandboxRecord:
    state = SandboxState.READY if ready else SandboxState.NOT_READY
    return SandboxRecord(
        id=f"{pod}/box/{at}", pod_uid=pod, pod_name=pod, pod_namespace="ns", created_at=at * SECOND, state=state
    )


KEEP_ONE = GcPolicy()


@pytest.mark.parametrize(
    ("containers", "policy", "gone", "expected"),
    [
        pytest.param([], KEEP_ONE, set(), [], id="nothing"),
        pytest.param([rec("p", "a", 1)], KEEP_ONE, set(), [], id="the newest dead one stays"),
        pytest.param([rec("p", "a", 2), rec("p", "a", 1)], KEEP_ONE, set(), ["p/a/1"], id="older ones go"),
        pytest.param(
            [rec("p", "a", 3, RUNNING), rec("p", "a", 2), rec("p", "a", 1)],
            KEEP_ONE,
            set(),
            ["p/a/1"],
            id="one dead beside the running one",
        ),
        pytest.param(
            [rec("p", "a", 1), rec("p", "b", 2), rec("q", "a", 3)], KEEP_ONE, set(), [], id="counted by pod and name"
        ),
        pytest.param([rec("p", "a", 3, RUNNING)], KEEP_ONE, {"p"}, [], id="running is never chosen"),
        pytest.param(
            [rec("p", "a", 2), rec("p", "a", 1), rec("q", "a", 1)],
            KEEP_ONE,
            {"p"},
            ["p/a/1", "p/a/2"],
            id="a pod that is gone loses all",
        ),
        pytest.param([rec("", "a", 1), rec("", "a", 2)], KEEP_ONE, {""}, [], id="what has no pod is not ours"),
        pytest.param(
            [rec("p", "a", 3, CREATED), rec("p", "a", 2), rec("p", "a", 1)],
            KEEP_ONE,
            set(),
            ["p/a/1"],
            id="about to be started does not count",
        ),
        pytest.param(
            [rec("p", "a", 3), rec("p", "a", 2, CREATED)], KEEP_ONE, set(), ["p/a/2"], id="an old created one goes"
        ),
        pytest.param(
            [rec("p", "a", 4, RUNNING), rec("p", "a", 3, CREATED), rec("p", "a", 2)],
            KEEP_ONE,
            set(),
            ["p/a/2"],
            id="a created one that a killed agent gave up counts as dead",
        ),
        pytest.param([rec("p", "a", 3, CREATED)], KEEP_ONE, {"p"}, ["p/a/3"], id="even created ones of gone pods"),
        pytest.param([rec("p", "a", 2), rec("p", "a", 1, UNKNOWN)], KEEP_ONE, set(), ["p/a/1"], id="unknown"),
        pytest.param(
            [rec("p", "a", 95), rec("p", "a", 94), rec("p", "a", 10)],
            GcPolicy(min_age=60),
            set(),
            [],
            id="young ones are left alone, and not counted",
        ),
        pytest.param([rec("p", "a", 95)], GcPolicy(min_age=60), {"p"}, [], id="young ones of gone pods too"),
        pytest.param(
            [rec("p", "a", 3), rec("p", "a", 2), rec("p", "a", 1)],
            GcPolicy(max_per_container=-1),
            set(),
            [],
            id="no limit",
        ),
        pytest.param(
            [rec("p", "a", 3), rec("p", "a", 2), rec("p", "a", 1)],
            GcPolicy(max_per_container=0),
            set(),
            ["p/a/1", "p/a/2", "p/a/3"],
            id="none kept",
        ),
        pytest.param(
            [rec(p, "a", at) for p in "pq" for at in (1, 2, 3)],
            GcPolicy(max_per_container=3, max_total=4),
            set(),
            ["p/a/1", "q/a/1"],
            id="total: an even share",
        ),
        pytest.param(
            [rec("p", "a", 1), rec("q", "a", 2), rec("r", "a", 3)],
            GcPolicy(max_total=1),
            set(),
            ["p/a/1", "q/a/2"],
            id="total: then the oldest",
        ),
    ],
)
def test_containers(containers: list[ContainerRecord], policy: GcPolicy, gone: set[str], expected: list[str]) -> None:
    chosen = plan_containers(containers, now_ns=100 * SECOND, policy=policy, is_gone=gone.__contains__)
    assert [c.id for c in chosen] == expected


@pytest.mark.parametrize(
    ("sandboxes", "containers", "gone", "expected"),
    [
        pytest.param([box("p", 1)], [], set(), [], id="the newest stays"),
        pytest.param([box("p", 2), box("p", 1)], [], set(), ["p/box/1"], id="older ones go"),
        pytest.param([box("p", 2, ready=True), box("p", 1, ready=True)], [], set(), [], id="ready ones never"),
        pytest.param([box("p", 2, ready=True), box("p", 1)], [], {"p"}, ["p/box/1"], id="ready ones of gone pods"),
        pytest.param([box("p", 1)], [], {"p"}, ["p/box/1"], id="a pod that is gone loses all"),
        pytest.param([box("p", 1)], [rec("p", "a", 1, box="p/box/1")], {"p"}, [], id="still has a container"),
        pytest.param([box("", 1), box("", 2)], [], {""}, [], id="what has no pod is not ours"),
    ],
)
def test_sandboxes(
    sandboxes: list[SandboxRecord], containers: list[ContainerRecord], gone: set[str], expected: list[str]
) -> None:
    assert [s.id for s in plan_sandboxes(sandboxes, containers, is_gone=gone.__contains__)] == expected


def test_what_a_clock_set_back_made_older_by_its_time_is_still_the_newer_attempt() -> None:
    before = msgspec.structs.replace(rec("p", "a", 90), attempt=0)
    again = msgspec.structs.replace(rec("p", "a", 10, CREATED), attempt=1)
    chosen = plan_containers([before, again], now_ns=11 * SECOND, policy=KEEP_ONE, is_gone=set().__contains__)
    assert chosen == [], "it is about to be started"
    dead = msgspec.structs.replace(again, state=EXITED)
    chosen = plan_containers([before, dead], now_ns=11 * SECOND, policy=KEEP_ONE, is_gone=set().__contains__)
    assert chosen == [before]
    boxes = [msgspec.structs.replace(box("p", 90), attempt=0), msgspec.structs.replace(box("p", 10), attempt=1)]
    assert plan_sandboxes(boxes, [], is_gone=set().__contains__) == boxes[:1]
    pod = PodRuntimeStatus(
        uid="p", containers=tuple(msgspec.structs.replace(stat("a", at), attempt=n) for n, at in enumerate((90, 10)))
    )
    assert [each.id for each in plan_prune(pod, "a", keep=1, is_gone=False)] == ["a90"]


def test_without_a_least_age_nothing_is_too_young() -> None:
    """Also when the clock was set back to a moment before it was created."""
    gone, policy = rec("gone", "a", 12), GcPolicy(min_age=0.0)
    for now_ns in (2 * SECOND, 12 * SECOND - 500_000_000, 12 * SECOND):
        assert plan_containers([gone], now_ns=now_ns, policy=policy, is_gone={"gone"}.__contains__) == [gone]


def test_one_that_rounding_puts_into_the_future_is_young() -> None:
    fresh, policy = rec("gone", "a", 12), GcPolicy(min_age=5.0, max_per_container=0, max_total=-1)
    chosen = plan_containers([fresh], now_ns=12 * SECOND - 200, policy=policy, is_gone={"gone"}.__contains__)
    assert chosen == []


def stat(name: str, at: int, state: ContainerState = EXITED) -> ContainerStatus:
    return ContainerStatus(id=f"{name}{at}", name=name, created_at=at, state=state)


POD = PodRuntimeStatus(
    uid="p",
    containers=(stat("a", 4, RUNNING), stat("a", 3), stat("a", 2), stat("b", 2), stat("b", 1), stat("c", 1, CREATED)),
)


@pytest.mark.parametrize(
    ("name", "keep", "gone", "expected"),
    [
        ("a", 1, False, {"a2"}),
        ("a", 0, False, {"a2", "a3"}),
        ("a", 2, False, set()),
        ("a", -1, False, set()),
        ("b", 1, False, {"b1"}),
        ("", 1, False, {"a2", "b1"}),
        ("a", 1, True, {"a2", "a3", "b1", "b2"}),
    ],
)
def test_prune_plan(name: str, keep: int, gone: bool, expected: set[str]) -> None:
    assert {c.id for c in plan_prune(POD, name, keep=keep, is_gone=gone)} == expected
