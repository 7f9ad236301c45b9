"""CSI migration of seven kinds: what is requested from the driver, pair by pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pykubelet.api.types import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    AzureFilePersistentVolumeSource,
    AzureFileVolumeSource,
    CinderPersistentVolumeSource,
    CinderVolumeSource,
    CSIDriverSpec,
    CSIPersistentVolumeSource,
    GCEPersistentDiskVolumeSource,
    NFSVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeSpec,
    PortworxVolumeSource,
    SecretReference,
    Volume,
    VolumeNodeAffinity,
    VsphereVirtualDiskVolumeSource,
)
from pykubelet.node.csi_node import MIGRATED_PLUGINS
from pykubelet.volumes.csi import migration
from pykubelet.volumes.csi.migration import aws_volume, gce_modes, gce_region, migrated_inline, migrated_volume
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.spec import spec_of
from tests.unit.volumes.builders import CsiVolumeNode, a_secret, bound, pod_with

URI = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d1"
AWS = AWSElasticBlockStoreVolumeSource(volume_id="aws://us-east-1a/vol-1", fs_type="xfs", partition=2, read_only=True)
GCE = GCEPersistentDiskVolumeSource(pd_name="pd", fs_type="ext4")
AZURE_DISK = AzureDiskVolumeSource(disk_uri=URI, disk_name="d1", kind="managed", caching_mode="None", fs_type="ext4")
VSPHERE = VsphereVirtualDiskVolumeSource(volume_path="[ds] kubevols/a.vmdk", fs_type="ext4", storage_policy_name="gold")
PORTWORX = PortworxVolumeSource(volume_id="px1", fs_type="ext4", read_only=True)
PX_SECRET = SecretReference(name="auth", namespace="px")


def a_volume(field: str, source: Any, **fields: Any) -> PersistentVolume:
    metadata = ObjectMeta(name="pv", labels=fields.pop("labels", {}), annotations=fields.pop("annotations", {}))
    spec = PersistentVolumeSpec(claim_ref=ObjectReference(namespace="team", uid="u"), **fields)
    setattr(spec, field, source)
    return PersistentVolume(metadata=metadata, spec=spec)


def csi(driver: str, handle: str, **fields: Any) -> CSIPersistentVolumeSource:
    return CSIPersistentVolumeSource(driver=driver, volume_handle=handle, **fields)


CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "migration_cases.json").read_text())["cases"]
"""What upstream's library makes of the volumes of its own tests and of others (tools/gen_migration_cases.py)."""


def translated(case: dict[str, Any]) -> PersistentVolume | None:
    if "volume" in case:
        return migrated_inline(msgspec.convert(case["volume"], Volume), case.get("namespace", ""))
    return migrated_volume(msgspec.convert(case["pv"], PersistentVolume))


@pytest.mark.parametrize("case", [case for case in CASES if "answer" in case])
def test_translations_equal_upstreams(case: dict[str, Any]) -> None:
    got, wanted = translated(case), msgspec.convert(case["answer"], PersistentVolume)
    assert got is not None and got.spec.csi is not None and wanted.spec.csi is not None
    # Go has no difference between what is left out and what is empty.
    source = replace(got.spec.csi, read_only=got.spec.csi.read_only or None, fs_type=got.spec.csi.fs_type or None)
    assert source == wanted.spec.csi
    if "volume" in case:  # what the library adds when its kinds are done
        wanted.spec.volume_mode = "Filesystem"
    assert got.metadata == wanted.metadata
    assert replace(got.spec, csi=None) == replace(wanted.spec, csi=None)


@pytest.mark.parametrize("case", [case for case in CASES if "answer" not in case])
def test_what_upstream_does_not_translate_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(VolumeProblem):
        translated(case)


def test_the_cases_are_of_every_kind() -> None:
    sources = [case["volume"] if "volume" in case else case["pv"]["spec"] for case in CASES]
    counts = {field: sum(KINDS[field] in source for source in sources) for field in migration._KINDS}
    assert min(counts.values()) >= 7 and sum("error" in case for case in CASES) >= 10


