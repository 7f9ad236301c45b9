"""iscsi on a host of folders: sessions, rescans, multipath, initiators of their own, and giving all of it back."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import ISCSIVolumeSource, PodSecurityContext, Volume
from pykubelet.clients.host.port import MountError
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.disks import RELEASE_TRIES
from pykubelet.volumes.plugins.iscsi import IscsiVolume, target_of, with_port
from pykubelet.volumes.plugins.plugin import FileContent
from pykubelet.volumes.spec import ISCSI, spec_of
from tests.builders import a_pod
from tests.unit.volumes.builders import ApiObjects, RegisteredObjects
from tests.unit.volumes.scsi_host import IQN, ScsiHost

A, B = "10.0.0.1:3260", "10.0.0.2:3260"


def volume(name: str = "disk", **fields: Any) -> Volume:
    given: dict[str, Any] = {"target_portal": "10.0.0.1", "iqn": IQN, "lun": 1} | fields
    return Volume(name=name, iscsi=ISCSIVolumeSource(**given))


def plugin_on(host: ScsiHost) -> IscsiVolume:
    objects = ApiObjects()
    return IscsiVolume(
        mounts=host.mounts,
        paths=host.paths,
        references=RegisteredObjects(objects),
        claims=objects,
        disks=host.disks(),
    )


def test_a_disk_comes_by_a_session_and_goes_with_it(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    plugin.set_up(task, None)
    place = host.paths.plugins / ISCSI / "iface-default" / f"{A}-{IQN}-lun-1"
    assert host.mounts.shown(place) == str(host.dev / "sda1") and host.mounts.shown(task.path) == str(place)
    plugin.tear_down(task.uid, "disk")
    assert host.mounts.points() == [] and host.sessions() == {} and host.block_devices() == []
    assert not place.exists() and not task.path.exists()
    assert host.said("blockdev", "--flushbufs"), "what is in memory is written before the disk goes"


def test_only_the_disk_asked_for_is_scanned_and_no_login_comes_at_boot(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin_on(host).set_up(host.task(a_pod("web"), volume()), None)
    assert host.block_devices() == ["sda1"]
    for setting in ("node.session.scan", "node.startup"):
        assert host.said(setting)[0][-1] == "manual"


@pytest.mark.parametrize("words", [{"node.session.scan"}, {"node.startup"}, {"new"}])
def test_what_an_older_tool_does_not_know_is_no_reason_to_fail(tmp_path: Path, words: set[str]) -> None:
    host = ScsiHost(tmp_path, refused=words)
    plugin_on(host).set_up(host.task(a_pod("web"), volume()), None)
    assert host.sessions() == {"10.0.0.1": "default"}


@pytest.mark.parametrize("word, record", [("--discover", "discoverydb"), ("--login", "node")])
def test_a_failed_login_leaves_no_record(tmp_path: Path, word: str, record: str) -> None:
    host = ScsiHost(tmp_path, refused={word})
    with pytest.raises(VolumeProblem, match=f"cannot log in to {IQN}: `iscsiadm .*{word}` failed"):
        plugin_on(host).set_up(host.task(a_pod("web"), volume()), None)
    assert host.mounts.commands[-1][2] == record and host.mounts.commands[-1][-1] == "delete"


def test_a_second_lun_of_a_target_comes_by_the_session_there_is(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, web = plugin_on(host), a_pod("web")
    plugin.set_up(host.task(web, volume("one")), None)
    plugin.set_up(host.task(web, volume("two", lun=2)), None)
    assert len(host.said("--login")) == 1 and host.block_devices() == ["sda1", "sda2"]
    plugin.tear_down("uid-web", "one")
    assert host.sessions() == {"10.0.0.1": "default"} and host.block_devices() == ["sda2"]
    plugin.tear_down("uid-web", "two")
    assert host.sessions() == {} and host.mounts.points() == []


def test_a_lun_that_is_mapped_later_is_found_without_a_new_login(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path, luns=set())
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    with pytest.raises(VolumeProblem, match=f"lun 1 of {IQN} did not appear as a device within 30 s"):
        plugin.set_up(task, None)
    host.luns = {1}
    plugin.set_up(task, None)
    assert len(host.said("--login")) == 1 and host.mounts.shown(task.path)


def test_ipv6_portals(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(target_portal="[FD00:0::1]"))
    plugin.set_up(task, None)
    assert host.said("--login")[0][4] == "[fd00::1]:3260"
    plugin.set_up(host.task(a_pod("two"), volume(target_portal="fd00::1", lun=2)), None)
    assert len(host.said("--login")) == 1
    for uid in ("uid-web", "uid-two"):
        plugin.tear_down(uid, "disk")
    assert host.sessions() == {}


@pytest.mark.parametrize(
    "given, full",
    [("10.0.0.1", A), (A, A), ("[fd00::1]", "[fd00::1]:3260"), ("[fd00::1]:99", "[fd00::1]:99"),
     ("fd00::1", "[fd00::1]:3260"), ("san.example", "san.example:3260"), ("san.example:5", "san.example:5")],
)  # fmt: skip
def test_ports_of_portals(given: str, full: str) -> None:
    assert with_port(given) == full


def test_several_portals_are_waited_for_until_multipath_combines_them(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path, multipath=True)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(portals=["10.0.0.2"]))
    plugin.set_up(task, None)
    place = host.mounts.shown(task.path)
    assert host.mounts.shown(place) == str(host.dev / "dm-0")
    plugin.tear_down(task.uid, "disk")
    assert [command[-1] for command in host.said("multipath", "-f")] == [str(host.dev / "dm-0")]
    assert host.sessions() == {} and host.block_devices() == []
    assert {command[4] for command in host.said("--logout")} == {A, B}


def test_one_dead_portal_of_two_is_tried_again_and_done_without(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path, dead={B})
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(portals=["10.0.0.2"]))
    plugin.set_up(task, None)
    assert len(host.said("--discover", B)) == 2 and host.sessions() == {"10.0.0.1": "default"}
    plugin.tear_down(task.uid, "disk")
    assert host.sessions() == {}, "no session at the dead portal is no failure"


def test_a_logout_that_failed_is_repeated_also_by_the_next_life(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(portals=["10.0.0.2"]))
    plugin.set_up(task, None)
    host.refused = {"--logout"}
    for _ in range(2):
        with pytest.raises(MountError, match="--logout"):
            plugin.tear_down(task.uid, "disk")
    assert task.path.is_dir(), "the folder by which the next life finds the volume"
    host.refused = set()
    plugin_on(host).tear_down(task.uid, "disk")
    assert host.sessions() == {} and not task.path.exists()
    assert not host.paths.plugin_data(task.uid, ISCSI, "disk").exists()


def test_a_disk_that_cannot_be_given_back_holds_no_pod_for_ever(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(portals=["10.0.0.2"]))
    plugin.set_up(task, None)
    host.refused = {"--logout"}
    for _ in range(RELEASE_TRIES - 1):
        with pytest.raises(MountError, match="--logout"):
            plugin.tear_down(task.uid, "disk")
    plugin.tear_down(task.uid, "disk")
    assert not task.path.exists() and len(host.sessions()) == 2
    host.refused = set()
    other = host.task(a_pod("other"), volume(lun=2))
    plugin.set_up(other, None)
    plugin.tear_down(other.uid, "disk")
    assert host.sessions() == {}, "given back in passing, out of every portal"


def test_a_disk_that_cannot_be_given_back_is_in_use_also_for_the_next_life(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    plugin.set_up(task, None)
    place = host.paths.plugins / ISCSI / "iface-default" / f"{A}-{IQN}-lun-1"
    host.mounts.fail("unmount", str(place), "target is busy", times=RELEASE_TRIES)
    for _ in range(RELEASE_TRIES - 1):
        with pytest.raises(MountError, match="busy"):
            plugin.tear_down(task.uid, "disk")
    plugin.tear_down(task.uid, "disk")
    unique = plugin.unique_name(task.spec)
    assert str(place) in host.mounts.points() and unique in plugin.in_use()
    plugin = plugin_on(host)
    plugin.reconstruct()
    assert unique in plugin.in_use()
    other = host.task(a_pod("other"), volume(lun=2))
    plugin.set_up(other, None)
    plugin.tear_down(other.uid, "disk")
    assert host.mounts.points() == [] and list(plugin.in_use()) == []


def test_a_disk_that_somebody_else_on_this_host_has_is_in_use(tmp_path: Path) -> None:
    """Such as a container into which the mount leaked."""
    host = ScsiHost(tmp_path)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    plugin.set_up(task, None)
    holder = host.sys / "block/sda1/holders/dm-7"
    holder.parent.mkdir(parents=True, exist_ok=True)
    holder.touch()
    plugin.tear_down(task.uid, "disk")
    assert host.block_devices() == ["sda1"] and plugin.unique_name(task.spec) in plugin.in_use()
    holder.unlink()
    plugin.set_up(task, None)
    plugin.tear_down(task.uid, "disk")
    assert host.sessions() == {} and list(plugin.in_use()) == []


def test_of_two_pods_that_go_at_once_the_second_gives_the_disk_back(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin = plugin_on(host)
    one, two = (host.task(a_pod(name), volume()) for name in ("one", "two"))
    for task in (one, two):
        plugin.set_up(task, None)
    second = threading.Thread(target=plugin.tear_down, args=(two.uid, "disk"))
    look = plugin._devices._is_used

    def looking(place: Path, besides: Path | None) -> bool:
        used = look(place, besides)
        if not second.ident:
            second.start()
            second.join(0.3)  # as far as it comes while the first one has the disk
        return used

    plugin._devices._is_used = looking  # type: ignore[method-assign]
    plugin.tear_down(one.uid, "disk")
    second.join(30)
    assert host.mounts.points() == [] and host.sessions() == {}


def test_trouble_with_another_disk_is_not_this_pods(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin = plugin_on(host)
    stray = host.paths.plugins / ISCSI / "iface-default" / f"10.9.9.9:3260-{IQN}-lun-7"
    stray.mkdir(parents=True)
    (stray / "kept").touch()
    task = host.task(a_pod("web"), volume())
    plugin.set_up(task, None)
    plugin.tear_down(task.uid, "disk")
    assert host.sessions() == {} and (stray / "kept").exists()


def test_a_disk_that_two_pods_have_goes_with_the_second(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin = plugin_on(host)
    for name in ("one", "two"):
        plugin.set_up(host.task(a_pod(name), volume()), None)
    plugin.tear_down("uid-one", "disk")
    assert host.sessions() and len(host.mounts.points()) == 2
    plugin.tear_down("uid-two", "disk")
    assert host.sessions() == {} and host.mounts.points() == []


def test_a_block_volume_logs_out_too(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(), block=True)
    plugin.set_up(task, None)
    link = host.paths.volume_devices(task.uid) / "kubernetes.io~iscsi/disk"
    assert str(link.readlink()) == str(host.dev / "sda1")
    plugin.tear_down(task.uid, "disk")
    assert host.sessions() == {} and host.block_devices() == [] and not link.is_symlink()


def test_a_device_of_a_pod_without_a_note_is_never_taken_away(tmp_path: Path) -> None:
    """As an agent that wrote no notes leaves it."""
    host = ScsiHost(tmp_path)
    plugin = plugin_on(host)
    plugin.set_up(host.task(a_pod("old"), volume(), block=True), None)
    (host.paths.plugin_data("uid-old", ISCSI, "disk") / "disk.json").unlink()
    plugin.set_up(host.task(a_pod("new"), volume(lun=2)), None)
    plugin.tear_down("uid-new", "disk")
    assert host.sessions() == {"10.0.0.1": "default"} and host.block_devices() == ["sda1"]


def test_a_session_that_the_host_itself_needs_stays(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    host.add_session(A)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume())
    plugin.set_up(task, None)
    (tmp_path / "data").mkdir()
    disk = host.mounts.entries[0]
    host.mounts.add_mount("tool", tmp_path / "data", source=disk.source)
    numbers = host.sys / "block/sda1/dev"
    numbers.write_text(f"{disk.device}\n")
    plugin.tear_down(task.uid, "disk")
    assert host.sessions() == {"10.0.0.1": "default"} and host.block_devices() == ["sda1"]


def test_an_initiator_name_gets_an_interface_of_its_own(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    host.add_session(A)  # as another initiator
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(initiator_name="iqn.2024-01.com.example:me"))
    with pytest.raises(VolumeProblem, match="no session with"):
        plugin.set_up(task, None)  # this host's tool refuses a second session at one portal
    assert host.mounts.commands[-1] == ("iscsiadm", "-m", "iface", "-I", f"{A}:disk", "-o", "delete")
    host = ScsiHost(tmp_path / "other")
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(initiator_name="iqn.2024-01.com.example:me"))
    plugin.set_up(task, None)
    own = f"{A}:disk"
    assert host.said("iface", "new", own)
    settings = {command[-3]: command[-1] for command in host.said("iface", "update", own)}
    assert settings == {"iface.initiatorname": "iqn.2024-01.com.example:me", "iface.transport_name": "tcp"}
    assert host.sessions() == {"10.0.0.1": own}
    assert f"iface-{own}" in host.mounts.shown(task.path)
    plugin.tear_down(task.uid, "disk")
    assert host.sessions() == {} and host.mounts.commands[-1][-1] == "delete"
    assert host.said("iface", "delete", own)


def test_the_record_is_upstreams_and_upstreams_is_read(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, task = plugin_on(host), host.task(a_pod("web"), volume(portals=["10.0.0.2"]))
    plugin.set_up(task, None)
    place = Path(host.mounts.shown(task.path))
    assert json.loads((place / "iscsi.json").read_text()) == {
        "VolName": "disk", "Portals": [A, B], "Iqn": IQN, "Lun": "1",
        "InitIface": "default", "Iface": "default", "InitiatorName": "",
    }  # fmt: skip
    (host.paths.plugin_data(task.uid, ISCSI, "disk") / "disk.json").unlink()
    record = json.loads((place / "iscsi.json").read_text()) | {"MetricsProvider": None}
    (place / "iscsi.json").write_text(json.dumps(record))
    plugin.tear_down(task.uid, "disk")
    assert host.sessions() == {} and not place.exists()


def test_chap_settings_are_lines_of_their_own(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    secret = {
        "of-somebody-else": FileContent(data=b"\xff", mode=0o600),
        "node.session.auth.username": FileContent(data=b"me", mode=0o600),
        "node.session.auth.password": FileContent(data=b"x\nnode.startup = automatic", mode=0o600),
    }
    with pytest.raises(VolumeProblem, match=r"node\.session\.auth\.password in the secret has characters"):
        plugin_on(host).set_up(host.task(a_pod("web"), volume(chap_auth_session=True)), secret)
    secret["node.session.auth.password"] = FileContent(data=b"\xff", mode=0o600)
    with pytest.raises(VolumeProblem, match="the secret for CHAP is no text"):
        plugin_on(host).set_up(host.task(a_pod("web"), volume(chap_auth_session=True)), secret)


@pytest.mark.parametrize(
    "fields",
    [
        {"iscsi_interface": "x/../../../../../../tmp/x"},
        {"iscsi_interface": ".."},
        {"iscsi_interface": "-x"},
        {"iqn": "iqn.2024-01.com.example:a/../../b"},
        {"iqn": "example"},
        {"iqn": "iqn.2024-01.com.example:a\nb"},
        {"target_portal": "../../etc"},
        {"target_portal": ""},
        {"portals": ["a b"]},
        {"initiator_name": "a\nnode.startup = automatic"},
    ],
)
def test_words_of_the_pods_author_stay_words(tmp_path: Path, fields: dict[str, Any]) -> None:
    host = ScsiHost(tmp_path)
    with pytest.raises(VolumeProblem, match=r"iscsi\.(iscsiInterface|iqn|targetPortal|initiatorName)"):
        plugin_on(host).set_up(host.task(a_pod("web"), volume(**fields)), None)
    assert host.mounts.commands == [] and not (tmp_path / "k").exists()


def test_an_interface_the_host_does_not_know_is_refused(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path, refused={"odd"})
    host.add_session(A, "odd")
    with pytest.raises(MountError, match="iface -I odd -o show"):
        plugin_on(host).set_up(host.task(a_pod("web"), volume(iscsi_interface="odd")), None)
    assert host.mounts.points() == []


def test_a_long_repair_holds_up_no_other_disk_of_the_target(tmp_path: Path) -> None:
    host = ScsiHost(tmp_path)
    plugin, pod = plugin_on(host), a_pod("web")
    begun, go, real = threading.Event(), threading.Event(), host.mounts.answer

    def answer(command: tuple[str, ...]) -> tuple[int, str] | None:
        if command == ("fsck", "-a", str(host.dev / "sda1")):
            begun.set()
            assert go.wait(30)
        return real(command)

    host.mounts.answer = answer
    slow = threading.Thread(target=plugin.set_up, args=(host.task(pod, volume("slow")), None))
    slow.start()
    try:
        assert begun.wait(30)
        plugin.set_up(host.task(pod, volume("quick", lun=2)), None)
        plugin.tear_down("uid-web", "quick")
        assert host.sessions() == {"10.0.0.1": "default"}, "the slow disk comes through this session"
    finally:
        go.set()
        slow.join()
    plugin.tear_down("uid-web", "slow")
    assert host.sessions() == {}


def test_every_pod_of_a_disk_gets_its_group(tmp_path: Path) -> None:
    """Upstream applies the group of the first pod alone to local volumes only."""
    host = ScsiHost(tmp_path)
    plugin = plugin_on(host)
    for name in ("one", "two"):
        pod = a_pod(name, security_context=PodSecurityContext(fs_group=4711))
        task = host.task(pod, volume())
        plugin.set_up(task, None)
        assert task.path.stat().st_mode & 0o7777 == 0o2770 and task.feedback.warnings == []


def test_targets() -> None:
    target = target_of(spec_of(volume(portals=["10.0.0.2:3261", A])))
    assert target.portals == (A, "10.0.0.2:3261") and target.interface == "default"
