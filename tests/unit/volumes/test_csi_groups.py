"""fsGroup of CSI volumes: who applies it, when, and which events report it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pykubelet.api.types import CSIDriverSpec, PodSecurityContext
from pykubelet.volumes import ownership
from tests.unit.volumes.builders import CsiVolumeNode, pod_with


@pytest.mark.parametrize(
    "policy, fs_type, modes, given",
    [
        ("File", "", ["ReadWriteMany"], True),
        ("None", "ext4", ["ReadWriteOnce"], False),
        (None, "ext4", ["ReadWriteOnce"], True),
        (None, "", ["ReadWriteOnce"], False),
        (None, "ext4", ["ReadWriteMany"], False),
    ],
)
async def test_who_sets_the_group(
    tmp_path: Path, policy: str | None, fs_type: str, modes: list[str], given: bool
) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers["d"] = CSIDriverSpec(attach_required=False, fs_group_policy=policy)
    volume = bed.volume(source={"fs_type": fs_type}, access_modes=modes)
    pod = pod_with(volume, security_context=PodSecurityContext(fs_group=4321))
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    target = bed.paths.target("uid-web", "pv-data")
    assert (target.stat().st_gid == 4321) == given


async def test_the_group_is_set_again_after_each_publishing(tmp_path: Path) -> None:
    """A driver that republishes may bring new files each time."""
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers["d"] = CSIDriverSpec(attach_required=False, requires_republish=True, fs_group_policy="File")
    pod = pod_with(bed.volume(), security_context=PodSecurityContext(fs_group=4321))
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        new = bed.paths.target("uid-web", "pv-data") / "rotated"
        new.touch(0o600)  # the folder hands its group on, but not its rights
        await bed.node.clock.sleep(61)
        await manager.wait_mounted(pod)
        await bed.node.clock.sleep(1)
        assert bed.driver.order().count("publish h-data") == 2
        assert new.stat().st_mode & 0o777 == 0o660


async def test_a_volume_that_is_published_already_is_not_walked_again(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers["d"] = CSIDriverSpec(attach_required=False, fs_group_policy="File")
    pod = pod_with(bed.volume(), security_context=PodSecurityContext(fs_group=4321))
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    new = bed.paths.target("uid-web", "pv-data") / "of the pod"
    new.touch(0o600)
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    assert new.stat().st_mode & 0o777 == 0o600


@pytest.mark.real_loop
async def test_a_slow_change_of_owners_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "REPORT_FIRST", 0.05)
    monkeypatch.setattr(ownership, "REPORT_NEXT", 0.05)
    bed, gate = CsiVolumeNode(tmp_path), threading.Event()
    bed.objects.drivers["d"] = CSIDriverSpec(attach_required=False, fs_group_policy="File")

    def give(path: Path, gid: int | None, *, on_root_mismatch: bool, progress: Callable[[int], None]) -> None:
        progress(17)
        assert gate.wait(30)

    monkeypatch.setattr("pykubelet.volumes.ownership.give", give)
    bed.node.events.on_event = lambda: gate.set() if len(bed.node.events.pods) == 3 else None
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(bed.volume(), security_context=PodSecurityContext(fs_group=4321)))
    where = f"Setting volume ownership for {bed.paths.home('uid-web', 'pv-data')}"
    texts = [f"{where} is taking longer than expected, consider using OnRootMismatch"]
    texts += [f"{where}, processed 17 files."] * 2
    assert bed.node.events.pods == [("VolumePermissionChangeInProgress", text) for text in texts]


async def test_a_driver_that_sets_the_group_itself_is_told_it(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.driver.can |= {"VOLUME_MOUNT_GROUP"}
    pod = pod_with(bed.volume(), security_context=PodSecurityContext(fs_group=4321))
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    assert [volume.mount_group for volume in bed.driver.volumes] == ["4321", "4321"]