KINDS = dict(zip(Volume.__struct_fields__, Volume.__struct_encode_fields__, strict=True))


@pytest.mark.parametrize(
    ("volume", "wanted"),
    [
        (
            a_volume("aws_elastic_block_store", AWS),
            csi("ebs.csi.aws.com", "vol-1", fs_type="xfs", read_only=True, volume_attributes={"partition": "2"}),
        ),
        (
            a_volume("aws_elastic_block_store", AWSElasticBlockStoreVolumeSource(volume_id="vol-2")),
            csi("ebs.csi.aws.com", "vol-2", read_only=False, volume_attributes={"partition": "0"}),
        ),
        (
            a_volume("gce_persistent_disk", GCE),
            csi(
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd",
                fs_type="ext4",
                read_only=False,
                volume_attributes={"partition": ""},
            ),
        ),
        (
            a_volume(
                "gce_persistent_disk",
                GCEPersistentDiskVolumeSource(pd_name="pd", partition=3, read_only=True),
                labels={migration.ZONE: "us-central1-a"},
            ),
            csi(
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/zones/us-central1-a/disks/pd",
                read_only=True,
                volume_attributes={"partition": "3"},
            ),
        ),
        (
            a_volume("gce_persistent_disk", GCE, labels={migration.OLD_ZONE: "us-central1-a__us-central1-c"}),
            csi(
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/regions/us-central1/disks/pd",
                fs_type="ext4",
                read_only=False,
                volume_attributes={"partition": ""},
            ),
        ),
        (
            a_volume("azure_disk", AZURE_DISK),
            csi(
                "disk.csi.azure.com",
                URI,
                fs_type="ext4",
                read_only=False,
                volume_attributes={"kind": "Managed", "cachingmode": "None", "fstype": "ext4"},
            ),
        ),
        (
            a_volume(
                "azure_file",
                AzureFilePersistentVolumeSource(secret_name="azure-storage-account-acc-secret", share_name="share"),
                annotations={migration.AZURE_GROUP: "rg"},
            ),
            csi(
                "file.csi.azure.com",
                "rg#acc#share#pv#team",
                read_only=False,
                volume_attributes={"sharename": "share"},
                node_stage_secret_ref=SecretReference(name="azure-storage-account-acc-secret", namespace="team"),
            ),
        ),
        (
            a_volume(
                "azure_file",
                AzureFilePersistentVolumeSource(secret_name="own", secret_namespace="vault", share_name="share"),
            ),
            csi(
                "file.csi.azure.com",
                "#own#share#pv#vault",
                read_only=False,
                volume_attributes={"sharename": "share"},
                node_stage_secret_ref=SecretReference(name="own", namespace="vault"),
            ),
        ),
        (
            a_volume("cinder", CinderPersistentVolumeSource(volume_id="c1", fs_type="xfs", read_only=True)),
            csi("cinder.csi.openstack.org", "c1", fs_type="xfs", read_only=True),
        ),
        (
            a_volume(
                "portworx_volume",
                PORTWORX,
                annotations={migration.PORTWORX_SECRET: "auth", migration.PORTWORX_NAMESPACE: "px"},
            ),
            csi(
                "pxd.portworx.com",
                "px1",
                fs_type="ext4",
                controller_publish_secret_ref=PX_SECRET,
                node_stage_secret_ref=PX_SECRET,
                node_publish_secret_ref=PX_SECRET,
                controller_expand_secret_ref=PX_SECRET,
                node_expand_secret_ref=PX_SECRET,
            ),
        ),
        (
            a_volume("portworx_volume", PORTWORX, annotations={migration.PORTWORX_SECRET: "auth"}),
            csi("pxd.portworx.com", "px1", fs_type="ext4"),
        ),
        (
            a_volume("vsphere_volume", VSPHERE),
            csi(
                "csi.vsphere.vmware.com",
                "[ds] kubevols/a.vmdk",
                fs_type="ext4",
                volume_attributes={"storagepolicyname": "gold"},
            ),
        ),
    ],
)
def test_persistent_volumes(volume: PersistentVolume, wanted: CSIPersistentVolumeSource) -> None:
    now = migrated_volume(volume)
    assert now.spec.csi == wanted
    assert volume.spec.csi is None, "the original is left as it is"
    assert now.metadata is volume.metadata and now.spec.claim_ref == volume.spec.claim_ref


