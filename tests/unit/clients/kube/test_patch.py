"""Strategic merge: the difference, applied as a server does, gives the wanted state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.api.types import (
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Node,
    NodeAddress,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodCondition,
    PodStatus,
)
from pykubelet.clients.kube.patch import merge_diff, node_status_patch, pod_status_patch, strategic_diff
from tests.fakes.fake_kube_patches import apply_merge, apply_strategic

THEN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def status(**fields: Any) -> dict[str, Any]:
    return {"status": fields}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (status(phase="Pending"), status(phase="Pending"), {}),
        (status(phase="Pending"), status(phase="Running"), status(phase="Running")),
        (status(message="x", phase="a"), status(phase="a"), status(message=None)),
        (
            status(conditions=[{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]),
            status(conditions=[{"type": "A", "status": "True"}, {"type": "B", "status": "False"}]),
            {
                "status": {
                    "$setElementOrder/conditions": [{"type": "A"}, {"type": "B"}],
                    "conditions": [{"status": "False", "type": "B"}],
                }
            },
        ),
        (
            status(podIPs=[{"ip": "10.0.0.1"}]),
            status(podIPs=[{"ip": "10.0.0.2"}]),
            {
                "status": {
                    "$setElementOrder/podIPs": [{"ip": "10.0.0.2"}],
                    "podIPs": [{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}],
                }
            },
        ),
        (
            status(conditions=[{"type": "A"}, {"type": "B"}]),
            status(conditions=[{"type": "B"}, {"type": "A"}]),
            {"status": {"$setElementOrder/conditions": [{"type": "B"}, {"type": "A"}]}},
        ),
        (
            status(containerStatuses=[{"name": "a", "ready": True}]),
            status(containerStatuses=[{"name": "a", "ready": False}]),
            status(containerStatuses=[{"name": "a", "ready": False}]),
        ),
        (
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"finalizers": ["b", "c"]}},
            {
                "metadata": {
                    "$setElementOrder/finalizers": ["b", "c"],
                    "$deleteFromPrimitiveList/finalizers": ["a"],
                    "finalizers": ["c"],
                }
            },
        ),
        (
            status(resourceClaimStatuses=[{"name": "a", "resourceClaimName": "x"}]),
            status(resourceClaimStatuses=[{"name": "a"}]),
            {
                "status": {
                    "$setElementOrder/resourceClaimStatuses": [{"name": "a"}],
                    "resourceClaimStatuses": [{"resourceClaimName": None, "$retainKeys": ["name"], "name": "a"}],
                }
            },
        ),
    ],
)
def test_difference_is_what_upstream_sends(old: Any, new: Any, expected: Any) -> None:
    patch = strategic_diff(Pod, old, new)
    assert patch == expected
    assert apply_strategic(Pod, old, patch) == new


CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from("ABCDE")},
        optional={"status": st.sampled_from(["True", "False"]), "reason": st.text(max_size=3)},
    ),
    max_size=5,
    unique_by=lambda each: each["type"],
)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running"]),
        "conditions": CONDITIONS,
        "podIPs": st.lists(
            st.fixed_dictionaries({"ip": st.sampled_from(["1", "2", "3"])}),
            max_size=3,
            unique_by=lambda each: each["ip"],
        ),
        "containerStatuses": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from("xy"), "restartCount": st.integers(0, 3)}), max_size=2
        ),
    },
)


@settings(max_examples=200, deadline=None)
@given(old=STATUSES, new=STATUSES)
def test_any_difference_leads_from_old_to_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = strategic_diff(Pod, {"status": old}, {"status": new})
    assert apply_strategic(Pod, {"status": old}, patch) == {"status": new}
    merge = merge_diff({"status": old}, {"status": new})
    assert apply_merge({"status": old}, merge) == {"status": new}


def test_elements_only_the_server_has_stay() -> None:
    patch = strategic_diff(
        Pod,
        status(conditions=[{"type": "A", "status": "False"}]),
        status(conditions=[{"type": "A", "status": "True"}]),
    )
    server = status(conditions=[{"type": "foreign", "status": "True"}, {"type": "A", "status": "False"}])
    after = apply_strategic(Pod, server, patch)
    assert after == status(conditions=[{"type": "foreign", "status": "True"}, {"type": "A", "status": "True"}])


def test_pod_status_patch_ignores_what_go_writes_for_nothing() -> None:
    running = ContainerState(running=ContainerStateRunning(started_at=THEN))
    told = PodStatus(
        phase="Running",
        conditions=[PodCondition(type="Ready", status="True")],
        container_statuses=[ContainerStatus(name="a", ready=True, state=running)],
    )
    stored = PodStatus(
        phase="Running",
        message="",
        conditions=[PodCondition(type="Ready", status="True", reason="")],
        container_statuses=[
            ContainerStatus(name="a", ready=True, state=running, last_state=ContainerState(), image="")
        ],
    )
    pod = Pod(metadata=ObjectMeta(name="p", uid="u1"), status=stored)
    assert pod_status_patch(pod, told) is None
    changed = pod_status_patch(pod, PodStatus(phase="Failed", conditions=told.conditions))
    assert changed is not None and changed["metadata"] == {"uid": "u1"}
    assert changed["status"] == {"containerStatuses": None, "phase": "Failed"}


def test_state_without_details_is_still_a_state() -> None:
    def pod_in(state: ContainerState) -> Pod:
        return Pod(status=PodStatus(container_statuses=[ContainerStatus(name="a", state=state)]))

    running = pod_in(ContainerState(running=ContainerStateRunning()))
    assert pod_status_patch(pod_in(ContainerState()), running.status) is not None


def test_node_addresses_are_replaced_as_a_whole() -> None:
    def a_node(*addresses: str, **labels: str) -> Node:
        return Node(
            metadata=ObjectMeta(name="n", labels=labels, resource_version=str(len(addresses))),
            status=NodeStatus(addresses=[NodeAddress(type="InternalIP", address=each) for each in addresses]),
        )

    assert node_status_patch(a_node("1", "2"), a_node("1", "2")) is None
    patch = node_status_patch(a_node("1", "2", a="1"), a_node("2", "3", a="1", b="2"))
    assert patch == {
        "metadata": {"labels": {"b": "2"}},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "2"},
                {"type": "InternalIP", "address": "3"},
                {"$patch": "replace"},
            ]
        },
    }
