"""Disks with a filesystem of another kind than asked for, and disks that are the host's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.api.types import LocalVolumeSource
from pykubelet.clients.host.mounts import HostMounts
from pykubelet.kit.clock import SystemClock
from pykubelet.volumes.errors import VolumesNotReady
from pykubelet.volumes.objects import VolumeRules
from pykubelet.volumes.plugins.disks import ScsiDisks
from tests.unit.volumes.builders import VolumeNode, bound, pod_with

pytestmark = pytest.mark.node


@pytest.fixture
def node(tmp_path: Path) -> VolumeNode:
    return VolumeNode(tmp_path, mounts=HostMounts(), clock=SystemClock(), rules=VolumeRules(wait_seconds=5.0))


async def test_a_disk_with_an_older_filesystem_is_mounted_as_the_newer(node: VolumeNode, blank_disk: Path) -> None:
    node.mounts.run("mkfs.ext3", "-q", str(blank_disk), seconds=60)
    pod = pod_with(bound(node.objects, "disk", local=LocalVolumeSource(path=str(blank_disk))))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        Path(manager.path_of(pod, "disk") or "", "file").write_text("x")
        await manager.wait_unmounted(pod)
    assert "TYPE=ext3" in node.mounts.run("blkid", "-p", "-o", "export", str(blank_disk), seconds=60)


async def test_a_disk_that_is_no_filesystem_of_the_type_asked_for(node: VolumeNode, blank_disk: Path) -> None:
    node.mounts.run("mkfs.ext4", "-q", str(blank_disk), seconds=60)
    pod = pod_with(bound(node.objects, "disk", local=LocalVolumeSource(path=str(blank_disk), fs_type="xfs")))
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=f"{blank_disk} holds ext4, but xfs is asked for: `mount "):
            await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)


def test_a_disk_that_the_host_uses_is_known_as_such(tmp_path: Path, blank_disk: Path) -> None:
    """So that it is never taken from the host, whoever named it."""
    mounts = HostMounts()
    disks = ScsiDisks(mounts=mounts)
    assert not disks.is_used(blank_disk.name)
    mounts.run("mkfs.ext4", "-q", str(blank_disk), seconds=60)
    (tmp_path / "here").mkdir()
    mounts.by_tool(str(blank_disk), tmp_path / "here", fs_type="ext4", options=(), seconds=60)
    try:
        assert disks.is_used(blank_disk.name)
    finally:
        mounts.unmount(tmp_path / "here")
    exclusive = os.open(blank_disk, os.O_RDONLY | os.O_EXCL)
    assert disks.is_used(blank_disk.name)
    os.close(exclusive)
    assert not disks.is_used(blank_disk.name)
