"""Images of volumes: fetched together, failures kept for those who mount them, forgotten with the pod."""

from __future__ import annotations

import pytest

from pykubelet.api.types import ImageVolumeSource, Pod, Volume, VolumeMount
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.volumes.image_volumes import ImageVolumes
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod

SANDBOX = cri_pb2.PodSandboxConfig()


class Images:
    """Has every image but those named `absent`; `down` ends the runtime."""

    def __init__(self) -> None:
        self.pulls: list[tuple[str, str | None]] = []

    async def ensure_image(
        self,
        pod: Pod,
        image: str,
        policy: str | None,
        *,
        sandbox_config: cri_pb2.PodSandboxConfig | None = None,
        field_path: str = "",
    ) -> str:
        self.pulls.append((image, policy))
        if image == "down":
            raise RuntimeDown("gone")
        if image == "absent":
            raise PykubeletError("no such image")
        return f"sha256:{image}"


def pod_with(**images: str) -> Pod:
    volumes = [
        Volume(name=name, image=ImageVolumeSource(reference=reference, pull_policy="IfNotPresent"))
        for name, reference in images.items()
    ]
    return a_pod(volumes=[*volumes, Volume(name="other")], annotations={"note": "x"})


async def test_images_are_handed_to_the_mounts() -> None:
    found, images, pod = ImageVolumes(), Images(), pod_with(a="one", b="two")
    await found.fetch(images, pod, SANDBOX, "handler")
    assert images.pulls == [("one", "IfNotPresent"), ("two", "IfNotPresent")]
    spec = found.image_of(pod, "a")
    assert spec is not None
    assert (spec.image, spec.user_specified_image, spec.runtime_handler) == ("sha256:one", "one", "handler")
    assert spec.annotations["note"] == "x"
    assert found.image_of(pod, "other") is None
    assert found.image_of(a_pod("stranger"), "a") is None


async def test_a_failure_belongs_to_those_who_mount_the_volume() -> None:
    found, pod = ImageVolumes(), pod_with(bad="absent", good="one")
    await found.fetch(Images(), pod, SANDBOX, "")
    uses_bad = a_container(volume_mounts=[VolumeMount(name="good"), VolumeMount(name="bad"), VolumeMount(name="other")])
    assert [str(problem) for problem in found.problems(pod, uses_bad)] == ["no such image"]
    assert found.problems(pod, a_container(volume_mounts=[VolumeMount(name="good")])) == []
    assert found.image_of(pod, "bad") is None and found.image_of(pod, "good") is not None


async def test_a_runtime_that_is_away_is_nobodys_fault() -> None:
    found, pod = ImageVolumes(), pod_with(a="one", b="down")
    with pytest.raises(RuntimeDown):
        await found.fetch(Images(), pod, SANDBOX, "")
    assert found.image_of(pod, "a") is None


async def test_pods_that_are_gone_are_forgotten() -> None:
    found, pod = ImageVolumes(), pod_with(a="one")
    await found.fetch(Images(), pod, SANDBOX, "")
    found.keep_only({"uid-web"})
    assert found.image_of(pod, "a") is not None
    found.keep_only(())
    assert found.image_of(pod, "a") is None
