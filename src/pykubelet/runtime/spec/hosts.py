"""Hostnames and the managed hosts file. Pure; the formats are upstream's, tabs included."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from pykubelet.api.types import HostAlias, Pod
from pykubelet.model.pod import name_of, namespace_of, uses_host_network
from pykubelet.runtime.problems import ConfigProblem

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
    """`override` says whether spec.hostnameOverride counts on this node."""
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
