"""Devices of plugins as the rest of the agent wants them: for topology, containers, the Node, statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, Pod, ResourceHealth, ResourceStatus
from pykubelet.clients.plugins.port import Handed
from pykubelet.cm.device_manager import DeviceManager
from pykubelet.cm.device_state import DevicesRefused
from pykubelet.cm.dra_manager import DraManager
from pykubelet.cm.errors import Refused
from pykubelet.cm.topology_manager import Hint, Hints, masks
from pykubelet.model.assigned import ClaimShare
from pykubelet.model.pod import AnyContainer, all_containers
from pykubelet.node.capacity import DeviceAmounts
from pykubelet.pods.table import PodTable
from pykubelet.runtime.spec.collaborators import Granted
from pykubelet.wire import cri_pb2

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


class HandedDevices(Struct, frozen=True, kw_only=True):
    """Implements the spec builder's DeviceResources."""

    devices: DeviceManager
    claims: DraManager | None = None

    async def granted(self, pod: Pod, container: AnyContainer) -> Granted:
        found = merged(await self.devices.handed(pod, container))
        claimed = self.claims.cdi_devices(pod, container) if self.claims is not None else []
        return replace(found, cdi_devices=[*found.cdi_devices, *claimed]) if claimed else found

    def has_exclusive_cpus(self, pod: Pod) -> bool:
        return False


class ClaimShares(Struct, frozen=True):
    """Implements model.assigned.ClaimHolder."""

    claims: DraManager
    table: PodTable

    def claims_of(self, uid: str, container: str) -> Sequence[ClaimShare]:
        pod = self.table.pod(uid)
        own = next((each for _, each in all_containers(pod) if each.name == container), None) if pod else None
        return self.claims.claims_of(pod, own) if pod is not None and own is not None else ()


def merged(answers: Sequence[Handed]) -> Granted:
    """All answers together; where two disagree the first one counts, and it is told."""
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, cri_pb2.Mount] = {}
    devices: dict[str, cri_pb2.Device] = {}
    for answer in answers:
        for name, value in answer.envs.items():
            _first(envs, name, value, "variable")
        for name, value in answer.annotations.items():
            _first(annotations, name, value, "annotation")
        for mount in answer.mounts:
            made = cri_pb2.Mount(
                container_path=mount.container_path, host_path=mount.host_path, readonly=mount.read_only
            )
            _first(mounts, mount.container_path, made, "mount")
        for device in answer.devices:
            node = cri_pb2.Device(
                container_path=device.container_path, host_path=device.host_path, permissions=device.permissions
            )
            _first(devices, device.container_path, node, "device")
    names = dict.fromkeys(name for answer in answers for name in answer.cdi_devices)
    return Granted(
        envs=envs,
        mounts=list(mounts.values()),
        devices=list(devices.values()),
        annotations=annotations,
        cdi_devices=list(names),
    )


def _first(known: dict[str, V], key: str, value: V, what: str) -> None:
    if known.setdefault(key, value) != value:
        logger.warning("device plugins disagree, the first one counts", extra={"what": what, "name": key})


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
