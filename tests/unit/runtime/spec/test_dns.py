"""Resolver settings: the host's file, policies, dnsConfig, limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import PodDNSConfig, PodDNSConfigOption
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.dns import (
    DnsResult,
    HostResolver,
    Resolver,
    host_resolver_complaint,
    parse_resolv_conf,
    pod_resolver,
)
from tests.builders import a_pod

HOST = Resolver(servers=("192.168.0.53",), searches=("corp.example", "svc.cluster.local"), options=("timeout:2",))
CLUSTER = ("team.svc.cluster.local", "svc.cluster.local", "cluster.local")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Resolver()),
        ("nameserver 1.1.1.1\nnameserver ::1 extra", Resolver(servers=("1.1.1.1", "::1"))),
        ("# nameserver 1.1.1.1\n; nameserver 2.2.2.2\n  #x", Resolver()),
        ("search a b\nsearch c. . d", Resolver(searches=("c", "d"))),
        ("search a\nsearch", Resolver()),
        ("options ndots:2 rotate\noptions ndots:4", Resolver(options=("ndots:4", "rotate"))),
        ("domain example.com\nsortlist x", Resolver()),
        ("\t nameserver\t9.9.9.9 \r\n", Resolver(servers=("9.9.9.9",))),
    ],
)
def test_parse(text: str, wanted: Resolver) -> None:
    assert parse_resolv_conf(text) == wanted


def test_a_nameserver_line_without_an_address_is_an_error() -> None:
    with pytest.raises(ConfigProblem, match="nameserver line"):
        parse_resolv_conf("nameserver\n")


def resolve(host: Resolver | None = HOST, dns: tuple[str, ...] = ("10.0.0.10",), **spec: Any) -> DnsResult:
    pod = a_pod(namespace="team", **spec)
    return pod_resolver(
        pod, host=host, cluster_dns=dns, cluster_domain="cluster.local", node_addresses=("10.9.9.9", "fd00::9")
    )


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, Resolver(servers=("10.0.0.10",), searches=(*CLUSTER, "corp.example"), options=("ndots:5",))),
        ({"dns_policy": "ClusterFirst", "host_network": True}, HOST),
        (
            {"dns_policy": "ClusterFirstWithHostNet", "host_network": True},
            Resolver(servers=("10.0.0.10",), searches=(*CLUSTER, "corp.example"), options=("ndots:5",)),
        ),
        ({"dns_policy": "Default"}, HOST),
        ({"dns_policy": "None"}, Resolver()),
    ],
)
def test_policies(spec: dict[str, Any], wanted: Resolver) -> None:
    assert resolve(**spec) == DnsResult(resolver=wanted)


def test_without_a_cluster_domain_only_the_hosts_searches_remain() -> None:
    found = pod_resolver(a_pod(), host=HOST, cluster_dns=("10.0.0.10",), cluster_domain="")
    assert found.resolver.searches == HOST.searches


@pytest.mark.parametrize("policy", ["ClusterFirst", "ClusterFirstWithHostNet"])
def test_no_cluster_dns_falls_back_and_says_so(policy: str) -> None:
    found = resolve(dns=(), dns_policy=policy)
    assert found.resolver == HOST
    assert found.missing_cluster_dns == (
        'pod: "web_team(uid-web)". kubelet does not have ClusterDNS IP configured and cannot create Pod using '
        '"ClusterFirst" policy. Falling back to "Default" policy.'
    )


def test_without_a_host_file_pods_ask_themselves() -> None:
    assert resolve(host=None, dns_policy="Default").resolver == Resolver(servers=("127.0.0.1", "::1"), searches=(".",))
    bare = pod_resolver(a_pod(dns_policy="Default"), host=None, cluster_dns=(), cluster_domain="")
    assert bare.resolver == Resolver(servers=("127.0.0.1",), searches=(".",))


def test_dns_config_adds_and_its_options_win() -> None:
    config = PodDNSConfig(
        nameservers=["1.1.1.1", "10.0.0.10"],
        searches=["mine.example", "corp.example"],
        options=[
            PodDNSConfigOption(name="ndots", value="2"),
            PodDNSConfigOption(name="edns0"),
            PodDNSConfigOption(name="empty", value=""),
        ],
    )
    assert resolve(dns_config=config).resolver == Resolver(
        servers=("10.0.0.10", "1.1.1.1"),
        searches=(*CLUSTER, "corp.example", "mine.example"),
        options=("ndots:2", "edns0", "empty"),
    )
    assert resolve(dns_policy="None", dns_config=config).resolver.servers == ("1.1.1.1", "10.0.0.10")


def test_too_many_servers() -> None:
    config = PodDNSConfig(nameservers=["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"])
    found = resolve(dns_policy="None", dns_config=config)
    assert found.resolver.servers == ("1.1.1.1", "2.2.2.2", "3.3.3.3")
    assert found.warnings == (
        "Nameserver limits were exceeded, some nameservers have been omitted, "
        "the applied nameserver line is: 1.1.1.1 2.2.2.2 3.3.3.3",
    )


@pytest.mark.parametrize(
    ("searches", "kept"),
    [
        ([f"s{n}" for n in range(33)], [f"s{n}" for n in range(32)]),
        (["a", "b" * 254, "c"], ["a", "c"]),
        (["x" * 254, *[f"s{n}" for n in range(32)]], [f"s{n}" for n in range(31)]),
        ([f"{n}" * 250 for n in range(1, 10)], [f"{n}" * 250 for n in range(1, 9)]),
    ],
    ids=["count", "length", "count before length", "characters"],
)
def test_search_limits(searches: list[str], kept: list[str]) -> None:
    found = resolve(dns_policy="None", dns_config=PodDNSConfig(searches=searches))
    assert list(found.resolver.searches) == kept
    assert found.warnings == (
        "Search Line limits were exceeded, some search paths have been omitted, "
        f"the applied search line is: {' '.join(kept)}",
    )


def test_exactly_at_the_limits_nothing_is_said() -> None:
    full = ["y" * 253] * 8 + ["z" * 16]
    unique = [f"{n}{search[1:]}" for n, search in enumerate(full)]
    assert len(" ".join(unique)) == 2048
    assert resolve(dns_policy="None", dns_config=PodDNSConfig(searches=unique)).warnings == ()


@pytest.mark.parametrize(
    ("searches", "domain", "words"),
    [
        (("a",) * 32, "", ""),
        (("a",) * 33, "", "more than 32 domains"),
        (("a",) * 30, "cluster.local", "more than 29 domains"),
        (("b" * 254,), "", "more than allowed 253 chars"),
        (("b" * 250,) * 9, "", "more than allowed 2048 chars"),
    ],
)
def test_complaints_about_the_host_file(searches: tuple[str, ...], domain: str, words: str) -> None:
    text = host_resolver_complaint(Resolver(searches=searches), "/etc/resolv.conf", domain)
    assert words in text and bool(text) is bool(words)


def test_the_host_file_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text("nameserver 1.1.1.1\n")
    host = HostResolver(str(path))
    first = host.read()
    assert host.read() is first
    path.write_text("nameserver 2.2.2.2\n")
    os.utime(path, ns=(1, 1))
    second = host.read()
    assert second is not None and second.servers == ("2.2.2.2",)
    replaced = tmp_path / "new"
    replaced.write_text("nameserver 3.3.3.3\n")
    os.utime(replaced, ns=(1, 1))
    replaced.rename(path)
    third = host.read()
    assert third is not None and third.servers == ("3.3.3.3",)


def test_no_host_file_and_a_missing_one(tmp_path: Path) -> None:
    assert HostResolver("").read() is None
    with pytest.raises(ConfigProblem, match=r"none \(resolvConf\): No such file"):
        HostResolver(str(tmp_path / "none")).read()
