"""Names, files and ports of a pod's network, seen from inside its containers and from the host."""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tests.bed.agent import NODE
from tests.bed.inside import Inside, Manifest, container_manifest, looking_inside, pod_manifest
from tests.bed.parts import free_port
from tests.bed.runtime import TESTSERVER, BedContainerd

pytestmark = pytest.mark.node

CLUSTER_DNS, DOMAIN = "10.96.0.10", "cluster.local"
HOST_RESOLVER = "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch old.example\nsearch a.example. b.example .\n"
NAMES = "echo HOST=$(hostname); echo ---; cat /etc/hosts"
RESOLVER = "cat /etc/resolv.conf"
ADDRESS = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
HOST_ADDRESS = {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
ALIASES = [{"ip": "192.0.2.7", "hostnames": ["one", "one.example"]}, {"ip": "2001:db8::7", "hostnames": ["six"]}]
CLUSTER_SEARCH = [f"default.svc.{DOMAIN}", f"svc.{DOMAIN}", DOMAIN]
HOST_SEARCH = ["a.example", "b.example"]
LONG = "a-name-that-is-rather-long-" + "x" * 40


def named(name: str, **spec: Any) -> Manifest:
    return pod_manifest(name, container_manifest(script=NAMES, env=[ADDRESS]), **spec)


def resolving(name: str, policy: str | None, **spec: Any) -> Manifest:
    return pod_manifest(name, container_manifest(script=RESOLVER), **({"dnsPolicy": policy} if policy else {}), **spec)


PODS = [
    named("plain"),
    named("aliases", hostAliases=ALIASES),
    named("sub", hostname="web", subdomain="inner"),
    named("fqdn", hostname="web", subdomain="inner", setHostnameAsFQDN=True),
    named("override", hostname="web", subdomain="inner", hostnameOverride="any.name.example"),
    named(LONG),
    named("too-long", hostname="h" * 50, subdomain="inner", setHostnameAsFQDN=True),
    named("on-host", hostNetwork=True, hostAliases=ALIASES),
    pod_manifest(
        "own-hosts",
        container_manifest(
            script="cat /etc/hosts", volumeMounts=[{"name": "v", "mountPath": "/etc/hosts", "subPath": "h"}]
        ),
        initContainers=[
            container_manifest("maker", "echo mine > /v/h", ends=True, volumeMounts=[{"name": "v", "mountPath": "/v"}])
        ],
        volumes=[{"name": "v", "emptyDir": {}}],
    ),
    resolving("dns-cluster", None),
    resolving("dns-default", "Default"),
    resolving("dns-host", None, hostNetwork=True),
    resolving("dns-host-cluster", "ClusterFirstWithHostNet", hostNetwork=True),
    resolving(
        "dns-none",
        "None",
        dnsConfig={"nameservers": ["192.0.2.53"], "searches": ["x.example"], "options": [{"name": "edns0"}]},
    ),
    resolving(
        "dns-merged",
        "ClusterFirst",
        dnsConfig={
            "nameservers": ["192.0.2.53", CLUSTER_DNS],
            "searches": ["x.example", DOMAIN],
            "options": [{"name": "ndots", "value": "2"}, {"name": "timeout", "value": "1"}],
        },
    ),
    resolving("dns-many", "Default", dnsConfig={"nameservers": ["192.0.2.3", "192.0.2.4"]}),
    pod_manifest(
        "interfaces",
        container_manifest(script="ls /sys/class/net; ip -4 addr show eth0; readlink /proc/self/ns/net", env=[ADDRESS]),
        container_manifest("sibling", "readlink /proc/self/ns/net; echo IP=$IP", env=[ADDRESS]),
    ),
    pod_manifest(
        "host-interfaces",
        container_manifest(script="echo NET=$(readlink /proc/self/ns/net); env", env=[ADDRESS, HOST_ADDRESS]),
        hostNetwork=True,
    ),
]


def serving(name: str, *ports: dict[str, Any], env: Sequence[dict[str, str]] = (), **spec: Any) -> Manifest:
    app = {"name": "app", "image": TESTSERVER, "imagePullPolicy": "Never", "ports": list(ports), "env": list(env)}
    return pod_manifest(name, app, **spec)


class Ports(NamedTuple):
    """Of the host; nobody keeps them for us, so they are chosen right before they are used."""

    open: int
    local: int
    own: int


@pytest.fixture(scope="module")
def ports() -> Ports:
    return Ports(free_port(), free_port(), free_port())


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, containerd: BedContainerd, ports: Ports) -> Iterator[Inside]:
    folder = tmp_path_factory.mktemp("network")
    (folder / "resolv.conf").write_text(HOST_RESOLVER)
    settings = {"clusterDNS": [CLUSTER_DNS], "clusterDomain": DOMAIN, "resolvConf": str(folder / "resolv.conf")}
    servers = [
        serving(
            "ports",
            {"name": "web", "containerPort": 8080, "hostPort": ports.open},
            {"containerPort": 8080, "hostPort": ports.local, "hostIP": "127.0.0.1"},
        ),
        serving(
            "host-ports",
            {"containerPort": ports.own},
            env=[{"name": "PORT", "value": str(ports.own)}],
            hostNetwork=True,
        ),
    ]
    with looking_inside(folder, containerd, *PODS, *servers, **settings) as found:
        yield found


