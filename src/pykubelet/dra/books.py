"""Which claims are prepared on this node, for which pods, with which devices; on disk in upstream's format.

A claim is written down before its driver is asked for it, so that a killed agent gives back what it may have got.
Whether it is prepared is known only to the life that did it: another one asks the driver again, which is harmless.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pykubelet.clients.plugins.port import ClaimRef, PreparedDevice
from pykubelet.kit.files import Checkpoint, Envelope

FILE = "dra_manager_state"
KIND, VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


@dataclass(slots=True, eq=False)
class ClaimEntry:
    ref: ClaimRef
    pods: set[str] = field(default_factory=set)
    drivers: dict[str, list[PreparedDevice]] = field(default_factory=dict)
    prepared: bool = False

    def devices(self, request: str = "") -> Iterator[tuple[str, PreparedDevice]]:
        """(driver, device) for one request of the claim, or for all."""
        base = request.partition("/")[0]
        for driver, devices in self.drivers.items():
            for device in devices:
                if not base or not device.requests or base in device.requests:
                    yield driver, device


class ClaimBooks:
    def __init__(self, path: Path) -> None:
        self._checkpoint = Checkpoint(path, encode=encode, decode=decode)
        self._claims: dict[tuple[str, str], ClaimEntry] = {}

    def get(self, namespace: str, name: str) -> ClaimEntry | None:
        return self._claims.get((namespace, name))

    def add(self, entry: ClaimEntry) -> None:
        self._claims[entry.ref.namespace, entry.ref.name] = entry

    def drop(self, entry: ClaimEntry) -> None:
        """Another claim may have its name by now."""
        if self.get(entry.ref.namespace, entry.ref.name) is entry:
            del self._claims[entry.ref.namespace, entry.ref.name]

    def of_pod(self, uid: str) -> list[ClaimEntry]:
        return [entry for entry in self._claims.values() if uid in entry.pods]

    def __iter__(self) -> Iterator[ClaimEntry]:
        return iter(list(self._claims.values()))

    # --- on disk --------------------------------------------------------------------------------

    def load(self) -> None:
        """After damage the agent begins with nothing, as upstream: drivers drop what is not prepared again."""
        for entry in self._checkpoint.load() or ():
            self.add(entry)

    async def save(self) -> None:
        """Returns when it is on disk."""
        self._checkpoint.put(list(self))
        await self._checkpoint.flush()


ENVELOPE = Envelope(lambda text: zlib.crc32(text.encode()), data="Data", sum="Checksum")


def encode(entries: list[ClaimEntry]) -> bytes:
    data = {"kind": KIND, "apiVersion": VERSION, "ClaimInfoStateList": [_state(each) for each in entries]}
    return ENVELOPE.seal(json.dumps(data, separators=(",", ":")))


def decode(raw: bytes) -> list[ClaimEntry]:
    """Raises CheckpointDamaged, or any error for entries of another shape."""
    return [_entry(each) for each in json.loads(ENVELOPE.open(raw))["ClaimInfoStateList"] or ()]


def _state(entry: ClaimEntry) -> dict[str, Any]:
    return {
        "ClaimUID": entry.ref.uid,
        "ClaimName": entry.ref.name,
        "Namespace": entry.ref.namespace,
        "PodUIDs": {uid: {} for uid in sorted(entry.pods)},
        "DriverState": {
            driver: {
                "Devices": [
                    {
                        "PoolName": each.pool,
                        "DeviceName": each.device,
                        "ShareID": each.share_id or None,
                        "RequestNames": list(each.requests),
                        "CDIDeviceIDs": list(each.cdi_ids),
                    }
                    for each in devices
                ]
            }
            for driver, devices in entry.drivers.items()
        },
    }


def _entry(state: dict[str, Any]) -> ClaimEntry:
    return ClaimEntry(
        ref=ClaimRef(namespace=state["Namespace"], name=state["ClaimName"], uid=state["ClaimUID"]),
        pods=set(state["PodUIDs"] or ()),
        drivers={
            driver: [
                PreparedDevice(
                    pool=each["PoolName"],
                    device=each["DeviceName"],
                    requests=tuple(each["RequestNames"] or ()),
                    cdi_ids=tuple(each["CDIDeviceIDs"] or ()),
                    share_id=each.get("ShareID") or "",
                )
                for each in found["Devices"] or ()
            ]
            for driver, found in (state["DriverState"] or {}).items()
        },
    )
