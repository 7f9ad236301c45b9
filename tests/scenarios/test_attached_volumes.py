"""Volumes that the control plane attaches, on a whole agent: each is named as long as anything of it is mounted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from pykubelet.api.types import (
    AttachedVolume,
    AWSElasticBlockStoreVolumeSource,
    CSIDriver,
    CSIDriverSpec,
    ObjectMeta,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    Volume,
    VolumeAttachment,
    VolumeAttachmentStatus,
    VolumeError,
    VolumeMount,
)
from pykubelet.kit.tasks import TaskSet
from pykubelet.volumes.csi.records import attachment_name
from tests.builders import a_container
from tests.fakes.fake_csi import FakeCsiDriver
from tests.scenarios.cluster_node import ClusterHarness
from tests.scenarios.plugin_node import PluginNode

EBS = "ebs.csi.aws.com"
UNIQUE = f"kubernetes.io/csi/{EBS}^vol-1"


class Attached:
    """A pod with a disk of a kind that a driver took over; the control plane attached it by that driver."""

    def __init__(self, folder: Path) -> None:
        self.node = ClusterHarness(folder)
        plugins = PluginNode(self.node)
        self.driver = FakeCsiDriver(self.node.mounts)
        self.node.plugins = msgspec.structs.replace(plugins.node.plugins, csi=self.driver.connect)
        self.add_objects()

    def add_objects(self) -> None:
        api = self.node.api
        api.add(
            PersistentVolume(
                metadata=ObjectMeta(name="pv"),
                spec=PersistentVolumeSpec(
                    aws_elastic_block_store=AWSElasticBlockStoreVolumeSource(volume_id="aws://a/vol-1"),
                    access_modes=["ReadWriteOnce"],
                    claim_ref=ObjectReference(namespace="default", name="data", uid="uid-data"),
                ),
            )
        )
        api.add(
            PersistentVolumeClaim(
                metadata=ObjectMeta(name="data", namespace="default", uid="uid-data"),
                spec=PersistentVolumeClaimSpec(volume_name="pv"),
                status=PersistentVolumeClaimStatus(phase="Bound"),
            )
        )
        api.add(
            VolumeAttachment(
                metadata=ObjectMeta(name=attachment_name("vol-1", EBS, "node1")),
                status=VolumeAttachmentStatus(attached=True),
            )
        )

    async def start(self) -> None:
        await self.node.start()
        await self.node.until(self.node.is_ready)
        drivers = self.node.node.volumes.csi_drivers
        assert drivers is not None
        await drivers.register(EBS, Path("/ebs.sock"), ("1.0.0",))

    def attach(self) -> None:
        node = self.node.api_node()
        status = msgspec.structs.replace(node.status, volumes_attached=[AttachedVolume(name=UNIQUE)])
        self.node.api.change(msgspec.structs.replace(node, status=status))

    def bind(self) -> Pod:
        claim = PersistentVolumeClaimVolumeSource(claim_name="data")
        return self.node.bind(
            volumes=[Volume(name="disk", persistent_volume_claim=claim)],
            containers=[a_container(volume_mounts=[VolumeMount(name="disk", mount_path="/disk")])],
        )

    def in_use(self) -> list[str]:
        return self.node.api_node().status.volumes_in_use


async def test_a_disk_is_in_use_from_before_it_is_attached_until_it_is_unstaged(tmp_path: Path) -> None:
    made = Attached(tmp_path)
    await made.start()
    try:
        made.bind()
        await made.node.until(lambda: made.in_use() == [UNIQUE])
        assert made.driver.order() == []
        made.attach()
        await made.node.until(lambda: made.node.phase() == "Running")
        # The agent stops, and while it is away the pod goes from the API server.
        await made.node.kill()
        made.node.api.remove(Pod, "web", "default")
        made.driver.hangs = {"unstage"}
        async with TaskSet("test") as tasks:
            starting = tasks.spawn(made.start(), name="start")
            for _ in range(600):
                assert made.in_use() == [UNIQUE], "never cleared while it is mounted"
                await asyncio.sleep(0.1)
            await starting
        await made.node.until(lambda: "unstage vol-1" in made.driver.order())
        assert made.in_use() == [UNIQUE]
        await made.node.kill()
        made.driver.hangs = set()
        await made.start()
        assert made.in_use() == [UNIQUE]
        await made.node.until(lambda: made.in_use() == [])
        assert made.driver.staged == {}
    finally:
        await made.node.kill()


async def test_a_pod_whose_disk_finds_the_node_full_is_rejected(tmp_path: Path) -> None:
    """A controller then makes it anew, and the scheduler knows the node's true limit by now."""
    made = Attached(tmp_path)
    api, name = made.node.api, attachment_name("vol-1", EBS, "node1")
    api.add(CSIDriver(metadata=ObjectMeta(name=EBS), spec=CSIDriverSpec(node_allocatable_update_period_seconds=600)))
    full = VolumeAttachmentStatus(attached=False, attach_error=VolumeError(message="no slot is left", error_code=8))
    attachment = api.find(VolumeAttachment, name)
    assert attachment is not None
    api.change(msgspec.structs.replace(attachment, status=full))
    await made.start()
    try:
        asked = made.driver.calls.count("info")
        made.bind()
        await made.node.until(lambda: made.node.phase() == "Failed", within=200)
        shown = made.node.shown()
        assert shown is not None
        status = shown.status
        assert status.reason == "VolumeAttachmentLimitExceeded"
        assert status.message is not None and status.message.startswith(
            "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[disk]"
        )
        assert made.driver.calls.count("info") > asked and made.driver.order() == []
        await made.node.until(lambda: made.in_use() == [])
        figures = made.node.node.ctx.metrics.expose()
        assert 'kubelet_admission_rejections_total{reason="VolumeAttachmentLimitExceeded"} 1' in figures
        assert "VolumeAttachmentLimitExceeded" in made.node.event_reasons()
    finally:
        await made.node.kill()
