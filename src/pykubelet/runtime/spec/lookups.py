"""What must be looked up before a container's config can be built: objects it names, files, its image's user.

Asks only for what the container uses, each thing once; a container without references costs no wait at all.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from functools import partial

from pykubelet.api.types import ConfigMap, Pod, Secret, Service
from pykubelet.clients.cri.port import CriImages
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.kit.host_calls import HostCallStuck, host_calls
from pykubelet.kit.limits import Recent
from pykubelet.model.pod import AnyContainer, is_static, namespace_of, uid_of, uses_host_network
from pykubelet.runtime.problems import ConfigProblem
from pykubelet.runtime.spec.collaborators import NodeAddresses, References, Volumes
from pykubelet.runtime.spec.downward import Addresses
from pykubelet.runtime.spec.env import EnvInputs
from pykubelet.runtime.spec.env_files import EnvFile, read_env_file
from pykubelet.runtime.spec.security import ImageUser
from pykubelet.runtime.spec.services import MASTER_NAMESPACE, visible_services

REMEMBERED_IMAGES = 512
ENV_FILE_WITHIN = 30.0


class EnvSources:
    """Everything the variables of a container may come from."""

    def __init__(self, *, references: References, volumes: Volumes, node: NodeSpec, addresses: NodeAddresses) -> None:
        self._references = references
        self._volumes = volumes
        self._node = node
        self._addresses = addresses

    async def gather(self, pod: Pod, container: AnyContainer, pod_ips: Sequence[str]) -> EnvInputs:
        maps, secrets = referred_objects(container)
        return EnvInputs(
            addresses=pod_addresses(pod, pod_ips, self._addresses.host_ips()),
            config_maps=await self._config_maps(namespace_of(pod), maps),
            secrets=await self._secrets(namespace_of(pod), secrets),
            services=await self._services(pod),
            allocatable=self._node.allocatable,
            files=await self._files(pod, container) if self._node.env_files else None,
        )

    async def _config_maps(self, namespace: str, names: Iterable[str]) -> dict[str, ConfigMap]:
        found = {name: await self._references.config_map(namespace, name) for name in names}
        return {name: each for name, each in found.items() if each is not None}

    async def _secrets(self, namespace: str, names: Iterable[str]) -> dict[str, Secret]:
        found = {name: await self._references.secret(namespace, name) for name in names}
        return {name: each for name, each in found.items() if each is not None}

    async def _services(self, pod: Pod) -> Sequence[Service]:
        links = pod.spec.enable_service_links is not False
        master = await self._references.services(MASTER_NAMESPACE)
        own = await self._references.services(namespace_of(pod)) if links else ()
        if master is None or own is None:
            if is_static(pod):
                return ()
            raise ConfigProblem("services have not yet been read at least once, cannot construct envvars")
        return visible_services(master, own, links=links)

    async def _files(self, pod: Pod, container: AnyContainer) -> dict[tuple[str, str], EnvFile]:
        found: dict[tuple[str, str], EnvFile] = {}
        for variable in container.env:
            reference = variable.value_from.file_key_ref if variable.value_from is not None else None
            if reference is None:
                continue
            volume, path = reference.volume_name or "", reference.path or ""
            root = self._volumes.path_of(pod, volume)
            if root is not None and (volume, path) not in found:
                # In a thread: the volume may be a network file system that does not answer.
                found[volume, path] = await _read_env_file(uid_of(pod), root, path)
        return found


async def _read_env_file(uid: str, root: str, path: str) -> EnvFile:
    work = partial(read_env_file, root, path)
    key = f"{root}/{path}"
    try:
        return await host_calls.run(work, name="reading an env file", key=key, pod=uid, within=ENV_FILE_WITHIN)
    except HostCallStuck as error:
        return EnvFile(path=key, error=str(error))


def referred_objects(container: AnyContainer) -> tuple[dict[str, None], dict[str, None]]:
    """Names of config maps and of secrets that the variables need, each once."""
    maps: dict[str, None] = {}
    secrets: dict[str, None] = {}
    for source in container.env_from:
        if source.config_map_ref is not None:
            maps[source.config_map_ref.name or ""] = None
        elif source.secret_ref is not None:
            secrets[source.secret_ref.name or ""] = None
    for variable in container.env:
        if variable.value or variable.value_from is None:
            continue
        if variable.value_from.config_map_key_ref is not None:
            maps[variable.value_from.config_map_key_ref.name or ""] = None
        if variable.value_from.secret_key_ref is not None:
            secrets[variable.value_from.secret_key_ref.name or ""] = None
    return maps, secrets


def pod_addresses(pod: Pod, pod_ips: Sequence[str], host_ips: Sequence[str]) -> Addresses:
    """The pod's addresses, that of the node's own family first; on the host's network they are the node's."""
    known = pod_ips or (host_ips if uses_host_network(pod) else ())
    first: dict[int, str] = {}
    for address in known:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            continue  # a runtime's odd text is no address anyone could use
        first.setdefault(parsed.version, str(parsed))
    order = (6, 4) if host_ips and ":" in host_ips[0] else (4, 6)
    return Addresses(pod=tuple(first[version] for version in order if version in first), host=tuple(host_ips))


class ImageUsers:
    """The user each image names, asked once per image: what an image reference by digest names never changes."""

    def __init__(self, images: CriImages) -> None:
        self._images = images
        self._known: Recent[str, ImageUser] = Recent(REMEMBERED_IMAGES)

    async def user_of(self, image_ref: str) -> ImageUser:
        known = self._known.get(image_ref)
        if known is not None:
            return known
        image = await self._images.image_status(image_ref)
        if image is None:
            return ImageUser()
        user = ImageUser()
        if image.uid is not None:
            user = ImageUser(uid=image.uid)
        elif image.username:
            user = ImageUser(uid=None, username=image.username)
        if image_ref.startswith("sha256:") or "@sha256:" in image_ref:
            self._known.put(image_ref, user)
        return user
