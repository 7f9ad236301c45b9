"""What devices are given to whom, on disk, in upstream's format: either agent can go on with the other's file.

After damage running containers keep their devices as the runtime has them, but the agent does not know it, as upstream.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pykubelet.clients.plugins.port import Handed, ReadHanded
from pykubelet.devices.books import DeviceBooks, Grant, Held
from pykubelet.kit.files import Envelope
from pykubelet.kit.go_text import fnv1a_32, go_list, go_map

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
