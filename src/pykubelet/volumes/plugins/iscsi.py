"""iscsi: logs in with the host's iscsiadm, mounts the disk once on the node and binds it into pods.

CHAP names and passwords come from the secret the source names. The disk is taken away with the last pod that has
it, and a session ends with the last disk that came through it.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from pykubelet.api.types import ISCSIVolumeSource
from pykubelet.clients.host.port import Mounts, VolumePaths
from pykubelet.model.pod import namespace_of
from pykubelet.volumes.objects import References
from pykubelet.volumes.plugins.disks import ScsiDisks
from pykubelet.volumes.plugins.filesystems import BLOCK, DeviceMounts, KeyedLocks, Note
from pykubelet.volumes.plugins.iscsi_sessions import (
    DISCOVERY_CHAP,
    SESSION_CHAP,
    Chap,
    Sessions,
    Target,
    with_port,
)
from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import FileContent, Files, SetUp
from pykubelet.volumes.plugins.words import fs_type, host, word
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.reconstruct import names_by_place
from pykubelet.volumes.spec import ISCSI, VolumeSpec

RECORD = "iscsi.json"
"""Upstream's record of how to log out."""
CHAP = (DISCOVERY_CHAP, SESSION_CHAP)
MARKS = ("-iqn.", "-eui.", "-naa.")


def target_of(spec: VolumeSpec) -> Target:
    """The disk a volume names. Its words become words of iscsiadm and parts of paths, so each is checked."""
    source = spec.volume.iscsi
    assert source is not None
    named = [portal for portal in (source.target_portal or "", *source.portals) if portal]
    portals = [with_port(host(portal, "iscsi.targetPortal and portals")) for portal in named]
    if not portals:
        raise VolumeProblem("iscsi.targetPortal is empty")
    iqn = word(source.iqn, "iscsi.iqn")
    if not f"-{iqn}".startswith(MARKS):
        raise VolumeProblem(f"iscsi.iqn {iqn!r} begins with neither iqn., eui. nor naa.")
    interface = word(source.iscsi_interface or "default", "iscsi.iscsiInterface")
    initiator = word(source.initiator_name, "iscsi.initiatorName") if source.initiator_name else ""
    return Target(
        volume=spec.folder,
        portals=tuple(dict.fromkeys(portals)),
        iqn=iqn,
        lun=str(source.lun or 0),
        first_interface=interface,
        interface=f"{portals[0]}:{spec.folder}" if initiator else interface,
        initiator=initiator,
    )


def place_of(top: Path, target: Target) -> Path:
    return top / f"iface-{target.interface}" / f"{target.portals[0]}-{target.iqn}-lun-{target.lun}"


def target_at(place: Path) -> Target | None:
    """What the name of a place tells: `iface-<interface>/<portal>-<iqn>-lun-<n>`."""
    head, _, lun = place.name.rpartition("-lun-")
    for mark in MARKS:
        portal, found, rest = head.partition(mark)
        if found and lun.isdigit():
            interface, iqn = place.parent.name.removeprefix("iface-"), mark[1:] + rest
            return Target(
                volume="", portals=(portal,), iqn=iqn, lun=lun, first_interface=interface, interface=interface
            )
    return None


class IscsiVolume(MountedPlugin):
    name = ISCSI

    def __init__(
        self, *, mounts: Mounts, paths: VolumePaths, references: References, disks: ScsiDisks | None = None
    ) -> None:
        super().__init__(mounts=mounts, paths=paths)
        self._top = paths.plugins / ISCSI
        self._devices = DeviceMounts(
            mounts=mounts, paths=paths, plugin=ISCSI, top=self._top, depth=2, record_file=RECORD
        )
        self._sessions = Sessions(mounts=mounts, disks=disks or ScsiDisks(mounts=mounts))
        self._targets = KeyedLocks()
        self._references = references

    def attached_as(self, spec: VolumeSpec) -> str:
        source = spec.volume.iscsi
        if source is None:
            return ""
        return f"{ISCSI}/{source.target_portal}:{source.iqn}:{source.lun or 0}"

    def remember(self) -> None:
        self._devices.remember()

    def held(self) -> Iterable[str]:
        return [name for place in self._devices.kept() for name in names_by_place(ISCSI, place.name)]

    async def gather(self, task: SetUp) -> Files | None:
        source = task.spec.volume.iscsi
        if source is None or source.secret_ref is None or not (source.chap_auth_discovery or source.chap_auth_session):
            return None
        namespace = task.spec.secret_namespace or namespace_of(task.pod)
        secret = await self._references.secret(namespace, source.secret_ref.name or "")
        if secret is None:
            raise VolumeProblem(f"secret {namespace}/{source.secret_ref.name} not found")
        return {key: FileContent(data=base64.b64decode(value), mode=0o600) for key, value in secret.data.items()}

    def using(self, task: SetUp) -> AbstractContextManager[None]:
        record = msgspec.json.encode(target_of(task.spec)).decode()
        return self._devices.used(task, Note(place=str(self._place(task.spec)), record=record))

    def mount(self, task: SetUp, files: Files | None) -> None:
        source = task.spec.volume.iscsi
        assert source is not None
        kind = fs_type(source.fs_type, "iscsi.fsType")
        self._devices.show(self._attach(task, source, files), self._place(task.spec), task, kind)

    def device_of(self, task: SetUp, files: Files | None) -> str:
        source = task.spec.volume.iscsi
        assert source is not None
        return self._attach(task, source, files)

    def released(self, uid: str, folder: str) -> None:
        self._devices.give_back(uid, folder, self._detach)

    def _place(self, spec: VolumeSpec) -> Path:
        return place_of(self._top / BLOCK if spec.block else self._top, target_of(spec))

    def _attach(self, task: SetUp, source: ISCSIVolumeSource, files: Files | None) -> str:
        target = target_of(task.spec)
        try:
            secret = {key: content.data.decode() for key, content in (files or {}).items() if key.startswith(CHAP)}
        except UnicodeDecodeError:
            raise VolumeProblem("the secret for CHAP is no text") from None
        chap = Chap(discovery=bool(source.chap_auth_discovery), session=bool(source.chap_auth_session), secret=secret)
        # Not while the disk is formatted or checked: other disks of the target need not wait for that.
        with self._targets.held(target.iqn):
            return self._sessions.attach(target, chap)

    def _detach(self, place: Path, record: str) -> bool:
        target = _recorded(place, record)
        if target is None:
            raise VolumeProblem(f"{place} is not the folder of an iscsi volume")
        with self._targets.held(target.iqn):
            return self._sessions.detach(target, self._others(place))

    def _others(self, place: Path) -> list[Target]:
        notes = {note.place: note.record for note in self._devices.notes()}
        notes = {str(other): "" for other in self._devices.places()} | notes
        found = (_recorded(Path(other), record) for other, record in notes.items() if other != str(place))
        return [target for target in found if target is not None]


def _recorded(place: Path, record: str) -> Target | None:
    """What was written down of the disk, else what its folder is called; None when that tells nothing either."""
    with contextlib.suppress(msgspec.MsgspecError):
        if record:
            return msgspec.json.decode(record, type=Target)
    return target_at(place)
