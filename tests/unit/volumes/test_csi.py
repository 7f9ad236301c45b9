"""Volumes of storage drivers on a strict fake driver: the order of calls, and what is left after any trouble."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path

import pytest

from pykubelet.api.types import (
    CSIDriverSpec,
    LocalObjectReference,
    Pod,
    SecretReference,
    StorageTokenRequest,
    VolumeDevice,
)
from pykubelet.kit.tasks import TaskSet
from pykubelet.settings.gates import Gates
from pykubelet.settings.settings import Settings
from pykubelet.signals import CsiDriverRegistered
from pykubelet.volumes import usage
from pykubelet.volumes.csi.records import attachment_name, inline_handle, read_record
from tests.builders import a_container
from tests.unit.volumes.builders import (
    INLINE,
    NO_ATTACH,
    CsiVolumeNode,
    a_secret,
    inline,
    pod_with,
    problem_texts,
)


async def test_a_volume_is_staged_published_and_given_back(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        target = tmp_path / "pods/uid-web/volumes/kubernetes.io~csi/pv-data/mount"
        assert manager.path_of(pod, "data") == str(target)
        record = json.loads((target.parent / "vol_data.json").read_text())
        assert record == {
            "specVolID": "pv-data",
            "volumeHandle": "h-data",
            "driverName": "d",
            "nodeName": "here",
            "attachmentID": attachment_name("h-data", "d", "here"),
            "volumeLifecycleMode": "Persistent",
        }
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(1)
    assert bed.driver.order() == ["stage h-data", "publish h-data", "unpublish h-data", "unstage h-data"]
    assert bed.is_clean()


async def test_calls_are_timed_by_what_the_driver_answered(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.driver.plans = [("stage", "DEADLINE_EXCEEDED", False)]
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(bed.volume()))
    times = bed.metrics.histogram("csi_operations_seconds", "")
    for call, code in (
        ("NodeGetInfo", "OK"),
        ("NodeStageVolume", "DeadlineExceeded"),
        ("NodeStageVolume", "OK"),
        ("NodePublishVolume", "OK"),
    ):
        assert times.count("d", f"/csi.v1.Node/{call}", code, "false") == 1, (call, code)


async def test_two_pods_share_what_is_staged(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = bed.volume()
    one, two = pod_with(volume, name="one"), pod_with(volume, name="two")
    async with bed.life() as manager:
        await manager.wait_mounted(one)
        await manager.wait_mounted(two)
        await manager.wait_unmounted(one)
        assert bed.driver.order() == ["stage h-data", "publish h-data", "publish h-data", "unpublish h-data"]
        await manager.wait_unmounted(two)
        await bed.node.clock.sleep(1)
    assert bed.driver.order()[-2:] == ["unpublish h-data", "unstage h-data"]
    assert bed.is_clean()


async def test_a_volume_that_may_have_been_unstaged_is_staged_again(tmp_path: Path) -> None:
    """Else the next pod would write into an empty folder of the node."""
    bed = CsiVolumeNode(tmp_path)
    volume = bed.volume()
    one, two = pod_with(volume, name="one"), pod_with(volume, name="two")
    async with bed.life() as manager:
        await manager.wait_mounted(one)
        bed.driver.plans = [("unstage", "DEADLINE_EXCEEDED", True)]
        await manager.wait_unmounted(one)
        while bed.driver.plans:
            await bed.node.clock.sleep(0.01)
        await manager.wait_mounted(two)
        assert bed.driver.staged and bed.driver.order()[-2:] == ["stage h-data", "publish h-data"]


async def test_a_driver_that_stages_nothing(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.driver.can = frozenset()
    pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(1)
    assert bed.driver.order() == ["publish h-data", "unpublish h-data"]
    assert bed.is_clean()


async def test_an_inline_volume(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers["d"] = CSIDriverSpec(
        volume_lifecycle_modes=["Ephemeral"],
        pod_info_on_mount=True,
        token_requests=[StorageTokenRequest(audience="vault", expiration_seconds=600)],
    )
    bed.objects.secrets["default", "key"] = a_secret("key", user="me")
    pod = pod_with(inline(volume_attributes={"a": "b"}, node_publish_secret_ref=LocalObjectReference(name="key")))
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(1)
    handle = inline_handle("uid-web", "tmp")
    assert bed.driver.order() == [f"publish {handle}", f"unpublish {handle}"]
    (volume,) = bed.driver.volumes
    assert volume.secrets == {"user": "me"}
    assert json.loads(volume.volume_context["csi.storage.k8s.io/serviceAccount.tokens"]) == {
        "vault": {"token": "token-vault-600", "expirationTimestamp": "2030-01-01T00:00:00Z"}
    }
    assert {key.rpartition("/")[2]: value for key, value in volume.volume_context.items() if "tokens" not in key} == {
        "a": "b",
        "pod.name": "web",
        "pod.namespace": "default",
        "pod.uid": "uid-web",
        "serviceAccount.name": pod.spec.service_account_name or "",
        "ephemeral": "true",
    }
    assert bed.is_clean()


@pytest.mark.parametrize(
    "driver, text",
    [
        (None, 'volume mode "Ephemeral" not supported by driver d (no CSIDriver object)'),
        (NO_ATTACH, 'volume mode "Ephemeral" not supported by driver d (only supports ["Persistent"])'),
    ],
)
async def test_inline_volumes_need_a_driver_that_does_them(
    tmp_path: Path, driver: CSIDriverSpec | None, text: str
) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers = {"d": driver} if driver is not None else {}
    async with bed.life() as manager, TaskSet("test") as tasks:
        tasks.spawn(manager.wait_mounted(pod_with(inline())), name="wait")
        await bed.node.clock.sleep(1)
        assert text in bed.node.events.pods[0][1]


async def test_a_driver_of_inline_volumes_alone_is_asked_for_no_other(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers["d"] = INLINE
    async with bed.life() as manager, TaskSet("test") as tasks:
        tasks.spawn(manager.wait_mounted(pod_with(bed.volume())), name="wait")
        await bed.node.clock.sleep(1)
        text = 'volume mode "Persistent" not supported by driver d (only supports ["Ephemeral"])'
        assert text in bed.node.events.pods[0][1]
    assert bed.driver.order() == []


async def test_secrets_of_each_call(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.secrets = {("ns", "s"): a_secret("s", stage="1"), ("ns", "p"): a_secret("p", publish="2")}
    volume = bed.volume(
        source={
            "node_stage_secret_ref": SecretReference(namespace="ns", name="s"),
            "node_publish_secret_ref": SecretReference(namespace="ns", name="p"),
        }
    )
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(volume))
    assert [dict(volume.secrets) for volume in bed.driver.volumes] == [{"stage": "1"}, {"publish": "2"}]


async def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    volume = bed.volume(source={"node_stage_secret_ref": SecretReference(namespace="ns", name="s")})
    async with bed.life() as manager, TaskSet("test") as tasks:
        tasks.spawn(manager.wait_mounted(pod_with(volume)), name="wait")
        await bed.node.clock.sleep(1)
        assert "secret ns/s not found" in bed.node.events.pods[0][1]


async def test_a_driver_that_is_not_there_yet(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path, registered=False)
    pod = pod_with(bed.volume())
    async with bed.life() as manager, TaskSet("test") as tasks:
        waiting = tasks.spawn(manager.wait_mounted(pod), name="wait")
        await bed.node.clock.sleep(100)
        assert problem_texts(manager)[0].startswith(
            "volume data: driver name d not found in the list of registered CSI drivers"
        )
        bed.signals.subscribe(CsiDriverRegistered, lambda signal: manager.driver_registered(signal.name))
        before = bed.node.clock.monotonic()
        await bed.drivers.register("d", Path("/csi.sock"), ("1.0.0",))
        await waiting
        assert bed.node.clock.monotonic() == before


@pytest.mark.parametrize("call", ["stage", "publish"])
@pytest.mark.parametrize("takes_effect", [False, True])
async def test_an_uncertain_failure_is_tried_again_and_given_back_in_full(
    tmp_path: Path, call: str, takes_effect: bool
) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.driver.plans = [(call, "DEADLINE_EXCEEDED", takes_effect)] * 2
    pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(1)
    assert bed.driver.order().count(f"{call} h-data") == (3 if not takes_effect or call == "stage" else 1)
    assert bed.is_clean()


@pytest.mark.parametrize("call", ["stage", "publish"])
async def test_after_a_final_refusal_nothing_is_left(tmp_path: Path, call: str) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.driver.plans = [(call, "INVALID_ARGUMENT", False)]
    pod = pod_with(bed.volume())
    async with bed.life() as manager, TaskSet("test") as tasks:
        waiting = tasks.spawn(manager.wait_mounted(pod), name="wait")
        await bed.node.clock.sleep(0.1)
        assert read_record(bed.paths.home("uid-web", "pv-data")) is None
        assert (read_record(bed.paths.staging_home("d", "h-data")) is None) == (call == "stage")
        waiting.cancel()
        bed.driver.plans = [(call, "INVALID_ARGUMENT", False)] * 100
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(1)
        bed.driver.plans = []
        await bed.plugin.sweep()
    assert bed.is_clean()


async def test_a_driver_that_fails_to_take_back_is_asked_until_it_does(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        bed.driver.plans = [("unpublish", "INTERNAL", False), ("unstage", "INTERNAL", False)]
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(5)
    assert bed.driver.order()[2:] == ["unpublish h-data", "unpublish h-data", "unstage h-data", "unstage h-data"]
    assert bed.is_clean()


@pytest.mark.parametrize("call", ["unpublish", "unstage"])
async def test_a_mount_that_outlasts_its_driver_s_answer_is_reported(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bed = CsiVolumeNode(tmp_path)
    pod = pod_with(bed.volume())

    async def nothing(volume_id: str, place: Path) -> None:
        """Answers without having unmounted."""

    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        with monkeypatch.context() as patched:
            patched.setattr(bed.driver, call, nothing)
            manager.keep_only([])
            await bed.node.clock.sleep(0.2)
        errors = [record.error for record in caplog.records if hasattr(record, "error")]
        assert errors and errors[0].endswith(" is still mounted although its driver said that it is not")
        await bed.node.clock.sleep(5)
    assert bed.is_clean()


async def test_the_next_life_neither_publishes_again_nor_forgets(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    assert bed.driver.order().count("publish h-data") == 1
    async with bed.life() as manager:  # and one that never hears of the pod again
        await bed.node.clock.sleep(0.1)
        manager.keep_only([])
        await bed.node.clock.sleep(1)
    assert bed.driver.order()[-2:] == ["unpublish h-data", "unstage h-data"]
    assert bed.is_clean()


async def test_what_a_killed_agent_left_staged_is_swept(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
    bed.driver.hangs = {"unstage"}
    async with bed.life() as manager:
        await bed.node.clock.sleep(0.1)
        manager.keep_only([])
        await bed.node.clock.sleep(1)  # published no more, and killed while the driver thinks about unstaging
    bed.driver.hangs = set()
    async with bed.life():
        await bed.plugin.sweep()
    assert bed.driver.staged == {}
    assert bed.is_clean()


async def test_sweeping_leaves_alone_what_pods_have(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    async with bed.life() as manager:
        await manager.wait_mounted(pod_with(bed.volume()))
        await bed.plugin.sweep()
    assert bed.driver.order() == ["stage h-data", "publish h-data"]


async def test_a_hanging_driver_delays_no_other_volume(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    first, second = pod_with(bed.volume("slow"), name="one"), pod_with(bed.volume("quick"), name="two")
    async with bed.life() as manager, TaskSet("test") as tasks:
        bed.driver.hangs = {"stage"}
        tasks.spawn(manager.wait_mounted(first), name="slow")
        await bed.node.clock.sleep(0.1)
        bed.driver.hangs = set()
        await manager.wait_mounted(second)
        assert bed.node.clock.monotonic() < 1
        await bed.node.clock.sleep(5)
        assert problem_texts(manager, "uid-one") == [
            "volume slow: driver d has not answered NodeStageVolume, trying for 5 s"
        ]


async def test_the_drivers_own_figures(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    pod: Pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        (found,) = await manager.usage(pod)
    assert (found.name, found.used_bytes, found.capacity_bytes, found.claim) == ("data", 1, 10, ("default", "data"))


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("able", [True, False])
async def test_what_the_driver_says_about_the_condition_of_a_volume(tmp_path: Path, on: bool, able: bool) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.node.settings = Settings(gates=Gates({"CSIVolumeHealth": on}))
    bed.driver.can = bed.driver.can | {"VOLUME_CONDITION"} if able else bed.driver.can
    bed.driver.condition = "it rattles"
    pod: Pod = pod_with(bed.volume())
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        (found,) = await manager.usage(pod)
    assert (found.abnormal, found.condition) == ((True, "it rattles") if on and able else (None, ""))


def block_device() -> str:
    """Any of this machine; it is only looked at."""
    for name in sorted(os.listdir("/dev")):
        with contextlib.suppress(OSError):
            if stat.S_ISBLK(os.stat(f"/dev/{name}").st_mode):
                return f"/dev/{name}"
    pytest.skip("this machine shows no block device")


@pytest.mark.parametrize("reported", [True, False])
async def test_a_block_volume_has_stats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: bool) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.driver.device = block_device()
    bed.driver.can = bed.driver.can if reported else bed.driver.can - {"GET_VOLUME_STATS"}
    monkeypatch.setattr(usage, "device_bytes", lambda path: 5 if Path(path).is_block_device() else None)
    volume = bed.volume(volume_mode="Block")
    devices = [VolumeDevice(name="data", device_path="/dev/x")]
    pod = pod_with(volume, containers=[a_container(volume_devices=devices)])
    async with bed.life() as manager:
        await manager.wait_mounted(pod)
        shown = bed.paths.device_link("uid-web", "pv-data")
        shown.unlink()
        shown.symlink_to(bed.driver.device)  # in place of the bind mount, which is a fake's
        (found,) = await manager.usage(pod)
        assert (found.name, found.claim) == ("data", ("default", "data"))
        assert (found.capacity_bytes, found.used_bytes) == ((10, 1) if reported else (5, 0))
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(0.1)
    assert bed.driver.order()[-2:] == ["unpublish h-data", "unstage h-data"]
    assert bed.is_clean()


async def test_attached_volumes_are_told_to_the_node(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers = {}
    pod = pod_with(bed.volume())
    async with bed.life() as manager, TaskSet("test") as tasks:
        tasks.spawn(manager.wait_mounted(pod), name="wait")
        await bed.node.clock.sleep(1)
        assert manager.volumes_in_use() == ["kubernetes.io/csi/d^h-data"]
        name = attachment_name("h-data", "d", "here")
        assert f"volume h-data has no VolumeAttachment {name} for this node" in bed.node.events.pods[0][1]
