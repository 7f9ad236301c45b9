"""Pods in, the runtime's configs out: looks up what the pure builders need and makes the files they mount.

Any trouble with what a pod refers to becomes a ConfigProblem with a text for its status; only an unreachable
runtime passes as it is. Rules are in the pure modules beside this file.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pykubelet.api.quantity import QuantityError
from pykubelet.api.types import ConfigMap, Pod, Secret, Service
from pykubelet.clients.cri.port import CriImages
from pykubelet.clients.host.port import PodFolders
from pykubelet.cm.container_resources import ContainerResourceSource
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.cm.user_namespaces import PodUserNamespaces
from pykubelet.kit.host_calls import HostCallStuck, host_calls
from pykubelet.kit.limits import Once, Recent
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import AnyContainer, ContainerKind, is_static, namespace_of, uid_of, uses_host_network
from pykubelet.model.reasons import WARNING
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.container import ContainerParts, ContainerRequest, build_container_config, wants_hosts_file
from pykubelet.runtime.spec.dns import (
    NO_CLUSTER_DNS,
    DnsResult,
    HostResolver,
    Resolver,
    host_resolver_complaint,
    pod_resolver,
)
from pykubelet.runtime.spec.downward import Addresses
from pykubelet.runtime.spec.env import (
    MASTER_NAMESPACE,
    EnvFile,
    EnvInputs,
    References,
    build_env,
    read_env_file,
    visible_services,
)
from pykubelet.runtime.spec.sandbox import (
    HOSTS_PATH,
    SandboxParts,
    build_sandbox_config,
    host_network_hosts_file,
    hosts_file,
    pod_hostname,
)
from pykubelet.runtime.spec.security import ImageUser, check_non_root, needs_image_user
from pykubelet.volumes.manager import VolumeManager
from pykubelet.wire import cri_pb2

T = TypeVar("T")

LARGE: Final = 50_000
"""Characters of words, variables and ports from which on a container's config is made off the loop."""
LARGE_PORTS: Final = 5_000
ENTRY: Final = 30
REMEMBERED_WARNINGS: Final = 4096
MAKE_WITHIN: Final = 60.0


class PodSpecBuilder:
    def __init__(
        self,
        *,
        node: NodeSpec,
        folders: PodFolders,
        images: CriImages,
        events: EventRecorder,
        env: EnvSources,
        volumes: VolumeManager,
        resources: ContainerResourceSource,
        user_namespaces: PodUserNamespaces,
    ) -> None:
        self._node = node
        self._folders = folders
        self._events = events
        self._env = env
        self._volumes = volumes
        self._resources = resources
        self._user_namespaces = user_namespaces
        self._image_users = ImageUsers(images)
        self._resolver = HostResolver(node.resolv_conf)
        self._warnings = DnsWarnings(events, in_cluster=node.in_cluster)

    async def sandbox(self, pod: Pod, attempt: int) -> cri_pb2.PodSandboxConfig:
        """The sandbox's config; raises ConfigProblem. Makes the pod's log folder."""
        with _as_config_problems():
            parts = SandboxParts(
                attempt=attempt,
                log_directory=str(self._folders.make_logs(pod)),
                resolver=self._dns(pod),
                userns=await self._userns(pod),
                extra_groups=self._volumes.extra_groups(pod),
                exclusive_cpus=self._resources.has_exclusive_cpus(pod),
            )
            is_large = sum(len(each.ports) for each in pod.spec.containers) > LARGE_PORTS
            return await _made(is_large, lambda: build_sandbox_config(pod, parts, self._node))

    async def container(
        self, pod: Pod, kind: ContainerKind, container: AnyContainer, request: ContainerRequest
    ) -> cri_pb2.ContainerConfig:
        """The container's config; raises ConfigProblem. Writes its hosts file and makes its termination log."""
        with _as_config_problems():
            user = ImageUser()
            if needs_image_user(pod, container):
                user = await self._image_users.user_of(request.image_ref)
            # Before anything is mounted or written for a container that will not start.
            check_non_root(pod, container, user)
            resources = await self._resources.container_resources(pod, container)
            devices = await self._volumes.devices_for(pod, container) if container.volume_devices else ()
            sources = await self._env.gather(pod, container, request.pod_ips)
            is_large = _size(container, sources) > LARGE
            env = await _made(is_large, lambda: build_env(pod, container, sources))
            mounts: Sequence[cri_pb2.Mount] = ()
            if container.volume_mounts:
                mounts = await self._volumes.mounts_for(pod, container, {**resources.envs, **env})
            parts = ContainerParts(
                image_ref=request.image_ref,
                restart_count=request.restart_count,
                target_id=request.target_id if kind is ContainerKind.EPHEMERAL else "",
                env=env,
                resources=resources,
                mounts=mounts,
                devices=devices,
                hosts_file=self._hosts_file(pod, container, request.pod_ips),
                termination_log=self._termination_log(pod, container),
                image_user=user,
                userns=await self._userns(pod),
                extra_groups=self._volumes.extra_groups(pod),
            )
            return await _made(is_large, lambda: build_container_config(pod, container, parts, self._node))

    def check_resolv_conf(self) -> None:
        """At the agent's start: publish an event when pods cannot get all that the host's resolver file has."""
        if not self._node.resolv_conf:
            return
        try:
            host = self._resolver.read() or Resolver()
            complaint = host_resolver_complaint(host, self._node.resolv_conf, self._node.cluster_domain)
        except ConfigProblem as problem:
            complaint = str(problem)
        if complaint:
            self._events.node_event(WARNING, "CheckLimitsForResolvConf", complaint)

    # --- parts ----------------------------------------------------------------------------------

    def _dns(self, pod: Pod) -> Resolver:
        result = pod_resolver(
            pod,
            host=self._resolver.read(),
            cluster_dns=self._node.cluster_dns,
            cluster_domain=self._node.cluster_domain,
            node_addresses=self._env.host_ips(),
        )
        self._warnings.publish(pod, result)
        return result.resolver

    async def _userns(self, pod: Pod) -> cri_pb2.UserNamespace:
        if pod.spec.host_users is not False:
            return cri_pb2.UserNamespace(mode=cri_pb2.NamespaceMode.NODE)
        return await self._user_namespaces.mappings(pod)

    def _hosts_file(self, pod: Pod, container: AnyContainer, pod_ips: Sequence[str]) -> str:
        """Written anew for every container: addresses change with the sandbox, and containers may have edited it."""
        if not wants_hosts_file(pod, container, pod_ips):
            return ""
        if uses_host_network(pod):
            content = host_network_hosts_file(pod, self._folders.read_text(Path(HOSTS_PATH)))
        else:
            name = pod_hostname(pod, self._node.cluster_domain, override=self._node.hostname_override)
            content = hosts_file(pod, pod_ips, name)
        return str(self._folders.write_etc_hosts(uid_of(pod), content))

    def _termination_log(self, pod: Pod, container: AnyContainer) -> str:
        if not container.termination_message_path:
            return ""
        return str(self._folders.make_termination_log(uid_of(pod), container.name))


