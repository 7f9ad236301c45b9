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

from pykubelet.clients.plugins.port import Device, Handed, ReadHanded
from pykubelet.cm.errors import Refused
from pykubelet.cm.topology_manager import Hint, mask_of
from pykubelet.kit.files import Envelope
from pykubelet.kit.text import fnv1a_32, go_list, go_map

# --- in memory ------------------------------------------------------------------------------------------------


class DevicesRefused(Refused):
    """Why a pod cannot have its devices. Texts are upstream's: they end up in the status of the pod."""


class Grant(Struct, kw_only=True):
    """Devices of one resource that one container holds."""

    ids: frozenset[str]
    handed: Handed | None = None
    """The plugin's answer; None until it was asked."""


Held = dict[str, dict[str, dict[str, Grant]]]
"""Pod uid -> container -> resource."""


class Resource(Struct):
    """All devices of one name, as the plugin last told."""

    devices: dict[str, Device] = field(default_factory=dict)
    running: bool = False
    """Whether a plugin stands behind it now."""

    @property
    def healthy(self) -> frozenset[str]:
        return frozenset(each.id for each in self.devices.values() if each.healthy)

    def stop(self) -> None:
        """The plugin went: nobody vouches for its devices."""
        self.running = False
        self.devices = {each.id: Device(id=each.id, healthy=False, numa=each.numa) for each in self.devices.values()}


class DeviceBooks:
    def __init__(self) -> None:
        self.resources: dict[str, Resource] = {}
        self.held: Held = {}

    # --- who holds what -------------------------------------------------------------------------

    def grant(self, uid: str, container: str, resource: str) -> Grant | None:
        return self.held.get(uid, {}).get(container, {}).get(resource)

    def grants(self, uid: str, container: str) -> Mapping[str, Grant]:
        return self.held.get(uid, {}).get(container, {})

    def taken(self, resource: str) -> set[str]:
        found: set[str] = set()
        for containers in self.held.values():
            for grants in containers.values():
                if resource in grants:
                    found |= grants[resource].ids
        return found

    def users_of(self, resource: str, ids: Iterable[str]) -> set[str]:
        """Pods that hold any of these."""
        wanted = set(ids)
        return {
            uid
            for uid, containers in self.held.items()
            if any(resource in grants and grants[resource].ids & wanted for grants in containers.values())
        }

    def give(self, uid: str, container: str, resource: str, ids: Iterable[str]) -> None:
        self.held.setdefault(uid, {}).setdefault(container, {})[resource] = Grant(ids=frozenset(ids))

    def release(self, uid: str) -> bool:
        """Give back all the pod holds; whether that was anything."""
        return self.held.pop(uid, None) is not None

    # --- what could be given --------------------------------------------------------------------

    def free(self, resource: str) -> frozenset[str]:
        known = self.resources.get(resource)
        return known.healthy - self.taken(resource) if known is not None else frozenset()

    def choose(
        self, resource: str, count: int, *, reusable: frozenset[str] = frozenset(), nodes: int | None = None
    ) -> list[str]:
        """`count` devices: what may be reused first, then those in the wanted place, then others, then those whose
        place is unknown. `nodes` is a bit mask of NUMA nodes; None = anywhere. Raises DevicesRefused."""
        self._check(resource)
        again = sorted(reusable & self.resources[resource].healthy)[:count]
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

    def _check(self, resource: str) -> None:
        known = self.resources.get(resource)
        if known is None:
            raise DevicesRefused(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise DevicesRefused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")

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

    def all_grants(self) -> Iterator[tuple[str, str, str, Grant]]:
        for uid, containers in self.held.items():
            for container, grants in containers.items():
                for resource, grant in grants.items():
                    yield uid, container, resource, grant


FILE = "kubelet_internal_checkpoint"
UNKNOWN_PLACE = "-1"


def encode(data: dict[str, Any]) -> bytes:
    return ENVELOPE.seal(data)


def decode(raw: bytes, read_handed: ReadHanded) -> dict[str, Any]:
    """Raises CheckpointDamaged, or any error for entries of another shape."""
    data: dict[str, Any] = ENVELOPE.open(raw)
    held_of(data, read_handed)
    registered_of(data)
    return data


def held_of(data: Mapping[str, Any], read_handed: ReadHanded) -> Held:
    held: Held = {}
    for entry in data["PodDeviceEntries"] or ():
        ids = frozenset(each for group in entry["DeviceIDs"].values() for each in group)
        answer = base64.b64decode(entry["AllocResp"] or "")
        containers = held.setdefault(str(entry["PodUID"]), {})
        containers.setdefault(str(entry["ContainerName"]), {})[str(entry["ResourceName"])] = Grant(
            ids=ids, handed=read_handed(answer)
        )
    return held


def registered_of(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which resources had which devices."""
    return {name: list(ids or ()) for name, ids in (data["RegisteredDevices"] or {}).items()}


def data_of(books: DeviceBooks) -> dict[str, Any]:
    entries = []
    for uid, container, resource, grant in books.all_grants():
        if grant.handed is None:
            continue  # not the container's before the plugin agreed
        entries.append(
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": _by_place(books, resource, grant.ids),
                "AllocResp": base64.b64encode(_wire(grant.handed)).decode(),
            }
        )
    registered = {name: sorted(each.healthy) for name, each in books.resources.items()}
    return {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}


def _wire(handed: Handed) -> bytes:
    return handed.wire


def _by_place(books: DeviceBooks, resource: str, ids: frozenset[str]) -> dict[str, list[str]]:
    known = books.resources.get(resource)
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
