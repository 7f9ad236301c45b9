"""A pod as the runtime's sandbox config. Pure: the resolver and the id mappings are passed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pykubelet.api.types import Container, HostAlias, Pod
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.model.cgroups import parent_for_runtime
from pykubelet.model.container_keys import pod_labels
from pykubelet.model.pod import name_of, namespace_of, uid_of, uses_host_network
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.dns import Resolver
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
    """Every port once: by its name, or by all its fields when it has none."""
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


HOSTS_PATH = "/etc/hosts"
MAX_LABEL = 63
MAX_FQDN = 64

_POD_HEADER = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""
_HOST_HEADER = "# Kubernetes-managed hosts file (host network).\n"


class HostnameTooLong(ConfigProblem):
    """The fully qualified name does not fit into what the kernel allows."""


class PodHostname(Struct, frozen=True, kw_only=True):
    host: str
    domain: str = ""

    @property
    def qualified(self) -> str:
        return f"{self.host}.{self.domain}" if self.domain else self.host


def pod_hostname(pod: Pod, cluster_domain: str, *, override: bool = True) -> PodHostname:
    """`override`: whether spec.hostnameOverride counts on this node."""
    if override and pod.spec.hostname_override is not None:
        return PodHostname(host=_cut(pod.spec.hostname_override))
    host = _cut(pod.spec.hostname or name_of(pod))
    domain = f"{pod.spec.subdomain}.{namespace_of(pod)}.svc.{cluster_domain}" if pod.spec.subdomain else ""
    return PodHostname(host=host, domain=domain)


def _cut(host: str) -> str:
    return host if len(host) <= MAX_LABEL else host[:MAX_LABEL].rstrip("-.")


def kernel_hostname(pod: Pod, cluster_domain: str, *, override: bool = True) -> str:
    """What the sandbox's hostname is set to; empty means the runtime keeps the node's."""
    if uses_host_network(pod):
        return ""
    name = pod_hostname(pod, cluster_domain, override=override)
    if not (pod.spec.set_hostname_as_fqdn and name.domain):
        return name.host
    if len(name.qualified) > MAX_FQDN:
        raise HostnameTooLong(
            "failed to construct FQDN from pod hostname and cluster domain, "
            f"FQDN {name.qualified} is too long ({MAX_FQDN} characters is the max, "
            f"{len(name.qualified)} characters requested)"
        )
    return name.qualified


def hosts_file(pod: Pod, ips: Sequence[str], name: PodHostname) -> str:
    """The file of a pod with its own network: one line for each of its addresses."""
    names = f"{name.qualified}\t{name.host}" if name.domain else name.host
    lines = [f"{address}\t{names}\n" for address in ips]
    return _POD_HEADER + "".join(lines) + _aliases(pod.spec.host_aliases)


def host_network_hosts_file(pod: Pod, node_file: str) -> str:
    return _HOST_HEADER + node_file + _aliases(pod.spec.host_aliases)


def _aliases(aliases: Sequence[HostAlias]) -> str:
    if not aliases:
        return ""
    lines = ["\n# Entries added by HostAliases.\n"]
    lines += [f"{alias.ip}\t" + "\t".join(alias.hostnames) + "\n" for alias in aliases]
    return "".join(lines)
