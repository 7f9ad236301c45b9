"""iscsi: logs in with the host's iscsiadm, mounts the disk once on the node and binds it into pods.

CHAP names and passwords come from the secret the source names; they go to iscsiadm only and never into a
message. The session ends when the last volume of its target is gone from the node.
"""

from __future__ import annotations

import base64
import glob
import os
from pathlib import Path

from pykubelet.api.types import ISCSIVolumeSource
from pykubelet.clients.host.port import MountError, Mounts, ToolMissing, VolumePaths
from pykubelet.model.pod import namespace_of
from pykubelet.volumes.objects import References
from pykubelet.volumes.plugins.disks import multipath_of, wait_for_device
from pykubelet.volumes.plugins.filesystems import DeviceMounts
from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import FileContent, Files, SetUp
from pykubelet.volumes.problems import VolumeProblem
from pykubelet.volumes.spec import ISCSI, VolumeSpec

LOGIN_SECONDS = 30.0
PORT = 3260
SESSION_KEYS = ("username", "password", "username_in", "password_in")


def portals_of(source: ISCSIVolumeSource) -> list[str]:
    """All portals with their port, the main one first."""
    found = []
    for portal in (source.target_portal or "", *source.portals):
        bare = portal.rsplit("]", 1)[-1]
        full = portal if ":" in bare else f"{portal}:{PORT}"
        if portal and full not in found:
            found.append(full)
    return found


def global_folder(top: Path, source: ISCSIVolumeSource) -> Path:
    portal = portals_of(source)[0]
    return top / f"iface-{source.iscsi_interface or 'default'}" / f"{portal}-{source.iqn}-lun-{source.lun or 0}"


def device_pattern(portal: str, source: ISCSIVolumeSource) -> str:
    return f"/dev/disk/by-path/*ip-{glob.escape(portal)}-iscsi-{glob.escape(source.iqn or '')}-lun-{source.lun or 0}"


class IscsiVolume(MountedPlugin):
    name = ISCSI

    def __init__(self, *, mounts: Mounts, paths: VolumePaths, references: References) -> None:
        super().__init__(mounts=mounts, paths=paths)
        self._top = paths.plugins / ISCSI
        self._devices = DeviceMounts(mounts=mounts, top=self._top, pods=paths.pods)
        self._references = references

    def attached_as(self, spec: VolumeSpec) -> str:
        source = spec.volume.iscsi
        if source is None:
            return ""
        return f"{ISCSI}/{source.target_portal}:{source.iqn}:{source.lun or 0}"

    async def gather(self, task: SetUp) -> Files | None:
        source = task.spec.volume.iscsi
        if source is None or source.secret_ref is None:
            return None
        namespace = task.spec.secret_namespace or namespace_of(task.pod)
        secret = await self._references.secret(namespace, source.secret_ref.name or "")
        if secret is None:
            raise VolumeProblem(f"secret {namespace}/{source.secret_ref.name} not found")
        return {key: FileContent(data=base64.b64decode(value), mode=0o600) for key, value in secret.data.items()}

    def mount(self, task: SetUp, files: Files | None) -> None:
        source = _source(task)
        place = global_folder(self._top, source)
        with self._devices.alone(source.iqn or ""):
            device = self._log_in(source, files or {})
            self._devices.show(device, place, task, source.fs_type or "ext4")

    def device_of(self, task: SetUp, files: Files | None) -> str:
        source = _source(task)
        with self._devices.alone(source.iqn or ""):
            return self._log_in(source, files or {})

    def released(self) -> None:
        for place in self._devices.free_unused():
            portal, iqn = _target_of(place.name)
            same_target = f"{place.parent}/{portal}-{iqn}-lun-"
            with self._devices.alone(iqn):
                if not any(entry.mount_point.startswith(same_target) for entry in self._mounts.table()):
                    self._admin("-m", "node", "-p", portal, "-T", iqn, "--logout")
                    self._admin("-m", "node", "-p", portal, "-T", iqn, "-o", "delete")

    # --- iscsiadm -------------------------------------------------------------------------------

    def _admin(self, *words: str) -> str:
        try:
            return self._mounts.run("iscsiadm", *words, seconds=LOGIN_SECONDS)
        except ToolMissing as error:
            raise VolumeProblem(f"iscsi volumes cannot be used: {error}") from error

    def _log_in(self, source: ISCSIVolumeSource, secret: Files) -> str:
        problems = []
        for portal in portals_of(source):
            if not glob.glob(device_pattern(portal, source)):
                try:
                    self._log_in_at(portal, source, secret)
                except MountError as error:
                    problems.append(str(error))
        patterns = [device_pattern(portal, source) for portal in portals_of(source)]
        if len(problems) == len(patterns):
            raise VolumeProblem(f"cannot log in to {source.iqn}: {'; '.join(problems)}")
        device = wait_for_device(
            lambda: next((found for pattern in patterns for found in glob.glob(pattern)), None),
            f"lun {source.lun or 0} of {source.iqn}",
        )
        return os.path.realpath(multipath_of(device))

    def _log_in_at(self, portal: str, source: ISCSIVolumeSource, secret: Files) -> None:
        interface = source.iscsi_interface or "default"
        discovery = ("-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", interface)
        self._admin(*discovery, "-o", "new")
        if source.chap_auth_discovery:
            self._chap(discovery, "discovery.sendtargets.auth", secret)
        self._admin(*discovery, "--discover")
        session = ("-m", "node", "-p", portal, "-T", source.iqn or "", "-I", interface)
        if source.chap_auth_session:
            self._chap(session, "node.session.auth", secret)
        self._admin(*session, "-o", "update", "-n", "node.session.scan", "-v", "auto")
        self._admin(*session, "--login")

    def _chap(self, where: tuple[str, ...], prefix: str, secret: Files) -> None:
        settings = [(f"{prefix}.authmethod", "CHAP")]
        settings += [
            (f"{prefix}.{key}", secret[f"{prefix}.{key}"].data.decode())
            for key in SESSION_KEYS
            if f"{prefix}.{key}" in secret
        ]
        for key, value in settings:
            try:
                self._admin(*where, "-o", "update", "-n", key, "-v", value)
            except MountError:
                # The error shows the command, and with it a password.
                raise VolumeProblem(f"iscsiadm refused the setting {key}") from None


def _source(task: SetUp) -> ISCSIVolumeSource:
    source = task.spec.volume.iscsi
    assert source is not None
    return source


def _target_of(name: str) -> tuple[str, str]:
    """Portal and iqn from the name of a global folder, `<portal>-<iqn>-lun-<n>`."""
    head = name.rsplit("-lun-", 1)[0]
    for mark in ("-iqn.", "-eui.", "-naa."):
        portal, found, rest = head.partition(mark)
        if found:
            return portal, mark[1:] + rest
    raise VolumeProblem(f"{name} is not the folder of an iscsi volume")
