"""What the node says it uses: a volume that is not named may be detached by the control plane, mounted or not."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pykubelet.api.types import (
    CSIDriverSpec,
    FCVolumeSource,
    ISCSIVolumeSource,
    Volume,
    VolumeAttachment,
    VolumeAttachmentStatus,
)
from pykubelet.kit.tasks import TaskSet
from pykubelet.signals import VolumesUnmounted
from pykubelet.volumes.csi import plugin
from pykubelet.volumes.csi.records import VolumeRecord, attachment_name, write_record
from pykubelet.volumes.errors import VolumesNotReady
from pykubelet.volumes.reconstruct import forget_attached, note_attached, scan
from pykubelet.volumes.spec import FC, ISCSI, spec_of
from tests.unit.volumes.builders import CsiVolumeNode, VolumeNode, inline, pod_with, problem_texts

UNIQUE = "kubernetes.io/csi/d^h-data"
DISK = "kubernetes.io/iscsi/10.0.0.1:iqn.2024-01.com.example:disk:2"


def attached_bed(root: Path) -> CsiVolumeNode:
    """The control plane attaches the driver's volumes, and has attached this one."""
    bed = CsiVolumeNode(root)
    bed.objects.drivers = {"d": CSIDriverSpec()}
    name = attachment_name("h-data", "d", "here")
    bed.objects.attachments[name] = VolumeAttachment(status=VolumeAttachmentStatus(attached=True))
    return bed


def left_as_device(bed: CsiVolumeNode) -> None:
    """A block volume as a killed agent leaves it."""
    paths = bed.paths
    staging, published = paths.device_staging("pv-data"), paths.device_publish("pv-data", "uid-web")
    link = paths.device_link("uid-web", "pv-data")
    for folder in (paths.device_home("pv-data"), staging, published.parent, link.parent):
        folder.mkdir(parents=True)
    write_record(paths.device_home("pv-data"), VolumeRecord(spec_name="pv-data", handle="h-data", driver="d"))
    published.symlink_to("/dev/null")
    link.symlink_to(paths.device_map("pv-data", "uid-web"))
    bed.driver.staged["h-data"], bed.driver.published[str(published)] = str(staging), "h-data"


