"""Hostnames and the managed hosts file."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import HostAlias
from pykubelet.runtime.spec.sandbox import (
    HostnameTooLong,
    host_network_hosts_file,
    hosts_file,
    kernel_hostname,
    pod_hostname,
)
from tests.builders import a_pod

LONG = "a" * 62 + "-" + "b" * 10
ALIASES = [HostAlias(ip="1.2.3.4", hostnames=["foo", "bar"]), HostAlias(ip="::5", hostnames=["six"])]
POD_FILE = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


@pytest.mark.parametrize(
    ("name", "spec", "host", "domain"),
    [
        ("web", {}, "web", ""),
        ("web", {"hostname": "h"}, "h", ""),
        ("web", {"subdomain": "sub"}, "web", "sub.team.svc.cluster.local"),
        ("web", {"hostname": "h", "subdomain": "sub"}, "h", "sub.team.svc.cluster.local"),
        ("web", {"hostname": "h", "subdomain": "sub", "hostname_override": "o.example.com"}, "o.example.com", ""),
        (LONG, {}, "a" * 62, ""),
        ("a" * 63, {}, "a" * 63, ""),
        ("web", {"hostname_override": "b" * 70}, "b" * 63, ""),
    ],
)
def test_hostname(name: str, spec: dict[str, Any], host: str, domain: str) -> None:
    found = pod_hostname(a_pod(name, namespace="team", **spec), "cluster.local")
    assert (found.host, found.domain) == (host, domain)


def test_the_override_counts_only_where_the_node_allows_it() -> None:
    assert pod_hostname(a_pod(hostname_override="o"), "", override=False).host == "web"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, "web"),
        ({"host_network": True}, ""),
        ({"host_network": True, "hostname_override": "o"}, ""),
        ({"set_hostname_as_fqdn": True}, "web"),
        ({"subdomain": "s"}, "web"),
        ({"subdomain": "s", "set_hostname_as_fqdn": True}, "web.s.team.svc.cluster.local"),
        ({"subdomain": "s", "set_hostname_as_fqdn": True, "hostname_override": "o"}, "o"),
    ],
)
def test_kernel_hostname(spec: dict[str, Any], wanted: str) -> None:
    assert kernel_hostname(a_pod(namespace="team", **spec), "cluster.local") == wanted


def test_a_name_too_long_for_the_kernel() -> None:
    pod = a_pod("a" * 40, namespace="n", subdomain="s", set_hostname_as_fqdn=True)
    assert len(kernel_hostname(pod, "b" * 15)) == 64
    with pytest.raises(HostnameTooLong) as caught:
        kernel_hostname(pod, "b" * 16)
    fqdn = f"{'a' * 40}.s.n.svc.{'b' * 16}"
    assert str(caught.value) == (
        f"failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long "
        "(64 characters is the max, 65 characters requested)"
    )


@pytest.mark.parametrize(
    ("spec", "ips", "tail"),
    [
        ({}, ("10.0.0.5",), "10.0.0.5\tweb\n"),
        ({}, ("10.0.0.5", "fd00::5"), "10.0.0.5\tweb\nfd00::5\tweb\n"),
        ({"subdomain": "s"}, ("10.0.0.5",), "10.0.0.5\tweb.s.team.svc.cluster.local\tweb\n"),
        (
            {"host_aliases": ALIASES},
            ("10.0.0.5",),
            "10.0.0.5\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n::5\tsix\n",
        ),
    ],
)
def test_hosts_file(spec: dict[str, Any], ips: tuple[str, ...], tail: str) -> None:
    pod = a_pod(namespace="team", **spec)
    assert hosts_file(pod, ips, pod_hostname(pod, "cluster.local")) == POD_FILE + tail


def test_host_network_gets_the_nodes_file() -> None:
    header = "# Kubernetes-managed hosts file (host network).\n"
    assert host_network_hosts_file(a_pod(), "127.0.0.1 node\n") == header + "127.0.0.1 node\n"
    with_aliases = host_network_hosts_file(a_pod(host_aliases=ALIASES[:1]), "x\n")
    assert with_aliases == header + "x\n\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n"
