"""What a container is created with on top of its spec: CPUs, memory nodes, and what device plugins and drivers add.

Covers joining the parts; each manager decides its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.types import Pod
from pykubelet.clients.plugins.port import AllocateResponse
from pykubelet.cm.device_manager import DeviceManager
from pykubelet.cm.dra_manager import DraManager
from pykubelet.cm.resource_managers import ResourceManagers
from pykubelet.model.pod import AnyContainer
from pykubelet.model.topology import ClaimShare, DeviceShare
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

V = TypeVar("V")


class ContainerResources(Struct, frozen=True, kw_only=True):
    """What device plugins, DRA drivers and the CPU and memory managers add to one container."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[cri_pb2.Mount] = ()
    devices: Sequence[cri_pb2.Device] = ()
    cdi_devices: Sequence[str] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    exclusive_cpus: bool = False


NO_RESOURCES = ContainerResources()


class ContainerResourceSource:
    """Joins what the managers add to a container."""

    def __init__(
        self, managers: ResourceManagers, devices: DeviceManager | None = None, claims: DraManager | None = None
    ) -> None:
        self._managers = managers
        self._devices = devices
        self._claims = claims

    async def container_resources(self, pod: Pod, container: AnyContainer) -> ContainerResources:
        """For a container that is about to be created; PykubeletError when it must wait."""
        found = merged(await self._devices.response(pod, container)) if self._devices is not None else NO_RESOURCES
        claimed = self._claims.cdi_devices(pod, container) if self._claims is not None else []
        pinned = self._managers.pinned(pod, container)
        await self._managers.states.written()
        return replace(
            found,
            cdi_devices=[*found.cdi_devices, *claimed],
            cpuset_cpus=pinned.cpus,
            cpuset_mems=pinned.memory_nodes,
            exclusive_cpus=pinned.exclusive,
        )

    def has_exclusive_cpus(self, pod: Pod) -> bool:
        return self._managers.has_exclusive_cpus(pod)


class AssignedResources:
    """What single containers have of the machine, for the podresources service."""

    def __init__(self, managers: ResourceManagers, devices: DeviceManager | None, claims: DraManager | None) -> None:
        self.cpus_of = managers.cpus_of
        self.allocatable_cpus = managers.allocatable_cpus
        self.memory_of = managers.memory_of
        self.allocatable_memory = managers.allocatable_memory
        self._devices = devices
        self._claims = claims

    def devices_of(self, uid: str, container: str) -> Sequence[DeviceShare]:
        return self._devices.devices_of(uid, container) if self._devices is not None else ()

    def allocatable_devices(self) -> Sequence[DeviceShare]:
        return self._devices.allocatable_devices() if self._devices is not None else ()

    def claims_of(self, uid: str, container: str) -> Sequence[ClaimShare]:
        return self._claims.claims_of(uid, container) if self._claims is not None else ()


def merged(answers: Sequence[AllocateResponse]) -> ContainerResources:
    """All responses together; where two disagree the first one counts, and it is logged."""
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
    return ContainerResources(
        envs=envs,
        mounts=list(mounts.values()),
        devices=list(devices.values()),
        annotations=annotations,
        cdi_devices=list(names),
    )


def _first(known: dict[str, V], key: str, value: V, what: str) -> None:
    if known.setdefault(key, value) != value:
        logger.warning("device plugins disagree, the first one counts", extra={"what": what, "name": key})
