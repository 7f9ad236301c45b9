"""Which devices there are, which container each is allocated to, and the checkpoint of it. Nothing here waits.

A device is allocated to at most one container at a time; a container may take over the devices of a finished init
container of its pod. Allocations outlast the agent, in upstream's file format both ways, and the absence of the
plugin. After damage running containers keep their devices, but the agent does not know it, as upstream.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from pykubelet.clients.plugins.port import AllocateResponse, Device, ReadAllocateResponse
from pykubelet.cm.errors import Refused
from pykubelet.cm.topology_manager import Hint, mask_of
from pykubelet.kit.files import Envelope
from pykubelet.kit.text import fnv1a_32, go_list, go_map

# --- in memory ------------------------------------------------------------------------------------------------


class DevicesRefused(Refused):
    """Why a pod cannot have its devices. Texts are upstream's: they end up in the status of the pod."""


class DeviceAllocation(Struct, kw_only=True):
    """Devices of one resource that are allocated to one container."""

    ids: frozenset[str]
    response: AllocateResponse | None = None
    """What Allocate returned; None until it was called."""


DeviceAllocations = dict[str, dict[str, dict[str, DeviceAllocation]]]
"""Pod uid -> container -> resource."""


class Resource(Struct):
    """All devices of one name, as the plugin last listed them."""

    devices: dict[str, Device] = field(default_factory=dict)
    running: bool = False
    """Whether a plugin stands behind it now."""

    @property
    def healthy(self) -> frozenset[str]:
        return frozenset(each.id for each in self.devices.values() if each.healthy)

    def stop(self) -> None:
        """The plugin is gone: its devices count as unhealthy."""
        self.running = False
        self.devices = {each.id: Device(id=each.id, healthy=False, numa=each.numa) for each in self.devices.values()}


