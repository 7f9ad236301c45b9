"""iscsi: logs in with the host's iscsiadm, mounts the disk once on the node and binds it into pods.

A session belongs to one target, one portal and one interface, and ends with the last disk that came through it; a
disk is removed with the last pod that uses it. Only the requested lun is scanned. CHAP names and passwords come from
the secret of the source, go to iscsiadm alone and never into a message.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
from msgspec import Struct

from pykubelet.api.types import ISCSIVolumeSource
from pykubelet.clients.host.port import MountError, Mounts, NodePaths, ToolMissing
from pykubelet.model.pod import namespace_of
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import Claims, References
from pykubelet.volumes.plugins.disks import (
    APPEAR_SECONDS,
    BLOCK,
    MAP_SECONDS,
    DeviceMounts,
    KeyedLocks,
    Note,
    ScsiDisks,
    read_attribute,
)
from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import FileContent, Files, SetUp
from pykubelet.volumes.plugins.validation import fs_type, host, line, word
from pykubelet.volumes.reconstruct import names_by_place
from pykubelet.volumes.spec import ISCSI, VolumeSpec

logger = logging.getLogger(__name__)

TOOL_SECONDS = 30.0
PORT = 3260
ATTEMPTS = 2
"""How often a portal is tried while others already answered."""
SESSION_EXISTS = 15
NO_SESSION, NOTHING_FOUND = 2, 21
DISCOVERY_CHAP, SESSION_CHAP = "discovery.sendtargets.auth", "node.session.auth"
CHAP_KEYS = ("username", "password", "username_in", "password_in")

_GO_NAMES = {
    "volume": "VolName",
    "portals": "Portals",
    "iqn": "Iqn",
    "lun": "Lun",
    "first_interface": "InitIface",
    "interface": "Iface",
    "initiator": "InitiatorName",
}


class Target(Struct, frozen=True, kw_only=True, rename=_GO_NAMES):
    """One disk of one target and its portals, in the form upstream writes into iscsi.json."""

    volume: str
    portals: tuple[str, ...]
    """Each with its port, the main one first."""
    iqn: str
    lun: str
    first_interface: str
    """As configured on the host."""
    interface: str
    """The one used: a copy of the first when an initiator name is requested."""
    initiator: str = ""

    def shares(self, other: Target) -> bool:
        return (self.iqn, self.interface) == (other.iqn, other.interface)


class NoTool(VolumeProblem):
    """This host has no iscsiadm."""


class Chap(Struct, frozen=True, kw_only=True):
    discovery: bool = False
    session: bool = False
    secret: Mapping[str, str] = {}


class Session(Struct, frozen=True):
    host: str
    path: Path
    interface: str
    portals: frozenset[str]

    def disks(self, lun: str = "*") -> list[str]:
        return sorted(disk.name for disk in self.path.glob(f"target*/*:*:*:{lun}/block/*"))

    @property
    def number(self) -> int:
        """Number of the target on its host; not 0 only for cards with their own initiator."""
        text = read_attribute(self.path / "iscsi_session" / self.path.name / "target_id")
        return int(text) if text.isdigit() else 0


def portal_of(address: str, port: str) -> str:
    """Normalized, so that portals can be compared."""
    bare = address.strip("[]")
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:
        return f"{bare}:{port}"
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"


def with_port(portal: str) -> str:
    if portal.count(":") > 1 and not portal.startswith("["):
        return portal_of(portal, str(PORT))  # a bare IPv6 address
    head, colon, port = portal.rpartition(":")
    return portal_of(head, port) if colon and not port.endswith("]") else portal_of(portal, str(PORT))


class Sessions:
    """Callers must serialize calls about one target."""

    def __init__(self, *, mounts: Mounts, disks: ScsiDisks) -> None:
        self._mounts = mounts
        self._disks = disks

    # --- attach ---------------------------------------------------------------------------------

    def attach(self, target: Target, chap: Chap) -> str:
        """The device of the disk, with a session at every portal that answers."""
        # Also proves that the interface, taken from the volume source, exists on this host.
        shown = self._admin("-m", "iface", "-I", target.first_interface, "-o", "show")
        if target.initiator:
            self._copy_interface(target, shown)
        found: dict[str, str] = {}
        problems: list[str] = []
        for _ in range(ATTEMPTS):
            for portal in [each for each in target.portals if each not in found]:
                try:
                    found[portal] = self._disk_at(portal, target, chap)
                except (MountError, VolumeProblem) as error:
                    problems.append(str(error))
            if not found:
                self._drop_interface(target)
                raise VolumeProblem(f"cannot log in to {target.iqn}: {'; '.join(dict.fromkeys(problems))}")
            if len(found) == len(target.portals):
                break
        if problems:
            logger.warning("not all paths to a disk", extra={"target": target.iqn, "problems": problems})
        several = MAP_SECONDS if len(target.portals) > 1 else 0.0
        return self._disks.path(self._disks.combined(list(dict.fromkeys(found.values())), several))

    def _disk_at(self, portal: str, target: Target, chap: Chap) -> str:
        session = self._session(portal, target)
        if session is None:
            self._log_in(portal, target, chap)
            session = self._session(portal, target)
        if session is None:
            raise VolumeProblem(f"no session with {portal} after logging in")
        known = session
        self._disks.scan_lun(known.host, known.number, int(target.lun))
        found = self._disks.wait(lambda: known.disks(target.lun), APPEAR_SECONDS)
        if not found:
            raise VolumeProblem(
                f"lun {target.lun} of {target.iqn} did not appear as a device within {APPEAR_SECONDS:.0f} s"
            )
        return found[0]

    def _log_in(self, portal: str, target: Target, chap: Chap) -> None:
        discovery = ("-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", target.interface)
        self._try(*discovery, "-o", "new")
        if chap.discovery:
            self._set_chap(discovery, DISCOVERY_CHAP, chap.secret)
        try:
            self._admin(*discovery, "--discover")
        except MountError:
            self._try(*discovery, "-o", "delete")
            raise
        node = ("-m", "node", "-p", portal, "-T", target.iqn, "-I", target.interface)
        # Neither attach all disks of the target, nor log in at the next boot. Older tools do not know all settings.
        self._try(*node, "-o", "update", "-n", "node.session.scan", "-v", "manual")
        self._try(*node, "-o", "update", "-n", "node.startup", "-v", "manual")
        if chap.session:
            self._set_chap(node, SESSION_CHAP, chap.secret)
        try:
            self._admin(*node, "--login", allow=(SESSION_EXISTS,))
        except MountError:
            self._try(*node, "-o", "delete")
            raise

    def _set_chap(self, where: tuple[str, ...], prefix: str, secret: Mapping[str, str]) -> None:
        settings = {f"{prefix}.authmethod": "CHAP"}
        settings |= {name: secret[name] for key in CHAP_KEYS if secret.get(name := f"{prefix}.{key}")}
        for name, value in settings.items():
            try:
                self._admin(*where, "-o", "update", "-n", name, "-v", line(value, f"{name} in the secret"))
            except MountError:
                # The error shows the command, and with it a password.
                raise VolumeProblem(f"iscsiadm refused the setting {name}") from None

    def _copy_interface(self, target: Target, shown: str) -> None:
        """Make an interface with the requested initiator name, otherwise equal to the first one."""
        settings = {"iface.initiatorname": target.initiator}
        for text in shown.splitlines():
            name, _, value = text.partition(" = ")
            if name.startswith("iface.") and value and value != "<empty>":
                settings.setdefault(name, value.strip())
        settings.pop("iface.iscsi_ifacename", None)
        where = ("-m", "iface", "-I", target.interface)
        self._admin(*where, "-o", "new", allow=(SESSION_EXISTS,))
        try:
            for name, value in sorted(settings.items()):
                self._admin(*where, "-o", "update", "-n", name, "-v", value)
        except MountError:
            self._try(*where, "-o", "delete")
            raise

    def _drop_interface(self, target: Target) -> None:
        if target.initiator:
            self._try("-m", "iface", "-I", target.interface, "-o", "delete")

    # --- detach ---------------------------------------------------------------------------------

    def detach(self, target: Target, others: list[Target]) -> bool:
        """Remove the disk and end the sessions that no other volume of this node uses. To be retried if it fails.

        False when something else on this host uses the disk: then everything stays.
        """
        sessions = [each for each in self._sessions(target.iqn) if each.interface in ("", target.interface)]
        if not any(other.shares(target) and other.lun == target.lun for other in others):
            disks = [disk for session in sessions for disk in session.disks(target.lun)]
            if disks and not self._disks.remove(disks):
                return False
        needed = {portal for other in others if other.shares(target) for portal in other.portals}
        for session in sessions:
            if any(self._disks.is_used(disk) for disk in session.disks()):
                needed |= session.portals  # of another user, who logged in before us or by hand
        for portal in target.portals:
            if portal not in needed:
                try:
                    self._log_out(portal, target)
                except NoTool:
                    if sessions:
                        raise
                    return True  # without iscsiadm there was no login
        if not needed:
            self._drop_interface(target)
        return True

    def _log_out(self, portal: str, target: Target) -> None:
        node = ("-m", "node", "-p", portal, "-T", target.iqn, "-I", target.interface)
        self._admin(*node, "--logout", allow=(NO_SESSION, NOTHING_FOUND))
        self._admin(*node, "-o", "delete", allow=(NO_SESSION, NOTHING_FOUND))

    # --- sessions of this host ------------------------------------------------------------------

    def _session(self, portal: str, target: Target) -> Session | None:
        fits = (s for s in self._sessions(target.iqn) if portal in s.portals and s.interface in ("", target.interface))
        return next(fits, None)

    def _sessions(self, iqn: str) -> Iterator[Session]:
        for path in sorted((self._disks.sys / "class/iscsi_host").glob("host*/device/session*")):
            facts = path / "iscsi_session" / path.name
            if read_attribute(facts / "targetname") != iqn:
                continue
            portals = frozenset(
                portal_of(read_attribute(connection / f"{kind}address"), read_attribute(connection / f"{kind}port"))
                for connection in path.glob("connection*/iscsi_connection/connection*")
                for kind in ("", "persistent_")
            )
            yield Session(path.parent.parent.name, path, read_attribute(facts / "ifacename"), portals)

    # --- iscsiadm -------------------------------------------------------------------------------

    def _admin(self, *arguments: str, allow: Container[int] = ()) -> str:
        try:
            return self._mounts.run("iscsiadm", *arguments, seconds=TOOL_SECONDS, allow=allow)
        except ToolMissing as error:
            raise NoTool(f"iscsi volumes cannot be used: {error}") from error

    def _try(self, *arguments: str) -> None:
        """Run what need not succeed, because an older tool or an earlier attempt may be the reason."""
        try:
            self._admin(*arguments)
        except MountError as error:
            logger.info("iscsiadm refused", extra={"error": str(error)})


RECORD = "iscsi.json"
"""Upstream's record of how to log out."""
CHAP = (DISCOVERY_CHAP, SESSION_CHAP)
MARKS = ("-iqn.", "-eui.", "-naa.")


