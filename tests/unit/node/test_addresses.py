from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pykubelet.api.types import NodeAddress
from pykubelet.kit.clock import SystemClock
from pykubelet.node.addresses import AddressFinder, LocalAddresses, NoNodeAddress, internal_ips, provided_node_ip
from pykubelet.settings.node_flags import IPAddress
from tests.unit.node.making import FakeNetwork, ip


def finder(network: FakeNetwork, *node_ips: str, hostname: str = "box", external: bool = False) -> AddressFinder:
    return AddressFinder(
        network=network,
        node_ips=[*map(ip, node_ips)],
        node_name="box",
        hostname=hostname,
        external_cloud=external,
    )


async def shown(found: AddressFinder, old: Sequence[NodeAddress] = ()) -> list[str]:
    return [f"{each.type}={each.address}" for each in await found.find(old)]


@pytest.mark.parametrize(
    ("network", "node_ips", "expected"),
    [
        (FakeNetwork(), (), ["InternalIP=10.1.0.5"]),
        (FakeNetwork(), ("::",), ["InternalIP=fd00::5"]),
        (FakeNetwork(), ("0.0.0.0",), ["InternalIP=10.1.0.5"]),
        (FakeNetwork(), ("fd00::5",), ["InternalIP=fd00::5"]),
        (FakeNetwork(), ("10.1.0.5", "fd00::5"), ["InternalIP=10.1.0.5", "InternalIP=fd00::5"]),
        (FakeNetwork(local=("10.9.9.9", "10.1.0.5"), names=("10.9.9.9",)), (), ["InternalIP=10.9.9.9"]),
        # A family that the machine does not have is a wish, not a condition.
        (FakeNetwork(local=("10.1.0.5",), route=("10.1.0.5",)), ("::",), ["InternalIP=10.1.0.5"]),
        (FakeNetwork(local=("fd00::5",), route=("fd00::5",)), ("0.0.0.0",), ["InternalIP=fd00::5"]),
        # A name that leads to loopback or to another machine is no address of this one.
        (FakeNetwork(names=("127.0.1.1", "10.66.0.1")), (), ["InternalIP=10.1.0.5"]),
    ],
)
async def test_the_address_is_found_in_upstreams_order(
    network: FakeNetwork, node_ips: tuple[str, ...], expected: list[str]
) -> None:
    assert await shown(finder(network, *node_ips)) == [*expected, "Hostname=box"]


async def test_a_host_name_that_is_an_address_is_the_address() -> None:
    found = finder(FakeNetwork(), hostname="10.7.7.7")
    assert await shown(found) == ["InternalIP=10.7.7.7", "Hostname=10.7.7.7"]


@pytest.mark.parametrize(
    ("node_ip", "words"),
    [
        ("127.0.0.1", "loopback"),
        ("224.0.0.1", "multicast"),
        ("169.254.3.3", "link-local"),
        ("10.99.0.1", 'node IP: "10.99.0.1" not found in the host\'s network interfaces'),
    ],
)
async def test_a_node_ip_that_cannot_be_ours_is_refused(node_ip: str, words: str) -> None:
    with pytest.raises(NoNodeAddress, match=words):
        await finder(FakeNetwork(), node_ip).find(())


async def test_no_address_at_all_says_so() -> None:
    with pytest.raises(NoNodeAddress, match="can't get ip address of node box"):
        await finder(FakeNetwork(local=(), route=())).find(())


async def test_the_address_found_once_stays_while_it_is_ours() -> None:
    network = FakeNetwork(names=("10.1.0.5",))
    found = finder(network)
    await found.find(())
    network.names = ("fd00::5",)
    assert await shown(found) == ["InternalIP=10.1.0.5", "Hostname=box"]
    assert network.lookups == 1
    network.local = ("fd00::5",)
    assert await shown(found) == ["InternalIP=fd00::5", "Hostname=box"]


async def test_a_resolver_that_hangs_does_not_hold_the_node_up() -> None:
    class Slow(FakeNetwork):
        async def resolve(self, name: str) -> Sequence[IPAddress]:
            await asyncio.sleep(3600)
            return ()

    assert await shown(finder(Slow())) == ["InternalIP=10.1.0.5", "Hostname=box"]


async def test_with_a_cloud_controller_its_addresses_stay() -> None:
    cloud = [NodeAddress(type="ExternalIP", address="1.2.3.4")]
    assert await shown(finder(FakeNetwork(), external=True), cloud) == ["ExternalIP=1.2.3.4"]
    assert await shown(finder(FakeNetwork(), external=True)) == ["Hostname=box"]
    # Until the controller comes a host-network pod of its own needs an address.
    assert await shown(finder(FakeNetwork(), "::", external=True)) == ["InternalIP=fd00::5", "Hostname=box"]
    given = finder(FakeNetwork(), "10.1.0.5", external=True)
    assert await shown(given) == ["InternalIP=10.1.0.5", "Hostname=box"]
    assert provided_node_ip(given.fixed) == "10.1.0.5"


def test_internal_addresses_are_those_pods_show() -> None:
    known = [NodeAddress(type="Hostname", address="box"), NodeAddress(type="InternalIP", address="10.1.0.5")]
    assert internal_ips(known) == ("10.1.0.5",)


@pytest.mark.parametrize(
    ("node_ips", "expected"),
    [
        ((), ("10.1.0.5",)),
        (("::",), ("fd00::5",)),
        (("10.7.0.1", "fd00::7"), ("10.7.0.1", "fd00::7")),
    ],
)
async def test_addresses_of_a_machine_without_a_node(node_ips: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert (
        LocalAddresses(network=FakeNetwork(), node_ips=[*map(ip, node_ips)], clock=SystemClock()).host_ips() == expected
    )


async def test_a_machine_without_any_address() -> None:
    assert LocalAddresses(network=FakeNetwork(route=()), node_ips=(), clock=SystemClock()).host_ips() == ()