@pytest.mark.parametrize(
    ("volume", "folder", "wanted", "modes"),
    [
        (
            Volume(name="v", aws_elastic_block_store=AWSElasticBlockStoreVolumeSource(volume_id="aws:///vol-1")),
            "ebs.csi.aws.com-vol-1",
            csi("ebs.csi.aws.com", "vol-1", read_only=False, volume_attributes={"partition": "0"}),
            ("ReadWriteOnce",),
        ),
        (
            Volume(name="v", gce_persistent_disk=GCEPersistentDiskVolumeSource(pd_name="pd", read_only=True)),
            "pd.csi.storage.gke.io-pd",
            csi(
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd",
                read_only=True,
                volume_attributes={"partition": ""},
            ),
            ("ReadOnlyMany",),
        ),
        (
            Volume(name="v", azure_disk=AzureDiskVolumeSource(disk_uri=URI, caching_mode="")),
            URI.replace("/", "~"),
            csi("disk.csi.azure.com", URI, read_only=False, volume_attributes={"kind": "Managed"}),
            ("ReadWriteOnce",),
        ),
        (
            Volume(name="v", azure_file=AzureFileVolumeSource(secret_name="own", share_name="share")),
            "#own#share#v#team",
            csi(
                "file.csi.azure.com",
                "#own#share#v#team",
                read_only=False,
                volume_attributes={"sharename": "share"},
                node_stage_secret_ref=SecretReference(name="own", namespace="team"),
            ),
            ("ReadWriteMany",),
        ),
        (
            Volume(name="v", cinder=CinderVolumeSource(volume_id="c1")),
            "cinder.csi.openstack.org-c1",
            csi("cinder.csi.openstack.org", "c1", read_only=False),
            ("ReadWriteOnce",),
        ),
        (
            Volume(name="v", portworx_volume=PORTWORX),
            "pxd.portworx.com-px1",
            csi("pxd.portworx.com", "px1", fs_type="ext4"),
            ("ReadOnlyMany",),
        ),
        (
            Volume(name="v", vsphere_volume=VSPHERE),
            "csi.vsphere.vmware.com-[ds] kubevols~a.vmdk",
            csi(
                "csi.vsphere.vmware.com",
                "[ds] kubevols/a.vmdk",
                fs_type="ext4",
                volume_attributes={"storagepolicyname": "gold"},
            ),
            ("ReadWriteOnce",),
        ),
    ],
)
def test_volumes_written_in_pods(
    volume: Volume, folder: str, wanted: CSIPersistentVolumeSource, modes: tuple[str, ...]
) -> None:
    spec = spec_of(volume, namespace="team")
    assert (spec.name, spec.folder, spec.plugin) == ("v", folder, "kubernetes.io/csi")
    assert spec.csi == wanted and spec.access_modes == modes and spec.migrated
    source = next(value for value in (getattr(volume, field) for field in migration._KINDS) if value is not None)
    assert spec.read_only == bool(getattr(source, "read_only", False))


def test_other_kinds_are_left_alone() -> None:
    volume = a_volume("nfs", NFSVolumeSource(server="s", path="/"))
    assert migrated_volume(volume) is volume
    assert migrated_inline(Volume(name="v", nfs=volume.spec.nfs), "team") is None


def test_every_kind_that_the_node_says_it_hands_over_is() -> None:
    assert len(MIGRATED_PLUGINS) == len(migration._KINDS)


@pytest.mark.parametrize(
    ("text", "handle"),
    [("vol-1", "vol-1"), ("aws://zone/vol-1", "vol-1"), ("aws:///vol-1", "vol-1"), ("disk", "disk")],
)
def test_names_of_aws_volumes(text: str, handle: str) -> None:
    assert aws_volume(text) == handle


