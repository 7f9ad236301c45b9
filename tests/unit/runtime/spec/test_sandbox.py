"""Sandbox configs: names, ports, sysctls, cgroup parents."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import ContainerPort, PodSecurityContext, ResourceRequirements, Sysctl
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.runtime.spec.dns import Resolver
from pykubelet.runtime.spec.sandbox import SandboxParts, build_sandbox_config, port_mappings, sysctls
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod

PARTS = SandboxParts(
    attempt=3,
    log_directory="/logs/team_web_uid-web",
    resolver=Resolver(servers=("10.0.0.10",), searches=("a", "b"), options=("ndots:5",)),
)


def test_the_whole_config() -> None:
    pod = a_pod(
        namespace="team",
        labels={"app": "shop", "io.kubernetes.pod.uid": "forged"},
        annotations={"note": "x"},
        security_context=PodSecurityContext(),
    )
    config = build_sandbox_config(pod, PARTS, NodeSpec(cluster_domain="cluster.local"))
    assert config.metadata == cri_pb2.PodSandboxMetadata(name="web", namespace="team", uid="uid-web", attempt=3)
    assert (config.hostname, config.log_directory) == ("web", "/logs/team_web_uid-web")
    assert config.dns_config == cri_pb2.DNSConfig(servers=["10.0.0.10"], searches=["a", "b"], options=["ndots:5"])
    assert dict(config.labels) == {
        "app": "shop",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "team",
        "io.kubernetes.pod.uid": "uid-web",
    }
    assert dict(config.annotations) == {"note": "x", "kubernetes.io/config.source": "api"}
    assert config.linux.cgroup_parent == "/kubepods/besteffort/poduid-web"
    assert config.linux.resources.cpu_shares == 2
    assert config.linux.HasField("overhead") and config.linux.overhead == cri_pb2.LinuxContainerResources()
    assert config.linux.security_context.namespace_options.pid == cri_pb2.NamespaceMode.CONTAINER


FULL = ResourceRequirements(
    requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "1", "memory": "1Gi"}
)  # fmt: skip


@pytest.mark.parametrize(
    ("node", "resources", "wanted"),
    [
        (NodeSpec(), FULL, "/kubepods/poduid-web"),
        (NodeSpec(), ResourceRequirements(requests={"cpu": "1"}), "/kubepods/burstable/poduid-web"),
        (
            NodeSpec(cgroup_driver="systemd"),
            None,
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poduid_web.slice",
        ),
        (NodeSpec(cgroup_driver="systemd"), FULL, "/kubepods.slice/kubepods-poduid_web.slice"),
        (NodeSpec(cgroups_per_qos=False), FULL, ""),
    ],
)
def test_cgroup_parent(node: NodeSpec, resources: ResourceRequirements | None, wanted: str) -> None:
    pod = a_pod(containers=[a_container(resources=resources)])
    assert build_sandbox_config(pod, PARTS, node).linux.cgroup_parent == wanted


def ports_of(*ports: dict[str, Any]) -> list[tuple[int, int, int, str]]:
    found = port_mappings(a_container(ports=[ContainerPort(**port) for port in ports]))
    return [(each.protocol, each.container_port, each.host_port, each.host_ip) for each in found]


TCP, UDP, SCTP = cri_pb2.Protocol.TCP, cri_pb2.Protocol.UDP, cri_pb2.Protocol.SCTP


@pytest.mark.parametrize(
    ("ports", "wanted"),
    [
        ([{"container_port": 80}], [(TCP, 80, 0, "")]),
        (
            [{"container_port": 53, "protocol": "UDP", "host_port": 5353, "host_ip": "127.0.0.1"}],
            [(UDP, 53, 5353, "127.0.0.1")],
        ),
        ([{"container_port": 9, "protocol": "SCTP"}], [(SCTP, 9, 0, "")]),
        ([{"container_port": 80, "name": "a"}, {"container_port": 81, "name": "a"}], [(TCP, 80, 0, "")]),
        ([{"container_port": 80}, {"container_port": 80}], [(TCP, 80, 0, "")]),
        (
            [{"container_port": 80}, {"container_port": 80, "protocol": "UDP"}],
            [(TCP, 80, 0, ""), (UDP, 80, 0, "")],
        ),
        (
            [{"container_port": 80, "host_ip": "127.0.0.1"}, {"container_port": 80, "host_ip": "::1"}],
            [(TCP, 80, 0, "127.0.0.1"), (TCP, 80, 0, "::1")],
        ),
        (
            [{"container_port": 80, "host_port": 1}, {"container_port": 80, "host_port": 2}],
            [(TCP, 80, 1, ""), (TCP, 80, 2, "")],
        ),
    ],
)
def test_ports(ports: list[dict[str, Any]], wanted: list[tuple[int, int, int, str]]) -> None:
    assert ports_of(*ports) == wanted


def test_ports_of_init_containers_are_not_mapped() -> None:
    port = [ContainerPort(container_port=80, name="p")]
    pod = a_pod(
        containers=[a_container(ports=port), a_container("b", ports=port)],
        init=[a_container("i", ports=[ContainerPort(container_port=1)])],
    )
    config = build_sandbox_config(pod, PARTS, NodeSpec())
    assert [each.container_port for each in config.port_mappings] == [80, 80]


def test_sysctls_are_written_with_dots() -> None:
    context = PodSecurityContext(
        sysctls=[Sysctl(name="net/core/somaxconn", value="1024"), Sysctl(name="kernel.shm_rmid_forced", value="0")]
    )
    assert sysctls(a_pod(security_context=context)) == {
        "net.core.somaxconn": "1024",
        "kernel.shm_rmid_forced": "0",
    }
    assert sysctls(a_pod()) == {}


def test_host_network_keeps_the_nodes_hostname() -> None:
    assert build_sandbox_config(a_pod(host_network=True), PARTS, NodeSpec()).hostname == ""
