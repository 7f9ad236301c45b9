"""The addresses of this machine's interfaces, which of them hold the default route, and names of the resolver.

Addresses come from the kernel by netlink, routes from /proc/net; both take well under a millisecond. Does not decide
which address is the node's (node/addresses.py).
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from pykubelet.kit.names import NameLookups

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_HEADER = struct.Struct("=LHHLL")
"""nlmsghdr: length, type, flags, sequence, port."""
_ADDRESS = struct.Struct("=BBBBl")
"""ifaddrmsg: family, prefix length, flags, scope, interface index."""
_ATTRIBUTE = struct.Struct("=HH")
_GET_ADDRESSES, _NEW_ADDRESS, _DONE, _ERROR = 22, 20, 3, 2
_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_GLOBAL = 0
_ROUTE_UP = 0x1
_LENGTHS = {socket.AF_INET: 4, socket.AF_INET6: 16}


class InterfaceAddress(Struct, frozen=True):
    index: int
    address: IPAddress
    is_global: bool


class InterfaceNetwork:
    """Implements node.addresses.HostNetwork for this machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._lookups = NameLookups()

    def addresses(self) -> frozenset[IPAddress]:
        return frozenset(each.address for each in interface_addresses())

    def route_addresses(self) -> Sequence[IPAddress]:
        """Global addresses of the interfaces with a default route; without such a route those of all."""
        known = [each for each in interface_addresses() if each.is_global and not each.address.is_loopback]
        routed = [index_of(name) for name in dict.fromkeys(default_route_interfaces(self._root))]
        on_route = [each.address for index in routed for each in known if each.index == index]
        return on_route or [each.address for each in known]

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        try:
            found = await self._lookups.addresses(name)
        except OSError:
            return ()
        return [ipaddress.ip_address(str(address[0]).partition("%")[0]) for _, address in found]


def index_of(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return 0  # gone since its route was read


def default_route_interfaces(root: Path) -> Iterator[str]:
    """Interfaces with a default route, IPv4 first, each family in the kernel's order of metric."""
    found = []
    for line in _lines(root / "proc/net/route")[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == words[7] == "00000000" and int(words[3], 16) & _ROUTE_UP:
            found.append((int(words[6]), words[0]))
    yield from (name for _, name in sorted(found))
    found = []
    for line in _lines(root / "proc/net/ipv6_route"):
        words = line.split()
        if len(words) > 9 and words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo":
            found.append((int(words[5], 16), words[9]))
    yield from (name for _, name in sorted(found))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def interface_addresses() -> list[InterfaceAddress]:
    """Every address of every interface, as the kernel lists them."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        netlink.send(_HEADER.pack(_HEADER.size + len(body), _GET_ADDRESSES, _REQUEST_DUMP, 1, 0) + body)
        found: list[InterfaceAddress] = []
        while True:
            for kind, payload in _messages(netlink.recv(1 << 16)):
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=l", payload)[0], "netlink refused to list addresses")
                if kind == _NEW_ADDRESS and (address := parse_address(payload)) is not None:
                    found.append(address)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, _, _, _ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(length) :]


def parse_address(payload: bytes) -> InterfaceAddress | None:
    """One RTM_NEWADDR message; None for families that are no IP."""
    family, _, _, scope, index = _ADDRESS.unpack_from(payload)
    attributes: dict[int, bytes] = {}
    rest = payload[_ADDRESS.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[_aligned(length) :]
    # On point-to-point links ADDRESS is the other end; LOCAL is always ours, but IPv6 has only ADDRESS.
    raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    if raw is None or _LENGTHS.get(family) != len(raw):
        return None
    return InterfaceAddress(index=index, address=ipaddress.ip_address(raw), is_global=scope == _SCOPE_GLOBAL)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
