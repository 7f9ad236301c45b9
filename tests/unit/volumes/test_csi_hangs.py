"""Storage drivers that hang or have no figures: who waits for them, and what is said."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pykubelet.api.types import (
    CSIDriverSpec,
    EmptyDirVolumeSource,
    FCVolumeSource,
    Pod,
    Volume,
    VolumeAttachment,
    VolumeAttachmentStatus,
    VolumeError,
)
from pykubelet.clients.plugins.port import CsiNodeInfo
from pykubelet.kit.host_calls import HostCallStuck
from pykubelet.kit.tasks import TaskSet, running
from pykubelet.volumes.csi.drivers import LimitsKeeper
from pykubelet.volumes.csi.records import VolumeRecord, attachment_name, write_record
from pykubelet.volumes.errors import NodeIsFull, VolumesNotReady
from pykubelet.volumes.objects import VolumeRules
from tests.fakes.fake_csi import FakeCsiDriver
from tests.unit.volumes.builders import CsiVolumeNode, empty_dir, pod_with, problem_texts


async def test_a_driver_that_does_not_say_what_it_can_is_named(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    async with bed.life() as manager, TaskSet("test") as tasks:
        bed.driver.hangs = {"capabilities"}
        tasks.spawn(manager.wait_mounted(pod_with(bed.volume())), name="slow")
        await bed.node.clock.sleep(5)
        (problem,) = problem_texts(manager)
        assert problem == "volume data: driver d has not answered NodeGetCapabilities, trying for 5 s"


async def test_a_driver_that_hangs_holds_up_no_other_in_sweeping(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    drivers = {"d": bed.driver, "e": FakeCsiDriver(bed.node.mounts)}
    async with bed.life(), TaskSet("test") as tasks:
        bed.others = drivers
        for name in drivers:
            await bed.drivers.deregister(name, Path("/csi.sock"))
            await bed.drivers.register(name, Path(f"/{name}.sock"), ("1.0.0",))
        for stuck, other in (("d", "e"), ("e", "d")):
            for name, each in drivers.items():  # as a killed agent leaves them
                home, staging = bed.paths.staging_home(name, "h"), bed.paths.staging(name, "h")
                staging.mkdir(parents=True, exist_ok=True)
                write_record(home, VolumeRecord(spec_name="pv", handle="h", driver=name))
                each.staged["h"] = str(staging)
            drivers[stuck].hangs, drivers[other].hangs = {"unstage"}, set()
            sweeping = tasks.spawn(bed.plugin.sweep(), name="sweep")
            async with asyncio.timeout(30):
                while drivers[other].staged:
                    await bed.node.clock.sleep(0.01)
            sweeping.cancel()


async def test_a_staged_volume_whose_server_is_dead_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = CsiVolumeNode(tmp_path)
    pod = pod_with(bed.volume())
    exists = Path.exists

    def hangs_where_mounted(path: Path) -> bool:
        if bed.node.mounts.is_mounted(path):
            raise HostCallStuck(f"stat of {path} does not come back")
        return exists(path)

    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        monkeypatch.setattr(Path, "exists", hangs_where_mounted)
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(1)
    assert bed.driver.order() == ["stage h-data", "publish h-data", "unpublish h-data", "unstage h-data"]
    assert bed.is_clean()


async def test_a_driver_without_figures_leaves_the_other_volumes_their_own(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    scratch = Volume(name="scratch", empty_dir=EmptyDirVolumeSource())
    pod = pod_with(bed.volume(), scratch)
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        bed.driver.plans = [("usage", "UNAVAILABLE", False)]
        assert [each.name for each in await manager.usage(pod)] == ["scratch"]
        assert [each.name for each in await manager.usage(pod)] == ["data", "scratch"]


async def test_a_driver_that_hangs_at_its_figures_is_left_alone_for_a_while(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    scratch = Volume(name="scratch", empty_dir=EmptyDirVolumeSource())
    pod = pod_with(bed.volume(), scratch)
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        bed.driver.hangs = {"usage"}
        began = bed.node.clock.monotonic()
        for _ in range(5):
            assert [each.name for each in await manager.usage(pod)] == ["scratch"]
        assert bed.node.clock.monotonic() - began < 10
        bed.driver.hangs = set()
        bed.plugin.driver_registered("d")
        assert [each.name for each in await manager.usage(pod)] == ["data", "scratch"]
        bed.driver.hangs = {"usage"}
        await manager.usage(pod)
        bed.driver.hangs = set()
        for _ in range(30):
            found = [each.name for each in await manager.usage(pod)]
        assert found == ["data", "scratch"], "asked again by itself, too"


class NeverAttached:
    async def wait_attached(self, pod: Pod, unique_name: str) -> str:
        await asyncio.Event().wait()
        return ""


async def test_a_volume_that_is_not_attached_says_why(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path, more_objects={"attachments": NeverAttached()})
    limited = CSIDriverSpec(node_allocatable_update_period_seconds=3600)
    bed.objects.drivers = {"d": limited}
    full = VolumeAttachmentStatus(attached=False, attach_error=VolumeError(message="no slot is left", error_code=8))
    bed.objects.attachments[attachment_name("h-data", "d", "here")] = VolumeAttachment(status=full)
    async with bed.life() as manager, TaskSet("test") as tasks:
        tasks.spawn(manager.wait_mounted(pod_with(bed.volume())), name="wait")
        await bed.node.clock.sleep(1)
        (problem,) = problem_texts(manager)
        assert problem.startswith("volume data: kubernetes.io/csi/d^h-data is not attached to this node")
        await bed.node.clock.sleep(30)
        (problem,) = problem_texts(manager)
        assert "is not attached to this node: no slot is left" in problem
        await bed.node.clock.sleep(60)
        assert bed.driver.calls.count("info") == 2, "its limits are asked for again at once, and once"


async def test_a_pod_whose_volume_finds_the_node_full_cannot_run_here(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path, more_objects={"attachments": NeverAttached()})
    bed.objects.drivers = {"d": CSIDriverSpec(node_allocatable_update_period_seconds=3600)}
    full = VolumeAttachmentStatus(attached=False, attach_error=VolumeError(message="no slot is left", error_code=8))
    bed.objects.attachments[attachment_name("h-data", "d", "here")] = VolumeAttachment(status=full)
    pod = pod_with(bed.volume(), empty_dir())
    async with bed.life() as manager:
        began = bed.node.clock.monotonic()
        with pytest.raises(NodeIsFull) as caught:
            await manager.wait_mounted(pod)
        assert bed.node.clock.monotonic() - began == pytest.approx(123, abs=1), "as long as for any volume"
        assert str(caught.value) == (
            "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], unattached "
            "volumes=[data], failed to process volumes=[]: context deadline exceeded"
        )
        before = bed.driver.calls.count("info")
        bed.driver.plans = [("info", "UNAVAILABLE", False)]
        with pytest.raises(NodeIsFull):
            await manager.wait_mounted(pod)
        assert bed.driver.calls.count("info") > before, "the limits are renewed each time"


async def test_without_the_controller_the_agent_waits_for_nobody_to_attach(tmp_path: Path) -> None:
    """enableControllerAttachDetach: false. As upstream, disks that nodes find themselves work, CSI volumes do not."""
    bed = CsiVolumeNode(tmp_path, more_objects={"attachments": NeverAttached()})
    bed.objects.drivers = {"d": CSIDriverSpec()}
    bed.node.rules = VolumeRules(controller_attaches=False, wait_seconds=5.0)
    disk = Volume(name="disk", fc=FCVolumeSource(wwids=["-odd"]))
    async with bed.life() as manager:
        with pytest.raises(VolumesNotReady, match="attaching volumes from the kubelet is not supported"):
            await manager.wait_mounted(pod_with(bed.volume()))
        with pytest.raises(VolumesNotReady, match=r"fc\.wwids '-odd' cannot be used"):
            await manager.wait_mounted(pod_with(disk, name="other"))
    assert bed.driver.order() == []


@pytest.mark.parametrize(
    ("error", "driver"),
    [
        (VolumeError(message="no slot", error_code=8), CSIDriverSpec()),
        (VolumeError(message="no disk", error_code=5), CSIDriverSpec(node_allocatable_update_period_seconds=60)),
        (VolumeError(message="no word"), CSIDriverSpec(node_allocatable_update_period_seconds=60)),
    ],
)
async def test_other_errors_of_an_attacher_are_retried(
    tmp_path: Path, error: VolumeError, driver: CSIDriverSpec
) -> None:
    bed = CsiVolumeNode(tmp_path, more_objects={"attachments": NeverAttached()})
    bed.objects.drivers = {"d": driver}
    status = VolumeAttachmentStatus(attached=False, attach_error=error)
    bed.objects.attachments[attachment_name("h-data", "d", "here")] = VolumeAttachment(status=status)
    async with bed.life() as manager:
        with pytest.raises(VolumesNotReady) as caught:
            await manager.wait_mounted(pod_with(bed.volume()))
        assert not isinstance(caught.value, NodeIsFull) and error.message is not None
        assert error.message in str(caught.value)


async def test_limits_are_asked_for_again_as_often_as_the_driver_wants(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers["d"] = CSIDriverSpec(node_allocatable_update_period_seconds=60)
    async with bed.life():
        keeper = LimitsKeeper(drivers=bed.drivers, objects=bed.objects, clock=bed.node.clock)
        async with running(keeper):
            await bed.node.clock.sleep(150)
            assert bed.driver.calls.count("info") == 3, "once to register, and twice since"
            bed.driver.plans = [("info", "UNAVAILABLE", False)]
            await bed.node.clock.sleep(120)
            assert bed.driver.calls.count("info") == 5
            bed.driver.hangs = {"info"}
            await bed.node.clock.sleep(600)
            assert bed.driver.calls.count("info") == 6, "never two questions at once"
            bed.objects.drivers["d"] = CSIDriverSpec()


async def test_a_disk_that_a_killed_agent_had_published_for_nobody_is_given_back(tmp_path: Path) -> None:
    """Killed between the driver's answer and the pod's link, or while the driver was asked to take it back."""
    bed = CsiVolumeNode(tmp_path)
    paths = bed.paths
    home, staging, published = paths.device_home("pv"), paths.device_staging("pv"), paths.device_publish("pv", "uid-a")
    for folder in (home, staging, published.parent):
        folder.mkdir(parents=True)
    write_record(home, VolumeRecord(spec_name="pv", handle="h", driver="d"))
    published.symlink_to("/dev/null")
    bed.driver.staged["h"], bed.driver.published[str(published)] = str(staging), "h"
    async with bed.life():
        link = paths.device_link("uid-a", "pv")
        link.parent.mkdir(parents=True)
        link.symlink_to(paths.device_map("pv", "uid-a"))
        await bed.plugin.sweep()
        assert bed.driver.order() == [], "the pod has it"
        link.unlink()
        await bed.plugin.sweep()
    assert bed.driver.order() == ["unpublish h", "unstage h"]
    assert bed.is_clean()


async def test_a_driver_that_left_while_it_was_asked_is_not_listed_again(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    updates: list[str] = []

    class Listed:
        async def add_driver(self, name: str, info: CsiNodeInfo) -> None:
            updates.append(f"add {name}")

        async def remove_driver(self, name: str) -> None:
            updates.append(f"remove {name}")

    async with bed.life(), TaskSet("test") as tasks:
        bed.drivers._node = Listed()
        answer = asyncio.Event()

        class Slow(FakeCsiDriver):
            async def info(self) -> CsiNodeInfo:
                await answer.wait()
                return self.node

        bed.driver = Slow(bed.node.mounts)
        tasks.spawn(bed.drivers.refresh("d"), name="refresh")
        await bed.node.clock.sleep(1)
        await bed.drivers.deregister("d", Path("/csi.sock"))
        answer.set()
        await bed.node.clock.sleep(1)
    assert updates == ["remove d"]
