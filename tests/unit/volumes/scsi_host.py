"""A host with SCSI disks behind a network: its /sys and /dev as folders, its iscsiadm and multipath as functions.

What the kernel would do by itself (find a scanned disk, forget a deleted one, combine ways) happens whenever a
program runs or code waits, so nothing here needs time.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pykubelet.api.types import Pod, Volume
from pykubelet.clients.host.port import NodePaths
from pykubelet.model.pod import uid_of
from pykubelet.volumes.plugins.disks import ScsiDisks
from pykubelet.volumes.plugins.plugin import SetUp
from pykubelet.volumes.spec import VolumeSpec, spec_of
from tests.fakes.fake_mounts import FakeMounts

IQN = "iqn.2024-01.com.example:disk"
SHOWN = """# BEGIN RECORD 2.1.8
iface.iscsi_ifacename = default
iface.net_ifacename = <empty>
iface.transport_name = tcp
iface.initiatorname = <empty>
# END RECORD
"""


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@dataclass
class ScsiHost:
    root: Path
    luns: set[int] = field(default_factory=lambda: {0, 1, 2})
    """That the target maps to this node."""
    multipath: bool = False
    dead: set[str] = field(default_factory=set)
    """Portals that do not answer."""
    refused: set[str] = field(default_factory=set)
    """A command of iscsiadm with one of these words fails."""
    mounts: FakeMounts = field(default_factory=FakeMounts)
    pauses: int = 0

    def __post_init__(self) -> None:
        self.mounts.tools = dict.fromkeys(("iscsiadm", "multipath", "blockdev", "fsck", "blkid"), "")
        self.mounts.answer = self._answer
        self._count = 0

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def paths(self) -> NodePaths:
        return NodePaths(root=self.root / "k", pod_logs=self.root / "logs", container_logs=self.root / "links")

    def disks(self) -> ScsiDisks:
        return ScsiDisks(mounts=self.mounts, sys=self.sys, dev=self.dev, pause=self._pause)

    def task(self, pod: Pod, volume: Volume, *, block: bool = False) -> SetUp:
        return self.task_of(pod, spec_of(volume, block=block))

    def task_of(self, pod: Pod, spec: VolumeSpec) -> SetUp:
        return SetUp(pod=pod, spec=spec, path=self.paths.volume(uid_of(pod), spec.plugin, spec.folder))

    # --- for tests ------------------------------------------------------------------------------

    def said(self, *words: str) -> list[tuple[str, ...]]:
        """Commands with all these words in them."""
        return [command for command in self.mounts.commands if set(words) <= set(command)]

    def sessions(self) -> dict[str, str]:
        """Portal and interface of each session."""
        found = {}
        for path in sorted(self.sys.glob("class/iscsi_host/host*/device/session*")):
            connection = next(path.glob("connection*/iscsi_connection/*"))
            address = (connection / "persistent_address").read_text().strip()
            found[address] = (path / "iscsi_session" / path.name / "ifacename").read_text().strip()
        return found

    def block_devices(self) -> list[str]:
        self.kernel()
        return sorted(path.name for path in (self.sys / "block").glob("*"))

    def add_session(self, portal: str, interface: str = "default", iqn: str = IQN) -> Path:
        self._count += 1
        number = self._count
        address, _, port = portal.rpartition(":")
        path = self.sys / f"class/iscsi_host/host{number}/device/session{number}"
        write(path / f"iscsi_session/session{number}/targetname", f"{iqn}\n")
        write(path / f"iscsi_session/session{number}/ifacename", f"{interface}\n")
        connection = path / f"connection{number}:0/iscsi_connection/connection{number}:0"
        for kind in ("", "persistent_"):
            write(connection / f"{kind}address", address.strip("[]") + "\n")
            write(connection / f"{kind}port", f"{port}\n")
        write(self.sys / f"class/scsi_host/host{number}/scan", "")
        return path

    def add_disk(self, name: str, number: str) -> None:
        write(self.sys / f"block/{name}/dev", f"{number}\n")
        write(self.sys / f"block/{name}/device/delete", "")
        (self.sys / f"block/{name}/holders").mkdir(parents=True)
        write(self.dev / name, "")

    def add_map(self, name: str, *disks: str, uuid: str = "mpath-3600") -> None:
        write(self.sys / f"block/{name}/dm/uuid", uuid)
        write(self.sys / f"block/{name}/dev", "253:0\n")
        write(self.dev / name, "")
        (self.sys / f"block/{name}/holders").mkdir()
        for disk in disks:
            write(self.sys / f"block/{name}/slaves/{disk}", "")
            write(self.sys / f"block/{disk}/holders/{name}", "")

    # --- what the kernel does -------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        self.pauses += 1
        self.kernel()

    def kernel(self) -> None:
        for scan in self.sys.glob("class/scsi_host/host*/scan"):
            request = scan.read_text().split()
            scan.write_text("")
            if len(request) == 3 and request[2].isdigit() and int(request[2]) in self.luns:
                self._find(scan.parent.name.removeprefix("host"), request[2])
        for delete in self.sys.glob("block/sd*/device/delete"):
            if delete.read_text() == "1":
                self._forget(delete.parent.parent.name)
        ways = sorted(path.name for path in (self.sys / "block").glob("sd*"))
        if self.multipath and len(ways) > 1 and not (self.sys / "block/dm-0").exists():
            self.add_map("dm-0", *ways)

    def _find(self, host: str, lun: str) -> None:
        place = next(self.sys.glob(f"class/iscsi_host/host{host}/device/session*"))
        place = place / f"target{host}:0:0/{host}:0:0:{lun}/block"
        if not place.exists():
            name = f"sd{chr(96 + int(host))}{lun}"
            (place / name).mkdir(parents=True)
            self.add_disk(name, f"8:{16 * int(host) + int(lun)}")

    def _forget(self, disk: str) -> None:
        shutil.rmtree(self.sys / "block" / disk)
        for place in self.sys.glob(f"class/iscsi_host/host*/device/session*/target*/*/block/{disk}"):
            shutil.rmtree(place.parent.parent)

    def _answer(self, command: tuple[str, ...]) -> tuple[int, str] | None:
        self.kernel()
        if command[0] == "blkid":
            return 0, "TYPE=ext4\n"
        if command[0] == "multipath" and not self.refused & set(command):
            self.multipath = False
            shutil.rmtree(self.sys / "block" / Path(command[2]).name)
            for holder in self.sys.glob(f"block/*/holders/{Path(command[2]).name}"):
                holder.unlink()
        if command[0] != "iscsiadm" or self.refused & set(command):
            return (1, "") if self.refused & set(command) else None
        words = dict(pairwise(command))
        portal = words.get("-p", "")
        if words["-m"] == "iface":
            return (0, SHOWN) if words.get("-o") == "show" else (0, "")
        if "--discover" in command and portal in self.dead:
            return 8, ""
        if "--login" in command:
            if portal in self.sessions_at():
                return 15, ""
            self.add_session(portal, words["-I"], words["-T"])
        if "--logout" in command:
            found = self.sessions_at().get(portal)
            if found is None:
                return 21, ""
            shutil.rmtree(found.parent.parent)
        return 0, ""

    def sessions_at(self) -> dict[str, Path]:
        found = {}
        for path in self.sys.glob("class/iscsi_host/host*/device/session*"):
            connection = next(path.glob("connection*/iscsi_connection/*"))
            address = (connection / "address").read_text().strip()
            shown = f"[{address}]" if ":" in address else address
            found[f"{shown}:{(connection / 'port').read_text().strip()}"] = path
        return found
