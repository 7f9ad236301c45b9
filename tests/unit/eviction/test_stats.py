"""What eviction measures."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pykubelet.eviction import stats
from pykubelet.eviction.stats import NodeSignals
from pykubelet.kit.clock import SystemClock
from pykubelet.model.runtime_status import ContainerState
from pykubelet.model.stats import FsUsage
from tests.unit.stats.making import StatsFixture, a_status, an_observed_container

BOTH = pytest.mark.parametrize("version", [1, 2])


@BOTH
async def test_node_signals(version: int, tmp_path: Path) -> None:
    bed = StatsFixture(version, tmp_path)
    bed.add("web")
    found = await bed.signals.node()
    assert found.memory is not None and found.memory.available == 1_000_000 - 497_000
    assert found.allocatable_memory is not None
    assert (found.allocatable_memory.capacity, found.allocatable_memory.available) == (65_536, 65_536 - 17_000)
    assert found.tasks is not None and found.tasks.limit - found.tasks.tasks == 10_000 - 250
    assert found.node_fs is not None and found.node_fs.device == os.stat(tmp_path).st_dev
    assert found.image_fs is not None and not found.has_own_image_fs and not found.has_own_container_fs


@pytest.mark.real_loop
async def test_memory_is_watched_while_a_filesystem_of_the_node_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bed = StatsFixture(2, tmp_path)
    answer = threading.Event()
    monkeypatch.setattr(stats, "SIGNALS_WITHIN", 0.3)
    monkeypatch.setattr(bed.signals, "_clock", SystemClock())  # threads have no loop to ask
    monkeypatch.setattr(bed.host, "filesystem", lambda path, now_ns: answer.wait(60) and None)
    try:
        for _ in range(3):
            found = await bed.signals.node()
            assert found.memory is not None and found.tasks is not None and found.node_fs is None
        assert caplog.text.count("do not answer") == 1
    finally:
        answer.set()


@BOTH
async def test_memory_is_read_at_once(version: int, tmp_path: Path) -> None:
    bed = StatsFixture(version, tmp_path)
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
    bed = StatsFixture(1, tmp_path)
    assert bed.signals.allocatable_memory() is None


async def test_pods(tmp_path: Path) -> None:
    bed = StatsFixture(2, tmp_path)
    bed.add("web")
    quick = (await bed.signals.pods(disks=False))["uid-web"]
    assert (quick.memory, quick.containers["app"].memory, quick.containers["app"].logs) == (17_000, 17_000, 0)
    await bed.clock.sleep(1)
    found = (await bed.signals.pods(disks=True))["uid-web"]
    app = found.containers["app"]
    assert (found.processes, app.layer, app.layer_inodes) == (2, 8192, 5)
    assert app.logs >= 9000 and found.other > 0 and found.other_inodes == 2


def test_filesystems_apart() -> None:
    def fs(device: int) -> FsUsage:
        return FsUsage(
            time_ns=0, device=device, device_name="", capacity=1, available=1, used=0, inodes=1, inodes_free=1
        )

    split = NodeSignals(node_fs=fs(1), image_fs=fs(2), container_fs=fs(1))
    assert split.has_own_image_fs and not split.has_own_container_fs
    assert NodeSignals().tasks is None and not NodeSignals().has_own_image_fs


async def test_files_of_some_pods(tmp_path: Path) -> None:
    bed = StatsFixture(2, tmp_path)
    bed.add("web")
    bed.add("other")
    found = await bed.signals.files({"uid-web"})
    assert set(found) == {"uid-web"}
    app = found["uid-web"].containers["app"]
    assert app.layer == 8192 and app.logs >= 9000 and found["uid-web"].other > 0 and found["uid-web"].memory is None


async def test_a_pod_of_which_nothing_runs_uses_nothing(tmp_path: Path) -> None:
    bed = StatsFixture(2, tmp_path)
    bed.add("web")
    bed.add("waits")
    bed.statuses["uid-waits"] = a_status("waits", an_observed_container("app", "con-waits", ContainerState.EXITED))
    found = await bed.signals.pods(disks=False)
    assert found["uid-waits"].memory == 0 and found["uid-waits"].containers == {}
    assert found["uid-web"].memory == 17_000


async def test_where_images_are_is_remembered_while_the_runtime_is_away(tmp_path: Path) -> None:
    bed = StatsFixture(2, tmp_path)
    bed.add("web")
    first = await bed.signals.node()
    bed.runtime.lost = True
    await bed.clock.sleep(20)
    assert (await bed.signals.node()).image_fs is not None and first.image_fs is not None
