"""The manager on a temporary root: mounting, waiting with reasons, waking, unmounting, restarts, orphans."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pykubelet.api.types import Pod, Volume, VolumeMount
from pykubelet.kit.tasks import TaskSet
from pykubelet.signals import VolumesMounted, VolumesUnmounted
from pykubelet.volumes.errors import VolumesNotReady
from pykubelet.volumes.manager import VolumeManager
from tests.builders import a_container, a_pod
from tests.unit.volumes.builders import (
    VolumeNode,
    a_config,
    a_secret,
    a_volume,
    config_volume,
    empty_dir,
    host_path,
    pod_with,
    problem_texts,
    secret_volume,
)


@pytest.fixture
def node(tmp_path: Path) -> VolumeNode:
    return VolumeNode(tmp_path)


def where(manager: VolumeManager, pod: Pod, name: str) -> Path:
    path = manager.path_of(pod, name)
    assert path is not None
    return Path(path)


async def test_local_kinds_are_mounted_at_once_without_a_task(node: VolumeNode) -> None:
    pod = pod_with(empty_dir(), host_path("/srv/data"))
    async with node.running() as manager:
        await manager.wait_unmounted(pod)  # gets past the start
        waiting = manager.wait_mounted(pod)
        with pytest.raises(StopIteration):
            waiting.send(None)  # finished without giving way to the loop once
        scratch = where(manager, pod, "scratch")
        assert scratch == node.root / "pods/uid-web/volumes/kubernetes.io~empty-dir/scratch"
        assert scratch.stat().st_mode & 0o7777 == 0o777
        assert (node.root / "pods/uid-web/plugins/kubernetes.io~empty-dir/scratch/ready").exists()
        assert where(manager, pod, "host") == Path("/srv/data")
        assert manager.has_mounts("uid-web")


async def test_only_volumes_in_use_are_mounted(node: VolumeNode) -> None:
    pod = a_pod(volumes=[empty_dir("idle"), config_volume("missing")], containers=[a_container()])
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        assert not manager.has_mounts("uid-web")


async def test_wait_ends_with_a_reason_a_person_can_read(node: VolumeNode) -> None:
    pod = pod_with(config_volume())
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady) as caught:
            await manager.wait_mounted(pod)
        assert node.clock.monotonic() == pytest.approx(123.0)
        assert str(caught.value) == (
            "cannot mount volumes: volume cfg: configmap default/web not found, 8th try, next in 4 s"
        )
        assert node.events.pods[0] == (
            "FailedMount",
            'MountVolume.SetUp failed for volume "cfg" : configmap default/web not found',
        )
        assert problem_texts(manager) == ["volume cfg: configmap default/web not found, 8th try, next in 4 s"]


async def test_a_defect_in_reporting_a_failure_is_logged_and_the_volume_retried(
    node: VolumeNode, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise LookupError("defect")

    node.events.on_event = broken
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady):
            await manager.wait_mounted(pod_with(config_volume()))
        assert len(node.objects.reads) > 2
    defects = [record for record in caplog.records if record.message == "volume not reconciled, unexpected"]
    assert defects and defects[0].exc_info is not None and defects[0].exc_info[0] is LookupError


async def test_back_off_doubles_to_two_minutes_and_two_seconds(node: VolumeNode) -> None:
    pod = pod_with(config_volume())
    async with node.running() as manager:
        for _ in range(5):
            with pytest.raises(VolumesNotReady):
                await manager.wait_mounted(pod)
        # 0.5 + 1 + ... + 64 = 127.5, then every 122 s; what failed waits on while its pod is between two waits
        assert len(node.objects.reads) == 8 + 1 + 1 + 1 + 1


async def test_the_missing_object_wakes_the_pod(node: VolumeNode) -> None:
    pod = pod_with(config_volume())
    async with node.running() as manager, TaskSet("test") as tasks:
        waiting = tasks.spawn(manager.wait_mounted(pod), name="wait")
        await node.clock.sleep(40)
        assert not waiting.done()
        node.objects.config_maps["default", "web"] = a_config(colour="blue")
        manager.object_changed("ConfigMap", "default", "web")
        await waiting
        assert node.clock.monotonic() == pytest.approx(40)
        assert (where(manager, pod, "cfg") / "colour").read_text() == "blue"


async def test_a_pod_nobody_waits_for_is_reported_when_ready(node: VolumeNode) -> None:
    pod = pod_with(config_volume())
    async with node.running() as manager:
        ready: list[str] = []
        node.signals.subscribe(VolumesMounted, lambda signal: ready.append(signal.uid))
        with pytest.raises(VolumesNotReady):
            await manager.wait_mounted(pod)
        node.objects.config_maps["default", "web"] = a_config()
        manager.object_changed("ConfigMap", "default", "web")
        await node.clock.sleep(0.1)
        assert ready == ["uid-web"]


async def test_one_bad_volume_delays_neither_its_siblings_nor_other_pods(node: VolumeNode) -> None:
    bad = pod_with(config_volume(), empty_dir(), secret_volume("tls", "tls"), name="bad")
    good = pod_with(secret_volume("tls", "tls"), name="good")
    node.objects.secrets["default", "tls"] = a_secret("tls", key="k")
    async with node.running() as manager, TaskSet("test") as tasks:
        tasks.spawn(manager.wait_mounted(bad), name="bad")
        await manager.wait_mounted(good)
        assert node.clock.monotonic() == 0
        assert (where(manager, bad, "tls") / "key").read_text() == "k"
        assert manager.path_of(bad, "cfg") is None


async def test_unknown_kinds_are_named(node: VolumeNode) -> None:
    from pykubelet.api.types import FlockerVolumeSource

    pod = pod_with(a_volume("old", flocker=FlockerVolumeSource(dataset_name="x")))
    async with node.running() as manager:
        with pytest.raises(
            VolumesNotReady, match="volume old: volumes of kind flocker are not supported by this agent"
        ):
            await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)


async def test_unmounting_removes_everything(node: VolumeNode) -> None:
    node.objects.secrets["default", "web"] = a_secret(key="k")
    node.objects.config_maps["default", "web"] = a_config(a="1")
    pod = pod_with(empty_dir(), empty_dir("mem", medium="Memory"), secret_volume(), config_volume())
    async with node.running() as manager:
        released: list[str] = []
        node.signals.subscribe(VolumesUnmounted, lambda signal: released.append(signal.uid))
        await manager.wait_mounted(pod)
        (where(manager, pod, "scratch") / "file").write_text("x")
        assert len(node.mounts.points()) == 2
        await manager.wait_unmounted(pod)
        assert node.mounts.points() == []
        assert not manager.has_mounts("uid-web")
        assert released == ["uid-web"]
        assert _leaves(node.root / "pods/uid-web/volumes") == []
        assert set(node.objects.forgotten) == {"uid-web"}
        assert manager.snapshot() == []


def _leaves(top: Path) -> list[str]:
    return [str(path) for path in top.rglob("*") if path.is_file() or path.parent.parent == top]


async def test_unmounting_retries_and_says_why(node: VolumeNode) -> None:
    pod = pod_with(empty_dir("mem", medium="Memory"))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        node.mounts.fail("unmount", "mem", "cannot unmount: Device or resource busy", times=3)
        await manager.wait_unmounted(pod)
        assert node.clock.monotonic() == pytest.approx(3.5)
        await manager.wait_mounted(pod)
        node.mounts.fail("unmount", "mem", "cannot unmount: Device or resource busy", times=99)
        with pytest.raises(VolumesNotReady, match=r"cannot unmount volumes: volume mem: .*busy, 8th try, next in 4 s"):
            await manager.wait_unmounted(pod)
        assert manager.has_mounts("uid-web")


async def test_a_volume_that_is_desired_again_does_not_wait_for_the_next_try_to_unmount_it(node: VolumeNode) -> None:
    pod = pod_with(empty_dir("mem", medium="Memory"))
    mounted: list[str] = []
    node.signals.subscribe(VolumesMounted, lambda signal: mounted.append(signal.uid))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        mounted.clear()
        node.mounts.fail("unmount", "mem", "cannot unmount: Device or resource busy", times=99)
        manager.keep_only([])
        await node.clock.sleep(70)  # the next try is a minute away
        await manager.wait_mounted(pod)
        await node.clock.sleep(0.1)
        assert mounted == ["uid-web"]


async def test_deleting_a_pod_that_waits_for_an_object(node: VolumeNode) -> None:
    pod = pod_with(config_volume(), empty_dir())
    async with node.running() as manager, TaskSet("test") as tasks:
        waiting = tasks.spawn(manager.wait_mounted(pod), name="wait")
        await node.clock.sleep(10)
        waiting.cancel()
        await manager.wait_unmounted(pod)
        assert node.clock.monotonic() == pytest.approx(10)
        assert manager.snapshot() == []


async def test_deleting_a_pod_while_the_api_server_hangs(node: VolumeNode) -> None:
    pod = pod_with(config_volume())

    async def never(namespace: str, name: str) -> None:
        await asyncio.Event().wait()

    node.objects.config_map = never  # type: ignore[assignment]
    async with node.running() as manager, TaskSet("test") as tasks:
        waiting = tasks.spawn(manager.wait_mounted(pod), name="wait")
        await node.clock.sleep(3)
        waiting.cancel()
        await manager.wait_unmounted(pod)
        assert node.clock.monotonic() == pytest.approx(3)


async def test_content_follows_its_object(node: VolumeNode) -> None:
    node.objects.config_maps["default", "web"] = a_config(a="1", b="2")
    pod = pod_with(config_volume())
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        folder = where(manager, pod, "cfg")
        node.objects.config_maps["default", "web"] = a_config(a="one")
        manager.object_changed("configmap", "default", "web")
        await node.clock.sleep(0.01)
        assert (folder / "a").read_text() == "one"
        assert sorted(os.listdir(folder)) == sorted(["..data", os.readlink(folder / "..data"), "a"])


async def test_content_is_renewed_by_syncs_now_and_then(node: VolumeNode) -> None:
    node.objects.config_maps["default", "web"] = a_config(a="1")
    pod = pod_with(config_volume())
    async with node.running() as manager:
        for _ in range(5):
            await manager.wait_mounted(pod)
            await node.clock.sleep(20)
        assert len(node.objects.reads) == 2


async def test_a_lost_object_keeps_the_old_content(node: VolumeNode) -> None:
    node.objects.config_maps["default", "web"] = a_config(a="1")
    pod = pod_with(config_volume())
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        del node.objects.config_maps["default", "web"]
        manager.object_changed("configmap", "default", "web")
        await node.clock.sleep(1)
        await manager.wait_mounted(pod)
        assert (where(manager, pod, "cfg") / "a").read_text() == "1"
        assert "not found" in problem_texts(manager)[0]


async def test_a_restart_keeps_what_is_wanted_and_drops_the_rest(node: VolumeNode) -> None:
    node.objects.secrets["default", "web"] = a_secret(key="k")
    stays, goes = (
        pod_with(secret_volume(), empty_dir(), name="stays"),
        pod_with(empty_dir(), secret_volume(), name="goes"),
    )
    async with node.running() as manager:
        await manager.wait_mounted(stays)
        await manager.wait_mounted(goes)
        (where(manager, stays, "scratch") / "precious").write_text("data")
    later = node.again()
    async with later.running() as manager:
        await later.clock.sleep(200)
        assert manager.has_mounts("uid-stays") and manager.has_mounts("uid-goes")
        await manager.wait_mounted(stays)
        manager.keep_only(["uid-stays"])
        await later.clock.sleep(1)
        assert not manager.has_mounts("uid-goes")
        assert (where(manager, stays, "scratch") / "precious").read_text() == "data"
        assert [point.split("/")[-1] for point in later.mounts.points()] == ["sec"]
        assert len(later.mounts.points()) == 1


async def test_a_volume_of_an_unknown_plugin_is_unmounted_and_kept_if_not_empty(node: VolumeNode) -> None:
    strange = node.root / "pods/uid-x/volumes/example.com~thing/data"
    strange.mkdir(parents=True)
    empty = node.root / "pods/uid-x/volumes/example.com~thing/empty"
    empty.mkdir()
    (strange / "file").write_text("not ours")
    async with node.running() as manager:
        manager_ready = pod_with(name="other")
        await manager.wait_unmounted(manager_ready)
        manager.keep_only([])
        await node.clock.sleep(5)
        assert (strange / "file").exists() and not empty.exists()
        assert manager.has_mounts("uid-x")
        counted = dict(
            line.split() for line in node.metrics.expose().splitlines() if line[0] != "#" and "{" not in line
        )
    assert (
        counted["reconstruct_volume_operations_total"] == counted["reconstruct_volume_operations_errors_total"] == "2"
    )
    failed = int(counted["force_cleaned_failed_volume_operation_errors_total"])
    assert failed > 0 and int(counted["force_cleaned_failed_volume_operations_total"]) == failed + 1


async def test_metrics(node: VolumeNode) -> None:
    pod = pod_with(empty_dir(), config_volume())
    async with node.running() as manager, TaskSet("test") as tasks:
        tasks.spawn(manager.wait_mounted(pod), name="wait")
        await node.clock.sleep(1)
        text = node.metrics.expose()
    assert 'volume_manager_total_volumes{plugin_name="kubernetes.io/empty-dir",state="actual_state_of_world"} 1' in text
    assert (
        'volume_manager_total_volumes{plugin_name="kubernetes.io/configmap",state="desired_state_of_world"} 1' in text
    )
    labels = (
        'volume_plugin="kubernetes.io/configmap",operation_name="volume_mount",status="fail-unknown",migrated="false"'
    )
    assert f"storage_operation_duration_seconds_count{{{labels}}} 2" in text


async def test_a_new_container_may_use_one_more_volume(node: VolumeNode) -> None:
    volumes: list[Volume] = [empty_dir("a"), empty_dir("b")]
    first = a_pod(volumes=volumes, containers=[a_container(volume_mounts=[VolumeMount(name="a", mount_path="/a")])])
    both = pod_with(*volumes)
    async with node.running() as manager:
        await manager.wait_mounted(first)
        assert manager.path_of(first, "b") is None
        await manager.wait_mounted(both)
        assert manager.path_of(both, "b") is not None


@pytest.mark.parametrize("medium", ["", "Memory"])
async def test_what_an_earlier_run_left_is_gone_before_the_volume_comes_again(node: VolumeNode, medium: str) -> None:
    """A static pod that is taken away and put back has the same uid."""
    pod = pod_with(empty_dir("cache", medium=medium))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
    async with node.running() as manager:
        node.mounts.fail("unmount" if medium else "remove", "cache", "busy", times=2)
        await node.clock.sleep(0.1)
        manager.keep_only([])
        await node.clock.sleep(0.1)
        assert problem_texts(manager) != [], "not gone yet"
        await manager.wait_mounted(pod)
        await node.clock.sleep(300)
        (view,) = manager.snapshot()
        assert view.state == "mounted" and Path(manager.path_of(pod, "cache") or "").is_dir()
        assert bool(node.mounts.points()) == bool(medium)
