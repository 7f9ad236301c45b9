"""What single containers have of the machine, as the podresources service reports it. Values only."""

from __future__ import annotations

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
