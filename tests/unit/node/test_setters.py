from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import AttachedVolume, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo
from pykubelet.cm.capacity import DeviceAmounts
from pykubelet.model.runtime_status import RuntimeHandler
from pykubelet.node.conditions import find_condition, joined
from pykubelet.node.setters import NodeFacts, node_status, same_status, transitions
from tests.builders import NOW, at
from tests.unit.node.making import GIB, a_machine


def facts(**fields: Any) -> NodeFacts:
    values: dict[str, Any] = {
        "machine": a_machine(),
        "addresses": [NodeAddress(type="InternalIP", address="10.1.0.5")],
        "capacity": {"cpu": Quantity.of(4), "memory": Quantity.of_bytes(8 * GIB), "pods": Quantity.of(110)},
        "runtime": "containerd://1.7.0",
        "kubelet_version": "v1.36.4",
        "port": 10250,
        "now": NOW,
    }
    return NodeFacts(**{**values, **fields})


def test_a_new_status_has_every_field() -> None:
    status = node_status(NodeStatus(), facts(handlers=[RuntimeHandler(name="runc"), RuntimeHandler(name="")]))
    assert [c.type for c in status.conditions] == ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
    assert [(c.status, c.reason) for c in status.conditions] == [
        ("False", "KubeletHasSufficientMemory"),
        ("False", "KubeletHasNoDiskPressure"),
        ("False", "KubeletHasSufficientPID"),
        ("True", "KubeletReady"),
    ]
    assert status.allocatable == status.capacity == {"cpu": "4", "memory": "8Gi", "pods": "110"}
    info = status.node_info
    assert info is not None
    assert (info.container_runtime_version, info.kubelet_version) == ("containerd://1.7.0", "v1.36.4")
    assert (info.operating_system, info.architecture, info.kube_proxy_version) == ("linux", "amd64", "")
    assert info.swap is None
    assert status.daemon_endpoints is not None and status.daemon_endpoints.kubelet_endpoint is not None
    assert status.daemon_endpoints.kubelet_endpoint.port == 10250
    assert [handler.name for handler in status.runtime_handlers] == ["", "runc"]


def test_what_others_wrote_stays() -> None:
    others = NodeCondition(type="NetworkUnavailable", status="False")
    old = NodeStatus(
        conditions=[others],
        capacity={"a.com/gpu": "2", "hugepages-2Mi": "4Mi"},
        volumes_attached=[AttachedVolume(name="v")],
        volumes_in_use=["kept"],
        addresses=[NodeAddress(type="InternalIP", address="10.0.0.1")],
    )
    new = node_status(old, facts(addresses=None))
    assert new.conditions[0] is others
    assert new.capacity["a.com/gpu"] == new.allocatable["a.com/gpu"] == "2"
    assert "hugepages-2Mi" not in new.capacity
    assert new.volumes_attached == old.volumes_attached
    assert new.volumes_in_use == ["kept"]
    assert new.addresses == old.addresses
    assert node_status(old, facts(volumes_in_use=["b", "a", "b"])).volumes_in_use == ["a", "b"]


def test_device_plugins_decide_about_their_resources() -> None:
    devices = DeviceAmounts(
        capacity={"a.com/gpu": Quantity.of(4)},
        allocatable={"a.com/gpu": Quantity.of(3)},
        removed=frozenset({"b.com/n"}),
    )
    new = node_status(NodeStatus(capacity={"b.com/n": "7"}), facts(devices=devices))
    assert (new.capacity["a.com/gpu"], new.allocatable["a.com/gpu"]) == ("4", "3")
    assert (new.capacity["b.com/n"], new.allocatable["b.com/n"]) == ("0", "0")


def test_conditions_keep_their_place_and_move_their_time_only_with_their_status() -> None:
    first = node_status(NodeStatus(), facts())
    later = node_status(first, facts(now=NOW + 10, problems=["container runtime is down"]))
    memory, ready = find_condition(later.conditions, "MemoryPressure"), find_condition(later.conditions, "Ready")
    assert memory is not None and ready is not None
    assert (memory.last_transition_time, memory.last_heartbeat_time) == (at(NOW), at(NOW + 10))
    assert (ready.last_transition_time, ready.message) == (at(NOW + 10), "container runtime is down")
    assert [c.type for c in later.conditions] == [c.type for c in first.conditions]


@pytest.mark.parametrize(
    ("problems", "text"), [(["a"], "a"), (["a", "b"], "[a, b]"), (["a", "b", "a"], "[a, b]"), (["a", "a"], "a")]
)
def test_problems_are_joined_as_upstream_does(problems: list[str], text: str) -> None:
    assert joined(problems) == text


def test_only_heartbeats_make_no_difference() -> None:
    first = node_status(NodeStatus(), facts())
    assert same_status(first, node_status(first, facts(now=NOW + 10)))
    assert not same_status(first, node_status(first, facts(now=NOW + 10, pressures=frozenset({"DiskPressure"}))))


def test_a_first_status_tells_the_pressures_but_not_readiness() -> None:
    new = node_status(NodeStatus(), facts())
    assert [each.reason for each in transitions("box", NodeStatus(), new)] == [
        "NodeHasSufficientMemory",
        "NodeHasNoDiskPressure",
        "NodeHasSufficientPID",
    ]


def test_transitions_are_told_once_with_upstreams_words() -> None:
    old = node_status(NodeStatus(), facts(problems=["x"]))
    new = node_status(old, facts(pressures=frozenset({"MemoryPressure"})))
    events = transitions("box", old, new)
    assert [(each.kind, each.reason) for each in events] == [
        ("Normal", "NodeHasInsufficientMemory"),
        ("Normal", "NodeReady"),
    ]
    assert events[1].message == "Node box status is now: NodeReady"
    assert transitions("box", new, new) == []
    assert [each.reason for each in transitions("box", new, old)] == ["NodeHasSufficientMemory", "NodeNotReady"]


def test_another_boot_id_is_a_reboot() -> None:
    old, new = NodeStatus(node_info=NodeSystemInfo(boot_id="a")), NodeStatus(node_info=NodeSystemInfo(boot_id="b"))
    events = transitions("box", old, new)
    assert [(each.kind, each.reason, each.message) for each in events] == [
        ("Warning", "Rebooted", "Node box has been rebooted, boot id: b")
    ]
    assert transitions("box", NodeStatus(), new) == []


@pytest.mark.parametrize(("reported", "shown"), [(None, None), (False, False), (True, True)])
def test_features_of_the_runtime_are_shown_as_it_reports_them(reported: bool | None, shown: bool | None) -> None:
    features = node_status(NodeStatus(), facts(supplemental_groups_policy=reported)).features
    assert (features.supplemental_groups_policy if features is not None else None) is shown
