"""fc on a host of folders: disks found by target or world-wide id, combined by multipath, and taken away again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import FCVolumeSource, Volume
from pykubelet.clients.host.port import MountError
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.disks import RELEASE_TRIES
from pykubelet.volumes.plugins.fc import FcVolume
from pykubelet.volumes.spec import FC
from tests.builders import a_pod
from tests.unit.volumes.scsi_host import ScsiHost

WWNS = ["50060e8000000001", "50060e8000000002"]


def volume(name: str = "disk", **fields: Any) -> Volume:
    given: dict[str, Any] = {"target_wwns": WWNS, "lun": 3} | fields
    return Volume(name=name, fc=FCVolumeSource(**given))


def plugin_on(host: ScsiHost) -> FcVolume:
    return FcVolume(mounts=host.mounts, paths=host.paths, disks=host.disks())


def wire(host: ScsiHost, disk: str, link: str, number: str, folder: str = "by-path") -> None:
    """The fabric shows a disk, and udev links to it."""
    host.add_disk(disk, number)
    (host.dev / "disk" / folder).mkdir(parents=True, exist_ok=True)
    os.symlink(host.dev / disk, host.dev / "disk" / folder / link)


def two_ways(host: ScsiHost) -> None:
    wire(host, "sdb", f"pci-0000:00:01.0-fc-0x{WWNS[0]}-lun-3", "8:16")
    wire(host, "sdc", f"pci-0000:00:02.0-fc-0x{WWNS[1]}-lun-3", "8:32")


def test_a_disk_is_mounted_by_its_multipath_device_and_taken_away(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    two_ways(host)
    host.add_map("dm-0", "sdb", "sdc")
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    plugin.set_up(task, None)
    place = host.paths.plugins / FC / f"{'-'.join(WWNS)}-lun-3"
    assert host.mounts.shown(place) == str(host.dev / "dm-0") and host.mounts.shown(task.path) == str(place)
    plugin.tear_down(task.uid, "disk")
    assert host.block_devices() == [] and host.mounts.points() == [] and not place.exists()
    done = [command[:2] for command in host.mounts.commands if command[0] in ("multipath", "blockdev")]
    assert done == [("multipath", "-f"), ("blockdev", "--flushbufs"), ("blockdev", "--flushbufs")]


def test_a_link_to_the_multipath_device_itself(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    host.add_disk("sdb", "8:16")
    host.add_map("dm-0", "sdb")
    (host.dev / "disk/by-id").mkdir(parents=True)
    os.symlink(host.dev / "dm-0", host.dev / "disk/by-id/scsi-3600_1")
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(target_wwns=[], wwids=["3600 1"]))
    plugin.set_up(task, None)
    assert host.mounts.shown(host.mounts.shown(task.path)) == str(host.dev / "dm-0")
    plugin.tear_down(task.uid, "disk")
    assert host.block_devices() == []


def test_a_disk_that_is_not_there_is_looked_for_on_every_host(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    scans = [tmp_path / f"sys/class/scsi_host/host{number}/scan" for number in (1, 2)]
    scans[0].mkdir(parents=True)  # a host that cannot be scanned
    scans[1].parent.mkdir(parents=True)
    scans[1].touch()
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    scanned: list[str] = []
    real = host.kernel

    def kernel() -> None:
        scanned.append(scans[1].read_text())
        if len(scanned) == 3:
            two_ways(host)

    host.kernel = kernel  # type: ignore[method-assign]
    plugin.set_up(task, None)
    assert scanned[0] == "- - -"
    assert host.mounts.shown(host.mounts.shown(task.path)) == str(host.dev / "sdb")
    host.kernel = real  # type: ignore[method-assign]
    assert host.pauses >= 40, "ways that just came are given time to be combined"


def test_a_disk_that_never_appears(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    with pytest.raises(VolumeProblem, match=r"fc disk 5006.*-lun-3 did not appear as a device within 30 s"):
        plugin_on(host).set_up(host.task(a_pod("web"), volume()), None)


def test_a_map_that_cannot_be_flushed_is_tried_again(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    two_ways(host)
    host.add_map("dm-0", "sdb", "sdc")
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(), block=True)
    plugin.set_up(task, None)
    host.refused = {"multipath"}
    with pytest.raises(MountError, match="multipath -f"):
        plugin.tear_down(task.uid, "disk")
    assert host.block_devices() == ["dm-0", "sdb", "sdc"], "no way is cut off below a map that is still there"
    host.refused = set()
    plugin_on(host).tear_down(task.uid, "disk")
    assert host.block_devices() == []


@pytest.mark.parametrize("used", ["mounted", "partition", "held"])
def test_a_disk_the_host_itself_uses_is_not_taken_from_it(tmp_path: Path, used: str) -> None:
    """A pod's author may name the very disk the host runs from."""
    host = ScsiHost(tmp_path)
    wire(host, "sdb", f"fc-0x{WWNS[0]}-lun-3", "8:16")
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    plugin.set_up(task, None)
    (tmp_path / "root").mkdir()
    host.mounts.add_mount("tool", tmp_path / "root", source="/dev/root")
    number = host.mounts.entries[-1].device
    top = host.sys / "block/sdb"
    if used == "mounted":
        (top / "dev").write_text(f"{number}\n")
    elif used == "partition":
        (top / "sdb1").mkdir()
        (top / "sdb1/partition").write_text("1\n")
        (top / "sdb1/dev").write_text(f"{number}\n")
    else:
        (top / "holders/dm-7").touch()
    plugin.tear_down(task.uid, "disk")
    assert host.block_devices() == ["sdb"] and not host.said("blockdev")
    assert list(plugin.in_use()) == [plugin.unique_name(task.spec)], "what the host uses is in use"
    (top / "dev").write_text("8:16\n")
    (top / "sdb1/dev").write_text("8:17\n") if used == "partition" else None
    (top / "holders/dm-7").unlink(missing_ok=True)
    wire(host, "sdc", f"fc-0x{WWNS[0]}-lun-4", "8:32")
    other = host.task(a_pod("other"), volume(lun=4))
    plugin.set_up(other, None)
    plugin.tear_down(other.uid, "disk")
    assert host.block_devices() == [] and list(plugin.in_use()) == []


def test_a_disk_that_is_also_passed_on_as_a_device_stays(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    wire(host, "sdb", f"fc-0x{WWNS[0]}-lun-3", "8:16")
    plugin = plugin_on(host)
    plugin.set_up(host.task(a_pod("one"), volume()), None)
    plugin.set_up(host.task(a_pod("two"), volume(), block=True), None)
    plugin.tear_down("uid-one", "disk")
    assert host.block_devices() == ["sdb"]
    plugin.tear_down("uid-two", "disk")
    assert host.block_devices() == []


def test_a_disk_that_cannot_be_given_back_is_in_use_also_for_the_next_life(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    two_ways(host)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    plugin.set_up(task, None)
    host.mounts.fail("unmount", str(host.paths.plugins / FC), "target is busy", times=RELEASE_TRIES)
    for _ in range(RELEASE_TRIES - 1):
        with pytest.raises(MountError, match="busy"):
            plugin.tear_down(task.uid, "disk")
    assert list(plugin.in_use()) == [], "its pod answers for it"
    plugin.tear_down(task.uid, "disk")
    unique = [plugin.unique_name(task.spec)]
    again = plugin_on(host)
    again.reconstruct()
    assert list(plugin.in_use()) == unique and list(again.in_use()) == unique