def target_of(spec: VolumeSpec) -> Target:
    """The disk of a volume. Its fields become arguments of iscsiadm and parts of paths, so each is checked."""
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
    """Parse a disk's folder: `iface-<interface>/<portal>-<iqn>-lun-<n>`."""
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
        self,
        *,
        mounts: Mounts,
        paths: NodePaths,
        references: References,
        claims: Claims,
        disks: ScsiDisks | None = None,
    ) -> None:
        super().__init__(mounts=mounts, paths=paths)
        self._top = paths.plugins / ISCSI
        self._devices = DeviceMounts(
            mounts=mounts, paths=paths, plugin=ISCSI, top=self._top, depth=2, record_file=RECORD
        )
        self._sessions = Sessions(mounts=mounts, disks=disks or ScsiDisks(mounts=mounts))
        self._targets = KeyedLocks()
        self._references = references
        self._claims = claims

    def mounts_with_label(self, spec: VolumeSpec) -> bool:
        return True

    def unique_name(self, spec: VolumeSpec) -> str:
        source = spec.volume.iscsi
        if source is None:
            return ""
        return f"{ISCSI}/{source.target_portal}:{source.iqn}:{source.lun or 0}"

    def reconstruct(self) -> None:
        self._devices.reconstruct()

    def in_use(self) -> Iterable[str]:
        return [name for place in self._devices.unclaimed() for name in names_by_place(ISCSI, place.name)]

    async def gather(self, task: SetUp) -> Files | None:
        source = task.spec.volume.iscsi
        if source is None or source.secret_ref is None or not (source.chap_auth_discovery or source.chap_auth_session):
            return None
        namespace = task.spec.secret_namespace or namespace_of(task.pod)
        # What a persistent volume names is no reference of the pod, so it is not watched.
        reader = self._claims if task.spec.persistent else self._references
        secret = await reader.secret(namespace, source.secret_ref.name or "")
        if secret is None:
            missing = f"secret {namespace}/{source.secret_ref.name}"
            raise VolumeProblem(f"{missing} not found", missing=missing)
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
        self._devices.release(uid, folder, self._detach)

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
        with self._targets.acquire(target.iqn):
            return self._sessions.attach(target, chap)

    def _detach(self, place: Path, record: str) -> bool:
        target = _recorded(place, record)
        if target is None:
            raise VolumeProblem(f"{place} is not the folder of an iscsi volume")
        with self._targets.acquire(target.iqn):
            return self._sessions.detach(target, self._others(place))

    def _others(self, place: Path) -> list[Target]:
        notes = {note.place: note.record for note in self._devices.notes()}
        notes = {str(other): "" for other in self._devices.places()} | notes
        found = (_recorded(Path(other), record) for other, record in notes.items() if other != str(place))
        return [target for target in found if target is not None]


def _recorded(place: Path, record: str) -> Target | None:
    """From the record of the disk, else from its folder's name; None when neither can be parsed."""
    with contextlib.suppress(msgspec.MsgspecError):
        if record:
            return msgspec.json.decode(record, type=Target)
    return target_at(place)