@contextmanager
def _as_config_problems() -> Iterator[None]:
    try:
        yield
    except (ConfigProblem, RuntimeDown):
        raise
    except (PykubeletError, QuantityError) as error:
        raise ConfigProblem(str(error)) from error
    except OSError as error:
        raise ConfigProblem(f"cannot prepare files on the host: {error}") from error


class DnsWarnings:
    """Publishes each complaint about a pod's resolver settings once, however often its configs are built."""

    def __init__(self, events: EventRecorder, *, in_cluster: bool = True) -> None:
        self._events = events
        self._in_cluster = in_cluster
        self._reported: Once[tuple[str, str]] = Once(REMEMBERED_WARNINGS)

    def publish(self, pod: Pod, result: DnsResult) -> None:
        for text in result.warnings:
            if self._reported.is_new((uid_of(pod), text)):
                self._events.pod_event(pod, WARNING, "DNSConfigForming", text)
        missing = result.missing_cluster_dns if self._in_cluster else ""
        if missing and self._reported.is_new((uid_of(pod), missing)):
            self._events.pod_event(pod, WARNING, "MissingClusterDNS", missing)
            if self._reported.is_new(("", NO_CLUSTER_DNS)):
                self._events.node_event(WARNING, "MissingClusterDNS", NO_CLUSTER_DNS)


def _size(container: AnyContainer, sources: EnvInputs) -> int:
    """How much there is to expand and to write, about in characters."""
    entries = len(container.ports) + len(sources.services)
    for each in container.env_from:
        if each.config_map_ref is not None:
            found = sources.config_maps.get(each.config_map_ref.name or "")
            entries += len(found.data) if found is not None else 0
        elif each.secret_ref is not None:
            secret = sources.secrets.get(each.secret_ref.name or "")
            entries += len(secret.data) if secret is not None else 0
    words = sum(len(word) for word in (*container.command, *container.args))
    return words + sum(ENTRY + len(each.value or "") for each in container.env) + ENTRY * entries


async def _made(is_large: bool, make: Callable[[], T]) -> T:
    """A config off the loop if it is large: an object may hold more than a MiB of words to expand."""
    return await host_calls.run(make, name="making a config", within=MAKE_WITHIN) if is_large else make()


REMEMBERED_IMAGES = 512
ENV_FILE_WITHIN = 30.0


class EnvSources:
    """Everything the variables of a container may come from."""

    def __init__(
        self,
        *,
        references: References,
        volumes: VolumeManager,
        node: NodeSpec,
        host_ips: Callable[[], Sequence[str]],
    ) -> None:
        """`host_ips`: the node's addresses, that of its preferred family first; none while unknown."""
        self._references = references
        self._volumes = volumes
        self._node = node
        self.host_ips = host_ips

    async def gather(self, pod: Pod, container: AnyContainer, pod_ips: Sequence[str]) -> EnvInputs:
        maps, secrets = referred_objects(container)
        return EnvInputs(
            addresses=pod_addresses(pod, pod_ips, self.host_ips()),
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
            continue  # a runtime's odd text is no address of use
        first.setdefault(parsed.version, str(parsed))
    order = (6, 4) if host_ips and ":" in host_ips[0] else (4, 6)
    return Addresses(pod=tuple(first[version] for version in order if version in first), host=tuple(host_ips))


class ImageUsers:
    """The user each image names, read once per image: what an image reference by digest names never changes."""

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