def names_of(inside: Inside, pod: str) -> tuple[str, str]:
    """The kernel's host name and the hosts file, with the pod's address written as IP."""
    name, _, hosts = inside.said(pod).partition("---\n")
    return name.strip().removeprefix("HOST="), hosts


def hosts_with(*lines: str) -> str:
    return (
        "# Kubernetes-managed hosts file.\n"
        "127.0.0.1\tlocalhost\n"
        "::1\tlocalhost ip6-localhost ip6-loopback\n"
        "fe00::0\tip6-localnet\n"
        "fe00::0\tip6-mcastprefix\n"
        "fe00::1\tip6-allnodes\n"
        "fe00::2\tip6-allrouters\n" + "".join(f"{line}\n" for line in lines)
    )


def address_in(hosts: str) -> str:
    return hosts.splitlines()[7].partition("\t")[0]


def test_the_name_and_the_hosts_file(inside: Inside) -> None:
    host, hosts = names_of(inside, "plain")
    assert host == f"plain-{NODE}"
    assert hosts == hosts_with(f"{address_in(hosts)}\tplain-{NODE}")
    socket.inet_aton(address_in(hosts))
    _, hosts = names_of(inside, "aliases")
    own = f"{address_in(hosts)}\taliases-{NODE}"
    assert hosts == hosts_with(
        own, "", "# Entries added by HostAliases.", "192.0.2.7\tone\tone.example", "2001:db8::7\tsix"
    )


@pytest.mark.parametrize(
    ("pod", "host", "names"),
    [
        ("sub", "web", f"web.inner.default.svc.{DOMAIN}\tweb"),
        ("fqdn", f"web.inner.default.svc.{DOMAIN}", f"web.inner.default.svc.{DOMAIN}\tweb"),
        ("override", "any.name.example", "any.name.example"),
        (LONG, LONG[:63], LONG[:63]),
    ],
)
def test_names_a_pod_may_choose(inside: Inside, pod: str, host: str, names: str) -> None:
    seen, hosts = names_of(inside, pod)
    assert seen == host
    assert hosts == hosts_with(f"{address_in(hosts)}\t{names}")


def test_a_full_name_that_is_too_long(inside: Inside) -> None:
    name = f"{'h' * 50}.inner.default.svc.{DOMAIN}"
    assert inside.event("too-long", "FailedCreatePodSandBox") == (
        "Failed to create pod sandbox: failed to construct FQDN from pod hostname and cluster domain, "
        f"FQDN {name} is too long (64 characters is the max, {len(name)} characters requested)"
    )


