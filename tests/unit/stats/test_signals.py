"""What eviction is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.model.figures import FsFigures
from pykubelet.stats.signals import NodeSignals
from tests.unit.stats.making import Bed

BOTH = pytest.mark.parametrize("version", [1, 2])


@BOTH
async def test_node_signals(version: int, tmp_path: Path) -> None:
    bed = Bed(version, tmp_path)
    bed.add("web")
    found = await bed.signals.node()
    assert found.memory is not None and found.memory.available == 1_000_000 - 497_000
    assert found.allocatable_memory is not None
    assert (found.allocatable_memory.capacity, found.allocatable_memory.available) == (65_536, 65_536 - 17_000)
    assert found.pids_available == 10_000 - 250
    assert found.node_fs is not None and found.node_fs.device == os.stat(tmp_path).st_dev
    assert found.image_fs is not None and not found.has_own_image_fs and not found.has_own_container_fs


@BOTH
async def test_memory_is_read_at_once(version: int, tmp_path: Path) -> None:
    bed = Bed(version, tmp_path)
    before = bed.signals.memory()
    if version == 1:
        bed.group("/", usage=900_000)
    else:
        stat = bed.cgroup_root / "memory.stat"
        stat.write_text(stat.read_text().replace("anon 495904", "anon 895904"))
    after = bed.signals.memory()
    assert before is not None and after is not None
    assert before.available - after.available == 400_000


async def test_no_limit_on_pods_is_no_signal(tmp_path: Path) -> None:
    bed = Bed(1, tmp_path)
    assert bed.signals.allocatable_memory() is None


async def test_pods(tmp_path: Path) -> None:
    bed = Bed(2, tmp_path)
    bed.add("web")
    quick = (await bed.signals.pods(disks=False))["uid-web"]
    assert (quick.memory, quick.containers["app"].memory, quick.containers["app"].logs) == (17_000, 17_000, 0)
    await bed.clock.sleep(1)
    found = (await bed.signals.pods(disks=True))["uid-web"]
    app = found.containers["app"]
    assert (found.processes, app.layer, app.layer_inodes) == (2, 8192, 5)
    assert app.logs >= 9000 and found.other > 0 and found.other_inodes == 2


def test_filesystems_apart() -> None:
    def fs(device: int) -> FsFigures:
        return FsFigures(
            time_ns=0, device=device, device_name="", capacity=1, available=1, used=0, inodes=1, inodes_free=1
        )

    split = NodeSignals(node_fs=fs(1), image_fs=fs(2), container_fs=fs(1))
    assert split.has_own_image_fs and not split.has_own_container_fs
    assert NodeSignals().pids_available is None and not NodeSignals().has_own_image_fs