@pytest.mark.parametrize(
    ("volume", "text"),
    [
        (Volume(aws_elastic_block_store=AWSElasticBlockStoreVolumeSource(volume_id="aws://zone/disk")), "aws://zone/d"),
        (Volume(aws_elastic_block_store=AWSElasticBlockStoreVolumeSource(volume_id="aws://[/vol-1")), "aws://"),
        (Volume(azure_disk=AzureDiskVolumeSource(disk_uri=URI, kind="Shared")), "azureDisk of kind Shared"),
        (Volume(azure_disk=AzureDiskVolumeSource(disk_uri="../..")), "azure disk names no disk"),
        (Volume(cinder=CinderVolumeSource()), "cinder names no disk"),
    ],
)
def test_what_has_no_driver_is_named(volume: Volume, text: str) -> None:
    with pytest.raises(VolumeProblem, match=text):
        migrated_inline(volume, "team")


def test_a_persistent_azure_share_needs_a_namespace() -> None:
    volume = a_volume("azure_file", AzureFilePersistentVolumeSource(secret_name="s", share_name="x"))
    volume.spec.claim_ref = None
    with pytest.raises(VolumeProblem, match="secretNamespace"):
        migrated_volume(volume)


@pytest.mark.parametrize("zones", [["us-central1"], ["us-central1-a", "europe-west1-b"]])
def test_zones_without_one_region(zones: list[str]) -> None:
    with pytest.raises(VolumeProblem, match="gcePersistentDisk"):
        gce_region(zones)


@pytest.mark.parametrize(
    ("modes", "wanted"),
    [
        ([], []),
        (["ReadWriteMany"], ["ReadWriteOnce"]),
        (["ReadWriteOnce", "ReadOnlyMany"], ["ReadWriteOnce"]),
        (["ReadWriteMany", "ReadOnlyMany"], ["ReadWriteOnce"]),
        (["ReadOnlyMany"], ["ReadOnlyMany"]),
        (["ReadWriteOncePod"], ["ReadWriteOnce"]),
    ],
)
def test_modes_of_gce_disks(modes: list[str], wanted: list[str]) -> None:
    assert gce_modes(modes) == wanted
    assert migrated_volume(a_volume("gce_persistent_disk", GCE, access_modes=modes)).spec.access_modes == wanted


Terms = list[list[tuple[str, list[str]]]]


def terms_of(volume: PersistentVolume) -> Terms:
    affinity = migrated_volume(volume).spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else []
    return [[(each.key or "", each.values) for each in term.match_expressions] for term in terms]


def affinity_of(terms: Terms) -> VolumeNodeAffinity:
    made = [
        NodeSelectorTerm(
            match_expressions=[NodeSelectorRequirement(key=key, operator="In", values=values) for key, values in term]
        )
        for term in terms
    ]
    return VolumeNodeAffinity(required=NodeSelector(node_selector_terms=made))


EBS_ZONE = "topology.ebs.csi.aws.com/zone"
VMWARE_ZONE, VMWARE_REGION = "topology.csi.vmware.com/zone", "topology.csi.vmware.com/region"


