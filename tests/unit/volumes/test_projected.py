"""configMap, secret, downwardAPI and projected: which files come out, with which modes, and what is missing."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from pykubelet.api.types import (
    ClusterTrustBundleProjection,
    ConfigMapProjection,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    KeyToPath,
    ObjectFieldSelector,
    Pod,
    PodCertificateProjection,
    ProjectedVolumeSource,
    ResourceFieldSelector,
    SecretProjection,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from pykubelet.volumes.desired_state import nested_folders
from pykubelet.volumes.errors import VolumeProblem, VolumesNotReady
from pykubelet.volumes.plugins.projected import private_file, select
from tests.builders import a_container
from tests.unit.volumes.builders import (
    VolumeNode,
    a_config,
    a_secret,
    config_volume,
    empty_dir,
    pod_with,
    secret_volume,
)


@pytest.fixture
def node(tmp_path: Path) -> VolumeNode:
    node = VolumeNode(tmp_path)
    node.objects.config_maps["default", "web"] = a_config(
        a="1", b="2", binary={"bin": base64.b64encode(b"\x00\xff").decode()}
    )
    node.objects.secrets["default", "web"] = a_secret(key="k", other="o")
    return node


async def files_of(node: VolumeNode, pod: Pod, name: str) -> dict[str, tuple[bytes, int]]:
    """Content and mode of each file of a volume, once mounted."""
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        folder = Path(manager.path_of(pod, name) or "")
        top = folder / os.readlink(folder / "..data")
        return {
            str(p.relative_to(top)): (p.read_bytes(), stat.S_IMODE(p.stat().st_mode))
            for p in top.rglob("*")
            if p.is_file()
        }


async def test_config_map(node: VolumeNode) -> None:
    assert await files_of(node, pod_with(config_volume()), "cfg") == {
        "a": (b"1", 0o644),
        "b": (b"2", 0o644),
        "bin": (b"\x00\xff", 0o644),
    }
    assert node.mounts.points() == [], "config maps lie on disk"


async def test_items_and_modes(node: VolumeNode) -> None:
    items = [KeyToPath(key="key", path="deep/er/one", mode=0o400), KeyToPath(key="other", path="two")]
    pod = pod_with(secret_volume(items=items, default_mode=0o640))
    assert await files_of(node, pod, "sec") == {"deep/er/one": (b"k", 0o400), "two": (b"o", 0o640)}
    assert len(node.mounts.points()) == 1, "secrets lie in memory"


@pytest.mark.parametrize(
    "volume, text",
    [
        (config_volume(config="none"), "configmap default/none not found"),
        (secret_volume(secret="none"), "secret default/none not found"),
        (
            config_volume(items=[KeyToPath(key="no", path="x")]),
            "configmap references non-existent config key: no",
        ),
        (secret_volume(items=[KeyToPath(key="no", path="x")]), "references non-existent secret key: no"),
        (config_volume(items=[KeyToPath(key="a", path="../x")]), "must not contain '..'"),
    ],
)
async def test_what_is_missing_is_named(node: VolumeNode, volume: Volume, text: str) -> None:
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=text):
            await manager.wait_mounted(pod_with(volume))


async def test_optional(node: VolumeNode) -> None:
    pod = pod_with(config_volume(config="none", optional=True))
    assert await files_of(node, pod, "cfg") == {}
    items = [KeyToPath(key="no", path="x"), KeyToPath(key="a", path="y")]
    pod = pod_with(config_volume(items=items, optional=True), name="other")
    assert await files_of(node, pod, "cfg") == {"y": (b"1", 0o644)}


async def test_downward_fields(node: VolumeNode) -> None:
    items = [
        DownwardAPIVolumeFile(path="labels", field_ref=ObjectFieldSelector(field_path="metadata.labels")),
        DownwardAPIVolumeFile(path="one", field_ref=ObjectFieldSelector(field_path="metadata.labels['app']")),
        DownwardAPIVolumeFile(path="cpu", resource_field_ref=ResourceFieldSelector(resource="limits.cpu"), mode=0o400),
    ]
    volume = Volume(name="info", downward_api=DownwardAPIVolumeSource(items=items))
    found = await files_of(node, pod_with(volume, labels={"app": "web", "b": 'q"'}), "info")
    assert found == {"labels": (b'app="web"\nb="q\\""', 0o644), "one": (b"web", 0o644), "cpu": (b"4", 0o400)}


async def test_changed_labels_reach_the_files(node: VolumeNode) -> None:
    items = [DownwardAPIVolumeFile(path="app", field_ref=ObjectFieldSelector(field_path="metadata.labels['app']"))]
    volume = Volume(name="info", downward_api=DownwardAPIVolumeSource(items=items))
    async with node.running() as manager:
        await manager.wait_mounted(pod_with(volume, labels={"app": "one"}))
        await manager.wait_mounted(pod := pod_with(volume, labels={"app": "two"}))
        await node.clock.sleep(0.01)
        assert Path(manager.path_of(pod, "info") or "", "app").read_text() == "two"


async def test_projected_with_every_source(node: VolumeNode) -> None:
    node.objects.bundles = {"ca": "PEM\n", "example.com/x:1": "X\n"}
    sources = [
        VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="token", audience="vault")),
        VolumeProjection(config_map=ConfigMapProjection(name="web", items=[KeyToPath(key="a", path="same")])),
        VolumeProjection(secret=SecretProjection(name="web", items=[KeyToPath(key="key", path="same", mode=0o400)])),
        VolumeProjection(
            downward_api=DownwardAPIProjection(
                items=[DownwardAPIVolumeFile(path="name", field_ref=ObjectFieldSelector(field_path="metadata.name"))]
            )
        ),
        VolumeProjection(cluster_trust_bundle=ClusterTrustBundleProjection(name="ca", path="ca.pem")),
        VolumeProjection(cluster_trust_bundle=ClusterTrustBundleProjection(signer_name="example.com/x", path="x.pem")),
        VolumeProjection(
            pod_certificate=PodCertificateProjection(
                signer_name="s", credential_bundle_path="bundle.pem", key_path="key.pem", certificate_chain_path="c.pem"
            )
        ),
    ]
    pod = pod_with(Volume(name="all", projected=ProjectedVolumeSource(sources=sources, default_mode=0o444)))
    assert await files_of(node, pod, "all") == {
        "token": (b"token-web-vault-3600", 0o444),
        "same": (b"k", 0o400),
        "name": (b"web", 0o444),
        "ca.pem": (b"PEM\n", 0o444),
        "x.pem": (b"X\n", 0o444),
        "bundle.pem": (b"KEY\nCHAIN s\n", 0o444),
        "key.pem": (b"KEY\n", 0o444),
        "c.pem": (b"CHAIN s\n", 0o444),
    }


@pytest.mark.parametrize(
    "source, text",
    [
        (ClusterTrustBundleProjection(name="no", path="x"), "clustertrustbundle no not found"),
        (ClusterTrustBundleProjection(signer_name="no", path="x"), "matched zero ClusterTrustBundles"),
    ],
)
async def test_missing_bundles(node: VolumeNode, source: ClusterTrustBundleProjection, text: str) -> None:
    part = VolumeProjection(cluster_trust_bundle=source)
    volume = Volume(name="all", projected=ProjectedVolumeSource(sources=[part]))
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=text):
            await manager.wait_mounted(pod_with(volume))


@pytest.mark.parametrize(
    "user, group, mode, owner", [(None, None, 0o644, None), (7, None, 0o600, 7), (None, 8, 0o600, None)]
)
def test_private_files(user: int | None, group: int | None, mode: int, owner: int | None) -> None:
    made = private_file(b"x", mode=0o644, fs_user=user, fs_group=group)
    assert (made.mode, made.uid) == (mode, owner)


def test_a_missing_key_is_an_error_unless_optional() -> None:
    items = [KeyToPath(key="x", path="x")]
    assert select({}, items, mode=0o644, optional=True, kind="config") == {}
    with pytest.raises(VolumeProblem, match="configmap references non-existent config key: x"):
        select({}, items, mode=0o644, optional=False, kind="config")


async def test_folders_for_volumes_mounted_inside(node: VolumeNode) -> None:
    mounts = [
        VolumeMount(name="cfg", mount_path="/etc/app"),
        VolumeMount(name="scratch", mount_path="/etc/app/cache/deep"),
        VolumeMount(name="scratch", mount_path="/etc/application"),
    ]
    pod = pod_with(config_volume(), empty_dir(), containers=[a_container(volume_mounts=mounts)])
    assert nested_folders(pod, "cfg") == ("cache/deep",) and nested_folders(pod, "scratch") == ()
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        folder = Path(manager.path_of(pod, "cfg") or "")
        assert (folder / "cache/deep").is_dir() and (folder / "a").read_text() == "1"
        manager.object_changed("ConfigMap", "default", "web")
        await node.clock.sleep(0.01)
        assert (folder / "cache/deep").is_dir()