class DeviceState:
    def __init__(self) -> None:
        self.resources: dict[str, Resource] = {}
        self.allocations: DeviceAllocations = {}

    # --- allocations -----------------------------------------------------------------------------

    def get(self, uid: str, container: str, resource: str) -> DeviceAllocation | None:
        return self.allocations.get(uid, {}).get(container, {}).get(resource)

    def of_container(self, uid: str, container: str) -> Mapping[str, DeviceAllocation]:
        return self.allocations.get(uid, {}).get(container, {})

    def taken(self, resource: str) -> set[str]:
        found: set[str] = set()
        for containers in self.allocations.values():
            for allocations in containers.values():
                if resource in allocations:
                    found |= allocations[resource].ids
        return found

    def users_of(self, resource: str, ids: Iterable[str]) -> set[str]:
        """Pods that have any of these."""
        wanted = set(ids)
        return {
            uid
            for uid, containers in self.allocations.items()
            if any(
                resource in allocations and allocations[resource].ids & wanted for allocations in containers.values()
            )
        }

    def allocate(self, uid: str, container: str, resource: str, ids: Iterable[str]) -> None:
        self.allocations.setdefault(uid, {}).setdefault(container, {})[resource] = DeviceAllocation(ids=frozenset(ids))

    def release(self, uid: str) -> bool:
        """Release all devices of the pod; whether there were any."""
        return self.allocations.pop(uid, None) is not None

    # --- what could be allocated --------------------------------------------------------------------

    def free(self, resource: str) -> frozenset[str]:
        known = self.resources.get(resource)
        return known.healthy - self.taken(resource) if known is not None else frozenset()

    def choose(
        self, resource: str, count: int, *, reusable: frozenset[str] = frozenset(), nodes: int | None = None
    ) -> list[str]:
        """`count` devices: what may be reused first, then those in the wanted place, then others, then those whose
        place is unknown. `nodes` is a bit mask of NUMA nodes; None = anywhere. Raises DevicesRefused."""
        again = sorted(reusable & self.healthy(resource))[:count]
        missing = count - len(again)
        if missing <= 0:
            return again
        free = self.free(resource) - set(again)
        if len(free) < missing:
            raise DevicesRefused(
                f"requested number of devices unavailable for {resource}. Requested: {missing}, Available: {len(free)}"
            )
        ordered = [device for group in self.by_place(resource, free, nodes) for device in group]
        return again + ordered[:missing]

    def by_place(self, resource: str, ids: Iterable[str], nodes: int | None) -> tuple[list[str], list[str], list[str]]:
        """Aligned with the wanted place, elsewhere, and unknown."""
        devices = self.resources[resource].devices
        aligned: list[str] = []
        elsewhere: list[str] = []
        unknown: list[str] = []
        for each in sorted(ids):
            numa = devices[each].numa
            if not numa or nodes is None:
                unknown.append(each)
            elif any(nodes >> node & 1 for node in numa):
                aligned.append(each)
            else:
                elsewhere.append(each)
        return aligned, elsewhere, unknown

    def healthy(self, resource: str) -> frozenset[str]:
        """Raises DevicesRefused when there are none."""
        known = self.resources.get(resource)
        if known is None:
            raise DevicesRefused(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise DevicesRefused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        return known.healthy

    # --- places ---------------------------------------------------------------------------------

    def hints(self, resource: str, count: int, *, reusable: frozenset[str], masks: Sequence[int]) -> list[Hint] | None:
        """Where `count` devices could be allocated, small places first; None = anywhere.

        Preferred are the places with the fewest nodes that could ever hold as many, allocated or not."""
        known = self.resources.get(resource)
        if known is None or not any(device.numa for device in known.devices.values()):
            return None
        free = self.free(resource) | (reusable & known.healthy)
        placed = {each: mask_of(known.devices[each].numa) for each in known.devices}
        fits = [mask for mask in masks if sum(1 for each in known.devices if placed[each] & mask) >= count]
        smallest = min((mask.bit_count() for mask in fits), default=0)
        found = []
        for mask in masks:
            if any(not placed[each] & mask for each in reusable if placed.get(each)):
                continue  # what is allocated already must be inside
            if sum(1 for each in free if placed[each] & mask) >= count:
                found.append(Hint(mask, mask.bit_count() == smallest))
        return found

    def all_allocations(self) -> Iterator[tuple[str, str, str, DeviceAllocation]]:
        for uid, containers in self.allocations.items():
            for container, allocations in containers.items():
                for resource, allocation in allocations.items():
                    yield uid, container, resource, allocation


FILE = "kubelet_internal_checkpoint"
UNKNOWN_PLACE = "-1"


def encode(data: dict[str, Any]) -> bytes:
    return ENVELOPE.seal(data)


def decode(raw: bytes, read_allocate_response: ReadAllocateResponse) -> dict[str, Any]:
    """Raises CheckpointDamaged, or any error for entries of another shape."""
    data: dict[str, Any] = ENVELOPE.open(raw)
    allocations_of(data, read_allocate_response)
    registered_of(data)
    return data


def allocations_of(data: Mapping[str, Any], read_allocate_response: ReadAllocateResponse) -> DeviceAllocations:
    found: DeviceAllocations = {}
    for entry in data["PodDeviceEntries"] or ():
        ids = frozenset(each for group in entry["DeviceIDs"].values() for each in group)
        answer = base64.b64decode(entry["AllocResp"] or "")
        containers = found.setdefault(str(entry["PodUID"]), {})
        containers.setdefault(str(entry["ContainerName"]), {})[str(entry["ResourceName"])] = DeviceAllocation(
            ids=ids, response=read_allocate_response(answer)
        )
    return found


def registered_of(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which resources had which devices."""
    return {name: list(ids or ()) for name, ids in (data["RegisteredDevices"] or {}).items()}


def data_of(state: DeviceState) -> dict[str, Any]:
    entries = []
    for uid, container, resource, allocation in state.all_allocations():
        if allocation.response is None:
            continue  # not the container's before the plugin agreed
        entries.append(
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": _by_place(state, resource, allocation.ids),
                "AllocResp": base64.b64encode(_wire(allocation.response)).decode(),
            }
        )
    registered = {name: sorted(each.healthy) for name, each in state.resources.items()}
    return {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}


def _wire(response: AllocateResponse) -> bytes:
    return response.wire


def _by_place(state: DeviceState, resource: str, ids: frozenset[str]) -> dict[str, list[str]]:
    known = state.resources.get(resource)
    places: dict[str, list[str]] = {}
    for each in sorted(ids):
        device = known.devices.get(each) if known is not None else None
        for node in device.numa if device is not None and device.numa else (int(UNKNOWN_PLACE),):
            places.setdefault(str(node), []).append(each)
    return places


def text_of(data: Mapping[str, Any]) -> str:
    """The value as Go prints it, over which the checksum is taken."""
    entries = data["PodDeviceEntries"]
    shown = None if entries is None else [_entry_text(entry) for entry in entries]
    registered = go_map({name: go_list(ids) for name, ids in (data["RegisteredDevices"] or {}).items()})
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){go_list(shown)} "
        f"RegisteredDevices:(map[string][]string){registered}}}"
    )


def _entry_text(entry: Mapping[str, Any]) -> str:
    places = go_map({int(node): go_list(ids) for node, ids in entry["DeviceIDs"].items()})
    answer = entry["AllocResp"]
    numbers = go_list(base64.b64decode(answer)) if answer is not None else "<nil>"
    return (
        f"{{PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']} "
        f"ResourceName:(string){entry['ResourceName']} DeviceIDs:(checkpoint.DevicesPerNUMA){places} "
        f"AllocResp:([]uint8){numbers}}}"
    )


ENVELOPE = Envelope(lambda data: fnv1a_32(text_of(data)), data="Data", sum="Checksum")
