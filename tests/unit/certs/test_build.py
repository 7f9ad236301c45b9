"""What the serving certificate must say, from what the Node says."""

from __future__ import annotations

import pytest

from pykubelet.api.types import Node, NodeAddress, NodeStatus, ObjectMeta
from pykubelet.certs.build import wanted_for
from pykubelet.certs.pem import Wanted


def a_node(**addresses: str) -> Node:
    told = [NodeAddress(type=kind, address=address) for kind, address in addresses.items()]
    return Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(addresses=told))


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (None, None),
        (a_node(), None),
        (a_node(Hostname="n1"), None),
        (a_node(Hostname="n1", InternalIP="10.0.0.1"), Wanted(node_name="n1", dns=("n1",), ips=("10.0.0.1",))),
        (
            a_node(ExternalIP="192.0.2.1", InternalIP="10.0.0.1", InternalDNS="a.local", ExternalDNS="a.example"),
            Wanted(node_name="n1", dns=("a.example", "a.local"), ips=("10.0.0.1", "192.0.2.1")),
        ),
        (a_node(Hostname="", InternalIP="10.0.0.1"), Wanted(node_name="n1", ips=("10.0.0.1",))),
        # A host name that is an address is asked for as one, or a strict approver refuses the request.
        (a_node(Hostname="10.0.0.1", InternalIP="10.0.0.1"), Wanted(node_name="n1", ips=("10.0.0.1",))),
        (a_node(Hostname="fd00::1"), Wanted(node_name="n1", ips=("fd00::1",))),
        (
            a_node(Hostname="n1", InternalIP="10.0.0.1", ExternalIP="no address"),
            Wanted(node_name="n1", dns=("n1",), ips=("10.0.0.1",)),
        ),
    ],
)
def test_names_and_addresses(node: Node | None, wanted: Wanted | None) -> None:
    assert wanted_for(node) == wanted
    assert wanted is None or wanted_for(node, names_suffice=True) == wanted


def test_a_name_alone_may_suffice() -> None:
    assert wanted_for(a_node(Hostname="n1"), names_suffice=True) == Wanted(node_name="n1", dns=("n1",))
    assert wanted_for(a_node(), names_suffice=True) is None
