from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.model.pod_resources import (
    has_pod_level_resources,
    in_units,
    is_counted,
    is_extended,
    pod_limits,
    pod_requests,
    requested_units,
)
from tests.unit.pods.making import a_pending_pod, container_manifest


def _texts(amounts: Any) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _sidecar(name: str, **requests: str) -> dict[str, Any]:
    return container_manifest(name, requests=requests, restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param(
            {
                "containers": [
                    container_manifest("a", requests={"cpu": "100m"}),
                    container_manifest("b", requests={"cpu": "200m", "memory": "1Mi"}),
                ]
            },
            {"cpu": "300m", "memory": "1Mi"},
            id="regular containers add up",
        ),
        pytest.param(
            {
                "containers": [container_manifest(requests={"cpu": "100m", "memory": "5Mi"})],
                "initContainers": [
                    container_manifest("i", requests={"cpu": "1"}),
                    container_manifest("j", requests={"memory": "1Mi"}),
                ],
            },
            {"cpu": "1", "memory": "5Mi"},
            id="the hungriest init container counts if it is more",
        ),
        pytest.param(
            {
                "containers": [container_manifest(requests={"cpu": "100m"})],
                "initContainers": [_sidecar("s", cpu="200m"), container_manifest("i", requests={"cpu": "150m"})],
            },
            {"cpu": "350m"},
            id="an init container runs beside the sidecars before it",
        ),
        pytest.param(
            {
                "containers": [container_manifest(requests={"cpu": "100m"})],
                "initContainers": [container_manifest("i", requests={"cpu": "250m"}), _sidecar("s", cpu="200m")],
            },
            {"cpu": "300m"},
            id="but not beside the sidecars after it",
        ),
        pytest.param(
            {
                "containers": [container_manifest(requests={"cpu": "100m"})],
                "overhead": {"cpu": "10m", "memory": "1Mi"},
            },
            {"cpu": "110m", "memory": "1Mi"},
            id="overhead is added, also where nothing is requested",
        ),
        pytest.param(
            {
                "containers": [container_manifest(requests={"cpu": "100m", "ephemeral-storage": "1Gi"})],
                "resources": {"requests": {"cpu": "2", "ephemeral-storage": "9Gi"}},
            },
            {"cpu": "2", "ephemeral-storage": "1Gi"},
            id="pod-level amounts replace sums, where they are allowed",
        ),
    ],
)
def test_requests(spec: dict[str, Any], expected: dict[str, str]) -> None:
    assert _texts(pod_requests(a_pending_pod(**spec))) == expected


def test_overhead_and_pod_level_can_be_left_out() -> None:
    pod = a_pending_pod(
        containers=[container_manifest(requests={"cpu": "1"})],
        overhead={"cpu": "1"},
        resources={"requests": {"cpu": "5"}},
    )
    assert _texts(pod_requests(pod, overhead=False)) == {"cpu": "5"}
    assert _texts(pod_requests(pod, pod_level=False)) == {"cpu": "2"}


def test_overhead_of_limits_needs_a_limit() -> None:
    pod = a_pending_pod(containers=[container_manifest(limits={"cpu": "1"})], overhead={"cpu": "100m", "memory": "1Mi"})
    assert _texts(pod_limits(pod)) == {"cpu": "1100m"}
    assert _texts(pod_limits(a_pending_pod(overhead={"cpu": "1"}))) == {}


def test_limits_follow_sidecars_and_pod_level() -> None:
    pod = a_pending_pod(
        containers=[container_manifest(limits={"cpu": "1", "memory": "1Gi"})],
        initContainers=[container_manifest("s", limits={"memory": "1Gi"}, restartPolicy="Always")],
        resources={"limits": {"cpu": "3"}},
    )
    assert _texts(pod_limits(pod)) == {"cpu": "3", "memory": "2Gi"}


