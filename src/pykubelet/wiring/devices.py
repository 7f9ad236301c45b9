"""Devices of plugins as the rest of the agent wants them: for topology, containers, the Node, statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, Pod, ResourceHealth, ResourceStatus
from pykubelet.cm.capacity import DeviceAmounts
from pykubelet.cm.device_manager import DeviceManager
from pykubelet.cm.device_state import DevicesRefused
from pykubelet.cm.dra_manager import DraManager
from pykubelet.cm.errors import Refused
from pykubelet.cm.topology_manager import Hint, Hints, masks
from pykubelet.model.assigned import ClaimShare
from pykubelet.model.pod import all_containers
from pykubelet.pods.table import PodTable

logger = logging.getLogger(__name__)

V = TypeVar("V")


class DeviceHints(Struct, frozen=True, kw_only=True):
    """Implements pinning.hints.HintProvider."""

    devices: DeviceManager
    nodes: tuple[int, ...]
    """NUMA nodes of this machine."""

    def hints(self, pod: Pod, container: Container) -> Hints:
        return _hints(self.devices.hints(pod, container, list(masks(self.nodes))))

    def pod_hints(self, pod: Pod) -> Hints:
        return _hints(self.devices.pod_hints(pod, list(masks(self.nodes))))

    def allocate(self, pod: Pod, container: Container, place: Hint) -> None:
        try:
            self.devices.allocate(pod, container, place.nodes)
        except DevicesRefused as error:
            raise Refused(str(error)) from error

    def allocate_pod(self, pod: Pod, place: Hint) -> None:
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            self.allocate(pod, container, place)

    def holders(self) -> frozenset[str]:
        return self.devices.holders()

    def release(self, uid: str) -> None:
        self.devices.release(uid)


def _hints(found: Mapping[str, Sequence[tuple[int, bool]] | None]) -> Hints:
    return {
        resource: None if offers is None else [Hint(mask, preferred) for mask, preferred in offers]
        for resource, offers in found.items()
    }


class ClaimShares(Struct, frozen=True):
    """Implements model.assigned.ClaimHolder."""

    claims: DraManager
    table: PodTable

    def claims_of(self, uid: str, container: str) -> Sequence[ClaimShare]:
        pod = self.table.pod(uid)
        own = next((each for _, each in all_containers(pod) if each.name == container), None) if pod else None
        return self.claims.claims_of(pod, own) if pod is not None and own is not None else ()


def amounts_of(devices: DeviceManager) -> DeviceAmounts:
    return DeviceAmounts(
        capacity={name: Quantity.of(count) for name, count in devices.capacity().items()},
        allocatable={name: Quantity.of(count) for name, count in devices.allocatable().items()},
        removed=devices.removed,
    )


def health_statuses(devices: DeviceManager, uid: str, container: str) -> list[ResourceStatus]:
    return [
        ResourceStatus(
            name=resource, resources=[ResourceHealth(resource_id=each, health=state) for each, state in found.items()]
        )
        for resource, found in devices.health_of(uid, container).items()
    ]
