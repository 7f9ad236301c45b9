"""From claims to volumes: every reason a claim cannot be used, and what comes out of one that can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.manifest import load_pods
from pykubelet.api.types import (
    CinderPersistentVolumeSource,
    CSIPersistentVolumeSource,
    EphemeralVolumeSource,
    FCVolumeSource,
    ISCSIPersistentVolumeSource,
    NFSVolumeSource,
    NodeSelector,
    ObjectReference,
    OwnerReference,
    RBDPersistentVolumeSource,
    Volume,
    VolumeNodeAffinity,
)
from pykubelet.clients.kube.references import referred
from pykubelet.kit.tasks import TaskSet
from pykubelet.volumes.desired_state import Use, objects_of, resolve_claim
from pykubelet.volumes.errors import VolumeProblem
from tests.builders import NOW, a_pod, at
from tests.unit.api.rich_pod import rich_pod
from tests.unit.volumes.builders import ApiObjects, VolumeNode, bound, host_path, pod_with, problem_texts

NFS = NFSVolumeSource(server="s", path="/p")


def share(objects: ApiObjects) -> Use:
    return Use(bound(objects, "data", nfs=NFS), mounted=True, mapped=False)


async def test_a_bound_claim(tmp_path: Path) -> None:
    objects = ApiObjects()
    volume = bound(objects, "data", nfs=NFS, mount_options=["soft"], access_modes=["ReadWriteOnce"], read_only=True)
    objects.volumes["pv-data"].metadata.annotations["pv.beta.kubernetes.io/gid"] = "77"
    spec = await resolve_claim(objects, a_pod(), Use(volume, mounted=True, mapped=False))
    assert (spec.name, spec.folder, spec.plugin) == ("data", "pv-data", "kubernetes.io/nfs")
    assert (spec.read_only, spec.mount_options, spec.gid, spec.claim) == (True, ("soft",), 77, ("default", "data"))


def _no_claim(objects: ApiObjects) -> None:
    objects.claims.clear()


def _unbound(objects: ApiObjects) -> None:
    objects.claims["default", "data"].status.phase = "Pending"


def _nameless(objects: ApiObjects) -> None:
    objects.claims["default", "data"].spec.volume_name = ""


def _deleted(objects: ApiObjects) -> None:
    objects.claims["default", "data"].metadata.deletion_timestamp = at(NOW)


def _no_volume(objects: ApiObjects) -> None:
    objects.volumes.clear()


def _unclaimed(objects: ApiObjects) -> None:
    objects.volumes["pv-data"].spec.claim_ref = None


def _stolen(objects: ApiObjects) -> None:
    objects.volumes["pv-data"].spec.claim_ref = ObjectReference(uid="other")


def _block(objects: ApiObjects) -> None:
    objects.volumes["pv-data"].spec.volume_mode = "Block"


def _rbd(objects: ApiObjects) -> None:
    objects.volumes["pv-data"].spec.nfs = None
    objects.volumes["pv-data"].spec.rbd = RBDPersistentVolumeSource(image="i")


@pytest.mark.parametrize(
    "change, text",
    [
        (_no_claim, "persistentvolumeclaim default/data not found"),
        (_unbound, "PVC is not bound"),
        (_nameless, "PVC has empty pvc.Spec.VolumeName"),
        (_deleted, "PVC is being deleted"),
        (_no_volume, "failed to fetch PV pv-data from API server"),
        (_unclaimed, "nil pv.Spec.ClaimRef"),
        (_stolen, "ClaimRef.UID other does not point to claim.UID uid-data"),
        (_block, "volume data has volumeMode Block, but is specified in volumeMounts"),
        (_rbd, "persistent volume pv-data of kind rbd is not supported by this agent"),
    ],
)
async def test_claims_that_cannot_be_used(change: Callable[[ApiObjects], None], text: str) -> None:
    objects = ApiObjects()
    use = share(objects)
    change(objects)
    with pytest.raises(VolumeProblem, match=text):
        await resolve_claim(objects, a_pod(), use)


async def test_node_affinity() -> None:
    objects = ApiObjects()
    use = share(objects)
    objects.volumes["pv-data"].spec.node_affinity = VolumeNodeAffinity(required=NodeSelector())
    with pytest.raises(VolumeProblem, match="node affinity of persistent volume pv-data does not match"):
        await resolve_claim(objects, a_pod(), use, lambda selector: False)


def test_a_volume_waits_for_every_object_that_is_watched_for_it() -> None:
    tree = rich_pod()
    tree["metadata"]["namespace"] = "shop"
    [pod] = load_pods(json.dumps(tree).encode(), origin="x")
    watched = {
        (key.kind.__name__.lower(), key.namespace, key.name) for key, followed in referred(pod).items() if followed
    }
    awaited = {key for volume in pod.spec.volumes for key in objects_of(pod, volume)}
    assert watched and watched <= awaited
    assert {key.kind for key in awaited} >= {"persistentvolumeclaim", "serviceaccount", "clustertrustbundle"}


async def test_an_ephemeral_volumes_claim_must_belong_to_the_pod() -> None:
    objects, pod = ApiObjects(), a_pod()
    bound(objects, "web-tmp", nfs=NFS)
    use = Use(Volume(name="tmp", ephemeral=EphemeralVolumeSource()), mounted=True, mapped=False)
    with pytest.raises(VolumeProblem, match="not owned by pod"):
        await resolve_claim(objects, pod, use)
    owner = OwnerReference(uid="uid-web", controller=True)
    objects.claims["default", "web-tmp"].metadata.owner_references.append(owner)
    assert (await resolve_claim(objects, pod, use)).folder == "pv-web-tmp"


async def test_the_event_and_the_wait_of_an_unbound_claim(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    pod = pod_with(bound(node.objects, "data", host_path=host_path("/srv").host_path))
    node.objects.claims["default", "data"].status.phase = "Pending"
    async with node.running() as manager, TaskSet("test") as tasks:
        waiting = tasks.spawn(manager.wait_mounted(pod), name="wait")
        await node.clock.sleep(30)
        assert node.events.pods[0] == (
            "FailedMount",
            "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], "
            "failed to process volumes=[data]: error processing PVC default/data: PVC is not bound",
        )
        node.objects.claims["default", "data"].status.phase = "Bound"
        manager.object_changed("PersistentVolumeClaim", "default", "data")
        await waiting
        assert node.clock.monotonic() == pytest.approx(30)
        assert manager.path_of(pod, "data") == "/srv"


async def test_read_write_once_pod(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    source = host_path("/srv").host_path
    volume = bound(node.objects, "data", host_path=source, access_modes=["ReadWriteOncePod"])
    first, second = pod_with(volume, name="first"), pod_with(volume, name="second")
    async with node.running() as manager, TaskSet("test") as tasks:
        await manager.wait_mounted(first)
        waiting = tasks.spawn(manager.wait_mounted(second), name="second")
        await node.clock.sleep(20)
        assert "already in use by another pod" in problem_texts(manager, "uid-second")[0]
        await manager.wait_unmounted(first)
        await waiting
        assert node.clock.monotonic() == pytest.approx(20)


async def test_extra_groups(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    pod = pod_with(bound(node.objects, "data", host_path=host_path("/srv").host_path))
    node.objects.volumes["pv-data"].metadata.annotations["pv.beta.kubernetes.io/gid"] = "77"
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        assert manager.extra_groups(pod) == [77]


@pytest.mark.parametrize(
    "source",
    [
        {"nfs": NFSVolumeSource(server="s", path="/", read_only=True)},
        {"csi": CSIPersistentVolumeSource(driver="d", volume_handle="h", read_only=True)},
        {"iscsi": ISCSIPersistentVolumeSource(iqn="iqn.a", target_portal="p", read_only=True)},
        {"fc": FCVolumeSource(wwids=["w"], read_only=True)},
        {"cinder": CinderPersistentVolumeSource(volume_id="c", read_only=True)},
    ],
)
async def test_read_only_is_what_the_claims_user_says(source: dict[str, Any]) -> None:
    for read_only in (False, True):
        objects = ApiObjects()
        volume = bound(objects, "data", read_only=read_only, **source)
        spec = await resolve_claim(objects, a_pod(), Use(volume, mounted=True, mapped=False))
        assert spec.read_only == read_only
