"""What of the machine single containers hold for themselves: CPUs, memory, devices, claimed devices.

The meeting point between the managers that hand these out and those who tell others about it (the podresources
service). Each manager satisfies one of the Protocols; `Assigned` is all of them together, and without a manager
nobody holds anything. Values only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct


class DeviceShare(Struct, frozen=True, kw_only=True):
    """Devices of one resource that sit on the same NUMA nodes."""

    resource: str
    ids: tuple[str, ...]
    numa: tuple[int, ...] = ()
    """Empty when the plugin does not say."""


class MemoryShare(Struct, frozen=True, kw_only=True):
    """Memory of one kind (memory, hugepages-2Mi, ...) on some NUMA nodes."""

    kind: str
    size: int
    numa: tuple[int, ...]


class ClaimedDevice(Struct, frozen=True, kw_only=True):
    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()
    """Names in the container device interface."""
    share_id: str = ""


class ClaimShare(Struct, frozen=True, kw_only=True):
    """What one resource claim gives a container."""

    namespace: str
    name: str
    devices: tuple[ClaimedDevice, ...]


class CpuHolder(Protocol):
    def cpus_of(self, uid: str, container: str) -> Collection[int]:
        """CPUs that this container alone may use."""
        ...

    def allocatable_cpus(self) -> Collection[int]:
        """CPUs that could be given to one container alone, given or not."""
        ...


class MemoryHolder(Protocol):
    def memory_of(self, uid: str, container: str) -> Sequence[MemoryShare]: ...

    def allocatable_memory(self) -> Sequence[MemoryShare]: ...


class DeviceHolder(Protocol):
    def devices_of(self, uid: str, container: str) -> Sequence[DeviceShare]: ...

    def allocatable_devices(self) -> Sequence[DeviceShare]:
        """Healthy ones, given or not."""
        ...


class ClaimHolder(Protocol):
    def claims_of(self, uid: str, container: str) -> Sequence[ClaimShare]: ...


class NothingHeld:
    """Stands for every manager that is not there."""

    def cpus_of(self, uid: str, container: str) -> Collection[int]:
        return ()

    def allocatable_cpus(self) -> Collection[int]:
        return ()

    def memory_of(self, uid: str, container: str) -> Sequence[MemoryShare]:
        return ()

    def allocatable_memory(self) -> Sequence[MemoryShare]:
        return ()

    def devices_of(self, uid: str, container: str) -> Sequence[DeviceShare]:
        return ()

    def allocatable_devices(self) -> Sequence[DeviceShare]:
        return ()

    def claims_of(self, uid: str, container: str) -> Sequence[ClaimShare]:
        return ()


NOTHING = NothingHeld()


class Assigned(Struct, frozen=True, kw_only=True):
    cpus: CpuHolder = NOTHING
    memory: MemoryHolder = NOTHING
    devices: DeviceHolder = NOTHING
    claims: ClaimHolder = NOTHING
