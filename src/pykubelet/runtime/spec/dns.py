"""A pod's resolver settings: the policies, dnsConfig on top, and the limits with their warning texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pykubelet.api.types import Pod
from pykubelet.model.pod import log_form, namespace_of, uses_host_network

MAX_SERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARS = 2048
CLUSTER_OPTIONS = ("ndots:5",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsResult:
    resolver: Resolver
    warnings: tuple[str, ...] = ()
    """Texts of DNSConfigForming events."""
    missing_cluster_dns: str = ""
    """Text of the MissingClusterDNS event; empty when there is nothing to complain about."""


def parse_resolv_conf(text: str) -> Resolver:
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split("#")[0].split(";")[0].split()
        if len(words) < 2:
            continue
        if words[0] == "nameserver":
            servers.append(words[1])
        elif words[0] == "search":
            searches = [word.removesuffix(".") for word in words[1:] if word != "."]
        elif words[0] == "options":
            for option in words[1:]:
                options[option.partition(":")[0]] = option
    return Resolver(servers=tuple(servers), searches=tuple(searches), options=tuple(options.values()))


def pod_resolver(
    pod: Pod, *, host: Resolver | None, cluster_dns: Sequence[str], cluster_domain: str, node_is_ipv6: bool = False
) -> DnsResult:
    """`host` is None when the agent was told to use no resolver file."""
    policy = pod.spec.dns_policy or "ClusterFirst"
    missing = ""
    if policy == "ClusterFirst" and uses_host_network(pod):
        policy = "Default"
    if policy in ("ClusterFirst", "ClusterFirstWithHostNet") and not cluster_dns:
        missing = (
            f'pod: "{log_form(pod)}". kubelet does not have ClusterDNS IP configured and cannot create Pod using '
            f'"{pod.spec.dns_policy or "ClusterFirst"}" policy. Falling back to "Default" policy.'
        )
        policy = "Default"
    if policy == "None":
        base = Resolver()
    elif policy == "Default":
        base = (
            host if host is not None else Resolver(servers=("::1" if node_is_ipv6 else "127.0.0.1",), searches=(".",))
        )
    else:
        base = _cluster(pod, host or Resolver(), cluster_dns, cluster_domain)
    return _limited(_with_config(pod, base), missing)


def _cluster(pod: Pod, host: Resolver, servers: Sequence[str], domain: str) -> Resolver:
    searches: tuple[str, ...] = ()
    if domain:
        searches = (f"{namespace_of(pod)}.svc.{domain}", f"svc.{domain}", domain)
    return Resolver(servers=tuple(servers), searches=_unique((*searches, *host.searches)), options=CLUSTER_OPTIONS)


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
    kept: list[str] = []
    used = 0
    for search in searches:
        if len(search) > 253:
            continue
        length = len(search) + (1 if kept else 0)
        if len(kept) >= MAX_SEARCHES or used + length > MAX_SEARCH_CHARS:
            break
        kept.append(search)
        used += length
    return tuple(kept)


def _unique(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
