"""A container as the runtime's container config. Pure: all that must be looked up or made is passed in.

The same for regular, init and ephemeral containers. Order of mounts and variables is upstream's: what device
plugins give comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from pykubelet.api.types import Pod
from pykubelet.cm.container_resources import NO_RESOURCES, ContainerResources
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.model.container_keys import container_annotations, container_labels
from pykubelet.model.expand import ExpansionTooLong, expand_words
from pykubelet.model.pod import AnyContainer
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.resources import container_resources
from pykubelet.runtime.spec.sandbox import HOSTS_PATH
from pykubelet.runtime.spec.security import ImageUser, check_non_root, container_security
from pykubelet.wire import cri_pb2


class ContainerRequest(Struct, frozen=True, kw_only=True):
    """One start of a container."""

    image_ref: str
    restart_count: int
    pod_ips: tuple[str, ...]
    target_id: str = ""
    """Container whose process namespace an ephemeral container joins."""


class ContainerParts(Struct, frozen=True, kw_only=True):
    """What a container needs beyond its pod; looked up or made beforehand."""

    image_ref: str
    restart_count: int = 0
    target_id: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    resources: ContainerResources = NO_RESOURCES
    mounts: Sequence[cri_pb2.Mount] = ()
    """Those of volumeMounts, in the order of the spec."""
    devices: Sequence[cri_pb2.Device] = ()
    """Those of volumeDevices."""
    hosts_file: str = ""
    """The managed hosts file on the host; '' = not mounted."""
    termination_log: str = ""
    image_user: ImageUser = field(default_factory=ImageUser)
    userns: cri_pb2.UserNamespace | None = None
    extra_groups: Sequence[int] = ()


def build_container_config(
    pod: Pod, container: AnyContainer, parts: ContainerParts, node: NodeSpec
) -> cri_pb2.ContainerConfig:
    """Raises ConfigProblem when the spec cannot be honoured."""
    check_non_root(pod, container, parts.image_user)
    resources, name = parts.resources, container.name
    env = {**resources.envs, **parts.env}
    return cri_pb2.ContainerConfig(
        metadata=cri_pb2.ContainerMetadata(name=name, attempt=parts.restart_count),
        image=cri_pb2.ImageSpec(image=parts.image_ref, user_specified_image=container.image or ""),
        command=_expanded(container.command, env, "command"),
        args=_expanded(container.args, env, "args"),
        working_dir=container.working_dir or "",
        stdin=bool(container.stdin),
        stdin_once=bool(container.stdin_once),
        tty=bool(container.tty),
        envs=_envs(resources.envs, parts.env),
        mounts=_mounts(container, parts, node),
        devices=[*resources.devices, *parts.devices],
        CDI_devices=[cri_pb2.CDIDevice(name=device) for device in resources.cdi_devices],
        labels=container_labels(pod, container),
        annotations={**resources.annotations, **container_annotations(pod, container, parts.restart_count)},
        log_path=f"{name}/{parts.restart_count}.log",
        linux=cri_pb2.LinuxContainerConfig(
            resources=container_resources(pod, container, node, resources),
            security_context=container_security(
                pod,
                container,
                node,
                image_user=parts.image_user,
                userns=parts.userns,
                extra_groups=parts.extra_groups,
                target_id=parts.target_id,
            ),
        ),
        stop_signal=stop_signal(container) if node.stop_signals else None,
    )


def wants_hosts_file(pod: Pod, container: AnyContainer, pod_ips: Sequence[str]) -> bool:
    """Whether the managed hosts file is mounted: there is something to write and nothing else is mounted there."""
    if not (pod_ips or pod.spec.host_network):
        return False
    return all(mount.mount_path != HOSTS_PATH for mount in container.volume_mounts)


def stop_signal(container: AnyContainer) -> str | None:
    """The runtime's name of the requested signal; one it does not know is left to the image."""
    name = container.lifecycle.stop_signal if container.lifecycle is not None else None
    if not name:
        return None
    spelled = name.replace("+", "PLUS").replace("-", "MINUS")
    return spelled if spelled in cri_pb2.Signal.keys() else "RUNTIME_DEFAULT"  # noqa: SIM118 - not a dict


def _expanded(words: Sequence[str], env: Mapping[str, str], where: str) -> list[str]:
    try:
        found = expand_words(words, env)
        "".join(found).encode()
    except UnicodeEncodeError as error:
        raise ConfigProblem(f"{where} uses a variable whose value is not text (UTF-8)") from error
    except ExpansionTooLong as error:
        raise ConfigProblem(f"{where} is {error}") from error
    return found


def _envs(resources: Mapping[str, str], own: Mapping[str, str]) -> list[cri_pb2.KeyValue]:
    return [
        cri_pb2.KeyValue(key=name, value=value.encode(errors="surrogateescape"))
        for values in (resources, own)
        for name, value in values.items()
    ]


def _mounts(container: AnyContainer, parts: ContainerParts, node: NodeSpec) -> list[cri_pb2.Mount]:
    mounts = list(_in_order(container, parts, node))
    if parts.userns is not None and parts.userns.uids:
        for mount in mounts:
            mount.uidMappings.extend(parts.userns.uids)
            mount.gidMappings.extend(parts.userns.gids)
    return mounts


def _in_order(container: AnyContainer, parts: ContainerParts, node: NodeSpec) -> Iterator[cri_pb2.Mount]:
    for mount in (*parts.resources.mounts, *parts.mounts):
        # Our own copy: mappings are added to it, and givers may hand out the same one again.
        own = cri_pb2.Mount()
        own.CopyFrom(mount)
        own.selinux_relabel = mount.selinux_relabel and node.selinux
        yield own
    if parts.hosts_file:
        yield cri_pb2.Mount(container_path=HOSTS_PATH, host_path=parts.hosts_file, selinux_relabel=node.selinux)
    if parts.termination_log and container.termination_message_path:
        path = container.termination_message_path
        yield cri_pb2.Mount(
            container_path=path if path.startswith("/") else f"/{path}",
            host_path=parts.termination_log,
            selinux_relabel=node.selinux,
        )