def test_a_hosts_file_of_ones_own_is_left_alone(inside: Inside) -> None:
    assert inside.said("own-hosts") == "mine\n"


def test_names_on_the_hosts_network(inside: Inside) -> None:
    host, hosts = names_of(inside, "on-host")
    assert host == socket.gethostname()
    with open("/etc/hosts") as file:
        of_the_node = file.read()
    aliases = "\n# Entries added by HostAliases.\n192.0.2.7\tone\tone.example\n2001:db8::7\tsix\n"
    assert hosts == f"# Kubernetes-managed hosts file (host network).\n{of_the_node}{aliases}"


@pytest.mark.parametrize(
    ("pod", "servers", "searches", "options"),
    [
        ("dns-cluster", [CLUSTER_DNS], [*CLUSTER_SEARCH, *HOST_SEARCH], ["ndots:5"]),
        ("dns-default", ["192.0.2.1", "192.0.2.2"], HOST_SEARCH, []),
        ("dns-host", ["192.0.2.1", "192.0.2.2"], HOST_SEARCH, []),
        ("dns-host-cluster", [CLUSTER_DNS], [*CLUSTER_SEARCH, *HOST_SEARCH], ["ndots:5"]),
        ("dns-none", ["192.0.2.53"], ["x.example"], ["edns0"]),
        (
            "dns-merged",
            [CLUSTER_DNS, "192.0.2.53"],
            [*CLUSTER_SEARCH, *HOST_SEARCH, "x.example"],
            ["ndots:2", "timeout:1"],
        ),
        ("dns-many", ["192.0.2.1", "192.0.2.2", "192.0.2.3"], HOST_SEARCH, []),
    ],
)
def test_the_resolver(inside: Inside, pod: str, servers: list[str], searches: list[str], options: list[str]) -> None:
    seen: dict[str, list[str]] = {"nameserver": [], "search": [], "options": []}
    for line in inside.said(pod).splitlines():
        kind, *words = line.split()
        seen[kind] += words
    assert (seen["nameserver"], seen["search"], seen["options"]) == (servers, searches, options)


def test_too_many_name_servers_are_told(inside: Inside) -> None:
    assert inside.event("dns-many", "DNSConfigForming") == (
        "Nameserver limits were exceeded, some nameservers have been omitted, "
        "the applied nameserver line is: 192.0.2.1 192.0.2.2 192.0.2.3"
    )
    assert not inside.has_event("dns-merged", "DNSConfigForming")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_ports_on_the_host(inside: Inside, ports: Ports) -> None:
    inside.wait(lambda: "listening" in inside.log("ports"), "the server listens")
    gateway = inside.containerd.gateway_ip
    for host, port in (("127.0.0.1", ports.open), (gateway, ports.open), ("127.0.0.1", ports.local)):
        assert get(f"http://{host}:{port}/hostname") == f"ports-{NODE}\n"
    with pytest.raises(OSError):
        get(f"http://{gateway}:{ports.local}/hostname")
    inside.wait(lambda: "listening" in inside.log("host-ports"), "the server listens")
    assert get(f"http://127.0.0.1:{ports.own}/hostname") == f"{socket.gethostname()}\n"


def test_containers_of_a_pod_share_one_network_of_its_own(inside: Inside) -> None:
    said = inside.said("interfaces")
    namespace = said.splitlines()[-1]
    sibling, told = inside.said("interfaces", "sibling").splitlines()
    assert said.splitlines()[:2] == ["eth0", "lo"]
    assert f"inet {told.removeprefix('IP=')}/" in said
    assert namespace == sibling != os.readlink("/proc/self/ns/net")


def test_the_hosts_network(inside: Inside) -> None:
    told = inside.told("host-interfaces")
    assert told["NET"] == os.readlink("/proc/self/ns/net")
    assert told["IP"] == told["HOST_IP"] != ""
