"""On-disk layout of CSI volumes: the paths, the vol_data.json beside each volume, and the places of block devices.

Layout and file are upstream's, so that either agent finds what the other left. After a restart the files are the
truth: a volume is known, and can be unpublished, by them alone. The driver publishes a block device at one path; a
bind mount of it is the node's own path, and a link to that in the pod's folder is what the runtime gets.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.kit.files import write_atomic
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.plugin import make_folder
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
    "label": "seLinuxMountContext",
}


class VolumeRecord(Struct, frozen=True, kw_only=True):
    """Content of one vol_data.json."""

    spec_name: str
    handle: str
    driver: str
    node: str = ""
    attachment: str = ""
    lifecycle: str = PERSISTENT
    label: str = ""
    """SELinux label that it is mounted with."""

    @property
    def key(self) -> tuple[str, str]:
        return self.driver, self.handle


def attachment_name(handle: str, driver: str, node: str) -> str:
    return "csi-" + _sha(handle + driver + node)


def inline_handle(uid: str, volume: str) -> str:
    return "csi-" + _sha(uid + volume)


def unique_name(driver: str, handle: str) -> str:
    """The name of an attachable volume in the Node's status."""
    return f"{CSI}/{driver}^{handle}"


class CsiPaths(Struct, frozen=True):
    """All paths of CSI volumes. Names come from the API server or from folders found here."""

    paths: NodePaths

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
        """Pods to which the block volume is, or may be, published."""
        return sorted({*_names(self.devices / "publish" / spec_name), *_names(self.devices / spec_name / "dev")})

    def records_of_pods(self) -> Iterator[tuple[str, VolumeRecord]]:
        """All filesystem volumes that are or may be published to pods: uid and record."""
        for uid in _names(self.paths.pods):
            for name in _names(self.paths.volumes(uid) / CSI.replace("/", "~")):
                if (record := read_record(self.home(uid, name))) is not None:
                    yield uid, record

    def staged(self) -> Iterator[VolumeRecord]:
        """All filesystem volumes that are or may be staged on the node."""
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
    data = {key: text for field, key in _KEYS.items() if (text := getattr(record, field)) or field != "label"}
    write_atomic(folder / DATA_FILE, json.dumps(data).encode(), mode=0o600)


def read_record(folder: Path) -> VolumeRecord | None:
    """None when there is no valid record: then no driver was called for it either."""
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


class BlockDevices(Struct, frozen=True, kw_only=True):
    paths: CsiPaths
    mounts: Mounts

    def is_shown(self, folder: str, uid: str) -> bool:
        link, shown = self.paths.device_link(uid, folder), self.paths.device_map(folder, uid)
        return os.path.lexists(link) and is_mount_point(self.mounts, shown)

    def unlinked(self, folder: str) -> list[str]:
        """Pods to which the device may be published although their folders have no link to it: the link is made last
        and removed first, so the agent was killed in between."""
        pods = self.paths.published_pods(folder)
        return [uid for uid in pods if not os.path.lexists(self.paths.device_link(uid, folder))]

    def show(self, folder: str, uid: str) -> None:
        published, shown = self.paths.device_publish(folder, uid), self.paths.device_map(folder, uid)
        try:
            kind = os.stat(published).st_mode
        except FileNotFoundError:
            raise VolumeProblem(f"the driver published nothing at {published}") from None
        if not stat.S_ISBLK(kind):
            raise VolumeProblem(f"what the driver published at {published} is no block device")
        make_folder(shown.parent)
        if not is_mount_point(self.mounts, shown):
            shown.touch(mode=0o660)
            self.mounts.bind(published, shown, read_only=False)
        link = self.paths.device_link(uid, folder)
        make_folder(link.parent)
        if os.path.lexists(link):
            if os.readlink(link) == str(shown):
                return
            link.unlink()
        link.symlink_to(shown)

    def hide(self, folder: str, uid: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.paths.device_link(uid, folder).unlink()
        shown = self.paths.device_map(folder, uid)
        self.mounts.unmount(shown)
        with contextlib.suppress(FileNotFoundError):
            shown.unlink()
        _remove_if_empty(shown.parent)

    def forget(self, folder: str, uid: str) -> None:
        """Call after the driver unpublished the device, or refused to publish it."""
        self.hide(folder, uid)
        published = self.paths.device_publish(folder, uid)
        if is_mount_point(self.mounts, published):
            raise VolumeProblem(f"{published} is still mounted although its driver said that it is not")
        try:
            published.unlink()
        except IsADirectoryError:
            os.rmdir(published)
        except FileNotFoundError:
            pass
        _remove_if_empty(published.parent)

    def forget_staging(self, folder: str) -> None:
        _remove_if_empty(self.paths.device_staging(folder))
        home = self.paths.device_home(folder)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(home):
                if name.lstrip(".").startswith(DATA_FILE):
                    (home / name).unlink()
        for place in (home, home.parent / "dev", home.parent):
            _remove_if_empty(place)


def is_mount_point(mounts: Mounts, path: Path) -> bool:
    """From the mount table, which a dead server cannot block."""
    return any(entry.mount_point == str(path) for entry in mounts.table())


def _remove_if_empty(folder: Path) -> None:
    """Another pod may still use the folder."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
