"""Single kinds: their sums and checks, and what they do on a host with fake mounts."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import (
    FCVolumeSource,
    GitRepoVolumeSource,
    HostPathVolumeSource,
    ISCSIPersistentVolumeSource,
    ISCSIVolumeSource,
    LocalObjectReference,
    LocalVolumeSource,
    NFSVolumeSource,
    ResourceRequirements,
    SecretReference,
    Volume,
    VolumeDevice,
)
from pykubelet.volumes.errors import VolumeProblem, VolumesNotReady
from pykubelet.volumes.objects import VolumeRules
from pykubelet.volumes.plugins import validation
from pykubelet.volumes.plugins.empty_dir import memory_size, page_size
from pykubelet.volumes.plugins.fc import global_name, link_names
from pykubelet.volumes.plugins.host_path import check_type
from pykubelet.volumes.selinux import mount_option
from pykubelet.volumes.spec import FC, spec_of
from pykubelet.volumes.subpath import mount_subpath
from tests.builders import a_container, a_pod
from tests.unit.volumes.builders import VolumeNode, a_secret, bound, empty_dir, pod_with

MI = 1 << 20


def limited(*limits: str | None) -> list[Any]:
    return [
        a_container(f"c{i}", resources=ResourceRequirements(limits={"memory": limit}) if limit else None)
        for i, limit in enumerate(limits)
    ]


@pytest.mark.parametrize(
    "limits, size_limit, allocatable, expected",
    [
        ((None,), None, 0, None),
        ((None,), None, 100 * MI, 100 * MI),
        (("10Mi", "20Mi"), None, 100 * MI, 30 * MI),
        (("10Mi", None), None, 100 * MI, 100 * MI),
        (("10Mi",), "4Mi", 100 * MI, 4 * MI),
        (("10Mi",), "40Mi", 100 * MI, 10 * MI),
        ((None,), "0", 100 * MI, 100 * MI),
    ],
)
def test_memory_size(
    limits: tuple[str | None, ...], size_limit: str | None, allocatable: int, expected: int | None
) -> None:
    source = empty_dir(size_limit=size_limit).empty_dir
    assert source is not None
    assert memory_size(a_pod(containers=limited(*limits)), source, allocatable) == expected


def test_page_size() -> None:
    def asking(*sizes: str) -> Any:
        requests: dict[str, str | int | float] = {f"hugepages-{size}": "2Mi" for size in sizes}
        return a_pod(containers=[a_container(resources=ResourceRequirements(requests=requests))])

    assert page_size(asking("2Mi"), "HugePages") == "2Mi"
    assert page_size(asking("2Mi", "1Gi"), "HugePages-1Gi") == "1Gi"
    for pod, medium, text in (
        (asking(), "HugePages", "requests huge pages"),
        (asking("2Mi", "1Gi"), "HugePages", "ambiguous"),
        (asking("2Mi"), "HugePages-1Gi", "requests hugepages-1Gi"),
    ):
        with pytest.raises(VolumeProblem, match=text):
            page_size(pod, medium)


async def test_memory_volume_is_bounded(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path, rules=VolumeRules(allocatable_memory=lambda: 64 * MI))
    pod = pod_with(empty_dir("mem", medium="Memory"))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        assert node.mounts.sizes == {manager.path_of(pod, "mem"): 64 * MI}


async def test_a_memory_volume_keeps_the_sticky_bit_and_gives_it_to_its_parts(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    pod = pod_with(empty_dir("mem", medium="Memory"))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        volume = Path(str(manager.path_of(pod, "mem")))
        assert volume.stat().st_mode & 0o7777 == 0o1777
        mount_subpath(node.mounts, volume, "part", tmp_path / "place")
        assert (volume / "part").stat().st_mode & 0o7777 == 0o1777


async def test_unknown_medium(tmp_path: Path) -> None:
    async with VolumeNode(tmp_path).running() as manager:
        with pytest.raises(VolumesNotReady, match="unknown storage medium Tape"):
            await manager.wait_mounted(pod_with(empty_dir(medium="Tape")))


def test_host_path_types(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "sock"))
    server.close()
    right = {"Directory": "dir", "DirectoryOrCreate": "dir", "File": "file", "FileOrCreate": "file", "Socket": "sock"}
    for kind, name in right.items():
        check_type(str(tmp_path / name), kind)
    check_type("/dev/null", "CharDevice")
    check_type(str(tmp_path / "nothing"), "")
    called = {
        "Directory": "a directory",
        "File": "a file",
        "Socket": "a socket file",
        "CharDevice": "a character device",
    }
    called |= {"BlockDevice": "a block device", "DirectoryOrCreate": "a directory"}
    for kind, called_so in called.items():
        wrong = tmp_path / ("dir" if "Dir" not in kind else "file")
        with pytest.raises(VolumeProblem, match=f"hostPath type check failed: {wrong} is not {called_so}"):
            check_type(str(wrong), kind)
    with pytest.raises(VolumeProblem, match="is not a directory"):
        check_type(str(tmp_path / "nothing"), "Directory")


def test_host_paths_are_made_when_the_type_says_so(tmp_path: Path) -> None:
    check_type(str(tmp_path / "a/b"), "DirectoryOrCreate")
    assert (tmp_path / "a/b").is_dir()
    check_type(str(tmp_path / "f"), "FileOrCreate")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644
    with pytest.raises(VolumeProblem, match="cannot be created: No such file"):
        check_type(str(tmp_path / "none/f"), "FileOrCreate")


def test_a_file_is_made_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    check_type(str(tmp_path / "link"), "FileOrCreate")
    assert (tmp_path / "real").is_file() and (tmp_path / "link").is_symlink()
    (tmp_path / "away").symlink_to(tmp_path / "none/at/all")
    with pytest.raises(VolumeProblem, match="cannot be created: No such file"):
        check_type(str(tmp_path / "away"), "FileOrCreate")
    (tmp_path / "folder").symlink_to("nothing")
    with pytest.raises(VolumeProblem, match="is not a directory"):
        check_type(str(tmp_path / "folder"), "DirectoryOrCreate")


async def test_a_host_path_has_no_mount_options(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path / "root")
    source = HostPathVolumeSource(path=str(tmp_path))
    pod = pod_with(bound(node.objects, "host", host_path=source, mount_options=["noexec"]))
    async with node.running() as manager:
        with pytest.raises(
            VolumesNotReady, match="mount options noexec of persistent volume pv-host are not supported"
        ):
            await manager.wait_mounted(pod)


def test_git_repo_is_refused_in_upstreams_words() -> None:
    with pytest.raises(VolumeProblem, match="git-repo volume plugin has been disabled"):
        spec_of(Volume(name="g", git_repo=GitRepoVolumeSource(repository="x")))


async def test_local_folder(tmp_path: Path) -> None:
    node, disk = VolumeNode(tmp_path / "root"), tmp_path / "disk"
    disk.mkdir()
    (disk / "data").write_text("keep")
    local = LocalVolumeSource(path=str(disk))
    pod = pod_with(bound(node.objects, "disk", local=local, mount_options=["noexec", "nodev"]))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        path = manager.path_of(pod, "disk")
        assert path is not None and path.endswith("kubernetes.io~local-volume/pv-disk")
        assert node.mounts.shown(path) == str(disk) and node.mounts.entries[0].options == ("rw", "noexec", "nodev")
        await manager.wait_unmounted(pod)
        assert node.mounts.points() == [] and not Path(path).exists()
    assert (disk / "data").read_text() == "keep"


async def test_local_volume_found_after_a_restart_is_taken_over_by_its_claim(tmp_path: Path) -> None:
    node, disk = VolumeNode(tmp_path / "root"), tmp_path / "disk"
    disk.mkdir()
    pod = pod_with(bound(node.objects, "disk", local=LocalVolumeSource(path=str(disk))))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
    later = node.again()
    async with later.running() as manager:
        await manager.wait_mounted(pod)
        assert [view.name for view in manager.snapshot()] == ["disk"]
        assert len(later.mounts.points()) == 1
        await manager.wait_unmounted(pod)
        assert later.mounts.points() == []


async def test_a_mount_point_that_is_not_empty_is_never_emptied(tmp_path: Path) -> None:
    node, disk = VolumeNode(tmp_path / "root"), tmp_path / "disk"
    disk.mkdir()
    pod = pod_with(bound(node.objects, "disk", local=LocalVolumeSource(path=str(disk))))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        path = manager.path_of(pod, "disk")
        assert path is not None
        Path(path, "surprise").write_text("written through a mount that got lost")
        with pytest.raises(VolumesNotReady, match="Directory not empty"):
            await manager.wait_unmounted(pod)
        assert Path(path, "surprise").exists()


async def test_nfs(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    source = NFSVolumeSource(server="fd00::1", path="/export")
    pod = pod_with(bound(node.objects, "share", nfs=source, mount_options=["vers=4.2"]))
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=r"volume share: an nfs volume needs the program mount\.nfs"):
            await manager.wait_mounted(pod)
        node.mounts.tools["mount.nfs"] = ""
        manager.object_changed("PersistentVolume", "", "pv-share")
        await manager.wait_mounted(pod)
        entry = node.mounts.entries[0]
        assert (entry.source, entry.fs_type, entry.options) == ("[fd00::1]:/export", "nfs", ("vers=4.2",))
        await manager.wait_unmounted(pod)
        assert node.mounts.points() == []


@pytest.mark.parametrize(
    "server", ["-T/var/lib/kubelet/pods/u/volumes/a", "a/b", "LABEL=root", "a b", "a\nb", "", ".."]
)
async def test_an_nfs_server_must_be_a_server(tmp_path: Path, server: str) -> None:
    """`mount` would take a word that begins with `-` for an option, such as a table of mounts that a pod wrote."""
    node = VolumeNode(tmp_path)
    node.mounts.tools["mount.nfs"] = ""
    pod = pod_with(Volume(name="share", nfs=NFSVolumeSource(server=server, path="/fstab")))
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=r"nfs\.server"):
            await manager.wait_mounted(pod)
    assert node.mounts.entries == []


@pytest.mark.parametrize("value", ["../../bin/sh", "fuse.sh", "fuse", "-x", "ext4 -o", "a" * 300])
def test_a_filesystem_type_names_no_other_program(value: str) -> None:
    with pytest.raises(VolumeProblem, match=r"fsType .* is not a filesystem"):
        validation.fs_type(value, "iscsi.fsType")


def test_filesystem_types() -> None:
    assert [validation.fs_type(value, "x") for value in (None, "", "xfs", "ext3")] == ["ext4", "ext4", "xfs", "ext3"]


def test_a_label_is_one_mount_option() -> None:
    assert mount_option("system_u:object_r:container_file_t:s0:c1,c2") == (
        'context="system_u:object_r:container_file_t:s0:c1,c2"',
    )
    with pytest.raises(VolumeProblem, match="seLinuxOptions"):
        mount_option('u:r:t:s0",loop,x="')


async def test_iscsi_without_its_tool(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    source = ISCSIVolumeSource(target_portal="10.0.0.1", iqn="iqn.2024-01.com.example:disk", lun=2)
    pod = pod_with(Volume(name="disk", iscsi=source))
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=r"iscsi volumes cannot be used: .*iscsiadm"):
            await manager.wait_mounted(pod)
        assert manager.volumes_in_use() == ["kubernetes.io/iscsi/10.0.0.1:iqn.2024-01.com.example:disk:2"]
        await manager.wait_unmounted(pod)
        assert manager.volumes_in_use() == []


async def test_chap_passwords_never_show(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    node.objects.secrets["default", "chap"] = a_secret(
        "chap", **{"node.session.auth.username": "me", "node.session.auth.password": "hunter2"}
    )
    node.mounts.tools["iscsiadm"] = ""
    node.mounts.refused = {"hunter2"}
    source = ISCSIVolumeSource(
        target_portal="10.0.0.1",
        iqn="iqn.2024-01.com.example:disk",
        chap_auth_session=True,
        secret_ref=LocalObjectReference(name="chap"),
    )
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady) as caught:
            await manager.wait_mounted(pod_with(Volume(name="disk", iscsi=source)))
    assert "iscsiadm refused the setting node.session.auth.password" in str(caught.value)
    assert "hunter2" not in f"{caught.value}{node.events.pods}"
    assert any(words[-4:] == ("-n", "node.session.auth.username", "-v", "me") for words in node.mounts.commands)


async def test_the_chap_secret_of_a_persistent_volume_is_its_own(tmp_path: Path) -> None:
    """It may be in any namespace, and the pod does not name it: one of the same name beside the pod is another."""
    node = VolumeNode(tmp_path)
    for namespace, user in (("storage", "right"), ("default", "wrong")):
        secret = a_secret("chap", namespace, **{"node.session.auth.username": user})
        node.objects.secrets[namespace, "chap"] = secret
    node.mounts.tools["iscsiadm"] = ""
    node.mounts.refused = {"right"}
    source = ISCSIPersistentVolumeSource(
        target_portal="10.0.0.1",
        iqn="iqn.2024-01.com.example:disk",
        chap_auth_session=True,
        secret_ref=SecretReference(name="chap", namespace="storage"),
    )
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=r"refused the setting node\.session\.auth\.username"):
            await manager.wait_mounted(pod_with(bound(node.objects, "data", iscsi=source)))
    assert set(node.objects.reads) == {"secret storage/chap"}


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"target_wwns": ["50060e801049cfd1"], "lun": 0}, "kubernetes.io/fc/[50060e801049cfd1]:0"),
        ({"target_wwns": ["a", "b"], "lun": 2, "wwids": ["3600"]}, "kubernetes.io/fc/[a b]:2"),
        ({"target_wwns": ["a"], "wwids": ["3600", "VENDOR 1"]}, "kubernetes.io/fc/[3600 VENDOR 1]"),
        ({"wwids": ["3600"]}, "kubernetes.io/fc/[3600]"),
    ],
)
async def test_an_fc_disk_has_the_name_the_control_plane_writes(
    tmp_path: Path, fields: dict[str, Any], name: str
) -> None:
    plugin = VolumeNode(tmp_path).manager()._plugins[FC]
    assert plugin.unique_name(spec_of(Volume(name="disk", fc=FCVolumeSource(**fields)))) == name


@pytest.mark.parametrize("wwid", ["../../../../etc", "a/b", "..", "-x", "a\nb", "", "w" * 300])
def test_an_fc_name_leads_to_no_other_folder(wwid: str) -> None:
    with pytest.raises(VolumeProblem, match=r"fc\.wwids"):
        global_name(FCVolumeSource(wwids=[wwid]))
    with pytest.raises(VolumeProblem, match=r"fc\.targetWWNs"):
        global_name(FCVolumeSource(target_wwns=[wwid], lun=0))


def test_fc_names() -> None:
    assert global_name(FCVolumeSource(target_wwns=["a", "b"], lun=3)) == "a-b-lun-3"
    source = FCVolumeSource(wwids=["3600508b4 0001"])
    assert global_name(source) == "3600508b4_0001"


@pytest.mark.parametrize(
    "name, fits",
    [
        ("pci-0000:00:01.0-fc-0x50060e8000000001-lun-3", True),
        ("fc-0x50060e8000000002-lun-3", True),
        ("fc-0x50060e8000000001-lun-3-part1", False),
        ("fc-0x50060e8000000001-lun-33", False),
        ("pci-0000:00:01.0-fc-0x50060e8000000009-lun-3", False),
    ],
)
def test_links_to_fc_disks(name: str, fits: bool) -> None:
    source = FCVolumeSource(target_wwns=["50060E8000000001", "50060e8000000002"], lun=3)
    folder, pattern = link_names(source)
    assert folder == "by-path" and bool(pattern.fullmatch(name)) is fits


async def test_block_volume(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    volume = bound(node.objects, "raw", local=LocalVolumeSource(path="/dev/null"), volume_mode="Block")
    container = a_container(volume_devices=[VolumeDevice(name="raw", device_path="/dev/xvda")])
    pod = pod_with(volume, containers=[container])
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match="local volume /dev/null is no block device"):
            await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)
