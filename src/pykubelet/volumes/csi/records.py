"""Where things of CSI volumes are on disk, and the small file beside each that says whose it is.

The layout and the file are upstream's, so that either agent finds what the other left. The files are the truth
after a restart: a volume is known, and can be given back to its driver, by them alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from pykubelet.clients.host.port import VolumePaths
from pykubelet.kit.files import write_atomic
from pykubelet.volumes.spec import CSI

DATA_FILE = "vol_data.json"
PERSISTENT, EPHEMERAL = "Persistent", "Ephemeral"
_KEYS = {
    "spec_name": "specVolID",
    "handle": "volumeHandle",
    "driver": "driverName",
    "node": "nodeName",
    "attachment": "attachmentID",
    "lifecycle": "volumeLifecycleMode",
}


class VolumeRecord(Struct, frozen=True, kw_only=True):
    """Content of one vol_data.json."""

    spec_name: str
    handle: str
    driver: str
    node: str = ""
    attachment: str = ""
    lifecycle: str = PERSISTENT

    @property
    def key(self) -> tuple[str, str]:
        return self.driver, self.handle


def attachment_name(handle: str, driver: str, node: str) -> str:
    return "csi-" + _sha(handle + driver + node)


def inline_handle(uid: str, volume: str) -> str:
    return "csi-" + _sha(uid + volume)


def unique_name(driver: str, handle: str) -> str:
    """What the control plane calls an attachable volume."""
    return f"{CSI}/{driver}^{handle}"


class CsiPaths(Struct, frozen=True):
    """Every place of CSI volumes. Names come from the API server or from folders found here."""

    paths: VolumePaths

    @property
    def top(self) -> Path:
        return self.paths.plugins / CSI

    def staging_home(self, driver: str, handle: str) -> Path:
        return self.top / driver / _sha(handle)

    def staging(self, driver: str, handle: str) -> Path:
        return self.staging_home(driver, handle) / "globalmount"

    def home(self, uid: str, spec_name: str) -> Path:
        return self.paths.volume(uid, CSI, spec_name)

    def target(self, uid: str, spec_name: str) -> Path:
        return self.home(uid, spec_name) / "mount"

    @property
    def devices(self) -> Path:
        return self.top / "volumeDevices"

    def device_staging(self, spec_name: str) -> Path:
        return self.devices / "staging" / spec_name

    def device_publish(self, spec_name: str, uid: str) -> Path:
        return self.devices / "publish" / spec_name / uid

    def device_map(self, spec_name: str, uid: str) -> Path:
        return self.devices / spec_name / "dev" / uid

    def device_home(self, spec_name: str) -> Path:
        return self.devices / spec_name / "data"

    def device_link(self, uid: str, spec_name: str) -> Path:
        return self.paths.volume_devices(uid) / CSI.replace("/", "~") / spec_name

    def published_pods(self, spec_name: str) -> list[str]:
        """Pods that have, or may have, the block volume published."""
        return sorted({*_names(self.devices / "publish" / spec_name), *_names(self.devices / spec_name / "dev")})

    def records_of_pods(self) -> Iterator[tuple[str, VolumeRecord]]:
        """All filesystem volumes that pods have or may have: (uid, record)."""
        for uid in _names(self.paths.pods):
            for name in _names(self.paths.volumes(uid) / CSI.replace("/", "~")):
                if (record := read_record(self.home(uid, name))) is not None:
                    yield uid, record

    def staged(self) -> Iterator[VolumeRecord]:
        """All filesystem volumes that the node has or may have staged."""
        for driver in _names(self.top):
            if driver == "volumeDevices":
                continue
            for sha in _names(self.top / driver):
                if (record := read_record(self.top / driver / sha)) is not None:
                    yield record

    def staged_devices(self) -> Iterator[VolumeRecord]:
        """The same for block volumes."""
        for name in _names(self.devices):
            if name not in ("staging", "publish") and (record := read_record(self.device_home(name))) is not None:
                yield record


def write_record(folder: Path, record: VolumeRecord) -> None:
    data = {key: getattr(record, field) for field, key in _KEYS.items()}
    write_atomic(folder / DATA_FILE, json.dumps(data).encode(), mode=0o600)


def read_record(folder: Path) -> VolumeRecord | None:
    """None when there is none, or it is no use: then nothing was done under it either."""
    try:
        data = json.loads((folder / DATA_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    found = {field: str(data.get(key) or "") for field, key in _KEYS.items()}
    return VolumeRecord(**found) if found["driver"] and found["handle"] else None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
