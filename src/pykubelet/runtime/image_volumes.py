"""Image volumes: their images are on the node before a container starts, and the mount builder learns which.

All of a pod's are fetched at once, each time containers of it are about to start, by the same rules as images of
containers. One that cannot be had fails the containers that mount it and no others. Mounting is the runtime's work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pykubelet.api.types import Pod
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.model.pod import AnyContainer, uid_of
from pykubelet.wire import cri_pb2


class ImageEnsurer(Protocol):
    async def ensure_image(
        self,
        pod: Pod,
        image: str,
        policy: str | None,
        *,
        sandbox_config: cri_pb2.PodSandboxConfig | None = None,
        field_path: str = "",
    ) -> str: ...


class ImageVolumes:
    """What became of the images of each pod's volumes. Implements volumes.objects.VolumeImages."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, cri_pb2.ImageSpec | PykubeletError]] = {}

    async def fetch(self, images: ImageEnsurer, pod: Pod, sandbox: cri_pb2.PodSandboxConfig, handler: str) -> None:
        """Make sure of all images, at the same time; what fails is kept for the containers that need it.

        Raises only RuntimeDown.
        """
        wanted = {volume.name or "": volume.image for volume in pod.spec.volumes if volume.image is not None}
        if not wanted:
            return
        found: dict[str, cri_pb2.ImageSpec | PykubeletError] = {}

        async def fetch_one(volume: str, image: str, policy: str | None) -> None:
            try:
                reference = await images.ensure_image(pod, image, policy, sandbox_config=sandbox)
            except RuntimeDown:
                raise
            except PykubeletError as error:
                found[volume] = error
            else:
                found[volume] = cri_pb2.ImageSpec(
                    image=reference,
                    user_specified_image=image,
                    runtime_handler=handler,
                    annotations=pod.metadata.annotations,
                )

        await gather_all(*(fetch_one(name, each.reference or "", each.pull_policy) for name, each in wanted.items()))
        self._found[uid_of(pod)] = found

    def problems(self, pod: Pod, container: AnyContainer) -> list[PykubeletError]:
        """Why images of volumes that the container mounts could not be had, in the order of its mounts."""
        found = self._found.get(uid_of(pod), {})
        mounted = (found.get(mount.name or "") for mount in container.volume_mounts)
        return [each for each in mounted if isinstance(each, PykubeletError)]

    def image_of(self, pod: Pod, volume: str) -> cri_pb2.ImageSpec | None:
        found = self._found.get(uid_of(pod), {}).get(volume)
        return found if isinstance(found, cri_pb2.ImageSpec) else None

    def keep_only(self, uids: Iterable[str]) -> None:
        """Forget pods that are gone."""
        wanted = set(uids)
        self._found = {uid: found for uid, found in self._found.items() if uid in wanted}