async def test_nothing_is_said_before_the_disk_was_read(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    assert node.manager().volumes_in_use() is None
    async with node.running() as manager:
        await node.clock.sleep(0.1)
        assert manager.volumes_in_use() == []


@pytest.mark.parametrize("kind", ["staged", "not staged", "device"])
async def test_a_volume_of_an_earlier_life_is_in_use_until_it_is_given_back(tmp_path: Path, kind: str) -> None:
    bed = attached_bed(tmp_path)
    if kind == "device":
        left_as_device(bed)
    else:
        bed.driver.can = bed.driver.can if kind == "staged" else frozenset()
        async with bed.life() as manager:
            await manager.wait_mounted(pod_with(bed.volume()))
            assert manager.volumes_in_use() == [UNIQUE]
    bed.objects.drivers = {}  # not read yet: may be one whose volumes are attached
    async with bed.life() as manager:
        await bed.node.clock.sleep(0.1)
        assert manager.volumes_in_use() == [UNIQUE]
        bed.driver.plans = [("unpublish", "INTERNAL", False)]
        if kind != "not staged":
            bed.driver.plans += [("unstage", "INTERNAL", False)] * 2
        manager.keep_only([])
        for _ in range(len(bed.driver.plans)):
            await bed.node.clock.sleep(0.1)
            assert manager.volumes_in_use() == [UNIQUE]
            await bed.node.clock.sleep(0.3)
        await bed.node.clock.sleep(9)
        assert manager.volumes_in_use() == []
    assert bed.is_clean()


async def test_a_volume_that_cannot_be_unstaged_is_in_use_and_its_pod_may_go(tmp_path: Path) -> None:
    bed = attached_bed(tmp_path)
    pod = pod_with(bed.volume())
    released: list[str] = []
    async with bed.life() as manager:
        bed.signals.subscribe(VolumesUnmounted, lambda signal: released.append(signal.uid))
        await manager.wait_mounted(pod)
        bed.driver.plans = [("unstage", "INTERNAL", False)] * 3
        await manager.wait_unmounted(pod)
        assert not manager.has_mounts("uid-web") and released[0] == "uid-web"
        assert manager.volumes_in_use() == [UNIQUE] and bed.driver.staged
        assert [each.state for each in manager.snapshot()] == ["staged"]
        await bed.node.clock.sleep(5)
        assert manager.volumes_in_use() == [] and manager.snapshot() == []
    assert bed.driver.order()[-4:] == ["unstage h-data"] * 4
    assert bed.is_clean()


async def test_a_volume_whose_record_could_not_be_written_is_in_use_no_longer_than_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = attached_bed(tmp_path)
    pod = pod_with(bed.volume())

    def full(folder: Path, record: VolumeRecord) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(plugin, "write_record", full)
    async with bed.life() as manager:
        with pytest.raises(VolumesNotReady, match="No space left"):
            await manager.wait_mounted(pod)
        assert manager.volumes_in_use() == [UNIQUE]
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(5)
        assert manager.volumes_in_use() == []


@pytest.mark.parametrize("again", [True, False])
async def test_a_staged_volume_whose_record_was_lost_is_unstaged_all_the_same(tmp_path: Path, again: bool) -> None:
    bed = attached_bed(tmp_path)
    pod = pod_with(bed.volume())
    record = bed.paths.staging_home("d", "h-data") / "vol_data.json"
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        record.write_bytes(b"")
        if not again:
            bed.driver.plans = [("unstage", "INTERNAL", False)]
            await manager.wait_unmounted(pod)
            assert manager.volumes_in_use() == [UNIQUE] and bed.driver.staged
            await bed.node.clock.sleep(5)
    if again:
        async with bed.life() as manager:
            await bed.node.clock.sleep(0.1)
            bed.driver.plans = [("unstage", "INTERNAL", False)]
            manager.keep_only([])
            await bed.node.clock.sleep(0.1)
            assert manager.volumes_in_use() == [UNIQUE] and bed.driver.staged
            await bed.node.clock.sleep(5)
    assert not bed.driver.staged and bed.is_clean()


async def test_a_hanging_unstage_holds_up_no_pod(tmp_path: Path) -> None:
    bed = attached_bed(tmp_path)
    one, two = (pod_with(bed.volume(), name=name) for name in ("one", "two"))
    async with bed.life() as manager:
        await manager.wait_mounted(one)
        bed.driver.hangs = {"unstage"}
        await manager.wait_unmounted(one)
        assert bed.node.clock.monotonic() < 1
        assert manager.volumes_in_use() == [UNIQUE]
    bed.driver.hangs = set()
    async with bed.life() as manager:  # killed in between
        await bed.node.clock.sleep(0.1)
        assert manager.volumes_in_use() == [UNIQUE]
        await manager.wait_mounted(two)
        await bed.plugin.sweep()
        assert "h-data" in bed.driver.staged
        await manager.wait_unmounted(two)
        await bed.node.clock.sleep(0.1)
        assert manager.volumes_in_use() == []
    assert bed.is_clean()


async def test_a_pod_that_wants_a_volume_again_while_it_is_being_unstaged(tmp_path: Path) -> None:
    bed = attached_bed(tmp_path)
    pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        bed.driver.plans = [("unstage", "INTERNAL", False)] * 2
        await manager.wait_unmounted(pod)
        before = bed.node.clock.monotonic()
        await manager.wait_mounted(pod)
        assert bed.node.clock.monotonic() == before and bed.node.events.pods == []
        assert manager.volumes_in_use() == [UNIQUE]
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(5)
    assert bed.is_clean()


async def test_what_is_never_attached_is_not_named_after_a_restart(tmp_path: Path) -> None:
    bed = attached_bed(tmp_path)
    bed.objects.drivers = {"d": CSIDriverSpec(volume_lifecycle_modes=["Ephemeral"])}
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(inline()))
    async with bed.life() as manager:
        await bed.node.clock.sleep(0.1)
        assert manager.volumes_in_use() == []


