"""Volumes when things hang or break: threads that never return, agents that leave, bursts of news."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.api.types import ConfigMap
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import TaskSet
from pykubelet.volumes.csi import plugin
from pykubelet.volumes.csi.records import read_record
from pykubelet.volumes.errors import VolumesNotReady
from pykubelet.volumes.objects import VolumeRules
from tests.fakes.fake_mounts import FakeMounts
from tests.unit.volumes.builders import (
    CsiVolumeNode,
    VolumeNode,
    a_config,
    a_secret,
    config_volume,
    empty_dir,
    pod_with,
    secret_volume,
)


class HangingMounts(FakeMounts):
    """Mounting at a place whose name begins with "hang" does not return before `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def tmpfs(self, target: Path, *, size_bytes: int | None) -> None:
        if target.name.startswith("hang"):
            assert self.gate.wait(timeout=30)
        super().tmpfs(target, size_bytes=size_bytes)


@pytest.fixture
def hanging() -> Iterator[HangingMounts]:
    mounts = HangingMounts()
    yield mounts
    mounts.gate.set()


@pytest.mark.real_loop
async def test_a_hundred_hanging_volumes_delay_nobody(tmp_path: Path, hanging: HangingMounts) -> None:
    node = VolumeNode(tmp_path, mounts=hanging, clock=SystemClock(), rules=VolumeRules(wait_seconds=1.0))
    stuck = [pod_with(empty_dir(f"hang-{i}", medium="Memory"), name=f"stuck-{i}") for i in range(100)]
    good = pod_with(empty_dir("mem", medium="Memory"), secret_volume(), name="good")
    node.objects.secrets["default", "web"] = a_secret(k="v")
    async with node.running() as manager, TaskSet("test", on_error=lambda error: None) as tasks:
        waits = [tasks.spawn(manager.wait_mounted(pod), name="stuck") for pod in stuck]
        await node.clock.sleep(0.05)
        async with asyncio.timeout(5):
            await manager.wait_mounted(good)
        await asyncio.wait(waits)
        with pytest.raises(VolumesNotReady, match=r"volume hang-0: not finished, trying for \d s"):
            await manager.wait_mounted(stuck[0])
        hanging.gate.set()
        for pod in stuck:
            await manager.wait_mounted(pod)
        assert len(hanging.points()) == 102


@pytest.mark.real_loop
async def test_a_pod_deleted_while_its_mount_hangs_is_cleaned_up_when_it_returns(
    tmp_path: Path, hanging: HangingMounts
) -> None:
    node = VolumeNode(tmp_path, mounts=hanging, clock=SystemClock(), rules=VolumeRules(wait_seconds=0.1))
    pod = pod_with(empty_dir("hang", medium="Memory"))
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady):
            await manager.wait_mounted(pod)
        with pytest.raises(VolumesNotReady, match="cannot unmount volumes: volume hang: not finished"):
            await manager.wait_unmounted(pod)
        hanging.gate.set()
        async with asyncio.timeout(5):
            while manager.has_mounts("uid-web"):
                await node.clock.sleep(0.005)
        assert hanging.points() == []


@pytest.mark.real_loop
async def test_the_agent_leaves_although_a_mount_hangs(tmp_path: Path, hanging: HangingMounts) -> None:
    node = VolumeNode(tmp_path, mounts=hanging, clock=SystemClock(), rules=VolumeRules(wait_seconds=0.05))
    async with asyncio.timeout(5):
        async with node.running() as manager:
            with pytest.raises(VolumesNotReady):
                await manager.wait_mounted(pod_with(empty_dir("hang", medium="Memory")))
    hanging.gate.set()


@pytest.mark.real_loop
async def test_folders_of_a_csi_volume_that_hang_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what comes back late would remove the record of what was staged meanwhile."""
    bed, gate, begun = CsiVolumeNode(tmp_path), threading.Event(), threading.Event()
    one, two = (pod_with(bed.volume(), name=name) for name in ("one", "two"))
    home = bed.paths.staging_home("d", "h-data")
    remove = plugin._remove_record

    def hang(folder: Path) -> None:
        if folder == home and not begun.is_set():
            begun.set()
            assert gate.wait(timeout=30)
        remove(folder)

    monkeypatch.setattr(plugin, "_remove_record", hang)
    async with bed.life() as manager, TaskSet("test") as tasks, asyncio.timeout(30):
        await manager.wait_mounted(one)
        monkeypatch.setattr(plugin, "FOLDERS_WITHIN", 0.05)
        await manager.wait_unmounted(one)
        while not begun.is_set() or not manager.problems("uid-one"):
            await bed.node.clock.sleep(0.005)
        monkeypatch.setattr(plugin, "FOLDERS_WITHIN", 30.0)
        second = tasks.spawn(manager.wait_mounted(two), name="second")
        while not second.done() and not any("not come back" in each.text for each in manager.problems("uid-two")):
            await bed.node.clock.sleep(0.005)
        gate.set()
        await second
        await bed.node.clock.sleep(0.05)
        assert read_record(home) is not None, "staged, and nobody would know after a restart"
        await manager.wait_unmounted(two)
        while bed.driver.staged:
            await bed.node.clock.sleep(0.005)


async def test_a_burst_of_news_is_few_writes(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    node.objects.config_maps["default", "web"] = a_config(n="0")
    pod = pod_with(config_volume())
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        for number in range(1, 101):
            node.objects.config_maps["default", "web"] = a_config(n=str(number))
            manager.object_changed("ConfigMap", "default", "web")
        await node.clock.sleep(0.1)
        assert Path(manager.path_of(pod, "cfg") or "", "n").read_text() == "100"
        assert len(node.objects.reads) <= 3


async def test_news_that_come_while_content_is_fetched_are_not_lost(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    answers = [a_config(n="old"), a_config(n="new")]

    async def slowly(namespace: str, name: str) -> ConfigMap | None:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        await node.clock.sleep(5)
        return answer

    node.objects.config_map = slowly  # type: ignore[assignment]
    pod = pod_with(config_volume())
    async with node.running() as manager, TaskSet("test") as tasks:
        waiting = tasks.spawn(manager.wait_mounted(pod), name="wait")
        await node.clock.sleep(1)
        manager.object_changed("ConfigMap", "default", "web")
        await waiting
        await node.clock.sleep(20)
        assert Path(manager.path_of(pod, "cfg") or "", "n").read_text() == "new"


async def test_cancelling_a_wait_leaves_the_volume_to_its_own_task(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    pod = pod_with(config_volume())
    async with node.running() as manager, TaskSet("test") as tasks:
        for _ in range(10):
            task = tasks.spawn(manager.wait_mounted(pod), name="wait")
            await node.clock.sleep(0.3)
            task.cancel()
            await asyncio.wait({task})
        assert len(node.objects.reads) == 3  # at 0, 0.5 and 1.5 s: cancelling neither adds tries nor loses them


@pytest.mark.parametrize("verb", ["tmpfs", "unmount", "remove"])
async def test_an_agent_that_broke_is_followed_by_one_that_cleans_up(tmp_path: Path, verb: str) -> None:
    """In the first life one call to the host fails for ever; what it left goes when its pod is not there any more."""
    node = VolumeNode(tmp_path)
    node.objects.secrets["default", "web"] = a_secret(k="v")
    pod = pod_with(empty_dir("mem", medium="Memory"), secret_volume(), empty_dir())
    node.mounts.fail(verb, "", "broken", times=99)
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match="broken"):
            await manager.wait_mounted(pod)
            await manager.wait_unmounted(pod)
    later = node.again()
    later.mounts.mend()
    async with later.running() as manager:
        await manager.wait_unmounted(pod_with(name="other"))
        manager.keep_only([])
        await later.clock.sleep(5)
        assert later.mounts.points() == [] and not manager.has_mounts("uid-web")
        assert not list((tmp_path / "pods/uid-web/volumes").glob("*/*"))
