"""A pod's resolver settings: the policies, dnsConfig on top, and the limits with their warning texts.

Pure but for the host's resolver file, which is read again only when it changed. The warnings are published in
builder.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.model.pod import log_form, namespace_of, uses_host_network
from pykubelet.runtime.errors import ConfigProblem

MAX_SERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARS = 2048
MAX_SEARCH_LENGTH = 253
CLUSTER_SEARCHES = 3
CLUSTER_OPTIONS = ("ndots:5",)
NO_CLUSTER_DNS = (
    'kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. '
    'Falling back to "Default" policy.'
)


class Resolver(Struct, frozen=True, kw_only=True):
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class DnsResult(Struct, frozen=True, kw_only=True):
    resolver: Resolver
    warnings: tuple[str, ...] = ()
    """Texts of DNSConfigForming events."""
    missing_cluster_dns: str = ""
    """Text of the pod's MissingClusterDNS event, '' for none; the node's is NO_CLUSTER_DNS."""


def parse_resolv_conf(text: str) -> Resolver:
    """The last search line counts, servers add up, options replace those of their name."""
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "nameserver":
            if len(words) < 2:
                raise ConfigProblem("the host's resolver file has a nameserver line without an address")
            servers.append(words[1])
        elif words[0] == "search":
            searches = [word.removesuffix(".") for word in words[1:] if word != "."]
        elif words[0] == "options":
            for option in words[1:]:
                options[option.partition(":")[0]] = option
    return Resolver(servers=tuple(servers), searches=tuple(searches), options=tuple(options.values()))


def host_resolver_complaint(host: Resolver, path: str, cluster_domain: str) -> str:
    """What is too much in the host's file for pods to get all of it; '' = fits (event CheckLimitsForResolvConf)."""
    limit = MAX_SEARCHES - CLUSTER_SEARCHES if cluster_domain else MAX_SEARCHES
    if len(host.searches) > limit:
        return f"Resolv.conf file '{path}' contains search line consisting of more than {limit} domains!"
    if any(len(search) > MAX_SEARCH_LENGTH for search in host.searches):
        return (
            f'Resolv.conf file "{path}" contains a search path which length is more than '
            f"allowed {MAX_SEARCH_LENGTH} chars!"
        )
    if len(" ".join(host.searches)) > MAX_SEARCH_CHARS:
        return (
            f"Resolv.conf file '{path}' contains search line which length is more than "
            f"allowed {MAX_SEARCH_CHARS} chars!"
        )
    return ""


def pod_resolver(
    pod: Pod,
    *,
    host: Resolver | None,
    cluster_dns: Sequence[str],
    cluster_domain: str,
    node_addresses: Sequence[str] = (),
) -> DnsResult:
    """`host` is None when the agent is to use no resolver file."""
    policy = pod.spec.dns_policy or "ClusterFirst"
    if policy == "ClusterFirst" and uses_host_network(pod):
        policy = "Default"
    missing = ""
    if policy not in ("Default", "None") and not cluster_dns:
        missing = f'pod: "{log_form(pod)}". {NO_CLUSTER_DNS}'
        policy = "Default"
    if policy == "None":
        base = Resolver()
    elif policy == "Default":
        base = host if host is not None else _localhost(node_addresses)
    else:
        base = _cluster(pod, host or Resolver(), cluster_dns, cluster_domain)
    return _limited(_with_config(pod, base), missing)


def _localhost(node_addresses: Sequence[str]) -> Resolver:
    servers = ["::1" if ":" in address else "127.0.0.1" for address in node_addresses]
    return Resolver(servers=tuple(servers) or ("127.0.0.1",), searches=(".",))


def _cluster(pod: Pod, host: Resolver, servers: Sequence[str], domain: str) -> Resolver:
    searches = host.searches
    if domain:
        searches = _unique((f"{namespace_of(pod)}.svc.{domain}", f"svc.{domain}", domain, *searches))
    return Resolver(servers=tuple(servers), searches=searches, options=CLUSTER_OPTIONS)


def _with_config(pod: Pod, base: Resolver) -> Resolver:
    config = pod.spec.dns_config
    if config is None:
        return base
    options = {option.partition(":")[0]: option for option in base.options}
    for option in config.options:
        name = option.name or ""
        options[name] = f"{name}:{option.value}" if option.value else name
    return Resolver(
        servers=_unique((*base.servers, *config.nameservers)),
        searches=_unique((*base.searches, *config.searches)),
        options=tuple(options.values()),
    )


def _limited(resolver: Resolver, missing: str) -> DnsResult:
    warnings: list[str] = []
    servers = resolver.servers
    if len(servers) > MAX_SERVERS:
        servers = servers[:MAX_SERVERS]
        warnings.append(
            "Nameserver limits were exceeded, some nameservers have been omitted, "
            f"the applied nameserver line is: {' '.join(servers)}"
        )
    searches = _searches_within_limits(resolver.searches)
    if searches != resolver.searches:
        warnings.append(
            "Search Line limits were exceeded, some search paths have been omitted, "
            f"the applied search line is: {' '.join(searches)}"
        )
    limited = Resolver(servers=servers, searches=searches, options=resolver.options)
    return DnsResult(resolver=limited, warnings=tuple(warnings), missing_cluster_dns=missing)


def _searches_within_limits(searches: tuple[str, ...]) -> tuple[str, ...]:
    """The number is cut before over-long ones are dropped, as upstream does it: fewer than 32 may remain."""
    kept = [search for search in searches[:MAX_SEARCHES] if len(search) <= MAX_SEARCH_LENGTH]
    total = len(" ".join(kept))
    while total > MAX_SEARCH_CHARS:
        total -= len(kept.pop()) + 1
    return tuple(kept)


def _unique(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


MAX_BYTES = 10 << 20


class HostResolver:
    """`path` '' means that pods get nothing of the host's settings."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._resolver = Resolver()

    def read(self) -> Resolver | None:
        """What the file says now; None without one. Raises ConfigProblem when it cannot be read."""
        if not self._path:
            return None
        try:
            info = os.stat(self._path)
            # Managers of this file replace it by rename or write it in place: inode, size and time show both.
            mark = (info.st_ino, info.st_size, info.st_mtime_ns)
            if mark != self._seen:
                with open(self._path, encoding="utf-8", errors="replace") as file:
                    self._resolver = parse_resolv_conf(file.read(MAX_BYTES))
                self._seen = mark
        except OSError as error:
            raise ConfigProblem(f"cannot read the resolver file {self._path} (resolvConf): {error.strerror}") from error
        return self._resolver
