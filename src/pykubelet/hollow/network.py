"""The network of a hollow node: its own address, and probes that its programs answer or not."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final

from pykubelet.clients.http.port import ConnectProblem, Fetched, FetchFailed, HealthProblem
from pykubelet.hollow.runtime import HollowCri
from pykubelet.model.http import HttpAnswer, HttpProblem, HttpRequest
from pykubelet.settings.node_flags import IPAddress

NODES: Final = ipaddress.ip_network("172.16.0.0/12")
PODS: Final = ipaddress.ip_network("10.0.0.0/8")
PODS_OF_A_NODE: Final = 22
"""Length of the prefix: 1,021 pods on each of 16,384 nodes."""
MOST_NODES: Final = 2 ** (PODS_OF_A_NODE - PODS.prefixlen)


def node_address(number: int) -> str:
    return str(NODES[number + 2])


def pod_network(number: int) -> str:
    first = int(PODS[0]) + number * 2 ** (32 - PODS_OF_A_NODE)
    return f"{ipaddress.ip_address(first)}/{PODS_OF_A_NODE}"


class OneAddress:
    """A machine with one address."""

    def __init__(self, address: str) -> None:
        self._address = ipaddress.ip_address(address)

    def addresses(self) -> frozenset[IPAddress]:
        return frozenset((self._address,))

    def route_addresses(self) -> Sequence[IPAddress]:
        return (self._address,)

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        return ()


class HollowNetwork:
    """Probes and hooks of the pods of one node. Those of pods on the host's network are always answered."""

    def __init__(self, cri: HollowCri, own_address: str) -> None:
        self._cri = cri
        self._own = frozenset((own_address, "127.0.0.1", "localhost"))

    async def get(self, request: HttpRequest, *, timeout: float | None, max_body: int) -> HttpAnswer:
        if not self._answers(request.host):
            raise HttpProblem(f"dial tcp {request.address}: connect: connection refused")
        return HttpAnswer(status=200)

    async def connect(self, host: str, port: int, *, timeout: float) -> None:
        if not self._answers(host):
            raise ConnectProblem(f"dial tcp {host}:{port}: connect: connection refused")

    async def grpc_health(self, host: str, port: int, service: str, *, timeout: int) -> None:
        if not self._answers(host):
            raise HealthProblem(f"timeout: failed to connect service {host}:{port}: connection refused")

    def _answers(self, host: str) -> bool:
        return host in self._own or self._cri.answers_at(host)


async def no_fetch(url: str, headers: Mapping[str, str], *, timeout: float, max_bytes: int) -> Fetched:
    raise FetchFailed("hollow nodes read no manifests from addresses")
