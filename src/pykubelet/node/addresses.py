"""Which addresses the Node shows.

The choice is made from the node IPs given, the host name, name resolution and the interface of the default route,
in upstream's order. Reading interfaces and routes is in `HostNetwork`; the choices are pure functions.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Sequence

from pykubelet.api.types import NodeAddress
from pykubelet.clients.host.port import HostNetwork
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import PykubeletError
from pykubelet.settings.node_flags import IPAddress

INTERNAL_IP = "InternalIP"
HOSTNAME = "Hostname"

ROUTES_SERVE = 5.0
RESOLVE_WITHIN = 2.0


class NoNodeAddress(PykubeletError):
    """No usable address of this node was found."""


class AddressFinder:
    def __init__(
        self,
        *,
        network: HostNetwork,
        node_ips: Sequence[IPAddress],
        node_name: str,
        hostname: str,
        external_cloud: bool,
    ) -> None:
        self._network = network
        self._node_ips = tuple(node_ips)
        self._node_name = node_name
        self._hostname = hostname
        self._external_cloud = external_cloud
        self._found: IPAddress | None = None

    @property
    def fixed(self) -> tuple[IPAddress, ...]:
        """The configured addresses, without those that only select a family."""
        return tuple(ip for ip in self._node_ips if not ip.is_unspecified)

    async def find(self, old: Sequence[NodeAddress]) -> list[NodeAddress]:
        """The node's addresses now; raises NoNodeAddress."""
        local = self._network.addresses()
        for ip in self.fixed:
            if problem := unusable(ip, local):
                raise NoNodeAddress(f"failed to validate nodeIP: {problem}")
        if self._external_cloud:
            if old:
                return list(old)  # what the cloud controller wrote stays
            if not self._node_ips:
                return [_host(self._hostname)]
        if self.fixed:
            return [*map(_internal, self.fixed), _host(self._hostname)]
        return [_internal(await self._search(local)), _host(self._hostname)]

    async def _search(self, local: frozenset[IPAddress]) -> IPAddress:
        if self._found is not None and self._found in local:
            return self._found  # a slow or changing name server must not change the node's address
        prefer = self._node_ips[0].version if self._node_ips else 4
        literal = parsed_address(self._hostname)
        if literal is not None:
            return literal
        resolved = [ip for ip in await self._resolve() if not unusable(ip, local)]
        found = choose(resolved, prefer) or choose(self._network.route_addresses(), prefer)
        if found is None:
            raise NoNodeAddress(f"can't get ip address of node {self._node_name}. error: no usable address was found")
        self._found = found
        return found

    async def _resolve(self) -> Sequence[IPAddress]:
        try:
            async with asyncio.timeout(RESOLVE_WITHIN):
                return await self._network.resolve(self._node_name)
        except TimeoutError:
            return ()


class LocalAddresses:
    """The node's own addresses where there is no Node to show them: those chosen by the operator, else the route's.

    Needed for each container; reading the routes costs a millisecond, so the result is kept for some seconds."""

    def __init__(self, *, network: HostNetwork, node_ips: Sequence[IPAddress], clock: Clock) -> None:
        self._network = network
        self._node_ips = tuple(node_ips)
        self._clock = clock
        self._found: tuple[str, ...] = ()
        self._read_at: float | None = None

    def host_ips(self) -> tuple[str, ...]:
        fixed = tuple(str(ip) for ip in self._node_ips if not ip.is_unspecified)
        if fixed:
            return fixed
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at > ROUTES_SERVE:
            found = choose(self._network.route_addresses(), self._node_ips[0].version if self._node_ips else 4)
            self._found, self._read_at = (str(found),) if found is not None else (), now
        return self._found


def choose(candidates: Iterable[IPAddress], version: int) -> IPAddress | None:
    """The first usable address of the preferred family, else the first usable one."""
    usable = [ip for ip in candidates if not _wrong_kind(ip)]
    return next((ip for ip in usable if ip.version == version), next(iter(usable), None))


def unusable(ip: IPAddress, local: frozenset[IPAddress]) -> str:
    """Why the address cannot be this node's; empty when it can."""
    wrong = _wrong_kind(ip)
    if wrong:
        return f"nodeIP can't be {wrong}"
    return "" if ip in local else f'node IP: "{ip}" not found in the host\'s network interfaces'


def _wrong_kind(ip: IPAddress) -> str:
    if ip.is_loopback:
        return "loopback address"
    if ip.is_multicast:
        return "a multicast address"
    if ip.is_link_local:
        return "a link-local unicast address"
    return "an all zeros address" if ip.is_unspecified else ""


def provided_node_ip(fixed: Sequence[IPAddress]) -> str:
    """Return the annotation that gives a cloud controller the configured addresses."""
    return ",".join(map(str, fixed))


def internal_ips(addresses: Iterable[NodeAddress]) -> tuple[str, ...]:
    return tuple(each.address for each in addresses if each.type == INTERNAL_IP and each.address)


def parsed_address(text: str) -> IPAddress | None:
    """Return the text as an address; None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _internal(ip: IPAddress) -> NodeAddress:
    return NodeAddress(type=INTERNAL_IP, address=str(ip))


def _host(hostname: str) -> NodeAddress:
    return NodeAddress(type=HOSTNAME, address=hostname)
