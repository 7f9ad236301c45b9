"""Service variables and which services a pod sees."""

from __future__ import annotations

import pytest

from pykubelet.api.types import ObjectMeta, Service, ServicePort, ServiceSpec
from pykubelet.runtime.spec.env import service_variables, visible_services


def a_service(name: str, ip: str | None = "10.0.0.1", *ports: ServicePort, namespace: str = "default") -> Service:
    listed = list(ports) or [ServicePort(port=80)]
    return Service(metadata=ObjectMeta(name=name, namespace=namespace), spec=ServiceSpec(cluster_ip=ip, ports=listed))


def test_all_variables_of_a_service() -> None:
    service = a_service(
        "my-db",
        "10.0.0.1",
        ServicePort(name="sql-x", port=5432, protocol="TCP"),
        ServicePort(name="dns", port=53, protocol="UDP"),
    )
    assert service_variables([service]) == {
        "MY_DB_SERVICE_HOST": "10.0.0.1",
        "MY_DB_SERVICE_PORT": "5432",
        "MY_DB_SERVICE_PORT_SQL_X": "5432",
        "MY_DB_SERVICE_PORT_DNS": "53",
        "MY_DB_PORT": "tcp://10.0.0.1:5432",
        "MY_DB_PORT_5432_TCP": "tcp://10.0.0.1:5432",
        "MY_DB_PORT_5432_TCP_PROTO": "tcp",
        "MY_DB_PORT_5432_TCP_PORT": "5432",
        "MY_DB_PORT_5432_TCP_ADDR": "10.0.0.1",
        "MY_DB_PORT_53_UDP": "udp://10.0.0.1:53",
        "MY_DB_PORT_53_UDP_PROTO": "udp",
        "MY_DB_PORT_53_UDP_PORT": "53",
        "MY_DB_PORT_53_UDP_ADDR": "10.0.0.1",
    }


def test_ipv6_is_in_brackets_only_inside_addresses_with_ports() -> None:
    found = service_variables([a_service("a", "fd00::1")])
    assert (found["A_SERVICE_HOST"], found["A_PORT"]) == ("fd00::1", "tcp://[fd00::1]:80")


@pytest.mark.parametrize("ip", ["", None, "None"])
def test_services_without_an_address_have_no_variables(ip: str | None) -> None:
    assert service_variables([a_service("a", ip)]) == {}
    assert visible_services([a_service("kubernetes", ip)], [a_service("a", ip)], links=True) == []


def test_who_sees_what() -> None:
    master = [a_service("kubernetes", "10.0.0.1"), a_service("other", "10.0.0.2")]
    own = [a_service("a", "10.1.0.1", namespace="team"), a_service("kubernetes", "10.1.0.2", namespace="team")]

    def addresses(links: bool, of_pod: list[Service]) -> set[str | None]:
        return {each.spec.cluster_ip for each in visible_services(master, of_pod, links=links)}

    assert addresses(False, own) == {"10.0.0.1"}
    assert addresses(True, own) == {"10.1.0.1", "10.1.0.2"}
    assert addresses(True, own[:1]) == {"10.0.0.1", "10.1.0.1"}
    assert addresses(True, master) == {"10.0.0.1", "10.0.0.2"}
