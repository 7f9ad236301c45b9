from __future__ import annotations

from typing import Any

from pykubelet.api.types import Node, NodeStatus, ObjectMeta
from pykubelet.node.register import NodeIdentity, adopt, initial_node
from pykubelet.settings.flag_forms import NodeTaint

ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"


def identity(**fields: Any) -> NodeIdentity:
    return NodeIdentity(**{"name": "box", "hostname": "box", "architecture": "amd64", **fields})


def test_a_new_node_carries_what_the_operator_and_the_machine_say() -> None:
    node = initial_node(
        identity(
            labels={"zone": "a"}, taints=[NodeTaint(key="k", value="v", effect="NoSchedule")], provider_id="cloud://1"
        ),
        NodeStatus(),
    )
    assert node.metadata.labels == {
        "kubernetes.io/hostname": "box",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "zone": "a",
    }
    assert [(t.key, t.value, t.effect) for t in node.spec.taints] == [("k", "v", "NoSchedule")]
    assert node.spec.provider_id == "cloud://1"
    assert node.metadata.annotations == {ATTACH: "true"}


def test_labels_of_the_operator_win() -> None:
    node = initial_node(identity(labels={"kubernetes.io/hostname": "other"}), NodeStatus())
    assert node.metadata.labels["kubernetes.io/hostname"] == "other"


def test_with_an_external_cloud_the_node_waits_for_its_controller() -> None:
    node = initial_node(identity(external_cloud=True, provided_ip="10.1.0.5", controller_attaches=False), NodeStatus())
    assert [(t.key, t.value, t.effect) for t in node.spec.taints] == [
        ("node.cloudprovider.kubernetes.io/uninitialized", "true", "NoSchedule")
    ]
    assert node.metadata.annotations == {"alpha.kubernetes.io/provided-node-ip": "10.1.0.5"}


def existing(**labels: str) -> Node:
    return Node(metadata=ObjectMeta(name="box", labels=labels, annotations={ATTACH: "true", "x": "y"}))


def test_adoption_aligns_only_the_well_known_labels() -> None:
    before = existing(**{"kubernetes.io/arch": "arm64", "zone": "old", "topology.kubernetes.io/zone": "eu-1"})
    after = adopt(before, identity(labels={"zone": "new"}), reset_extended=False)
    assert after.metadata.labels["kubernetes.io/arch"] == "amd64"
    assert after.metadata.labels["kubernetes.io/hostname"] == "box"
    assert after.metadata.labels["zone"] == "old"
    assert after.metadata.labels["topology.kubernetes.io/zone"] == "eu-1"


def test_a_well_known_label_given_empty_is_removed() -> None:
    before = existing(**{"topology.kubernetes.io/zone": "eu-1"})
    after = adopt(before, identity(labels={"topology.kubernetes.io/zone": ""}), reset_extended=False)
    assert "topology.kubernetes.io/zone" not in after.metadata.labels


def test_the_attach_detach_mark_follows_the_setting() -> None:
    after = adopt(existing(), identity(controller_attaches=False), reset_extended=False)
    assert after.metadata.annotations == {"x": "y"}


def test_stale_vendor_resources_are_reset() -> None:
    before = existing()
    before.status.capacity = {"a.com/gpu": "2", "cpu": "4"}
    before.status.allocatable = {"a.com/gpu": "2", "cpu": "4"}
    assert adopt(before, identity(), reset_extended=False).status.capacity["a.com/gpu"] == "2"
    after = adopt(before, identity(), reset_extended=True)
    assert after.status.capacity == after.status.allocatable == {"a.com/gpu": "0", "cpu": "4"}


def test_an_address_that_was_taken_off_the_command_line_is_no_longer_provided() -> None:
    before = existing()
    before.metadata.annotations["alpha.kubernetes.io/provided-node-ip"] = "10.9.9.9"
    gone = adopt(before, identity(external_cloud=True), reset_extended=False)
    assert "alpha.kubernetes.io/provided-node-ip" not in gone.metadata.annotations
    other = adopt(before, identity(external_cloud=True, provided_ip="10.1.0.5"), reset_extended=False)
    assert other.metadata.annotations["alpha.kubernetes.io/provided-node-ip"] == "10.1.0.5"
