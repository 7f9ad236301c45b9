"""Secrets that volumes need, on a whole agent: the pod's own are noticed at once, a persistent volume's are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pykubelet.api.types import (
    AttachedVolume,
    CSIDriver,
    CSIDriverSpec,
    CSIVolumeSource,
    ISCSIPersistentVolumeSource,
    ISCSIVolumeSource,
    LocalObjectReference,
    ObjectMeta,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    SecretReference,
    Volume,
    VolumeMount,
)
from pykubelet.volumes.plugins.iscsi import IscsiVolume, Sessions
from pykubelet.volumes.spec import ISCSI
from tests.builders import a_container
from tests.fakes.fake_csi import FakeCsiDriver
from tests.scenarios.cluster_node import ClusterHarness, a_cluster_node
from tests.scenarios.plugin_node import PluginNode
from tests.unit.volumes.builders import a_secret
from tests.unit.volumes.scsi_host import IQN, ScsiHost

DISK: dict[str, Any] = {"target_portal": "10.0.0.1", "iqn": IQN, "lun": 1, "chap_auth_session": True}
CHAP = {"node.session.auth.username": "me", "node.session.auth.password": "hunter2"}
CLAIM = PersistentVolumeClaimVolumeSource(claim_name="data")


def with_disks(node: ClusterHarness, folder: Path) -> ScsiHost:
    """Give the agent a host of folders: its plugin stays, /sys and /dev are others."""
    host = ScsiHost(folder / "host", mounts=node.mounts)
    plugin = node.node.volumes.manager._plugins[ISCSI]
    assert isinstance(plugin, IscsiVolume)
    plugin._sessions = Sessions(mounts=node.mounts, disks=host.disks())
    return host


def attach(node: ClusterHarness, unique_name: str = f"{ISCSI}/10.0.0.1:{IQN}:1") -> None:
    """As the control plane does for every disk."""
    found = node.api_node()
    status = msgspec.structs.replace(found.status, volumes_attached=[AttachedVolume(name=unique_name)])
    node.api.change(msgspec.structs.replace(found, status=status))


def bind(node: ClusterHarness, volume: Volume) -> None:
    mount = VolumeMount(name=volume.name, mount_path="/disk")
    node.bind(volumes=[volume], containers=[a_container(volume_mounts=[mount])])


def add_disk(node: ClusterHarness, secret: SecretReference) -> None:
    spec = PersistentVolumeSpec(
        iscsi=ISCSIPersistentVolumeSource(**DISK, secret_ref=secret),
        access_modes=["ReadWriteOnce"],
        claim_ref=ObjectReference(namespace="default", name="data", uid="uid-data"),
    )
    node.api.add(PersistentVolume(metadata=ObjectMeta(name="pv"), spec=spec))
    node.api.add(
        PersistentVolumeClaim(
            metadata=ObjectMeta(name="data", namespace="default", uid="uid-data"),
            spec=PersistentVolumeClaimSpec(volume_name="pv"),
            status=PersistentVolumeClaimStatus(phase="Bound"),
        )
    )


async def test_a_persistent_iscsi_volume_logs_in_with_the_secret_it_names(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        host = with_disks(node, tmp_path)
        node.api.add(a_secret("chap", "storage", **CHAP))
        add_disk(node, SecretReference(name="chap", namespace="storage"))
        await node.until(node.is_ready)
        attach(node)
        bind(node, Volume(name="disk", persistent_volume_claim=CLAIM))
        await node.until(lambda: node.phase() == "Running", within=20)
        assert host.said("node.session.auth.password", "hunter2") and host.sessions()


async def test_a_late_secret_of_a_persistent_volume_is_found_by_a_retry(tmp_path: Path) -> None:
    """It is not watched, since no pod names it."""
    async with a_cluster_node(tmp_path) as node:
        with_disks(node, tmp_path)
        add_disk(node, SecretReference(name="chap", namespace="storage"))
        await node.until(node.is_ready)
        attach(node)
        bind(node, Volume(name="disk", persistent_volume_claim=CLAIM))
        await node.until(lambda: any("secret storage/chap not found" in text for text in node.events("FailedMount")))
        node.api.add(a_secret("chap", "storage", **CHAP))
        await node.until(lambda: node.phase() == "Running", within=130)


async def test_a_pod_starts_as_soon_as_the_chap_secret_of_its_disk_is_there(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        with_disks(node, tmp_path)
        await node.until(node.is_ready)
        attach(node)
        bind(node, Volume(name="disk", iscsi=ISCSIVolumeSource(**DISK, secret_ref=LocalObjectReference(name="chap"))))
        await node.until(lambda: any("secret default/chap not found" in text for text in node.events("FailedMount")))
        await node.clock.sleep(70)
        node.api.add(a_secret("chap", **CHAP))
        await node.until(lambda: node.phase() == "Running", within=1)


async def test_a_pod_starts_as_soon_as_the_secret_of_its_csi_volume_is_there(tmp_path: Path) -> None:
    node = ClusterHarness(tmp_path)
    bed, driver = PluginNode(node), FakeCsiDriver(node.mounts)
    node.plugins = msgspec.structs.replace(bed.node.plugins, csi=driver.connect)
    spec = CSIDriverSpec(attach_required=False, volume_lifecycle_modes=["Ephemeral"])
    node.api.add(CSIDriver(metadata=ObjectMeta(name="d"), spec=spec))
    await node.start()
    try:
        await node.until(node.is_ready)
        drivers = node.node.volumes.csi_drivers
        assert drivers is not None
        await drivers.register("d", Path("/d.sock"), ("1.0.0",))
        secret = LocalObjectReference(name="late")
        bind(node, Volume(name="disk", csi=CSIVolumeSource(driver="d", node_publish_secret_ref=secret)))
        await node.until(lambda: any("secret default/late not found" in text for text in node.events("FailedMount")))
        await node.clock.sleep(70)
        node.api.add(a_secret("late", key="word"))
        await node.until(lambda: node.phase() == "Running", within=1)
    finally:
        await node.kill()
