from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.api.types import Pod
from pykubelet.model.pod_resources import requested_units
from pykubelet.pods.predicates import InsufficientResource
from pykubelet.pods.preemption import NoVictims, can_preempt, choose_victims
from tests.unit.pods.making import a_pending_pod, a_requesting_pod, container_manifest

CRITICAL = a_pending_pod("critical", static=True, priority=2_000_001_000)


def _lacking(**amounts: int) -> list[InsufficientResource]:
    return [
        InsufficientResource(resource=name, requested=amount, used=0, capacity=0) for name, amount in amounts.items()
    ]


def _guaranteed(name: str, cpu: str, memory: str) -> Pod:
    both = {"cpu": cpu, "memory": memory}
    return a_pending_pod(name, containers=[container_manifest(requests=both, limits=both)])


def _names(active: list[Pod], **amounts: int) -> list[str | None]:
    return [pod.metadata.name for pod in choose_victims(CRITICAL, active, _lacking(**amounts))]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (a_pending_pod("plain"), True),
        (a_pending_pod("low", priority=5), True),
        (a_pending_pod("static", static=True), False),
        (a_pending_pod("critical", priority=2_000_000_000), True),
        (a_pending_pod("equal", priority=2_000_001_000), False),
    ],
)
def test_who_may_be_displaced(other: Pod, expected: bool) -> None:
    assert can_preempt(CRITICAL, other) is expected


def test_best_effort_goes_before_burstable_before_guaranteed() -> None:
    active = [_guaranteed("g", "1", "1Gi"), a_requesting_pod("b", cpu="10m"), a_pending_pod("e")]
    assert _names(active, pods=1) == ["e"]
    assert _names(active, pods=2) == ["e", "b"]
    assert _names(active, pods=3) == ["e", "b", "g"]


def test_burstable_is_spared_when_only_a_guaranteed_pod_can_help() -> None:
    active = [_guaranteed("g", "1", "4Gi"), a_requesting_pod("b", memory="1Mi")]
    assert _names(active, memory=3 * 2**30) == ["g"]


def test_the_pod_that_covers_all_beats_several_that_cover_some() -> None:
    active = [
        a_requesting_pod("half", cpu="500m"),
        a_requesting_pod("rest", cpu="500m"),
        a_requesting_pod("whole", cpu="1"),
    ]
    assert _names(active, cpu=1000) == ["whole"]


def test_of_pods_that_all_suffice_the_smaller_goes() -> None:
    active = [a_requesting_pod("big", cpu="4", memory="4Gi"), a_requesting_pod("small", cpu="2", memory="1Gi")]
    assert _names(active, cpu=1000) == ["small"]


def test_not_enough_to_take() -> None:
    with pytest.raises(
        NoVictims, match=r"no set of running pods found to reclaim resources: \[\(res: cpu, q: 500\), \]"
    ):
        _names([a_requesting_pod("b", cpu="500m")], cpu=1000)


_pods = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=7)


@given(pods=_pods, cpu=st.integers(1, 1500), memory=st.integers(1, 1500))
def test_victims_cover_what_is_missing_or_nobody_could(pods: list[tuple[int, int]], cpu: int, memory: int) -> None:
    active = [a_requesting_pod(f"p{i}", cpu=f"{c}m", memory=str(m)) for i, (c, m) in enumerate(pods)]
    enough = sum(c for c, _ in pods) >= cpu and sum(m for _, m in pods) >= memory
    try:
        victims = choose_victims(CRITICAL, active, _lacking(cpu=cpu, memory=memory))
    except NoVictims:
        assert not enough
        return
    assert enough
    assert len({pod.metadata.uid for pod in victims}) == len(victims)
    assert sum(requested_units(pod, "cpu") for pod in victims) >= cpu
    assert sum(requested_units(pod, "memory") for pod in victims) >= memory