async def test_an_alone_volume_of_an_earlier_life_is_somebody_elses(tmp_path: Path) -> None:
    bed = attached_bed(tmp_path)
    volume = bed.volume(access_modes=["ReadWriteOncePod"])
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume, name="one"))
    async with bed.life() as manager, TaskSet("test") as tasks:
        waiting = tasks.spawn(manager.wait_mounted(pod_with(volume, name="two")), name="two")
        await bed.node.clock.sleep(1)
        assert "already in use by another pod" in problem_texts(manager, "uid-two")[0]
        manager.keep_only(["uid-two"])
        before = bed.node.clock.monotonic()
        await waiting
        assert bed.node.clock.monotonic() == before


async def test_a_disk_that_was_attached_for_an_earlier_life(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    source = ISCSIVolumeSource(target_portal="10.0.0.1", iqn="iqn.2024-01.com.example:disk", lun=2)
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady):  # half done: its tool is missing
            await manager.wait_mounted(pod_with(Volume(name="disk", iscsi=source)))
    after = node.again()
    async with after.running() as manager:
        await after.clock.sleep(0.1)
        assert manager.volumes_in_use() == [DISK]
        manager.keep_only([])
        await after.clock.sleep(1)
        assert manager.volumes_in_use() == []
    assert not (node.paths.pod("uid-web") / "attached").exists()


def test_a_note_outlives_the_folder_of_its_volume(tmp_path: Path) -> None:
    """An agent that is killed after it took the pod's mount, and before the node's own."""
    paths = VolumeNode(tmp_path).paths
    spec = spec_of(Volume(name="disk", fc=FCVolumeSource(target_wwns=["5006"], lun=1)))
    note_attached(paths, "uid-a", spec, "kubernetes.io/fc/[5006]:1")
    (found,) = scan(paths)
    assert (found.plugin, found.folder, found.spec().attached) == (spec.plugin, "disk", ("kubernetes.io/fc/[5006]:1",))
    paths.volume("uid-a", spec.plugin, "disk").mkdir(parents=True)
    assert scan(paths) == [found]
    forget_attached(paths, "uid-a", spec)
    forget_attached(paths, "uid-a", spec)
    assert [each.attached for each in scan(paths)] == [()]


@pytest.mark.parametrize(
    ("plugin", "place", "names"),
    [
        (FC, "5006-5007-lun-3", ["kubernetes.io/fc/[5006 5007]:3"]),
        (FC, "3600508b4", ["kubernetes.io/fc/[3600508b4]"]),
        (ISCSI, "iface-default/10.0.0.1:3261-iqn.2024-01.com.example:disk-lun-2", [DISK.replace("0.1:", "0.1:3261:")]),
        (
            ISCSI,
            "iface-default/10.0.0.1:3260-iqn.2024-01.com.example:disk-lun-2",
            [DISK.replace("0.1:", "0.1:3260:"), DISK],
        ),
        (ISCSI, "iface-default/something else", []),
    ],
)
async def test_a_disk_that_another_agent_mounted(tmp_path: Path, plugin: str, place: str, names: list[str]) -> None:
    node = VolumeNode(tmp_path)
    top, point = node.paths.plugins / plugin / place, node.paths.volume("uid-a", plugin, "pv")
    for folder in (top, point):
        folder.mkdir(parents=True)
    node.mounts.by_tool("/dev/sdx", top, fs_type="ext4", options=(), seconds=1)
    node.mounts.bind(top, point, read_only=False)
    async with node.running() as manager:
        await node.clock.sleep(0.1)
        assert manager.volumes_in_use() == sorted(names)
