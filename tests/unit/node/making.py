"""A machine, a runtime and a network to describe a node with, for tests of the node package."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pykubelet.clients.host.port import Machine
from pykubelet.model.runtime_status import Image, RuntimeConditions
from pykubelet.settings.node_flags import IPAddress

GIB = 1 << 30


def a_machine(**fields: Any) -> Machine:
    values: dict[str, Any] = {
        "hostname": "box",
        "cpus": 4,
        "memory_bytes": 8 * GIB,
        "swap_bytes": 0,
        "kernel": "6.1.0",
        "os_image": "Test OS 1",
        "machine_id": "machine-1",
        "system_uuid": "uuid-1",
        "boot_id": "boot-1",
        "architecture": "amd64",
    }
    return Machine(**{**values, **fields})


def ip(text: str) -> IPAddress:
    return ipaddress.ip_address(text)


@dataclass
class FakeRuntime:
    """What the node asks of the container runtime."""

    runtime: str = ""
    network: str = ""
    conditions: RuntimeConditions = field(default_factory=RuntimeConditions)
    images: Sequence[Image] = ()
    lists: int = 0
    cidrs: list[str] = field(default_factory=list)

    def runtime_problem(self) -> str:
        return self.runtime

    def network_problem(self) -> str:
        return self.network

    async def list_images(self, image: str | None = None) -> Sequence[Image]:
        self.lists += 1
        return self.images

    async def update_runtime_config(self, pod_cidr: str) -> None:
        self.cidrs.append(pod_cidr)


@dataclass
class FakeNetwork:
    local: Sequence[str] = ("127.0.0.1", "10.1.0.5", "fd00::5")
    route: Sequence[str] = ("10.1.0.5", "fd00::5")
    names: Sequence[str] = ()
    lookups: int = 0

    def addresses(self) -> frozenset[IPAddress]:
        return frozenset(map(ip, self.local))

    def route_addresses(self) -> Sequence[IPAddress]:
        return [*map(ip, self.route)]

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        self.lookups += 1
        return [*map(ip, self.names)]
