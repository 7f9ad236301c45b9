"""Image volumes: pulls their images before containers start, and keeps which they are for the mount builder.

All images of a pod's volumes are pulled at once whenever containers of it are about to start, by the same rules as
images of containers. One that cannot be pulled fails only the containers that mount it. The runtime does the mounting.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.api.types import Pod
from pykubelet.images.pull import ImagePuller
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.model.pod import AnyContainer, uid_of
from pykubelet.wire import cri_pb2


class ImageVolumes:
    """The pulled image of each image volume, or why it could not be pulled."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, cri_pb2.ImageSpec | PykubeletError]] = {}

    async def fetch(self, images: ImagePuller, pod: Pod, sandbox: cri_pb2.PodSandboxConfig, handler: str) -> None:
        """Pull all images at the same time; errors are kept for the containers that need the image.

        Raises only RuntimeDown.
        """
        wanted = {volume.name: volume.image for volume in pod.spec.volumes if volume.image is not None}
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
        """Why images of volumes that the container mounts could not be pulled, in the order of its mounts."""
        found = self._found.get(uid_of(pod), {})
        images = (found.get(mount.name) for mount in container.volume_mounts)
        return [each for each in images if isinstance(each, PykubeletError)]

    def image_of(self, pod: Pod, volume: str) -> cri_pb2.ImageSpec | None:
        found = self._found.get(uid_of(pod), {}).get(volume)
        return found if isinstance(found, cri_pb2.ImageSpec) else None

    def keep_only(self, uids: Iterable[str]) -> None:
        """Forget pods that are gone."""
        wanted = set(uids)
        self._found = {uid: found for uid, found in self._found.items() if uid in wanted}
