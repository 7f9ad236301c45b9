"""SELinux labels by mount for CSI volumes: who is asked to mount with which, and that a mount has only one.

No host of the tests has SELinux: what a driver is told is all that is seen here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pykubelet.api.types import CSIDriverSpec, Pod, PodSecurityContext, SecurityContext, SELinuxOptions, Volume
from pykubelet.kit.tasks import TaskSet
from pykubelet.volumes.objects import VolumeRules
from pykubelet.volumes.selinux import SelinuxMounts
from tests.unit.volumes.builders import CsiVolumeNode, pod_with, problem_texts

FILES = "system_u:object_r:container_file_t"
ALONE = ["ReadWriteOncePod"]
LABELS = CSIDriverSpec(attach_required=False, se_linux_mount=True)


def a_bed(folder: Path, *, any_mode: bool = False, driver: CSIDriverSpec = LABELS) -> CsiVolumeNode:
    bed = CsiVolumeNode(folder)
    labels = SelinuxMounts(default=f"{FILES}:s0", any_mode=any_mode)
    bed.node.rules = VolumeRules(selinux=True, labels=labels, wait_seconds=5.0)
    bed.objects.drivers["d"] = driver
    return bed


def labelled(volume: Volume, level: str, name: str = "web", policy: str | None = None) -> Pod:
    options = SELinuxOptions(level=level) if level else None
    context = PodSecurityContext(se_linux_options=options, se_linux_change_policy=policy)
    return pod_with(volume, name=name, security_context=context)


def flags(bed: CsiVolumeNode) -> list[tuple[str, ...]]:
    return [tuple(volume.mount_flags) for volume in bed.driver.volumes]


@pytest.mark.parametrize(
    ("modes", "any_mode", "driver", "policy", "wanted"),
    [
        (ALONE, False, LABELS, None, True),
        (ALONE, False, LABELS, "MountOption", True),
        (ALONE, False, LABELS, "Recursive", False),
        (ALONE, False, CSIDriverSpec(attach_required=False, se_linux_mount=False), None, False),
        (ALONE, False, CSIDriverSpec(attach_required=False), None, False),
        (["ReadWriteOnce"], False, LABELS, None, False),
        (["ReadWriteOnce"], True, LABELS, None, True),
    ],
)
async def test_the_driver_is_told_the_label(
    tmp_path: Path, modes: list[str], any_mode: bool, driver: CSIDriverSpec, policy: str | None, wanted: bool
) -> None:
    bed = a_bed(tmp_path, any_mode=any_mode, driver=driver)
    volume = bed.volume(access_modes=modes, mount_options=["noatime"])
    pod = labelled(volume, "s0:c1,c2", policy=policy)
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        (mount,) = await manager.mounts_for(pod, pod.spec.containers[0], {})
        assert mount.selinux_relabel is not wanted
    option = (f'context="{FILES}:s0:c1,c2"',) if wanted else ()
    assert flags(bed) == [("noatime", *option)] * 2, "when it is staged and when it is published"
    for home in (bed.paths.staging_home("d", "h-data"), bed.paths.home("uid-web", "pv-data")):
        record = json.loads((home / "vol_data.json").read_text())
        assert record.get("seLinuxMountContext") == (f"{FILES}:s0:c1,c2" if wanted else None), "as upstream records it"


async def test_a_pod_with_another_label_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    bed = a_bed(tmp_path, any_mode=True)
    volume = bed.volume(access_modes=["ReadWriteMany"])
    first, same = labelled(volume, "s0:c1", "first"), labelled(volume, "s0:c1", "same")
    async with bed.life() as manager, TaskSet("test") as tasks:
        await manager.wait_mounted(first)
        await manager.wait_mounted(same)
        other = tasks.spawn(manager.wait_mounted(labelled(volume, "", "other")), name="other")
        await bed.node.clock.sleep(1)
        (problem,) = problem_texts(manager, "uid-other")
        assert f"another pod has it mounted with SELinux label '{FILES}:s0:c1', this one needs ''" in problem
        await manager.wait_unmounted(first)
        await manager.wait_unmounted(same)
        await other
    assert flags(bed)[-2:] == [(), ()], "staged anew, without a label"
    assert bed.driver.order().count("stage h-data") == 2


def counted(bed: CsiVolumeNode) -> dict[str, int]:
    """Of the figures about labels, those that are not zero, by what follows their common name."""
    lines = [line for line in bed.node.metrics.expose().splitlines() if line.startswith("volume_manager_selinux_")]
    pairs = [line.removeprefix("volume_manager_selinux_").rpartition(" ") for line in lines]
    return {name: int(value) for name, _, value in pairs if int(value)}


PLUGIN = 'volume_plugin="kubernetes.io/csi:d"'


async def test_pods_with_other_labels_are_counted_as_what_they_are_or_would_be(tmp_path: Path) -> None:
    """Where other access modes are not mounted with labels yet it is a warning: such pods will fail one day."""
    for any_mode, kind in ((False, "warnings"), (True, "errors")):
        bed = a_bed(tmp_path / kind, any_mode=any_mode)
        volume = bed.volume(access_modes=["ReadWriteOnce", "ReadWriteMany"])
        async with bed.life() as manager, TaskSet("test") as tasks:
            for name in ("first", "same"):
                await manager.wait_mounted(labelled(volume, "s0:c1", name))
            assert counted(bed) == {f'volumes_admitted_total{{{PLUGIN},access_mode="RWX"}}': 1}
            other = tasks.spawn(manager.wait_mounted(labelled(volume, "s0:c2", "other")), name="other")
            await bed.node.clock.sleep(0.1)
            assert other.done() is (kind == "warnings")
            assert counted(bed)[f'volume_context_mismatch_{kind}_total{{{PLUGIN},access_mode="RWX"}}'] == 1


async def test_pods_whose_containers_have_other_labels_are_counted(tmp_path: Path) -> None:
    for modes, shown, kind in ((ALONE, "RWOP", "errors"), (["ReadWriteOnce"], "RWO", "warnings")):
        bed = a_bed(tmp_path / shown)
        pod = labelled(bed.volume(access_modes=modes), "s0:c1")
        own = SecurityContext(se_linux_options=SELinuxOptions(level="s0:c2"))
        second = replace(pod.spec.containers[0], name="second", security_context=own)
        pod = replace(pod, spec=replace(pod.spec, containers=[*pod.spec.containers, second]))
        async with bed.life() as manager, TaskSet("test") as tasks:
            tasks.spawn(manager.wait_mounted(pod), name="pod")
            await bed.node.clock.sleep(0.1)
            assert counted(bed) == {f'pod_context_mismatch_{kind}_total{{access_mode="{shown}"}}': 1}


async def test_nothing_is_counted_on_hosts_without_labels(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    async with bed.life() as manager:
        await manager.wait_mounted(labelled(bed.volume(access_modes=ALONE), "s0:c1"))
    assert counted(bed) == {}


async def test_a_label_that_a_killed_agent_staged_with_is_not_kept_for_another_pod(tmp_path: Path) -> None:
    bed = a_bed(tmp_path)
    volume = bed.volume(access_modes=ALONE)
    async with bed.life() as manager:
        await manager.wait_mounted(labelled(volume, "s0:c1", "first"))
    # Killed after the pod's volume was unpublished, before it was unstaged.
    target = bed.paths.target("uid-first", "pv-data")
    await bed.driver.unpublish("h-data", target)
    target.rmdir()
    (target.parent / "vol_data.json").unlink()
    target.parent.rmdir()
    async with bed.life() as manager:
        await manager.wait_mounted(labelled(volume, "s0:c2", "second"))
    assert bed.driver.order()[-3:] == ["unstage h-data", "stage h-data", "publish h-data"]
    assert flags(bed)[-1] == (f'context="{FILES}:s0:c2"',)


async def test_a_running_pod_keeps_the_label_its_volume_was_mounted_with(tmp_path: Path) -> None:
    """Its driver learnt to mount with labels meanwhile: that counts from the next mount on."""
    bed = a_bed(tmp_path, driver=replace(LABELS, se_linux_mount=False))
    volume = bed.volume(access_modes=ALONE)
    pod = labelled(volume, "s0:c1")
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    bed.objects.drivers["d"] = LABELS
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    assert set(flags(bed)) == {()} and "unstage h-data" not in bed.driver.order()
