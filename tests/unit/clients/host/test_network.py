from __future__ import annotations

import ipaddress
import struct
from pathlib import Path

from pykubelet.clients.host.machine import filesystem_size
from pykubelet.clients.host.network import (
    InterfaceNetwork,
    default_route_interfaces,
    interface_addresses,
    parse_address,
)

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
ROUTE6 = "{dest} {length} 00000000000000000000000000000000 00 {zero} {metric} 00000001 00000000 00000003 {name}\n"


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def test_the_default_route_with_the_best_metric_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / "proc/net"
    folder.mkdir(parents=True)
    rows = [("eth1", "00000000", "0003", "200", "00000000"), ("eth0", "00000000", "0003", "100", "00000000")]
    rows += [("eth2", "000200C0", "0001", "0", "00FFFFFF"), ("down", "00000000", "0002", "1", "00000000")]
    (folder / "route").write_text(
        HEAD
        + "".join(
            f"{name}\t{to}\t0\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n" for name, to, flags, metric, mask in rows
        )
    )
    zero = "0" * 32
    (folder / "ipv6_route").write_text(
        ROUTE6.format(dest=zero, length="00", zero=zero, metric="00000400", name="eth6")
        + ROUTE6.format(dest=zero, length="00", zero=zero, metric="ffffffff", name="lo")
        + ROUTE6.format(dest="fd" + "0" * 30, length="40", zero=zero, metric="00000100", name="eth7")
    )
    assert list(default_route_interfaces(tmp_path)) == ["eth0", "eth1", "eth6"]


def test_a_machine_without_routes_has_no_default_interface(tmp_path: Path) -> None:
    assert list(default_route_interfaces(tmp_path)) == []


def test_of_a_point_to_point_link_the_near_end_counts() -> None:
    head = struct.pack("=BBBBl", 2, 32, 0, 0, 7)
    found = parse_address(head + attribute(1, bytes([10, 0, 0, 2])) + attribute(2, bytes([10, 0, 0, 1])))
    assert found is not None
    assert (found.index, str(found.address), found.is_global) == (7, "10.0.0.1", True)


def test_other_families_are_no_addresses() -> None:
    assert parse_address(struct.pack("=BBBBl", 28, 0, 0, 0, 1) + attribute(1, b"\1\2\3\4")) is None


def test_the_kernel_lists_loopback() -> None:
    assert ipaddress.ip_address("127.0.0.1") in {each.address for each in interface_addresses()}
    assert all(not each.is_loopback for each in InterfaceNetwork().route_addresses())


def test_the_size_of_a_filesystem_is_known_even_for_a_folder_to_come(tmp_path: Path) -> None:
    assert filesystem_size(tmp_path / "a" / "b") == filesystem_size(tmp_path) > 0
