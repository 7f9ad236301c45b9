"""Kinds of volumes that need something of the host: huge pages, programs for remote disks, numbers for quotas."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import (
    FCVolumeSource,
    FlexVolumeSource,
    ISCSIVolumeSource,
    NFSVolumeSource,
    ResourceRequirements,
)
from pykubelet.clients.host.mounts import HostMounts
from pykubelet.clients.host.port import Counted
from pykubelet.clients.host.quotas import FIRST_PROJECT, ProjectQuotas, project_of
from pykubelet.kit.clock import SystemClock
from pykubelet.volumes.errors import VolumesNotReady
from pykubelet.volumes.objects import VolumeRules
from pykubelet.volumes.plugins import fc
from tests.builders import a_container
from tests.unit.volumes.builders import VolumeNode, a_volume, empty_dir, pod_with

pytestmark = pytest.mark.node

MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> VolumeNode:
    return VolumeNode(tmp_path, mounts=HostMounts(), clock=SystemClock(), rules=VolumeRules(wait_seconds=5.0))


async def test_huge_pages(node: VolumeNode) -> None:
    container = a_container(resources=ResourceRequirements(requests={"hugepages-2Mi": "2Mi"}))
    volume = empty_dir("huge", medium="HugePages", size_limit="4Mi")
    pod = pod_with(volume, containers=[container])
    pod.spec.containers[0].volume_mounts = pod_with(volume).spec.containers[0].volume_mounts
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        path = Path(manager.path_of(pod, "huge") or "")
        found = [entry for entry in node.mounts.table() if entry.mount_point == str(path)]
        assert [entry.fs_type for entry in found] == ["hugetlbfs"]
        figures = os.statvfs(path)
        assert figures.f_bsize == 2 * MIB and figures.f_blocks * figures.f_bsize == 4 * MIB
        await manager.wait_unmounted(pod)
        assert not path.exists()


DRIVER = """#!/bin/sh
echo "$1 $2" >> "$0.log"
case "$1" in
init) echo '{"status": "Success", "capabilities": {"attach": %s}}' ;;
%s) mount -t tmpfs -o size=64k flex "$2" && echo "$3$4" > "$2/options" && echo '{"status": "Success"}' ;;
un%s) umount "$2" && echo '{"status": "Success"}' ;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac
"""


@pytest.mark.parametrize(("attach", "command"), [("false", "mount"), ("true", "mountdevice")])
async def test_a_driver_of_flex_volumes(node: VolumeNode, tmp_path: Path, attach: str, command: str) -> None:
    program = tmp_path / "exec" / "example.com~memory" / "memory"
    program.parent.mkdir(parents=True)
    program.write_text(DRIVER % (attach, command, command))
    program.chmod(0o755)
    node.rules = VolumeRules(wait_seconds=30.0, flex_drivers=tmp_path / "exec")
    source = FlexVolumeSource(driver="example.com/memory", options={"colour": "green"})
    pod = pod_with(a_volume("data", flex_volume=source))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        path = Path(manager.path_of(pod, "data") or "")
        assert path == node.root / "pods/uid-web/volumes/example.com~memory/data"
        assert '"colour":"green"' in (path / "options").read_text()
        (used,) = await manager.usage(pod)
        assert used.capacity_bytes == 64 << 10
    # The next life of the agent gives back what the first one mounted.
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)
    assert not path.exists() and not [e for e in node.mounts.table() if e.mount_point.startswith(f"{node.root}/")]
    called = [line.split()[0] for line in Path(f"{program}.log").read_text().splitlines()]
    device = ["waitforattach", "mountdevice"] if attach == "true" else []
    back = ["unmountdevice"] if attach == "true" else []
    assert called == ["init", *device, "mount", "init", "unmount", *back]


@pytest.mark.parametrize(
    ("program", "source", "text"),
    [
        (
            "mount.nfs",
            {"nfs": NFSVolumeSource(server="127.0.0.1", path="/export")},
            r"needs the program mount\.nfs \(package nfs-common\), which this host does not have",
        ),
        (
            "iscsiadm",
            {"iscsi": ISCSIVolumeSource(target_portal="127.0.0.1:3260", iqn="iqn.2020-01.example:d", lun=0)},
            r"needs the program iscsiadm \(package open-iscsi\), which this host does not have",
        ),
        ("", {"fc": FCVolumeSource(target_wwns=["50060e801049cfd1"], lun=0)}, r"fc disk 50060e801049cfd1-lun-0 "),
    ],
)
async def test_remote_disks_that_cannot_be_had(
    node: VolumeNode, monkeypatch: pytest.MonkeyPatch, program: str, source: dict[str, Any], text: str
) -> None:
    if program and shutil.which(program):
        pytest.skip(f"this host has {program}")
    monkeypatch.setattr(fc, "APPEAR_SECONDS", 0.2)
    pod = pod_with(a_volume("disk", **source))
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=text):
            await manager.wait_mounted(pod)
        assert any(reason == "FailedMount" for reason, _ in node.events.pods)
        await manager.wait_unmounted(pod)
    assert [each for each in (node.root / "pods").rglob("*") if not each.is_dir()] == []


@pytest.fixture
def numbered(tmp_path: Path) -> Iterator[Path]:
    """A filesystem whose folders can have project numbers. (Counting them would need quotas in the kernel, too.)"""
    image, place = tmp_path / "image", tmp_path / "disk"
    if shutil.which("mkfs.xfs") is None:
        pytest.skip("no mkfs.xfs (package xfsprogs)")
    image.write_bytes(b"")
    os.truncate(image, 320 * MIB)  # sparse; xfs refuses less
    place.mkdir()
    subprocess.run(["mkfs.xfs", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def test_project_numbers_are_kept_by_folders_and_inherited(numbered: Path) -> None:
    """The kernel's real calls for numbers; its answers for counts are made up, few test kernels have quotas."""
    asked: list[int] = []

    def ask(descriptor: int, project: int) -> Counted | None:
        asked.append(project)
        return Counted(bytes=0, inodes=0)

    folder = numbered / "volume"
    folder.mkdir()
    assert ProjectQuotas(ask).begin(folder, "uid/volume") and asked[0] >= FIRST_PROJECT
    (folder / "below").mkdir()
    for path in (folder, folder / "below"):
        descriptor = os.open(path, os.O_RDONLY)
        assert project_of(descriptor) == asked[0]
        os.close(descriptor)
    assert ProjectQuotas(ask).counted(folder) == Counted(bytes=0, inodes=0)
    assert ProjectQuotas().begin(numbered / "volume", "again"), "it has a number already"
    assert ProjectQuotas(lambda descriptor, project: None).counted(numbered) is None
