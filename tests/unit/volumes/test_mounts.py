"""CRI mounts and devices for volumeMounts and volumeDevices."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pykubelet.api.types import ImageVolumeSource, LocalVolumeSource, Volume, VolumeMount
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.mounts import container_path, is_recursive_read_only, propagation_of, subpath_of
from pykubelet.volumes.objects import VolumeRules
from pykubelet.wire import cri_pb2
from tests.builders import a_container
from tests.unit.volumes.builders import VolumeNode, a_config, bound, config_volume, empty_dir, host_path, pod_with


@pytest.mark.parametrize("path, absolute", [("/a", "/a"), ("a/b", "/a/b"), ("/a//b/", "/a/b"), ("//a", "/a")])
def test_container_path(path: str, absolute: str) -> None:
    assert container_path(path) == absolute


@pytest.mark.parametrize("word, number", [(None, 0), ("None", 0), ("HostToContainer", 1), ("Bidirectional", 2)])
def test_propagation(word: str | None, number: int) -> None:
    assert propagation_of(VolumeMount(name="v", mount_propagation=word)) == number


@pytest.mark.parametrize(
    "fields, supported, answer",
    [
        ({}, True, False),
        ({"recursive_read_only": "Disabled"}, True, False),
        ({"recursive_read_only": "IfPossible", "read_only": True}, True, True),
        ({"recursive_read_only": "IfPossible", "read_only": True}, False, False),
        ({"recursive_read_only": "Enabled", "read_only": True}, True, True),
        ({"recursive_read_only": "Enabled", "read_only": True}, False, "not supported by the runtime"),
        ({"recursive_read_only": "Enabled"}, True, "not read-only"),
        (
            {"recursive_read_only": "Enabled", "read_only": True, "mount_propagation": "Bidirectional"},
            True,
            "not compatible with propagation",
        ),
    ],
)
def test_recursive_read_only(fields: dict[str, object], supported: bool, answer: bool | str) -> None:
    mount = VolumeMount(name="v", **fields)  # type: ignore[arg-type]
    if isinstance(answer, bool):
        assert is_recursive_read_only(mount, supported) is answer
    else:
        with pytest.raises(VolumeProblem, match=answer):
            is_recursive_read_only(mount, supported)


@pytest.mark.parametrize(
    "expression, result",
    [
        ("$(NAME)/logs", "web-0/logs"),
        ("a-$(NAME)-$(NAME)", "a-web-0-web-0"),
        ("$$(NAME)", "$(NAME)"),
        ("plain$", "plain$"),
    ],
)
def test_sub_path_expr(expression: str, result: str) -> None:
    assert subpath_of(VolumeMount(name="v", sub_path_expr=expression), {"NAME": "web-0", "EMPTY": ""}) == result


@pytest.mark.parametrize("expression, name", [("$(NONE)", "NONE"), ("x/$(EMPTY)", "EMPTY")])
def test_sub_path_expr_without_value(expression: str, name: str) -> None:
    with pytest.raises(VolumeProblem, match=f"missing value for {name}"):
        subpath_of(VolumeMount(name="v", sub_path_expr=expression), {"EMPTY": ""})


async def test_mounts_come_in_the_order_of_the_spec(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path, rules=VolumeRules(selinux=True))
    node.objects.config_maps["default", "web"] = a_config(a="1")
    mounts = [
        VolumeMount(name="host", mount_path="/z", mount_propagation="HostToContainer"),
        VolumeMount(name="cfg", mount_path="/cfg"),
        VolumeMount(name="scratch", mount_path="/a", read_only=True),
        VolumeMount(name="scratch", mount_path="/b", sub_path="part"),
        VolumeMount(name="model", mount_path="/model", sub_path="weights"),
    ]
    volumes = [
        empty_dir(),
        config_volume(),
        host_path("/srv"),
        Volume(name="model", image=ImageVolumeSource(reference="models/m:1")),
    ]
    pod = pod_with(*volumes, containers=[a_container(volume_mounts=mounts)])
    base = f"{tmp_path}/pods/uid-web"
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        built = await manager.mounts_for(pod, pod.spec.containers[0], {})
        place = f"{base}/volume-subpaths/scratch/app/3"
        assert node.mounts.shown(place) == f"{base}/volumes/kubernetes.io~empty-dir/scratch/part"
    assert [(m.container_path, m.host_path, m.readonly, m.selinux_relabel) for m in built] == [
        ("/z", "/srv", False, False),
        ("/cfg", f"{base}/volumes/kubernetes.io~configmap/cfg", True, True),
        ("/a", f"{base}/volumes/kubernetes.io~empty-dir/scratch", True, True),
        ("/b", place, False, True),
        ("/model", "", True, False),
    ]
    assert built[0].propagation == cri_pb2.MountPropagation.PROPAGATION_HOST_TO_CONTAINER
    assert (built[4].image.image, built[4].image_sub_path) == ("models/m:1", "weights")


async def test_only_what_can_be_written_to_is_relabelled(tmp_path: Path) -> None:
    """A runtime that labels files of a read-only volume fails. Read-only in the container alone is no matter."""
    node, disk = VolumeNode(tmp_path / "root", rules=VolumeRules(selinux=True)), tmp_path / "disk"
    disk.mkdir()
    source = LocalVolumeSource(path=str(disk))
    volumes = [bound(node.objects, "ro", read_only=True, local=source), bound(node.objects, "rw", local=source)]
    mounts = [VolumeMount(name=name, mount_path=f"/{name}", read_only=True) for name in ("ro", "rw")]
    pod = pod_with(*volumes, containers=[a_container(volume_mounts=mounts)])
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        built = await manager.mounts_for(pod, pod.spec.containers[0], {})
        assert [mount.selinux_relabel for mount in built] == [False, True]
        await manager.wait_unmounted(pod)


async def test_a_volume_that_is_not_there_is_named(tmp_path: Path) -> None:
    pod = pod_with(empty_dir())
    async with VolumeNode(tmp_path).running() as manager:
        with pytest.raises(VolumeProblem, match='cannot find volume "scratch" to mount into container "app"'):
            await manager.mounts_for(pod, pod.spec.containers[0], {})


async def test_a_bad_sub_path_names_mount_and_container(tmp_path: Path) -> None:
    mount = VolumeMount(name="scratch", mount_path="/a", sub_path="../x")
    pod = pod_with(empty_dir(), containers=[a_container(volume_mounts=[mount])])
    async with VolumeNode(tmp_path).running() as manager:
        await manager.wait_mounted(pod)
        with pytest.raises(
            VolumeProblem, match='failed to prepare subPath for volumeMount "scratch" of container "app"'
        ):
            await manager.mounts_for(pod, pod.spec.containers[0], {})


def test_sub_path_expr_of_a_stranger_is_bounded() -> None:
    began = time.process_time()
    text = "$(" * 200_000
    assert subpath_of(VolumeMount(name="v", sub_path_expr=text), {}) == text
    with pytest.raises(VolumeProblem, match="subPathExpr of volume mount v is longer than 4096 letters"):
        subpath_of(VolumeMount(name="v", sub_path_expr="$(A)" * 100_000), {"A": "x" * 1_000_000})
    assert time.process_time() - began < 2.0
