"""A pod as the runtime's sandbox config. Pure: the resolver and the id mappings are handed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pykubelet.api.types import Container, Pod
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.model.cgroup_names import parent_for_runtime
from pykubelet.model.container_keys import pod_labels
from pykubelet.model.pod import name_of, namespace_of, uid_of
from pykubelet.runtime.spec.dns import Resolver
from pykubelet.runtime.spec.hosts import kernel_hostname
from pykubelet.runtime.spec.resources import overhead_resources, sandbox_resources
from pykubelet.runtime.spec.security import sandbox_security
from pykubelet.wire import cri_pb2

PROTOCOLS: Final = {
    "TCP": cri_pb2.Protocol.TCP,
    "UDP": cri_pb2.Protocol.UDP,
    "SCTP": cri_pb2.Protocol.SCTP,
}


class SandboxParts(Struct, frozen=True, kw_only=True):
    """What a sandbox needs beyond its pod; looked up beforehand."""

    attempt: int
    log_directory: str
    resolver: Resolver
    userns: cri_pb2.UserNamespace | None = None
    extra_groups: Sequence[int] = ()
    exclusive_cpus: bool = False


def build_sandbox_config(pod: Pod, parts: SandboxParts, node: NodeSpec) -> cri_pb2.PodSandboxConfig:
    resolver = parts.resolver
    return cri_pb2.PodSandboxConfig(
        metadata=cri_pb2.PodSandboxMetadata(
            name=name_of(pod), namespace=namespace_of(pod), uid=uid_of(pod), attempt=parts.attempt
        ),
        hostname=kernel_hostname(pod, node.cluster_domain, override=node.hostname_override),
        log_directory=parts.log_directory,
        dns_config=cri_pb2.DNSConfig(servers=resolver.servers, searches=resolver.searches, options=resolver.options),
        port_mappings=[mapping for container in pod.spec.containers for mapping in port_mappings(container)],
        labels={**pod.metadata.labels, **pod_labels(pod)},
        annotations=pod.metadata.annotations,
        linux=cri_pb2.LinuxPodSandboxConfig(
            cgroup_parent=_cgroup_parent(pod, node),
            security_context=sandbox_security(pod, parts.userns, parts.extra_groups),
            sysctls=sysctls(pod),
            resources=sandbox_resources(pod, node, exclusive_cpus=parts.exclusive_cpus),
            overhead=overhead_resources(pod, node),
        ),
    )


def port_mappings(container: Container) -> list[cri_pb2.PortMapping]:
    """Every port once: by its name, or by all that it says when it has none."""
    found: dict[object, cri_pb2.PortMapping] = {}
    for port in container.ports:
        protocol, host_ip = port.protocol or "TCP", port.host_ip or ""
        key = port.name or (protocol, host_ip, port.container_port, port.host_port or 0)
        if key not in found:
            found[key] = cri_pb2.PortMapping(
                protocol=PROTOCOLS.get(protocol, cri_pb2.Protocol.TCP),
                container_port=port.container_port or 0,
                host_port=port.host_port or 0,
                host_ip=host_ip,
            )
    return list(found.values())


def sysctls(pod: Pod) -> dict[str, str]:
    context = pod.spec.security_context
    return {each.name.replace("/", "."): each.value or "" for each in context.sysctls if each.name} if context else {}


def _cgroup_parent(pod: Pod, node: NodeSpec) -> str:
    if not node.cgroups_per_qos:
        return ""
    return parent_for_runtime(pod, driver=node.cgroup_driver, root=node.cgroup_root)
