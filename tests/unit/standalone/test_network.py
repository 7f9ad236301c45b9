"""The pod network's decisions: which subnet, which configuration, which rules to remove."""

from __future__ import annotations

import json
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from pykubelet.standalone.bridge import parse_routes
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.layout import Layout
from pykubelet.standalone.network import (
    POOL,
    FirewallFacts,
    choose_subnet,
    conflist,
    gateway,
    rules_to_remove,
    subnet_of,
)

LAYOUT = Layout(Path("/var/lib/pykubelet"))
SUBNET = IPv4Network("10.203.5.0/24")


def test_same_name_gets_the_same_subnet() -> None:
    assert choose_subnet("a", []) == choose_subnet("a", [])
    assert choose_subnet("a", []).subnet_of(POOL)
    assert choose_subnet("a", []).num_addresses > 1000  # a node of 500 pods, with as many that are just ending


def test_taken_subnets_are_avoided() -> None:
    first = choose_subnet("a", [])
    second = choose_subnet("a", [first])
    assert not first.overlaps(second)
    inside = IPv4Network((first.network_address + 128, 25))
    assert choose_subnet("a", [inside]) == second


def test_a_full_pool_is_an_error() -> None:
    with pytest.raises(StandaloneError, match="no free subnet"):
        choose_subnet("a", [IPv4Network("10.0.0.0/8")])


def test_gateway_is_the_first_address() -> None:
    assert str(gateway(SUBNET)) == "10.203.5.1"


@pytest.mark.parametrize(
    ("works", "dropped", "plugins"),
    [
        (True, False, ["bridge", "portmap"]),
        (True, True, ["bridge", "portmap", "firewall"]),
        (False, False, ["bridge"]),
    ],
)
def test_plugins_follow_what_the_firewall_can_do(works: bool, dropped: bool, plugins: list[str]) -> None:
    conf = conflist(LAYOUT, SUBNET, FirewallFacts(works=works, forward_dropped=dropped))
    assert [plugin["type"] for plugin in conf["plugins"]] == plugins


def test_written_configuration_gives_its_subnet_back() -> None:
    conf = conflist(LAYOUT, SUBNET, FirewallFacts(works=True, forward_dropped=False))
    assert conf["name"] == conf["plugins"][0]["bridge"] == LAYOUT.network_name
    assert subnet_of(json.dumps(conf)) == SUBNET


def test_routes_are_read_without_the_default_one() -> None:
    table = (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert parse_routes(table) == [("eth0", IPv4Network("192.0.2.0/24"))]


def test_only_rules_of_this_network_are_removed() -> None:
    listing = "\n".join(
        [
            "-N CNI-DN-aaa",
            "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
            '-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \\"pkl-1\\" id: \\"c1\\"" -j CNI-DN-aaa',
            '-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \\"other\\" id: \\"c2\\"" -j CNI-DN-bbb',
        ]
    )
    comment = ["-m", "comment", "--comment", 'dnat name: "pkl-1" id: "c1"']
    assert rules_to_remove(listing, "pkl-1") == [
        ["-D", "CNI-HOSTPORT-DNAT", "-p", "tcp", *comment, "-j", "CNI-DN-aaa"],
        ["-F", "CNI-DN-aaa"],
        ["-X", "CNI-DN-aaa"],
    ]
