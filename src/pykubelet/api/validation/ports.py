"""Container ports and the host ports they claim."""

from collections.abc import Sequence

from pykubelet.api.types import Container, ContainerPort, PodSpec
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import Findings, show

PROTOCOLS = ("TCP", "UDP", "SCTP")


def validate_ports(ports: Sequence[ContainerPort], at: str, found: Findings) -> None:
    seen: set[str] = set()
    for i, port in enumerate(ports):
        path = f"{at}[{i}]"
        if port.name:
            complaint = names.port_name(port.name)
            if complaint is None and port.name in seen:
                complaint = f"is used twice: {show(port.name)}"
            found.check(f"{path}.name", complaint)
            seen.add(port.name)
        if port.container_port is None:
            found.add(f"{path}.containerPort", "required")
        else:
            found.between(f"{path}.containerPort", port.container_port, 1, 65535)
        if port.host_port:
            found.between(f"{path}.hostPort", port.host_port, 1, 65535)
        if port.host_ip:
            found.check(f"{path}.hostIP", names.ip_address(port.host_ip))
        if found.required(f"{path}.protocol", port.protocol):
            found.choice(f"{path}.protocol", port.protocol, PROTOCOLS)


def validate_host_ports(containers: Sequence[tuple[str, Container]], found: Findings) -> None:
    """No two ports of containers that run together may claim the same place on the host."""
    claimed: dict[tuple[str, str, int], str] = {}
    for at, container in containers:
        for i, port in enumerate(container.ports):
            if not port.host_port:
                continue
            place = (port.protocol or "", port.host_ip or "", port.host_port)
            path = f"{at}.ports[{i}].hostPort"
            if place in claimed:
                found.add(path, f"{port.host_port}/{port.protocol} is already taken by {claimed[place]}")
            else:
                claimed[place] = path


def validate_host_network(spec: PodSpec, found: Findings) -> None:
    """On the host's network a container cannot listen elsewhere than where it listens."""
    if not spec.host_network:
        return
    for i, container in enumerate(spec.containers):
        for j, port in enumerate(container.ports):
            if port.host_port != port.container_port:
                found.add(
                    f"spec.containers[{i}].ports[{j}].hostPort",
                    f"must equal containerPort {show(port.container_port)} with hostNetwork,"
                    f" not {show(port.host_port)}",
                )