@pytest.mark.parametrize(
    ("field", "source", "terms", "labels", "wanted"),
    [
        ("aws_elastic_block_store", AWS, [], {}, []),
        ("aws_elastic_block_store", AWS, [[(migration.ZONE, ["a"])]], {}, [[(EBS_ZONE, ["a"])]]),
        ("aws_elastic_block_store", AWS, [], {migration.ZONE: "b__a__ "}, [[(EBS_ZONE, ["a", "b"])]]),
        (
            "aws_elastic_block_store",
            AWS,
            [[(migration.OLD_ZONE, ["a"]), (migration.OLD_REGION, ["r"])]],
            {migration.ZONE: "other"},
            [[(EBS_ZONE, ["a"]), (migration.REGION, ["r"])]],
        ),
        (
            "aws_elastic_block_store",
            AWS,
            [[("disk", ["ssd"])], [("disk", ["hdd"])]],
            {migration.OLD_ZONE: "a"},
            [[("disk", ["ssd"]), (EBS_ZONE, ["a"])], [("disk", ["hdd"]), (EBS_ZONE, ["a"])]],
        ),
        (
            "cinder",
            CinderPersistentVolumeSource(volume_id="c"),
            [],
            {migration.ZONE: "nova"},
            [[("topology.cinder.csi.openstack.org/zone", ["nova"])]],
        ),
        ("gce_persistent_disk", GCE, [], {migration.ZONE: "a-b-c"}, [[("topology.gke.io/zone", ["a-b-c"])]]),
        (
            "vsphere_volume",
            VSPHERE,
            [[(migration.ZONE, ["z"]), (migration.REGION, ["r"])]],
            {},
            [[(VMWARE_ZONE, ["z"]), (VMWARE_REGION, ["r"])]],
        ),
        (
            "vsphere_volume",
            VSPHERE,
            [],
            {migration.OLD_ZONE: "z__y", migration.OLD_REGION: "r"},
            [[(VMWARE_ZONE, ["z__y"]), (VMWARE_REGION, ["r"])]],
        ),
        ("azure_disk", AZURE_DISK, [[(migration.ZONE, ["z"])]], {}, [[(migration.ZONE, ["z"])]]),
        ("portworx_volume", PORTWORX, [], {migration.ZONE: "z"}, []),
    ],
)
def test_topology(field: str, source: Any, terms: Terms, labels: dict[str, str], wanted: Terms) -> None:
    volume = a_volume(field, source, labels=labels, node_affinity=affinity_of(terms) if terms else None)
    assert terms_of(volume) == wanted


async def test_a_disk_of_old_is_staged_published_and_given_back_by_its_driver(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    bed.objects.drivers["ebs.csi.aws.com"] = CSIDriverSpec(attach_required=False)
    volume = bound(bed.node.objects, "data", aws_elastic_block_store=AWS, access_modes=["ReadWriteOnce"])
    async with bed.life() as manager:
        await bed.drivers.register("ebs.csi.aws.com", Path("/ebs.sock"), ("1.0.0",))
        await manager.wait_mounted(pod_with(volume))
        assert manager.path_of(pod_with(volume), "data") == str(bed.paths.target("uid-web", "pv-data"))
        await manager.wait_unmounted(pod_with(volume))
        await bed.node.clock.sleep(0.1)
    assert bed.driver.order() == ["stage vol-1", "publish vol-1", "unpublish vol-1", "unstage vol-1"]
    times = bed.metrics.histogram("csi_operations_seconds", "")
    assert times.count("ebs.csi.aws.com", "/csi.v1.Node/NodeStageVolume", "OK", "true") == 1
    operations = bed.metrics.histogram("storage_operation_duration_seconds", "")
    for operation in ("volume_mount", "volume_unmount"):
        assert operations.count("kubernetes.io/csi:ebs.csi.aws.com", operation, "success", "true") == 1
    assert bed.is_clean()


async def test_a_share_written_in_a_pod_is_taken_over_by_the_next_life(tmp_path: Path) -> None:
    bed = CsiVolumeNode(tmp_path)
    name = "file.csi.azure.com"
    bed.objects.drivers[name] = CSIDriverSpec()
    bed.objects.drivers[name].attach_required = False
    bed.objects.secrets["default", "own"] = a_secret("own", key="1")
    pod = pod_with(Volume(name="v", azure_file=AzureFileVolumeSource(secret_name="own", share_name="share")))
    for _ in range(2):
        async with bed.life() as manager:
            await bed.drivers.register(name, Path("/file.sock"), ("1.0.0",))
            await manager.wait_mounted(pod)
    async with bed.life() as manager:
        await bed.drivers.register(name, Path("/file.sock"), ("1.0.0",))
        await bed.node.clock.sleep(0.1)
        await manager.wait_unmounted(pod)
        await bed.node.clock.sleep(0.1)
    handle = "#own#share#v#default"
    assert bed.driver.order() == [
        f"stage {handle}", f"publish {handle}", f"stage {handle}", f"unpublish {handle}", f"unstage {handle}",
    ]  # fmt: skip
    assert dict(bed.driver.volumes[0].secrets) == {"key": "1"}
    assert bed.is_clean()
