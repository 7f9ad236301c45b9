"""The life of a pod as spans."""

from __future__ import annotations

from pathlib import Path

from pykubelet.api.types import HostPathVolumeSource, Volume, VolumeMount
from pykubelet.model.errors import CriError
from tests.builders import a_container, a_pod
from tests.harness import a_node
from tests.recorded_spans import attributes_of, recorded_spans


async def test_the_life_of_a_pod(tmp_path: Path) -> None:
    shared = Volume(name="shared", host_path=HostPathVolumeSource(path=str(tmp_path), type="Directory"))
    container = a_container("app", volume_mounts=[VolumeMount(name="shared", mount_path="/shared")])
    with recorded_spans() as spans:
        async with a_node(tmp_path) as node:
            pod = node.run(a_pod("web", containers=[container], volumes=[shared]))
            await node.until_running(pod)
            node.remove("web")
            await node.until(lambda: not list(node.node.table))
    first = spans[spans.names.index("syncPod")]
    described = {
        "k8s.pod.uid": pod.metadata.uid,
        "k8s.pod": f"default/{pod.metadata.name}",
        "k8s.pod.name": pod.metadata.name,
        "k8s.namespace.name": "default",
    }
    assert attributes_of(first) == {**described, "k8s.pod.update_type": "create"}
    assert first.status.is_unset and spans.parent_of(first) == ""
    for name in ("syncTerminatingPod", "syncTerminatedPod"):
        assert attributes_of(spans.one(name)) == described
    image = spans.one("Images/EnsureImageExists")
    assert attributes_of(image)["container.image.name"] == container.image and spans.parent_of(image) == "syncPod"
    assert spans.parent_of(spans[spans.names.index("Volumes/WaitForAttachAndMount")]) == "syncPod"
    # Work of another task, but for this sync.
    mounted = spans.one("Volumes/Mount")
    assert spans.parent_of(mounted) == "Volumes/WaitForAttachAndMount" and mounted.status.is_unset
    assert attributes_of(mounted) == {
        "k8s.pod.uid": pod.metadata.uid,
        "k8s.volume.name": "shared",
        "k8s.volume.type": "kubernetes.io/host-path",
    }
    assert spans.parent_of(spans.one("Volumes/WaitForUnmount")) == "syncTerminatedPod"
    later = [attributes_of(span)["k8s.pod.update_type"] for span in spans if span.name == "syncPod"][1:]
    assert set(later) <= {"sync", "update"}
    assert "Containers/GarbageCollect" in spans.names and "Images/GarbageCollect" in spans.names


async def test_a_volume_that_fails_is_an_error_and_later_tries_are_traces_of_their_own(tmp_path: Path) -> None:
    missing = HostPathVolumeSource(path=str(tmp_path / "missing"), type="Directory")
    container = a_container("app", volume_mounts=[VolumeMount(name="shared", mount_path="/shared")])
    with recorded_spans() as spans:
        async with a_node(tmp_path) as node:
            node.run(a_pod("web", containers=[container], volumes=[Volume(name="shared", host_path=missing)]))
            await node.until(lambda: spans.names.count("Volumes/Mount") == 2)
    first, second = (span for span in spans if span.name == "Volumes/Mount")
    assert not first.status.is_ok and "missing" in (first.status.description or "")
    assert first.parent is not None and second.parent is None


async def test_what_keeps_a_pod_from_starting_is_in_its_span(tmp_path: Path) -> None:
    with recorded_spans() as spans:
        async with a_node(tmp_path) as node:
            node.cri.fail_next("create_container", CriError("no space left"), times=None)
            node.run(a_pod("web"))
            await node.until(lambda: "syncPod" in spans.names)
    first = spans[spans.names.index("syncPod")]
    assert not first.status.is_ok and "no space left" in (first.status.description or "")
