"""Pods in, the runtime's configs out: looks up what the pure builders need and makes the files they mount.

Any trouble with what a pod refers to becomes a ConfigProblem with a text for its status; only an unreachable
runtime passes as it is. Rules are in the pure modules beside this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from pykubelet.api.quantity import QuantityError
from pykubelet.api.types import Pod
from pykubelet.clients.cri.port import CriImages
from pykubelet.clients.host.port import PodFolders
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.limits import Once
from pykubelet.model.errors import PykubeletError, RuntimeDown
from pykubelet.model.events import EventSink
from pykubelet.model.pod import AnyContainer, ContainerKind, uid_of, uses_host_network
from pykubelet.model.reasons import WARNING
from pykubelet.runtime.problems import ConfigProblem
from pykubelet.runtime.spec.collaborators import (
    DeviceResources,
    NodeAddresses,
    NoDevices,
    NoReferences,
    NoUserNamespaces,
    NoVolumes,
    References,
    UserNamespaces,
    Volumes,
)
from pykubelet.runtime.spec.container import ContainerParts, build_container_config, wants_hosts_file
from pykubelet.runtime.spec.dns import NO_CLUSTER_DNS, DnsResult, Resolver, host_resolver_complaint, pod_resolver
from pykubelet.runtime.spec.env import EnvInputs, build_env
from pykubelet.runtime.spec.hosts import HOSTS_PATH, host_network_hosts_file, hosts_file, pod_hostname
from pykubelet.runtime.spec.lookups import EnvSources, ImageUsers
from pykubelet.runtime.spec.resolv_conf import HostResolver
from pykubelet.runtime.spec.sandbox import SandboxParts, build_sandbox_config
from pykubelet.runtime.spec.security import ImageUser, check_non_root, needs_image_user
from pykubelet.runtime.start import ContainerRequest
from pykubelet.wire import cri_pb2

__all__ = ["NoReferences", "NoVolumes", "PodSpecBuilder"]

T = TypeVar("T")

LARGE: Final = 50_000
"""Characters of words, variables and ports from which on a container's config is made off the loop."""
LARGE_PORTS: Final = 5_000
ENTRY: Final = 30
REMEMBERED_WARNINGS: Final = 4096
MAKE_WITHIN: Final = 60.0
NO_USER_NAMESPACES: Final = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"


class PodSpecBuilder:
    """Implements runtime.start.SpecBuilder."""

    def __init__(
        self,
        *,
        node: NodeSpec,
        folders: PodFolders,
        images: CriImages,
        events: EventSink,
        addresses: NodeAddresses,
        volumes: Volumes,
        references: References,
        devices: DeviceResources | None = None,
        user_namespaces: UserNamespaces | None = None,
    ) -> None:
        self._node = node
        self._folders = folders
        self._events = events
        self._addresses = addresses
        self._volumes = volumes
        self._devices = devices or NoDevices()
        self._user_namespaces = user_namespaces or NoUserNamespaces()
        self._env = EnvSources(references=references, volumes=volumes, node=node, addresses=addresses)
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
                exclusive_cpus=self._devices.has_exclusive_cpus(pod),
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
            granted = await self._devices.container_resources(pod, container)
            devices = await self._volumes.devices_for(pod, container) if container.volume_devices else ()
            sources = await self._env.gather(pod, container, request.pod_ips)
            is_large = _size(container, sources) > LARGE
            env = await _made(is_large, lambda: build_env(pod, container, sources))
            mounts: Sequence[cri_pb2.Mount] = ()
            if container.volume_mounts:
                mounts = await self._volumes.mounts_for(pod, container, {**granted.envs, **env})
            parts = ContainerParts(
                image_ref=request.image_ref,
                restart_count=request.restart_count,
                target_id=request.target_id if kind is ContainerKind.EPHEMERAL else "",
                env=env,
                granted=granted,
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
        """At the agent's start: tell when pods cannot get all that the host's resolver file says."""
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
            node_addresses=self._addresses.host_ips(),
        )
        self._warnings.tell(pod, result)
        return result.resolver

    async def _userns(self, pod: Pod) -> cri_pb2.UserNamespace:
        if pod.spec.host_users is not False:
            return cri_pb2.UserNamespace(mode=cri_pb2.NamespaceMode.NODE)
        mappings = await self._user_namespaces.mappings(pod)
        if mappings is None:
            raise ConfigProblem(NO_USER_NAMESPACES)
        return mappings

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
        return str(self._folders.make_termination_log(uid_of(pod), container.name or ""))


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
    """Tells each complaint about a pod's resolver settings once, however often its configs are built."""

    def __init__(self, events: EventSink, *, in_cluster: bool = True) -> None:
        self._events = events
        self._in_cluster = in_cluster
        self._reported: Once[tuple[str, str]] = Once(REMEMBERED_WARNINGS)

    def tell(self, pod: Pod, result: DnsResult) -> None:
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
