"""What the spec builder needs from other parts of the agent, as Protocols, with stand-ins that have nothing.

Implementations raise any PykubeletError for what a user must know; the builder turns it into the container's
waiting reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pykubelet.api.types import ConfigMap, Pod, Secret, Service
from pykubelet.cm.container_resources import NO_RESOURCES, ContainerResources
from pykubelet.model.pod import AnyContainer
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.wire import cri_pb2


class Volumes(Protocol):
    """Volumes of pods that are ready for containers."""

    async def mounts_for(self, pod: Pod, container: AnyContainer, env: Mapping[str, str]) -> Sequence[cri_pb2.Mount]:
        """One mount for each volumeMount, in the order of the spec. `env` is for subPathExpr."""
        ...

    async def devices_for(self, pod: Pod, container: AnyContainer) -> Sequence[cri_pb2.Device]:
        """The block volumes of volumeDevices."""
        ...

    def path_of(self, pod: Pod, volume: str) -> str | None:
        """Where a mounted volume of the pod is on the host; None when it is not there."""
        ...

    def extra_groups(self, pod: Pod) -> Sequence[int]:
        """Group ids that persistent volumes ask for."""
        ...


class References(Protocol):
    """Objects of the API server that containers refer to."""

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        """The object; None when there is none. Trouble with the API server is an error."""
        ...

    async def secret(self, namespace: str, name: str) -> Secret | None: ...

    async def services(self, namespace: str) -> Sequence[Service] | None:
        """All services of a namespace; None while they have never been read."""
        ...


class DeviceResources(Protocol):
    async def container_resources(self, pod: Pod, container: AnyContainer) -> ContainerResources: ...

    def has_exclusive_cpus(self, pod: Pod) -> bool:
        """Whether any container of the pod owns whole CPUs."""
        ...


class NodeAddresses(Protocol):
    def host_ips(self) -> Sequence[str]:
        """The node's addresses, that of its preferred family first; empty while unknown."""
        ...


class UserNamespaces(Protocol):
    async def mappings(self, pod: Pod) -> cri_pb2.UserNamespace | None:
        """The pod's id mappings, made if missing; None when the runtime cannot do it. Asked only for
        pods with hostUsers: false."""
        ...


class NoVolumes:
    """No volume is ever there."""

    async def mounts_for(self, pod: Pod, container: AnyContainer, env: Mapping[str, str]) -> Sequence[cri_pb2.Mount]:
        for mount in container.volume_mounts:
            raise ConfigProblem(f'cannot find volume "{mount.name}" to mount into container "{container.name}"')
        return ()

    async def devices_for(self, pod: Pod, container: AnyContainer) -> Sequence[cri_pb2.Device]:
        for device in container.volume_devices:
            raise ConfigProblem(f'cannot find volume "{device.name}" to pass into container "{container.name}"')
        return ()

    def path_of(self, pod: Pod, volume: str) -> str | None:
        return None

    def extra_groups(self, pod: Pod) -> Sequence[int]:
        return ()


class NoReferences:
    """Without an API server there is no object to refer to, and no service."""

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        return None

    async def secret(self, namespace: str, name: str) -> Secret | None:
        return None

    async def services(self, namespace: str) -> Sequence[Service] | None:
        return ()


class NoDevices:
    async def container_resources(self, pod: Pod, container: AnyContainer) -> ContainerResources:
        return NO_RESOURCES

    def has_exclusive_cpus(self, pod: Pod) -> bool:
        return False


class NoUserNamespaces:
    async def mappings(self, pod: Pod) -> cri_pb2.UserNamespace | None:
        return None