def _resized(*, spec: str, actuated: str, allocated: str, infeasible: bool = False) -> Any:
    conditions = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}] if infeasible else []
    return a_pending_pod(
        containers=[container_manifest(requests={"cpu": spec})],
        status={
            "containerStatuses": [
                {
                    "name": "c",
                    "resources": {"requests": {"cpu": actuated}},
                    "allocatedResources": {"cpu": allocated},
                }
            ],
            "conditions": conditions,
        },
    )


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (_resized(spec="1", actuated="2", allocated="1"), "2"),
        (_resized(spec="1", actuated="1", allocated="3"), "3"),
        (_resized(spec="4", actuated="1", allocated="1"), "4"),
        (_resized(spec="4", actuated="1", allocated="2", infeasible=True), "2"),
    ],
)
def test_a_pod_being_resized_counts_with_the_most_it_holds_or_will_hold(pod: Any, expected: str) -> None:
    assert _texts(pod_requests(pod, use_status=True)) == {"cpu": expected}


def test_a_whole_pod_being_resized() -> None:
    pod = a_pending_pod(
        resources={"requests": {"cpu": "1"}},
        status={"resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "2"}},
    )
    assert _texts(pod_requests(pod, use_status=True)) == {"cpu": "3"}
    assert _texts(pod_requests(pod)) == {"cpu": "1"}


_amount = st.integers(min_value=0, max_value=4000).map(lambda milli: f"{milli}m")


@given(
    regular=st.lists(_amount, max_size=4),
    init=st.lists(st.tuples(_amount, st.booleans()), max_size=5),
)
def test_requests_cover_every_moment_of_the_pods_life(regular: list[str], init: list[tuple[str, bool]]) -> None:
    pod = a_pending_pod(
        containers=[container_manifest(f"c{i}", requests={"cpu": cpu}) for i, cpu in enumerate(regular)],
        initContainers=[
            container_manifest(f"i{i}", requests={"cpu": cpu}, **({"restartPolicy": "Always"} if sidecar else {}))
            for i, (cpu, sidecar) in enumerate(init)
        ],
    )
    milli = [(int(cpu[:-1]), sidecar) for cpu, sidecar in init]
    moments = [sum(int(cpu[:-1]) for cpu in regular) + sum(cpu for cpu, sidecar in milli if sidecar)]
    for i, (cpu, _) in enumerate(milli):
        moments.append(cpu + sum(before for before, sidecar in milli[:i] if sidecar))
    amount = pod_requests(pod).get("cpu")
    assert (in_units("cpu", amount) if amount is not None else 0) == max(moments)


@pytest.mark.parametrize(
    ("name", "extended", "counted"),
    [
        ("cpu", False, True),
        ("ephemeral-storage", False, True),
        ("hugepages-2Mi", False, True),
        ("attachable-volumes-csi-x", False, True),
        ("nvidia.com/gpu", True, True),
        ("kubernetes.io/thing", False, True),
        ("storage", False, False),
        ("requests.nvidia.com/gpu", False, False),
    ],
)
def test_names_of_resources(name: str, extended: bool, counted: bool) -> None:
    assert (is_extended(name), is_counted(name)) == (extended, counted)


@pytest.mark.parametrize(
    ("spec", "name", "expected"),
    [
        ({}, "pods", 1),
        ({}, "memory", 0),
        ({"overhead": {"memory": "1Mi"}}, "memory", 0),
        ({"containers": [container_manifest(requests={"cpu": "1"})], "overhead": {"cpu": "1m"}}, "cpu", 1001),
        (
            {
                "containers": [container_manifest(requests={"cpu": "1", "memory": "1"})],
                "resources": {"requests": {"cpu": "2"}},
            },
            "cpu",
            2000,
        ),
        (
            {
                "containers": [container_manifest(requests={"cpu": "1", "memory": "1"})],
                "resources": {"requests": {"cpu": "2"}},
            },
            "memory",
            0,
        ),
    ],
)
def test_what_goes_free_with_a_pod(spec: dict[str, Any], name: str, expected: int) -> None:
    assert requested_units(a_pending_pod(**spec), name) == expected


def test_pod_level_resources_are_only_those_allowed_there() -> None:
    assert has_pod_level_resources(a_pending_pod(resources={"limits": {"hugepages-2Mi": "4Mi"}}))
    assert not has_pod_level_resources(a_pending_pod(resources={"limits": {"ephemeral-storage": "4Mi"}}))
    assert not has_pod_level_resources(a_pending_pod(resources={}))
