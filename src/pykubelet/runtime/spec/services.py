"""Variables that tell a container where the services of its namespace are. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.api.types import Service

MASTER_NAMESPACE = "default"
MASTER_SERVICE = "kubernetes"


def visible_services(master: Iterable[Service], own: Iterable[Service], *, links: bool) -> list[Service]:
    """Services whose variables a pod gets: the API server's always, those of its namespace if it wants links.

    `master` are the services of the default namespace, `own` those of the pod's. Of two with one name the
    pod's own wins.
    """
    wanted = [each for each in master if each.metadata.name == MASTER_SERVICE]
    if links:
        wanted += own
    return list({each.metadata.name: each for each in wanted if has_address(each)}.values())


def has_address(service: Service) -> bool:
    return bool(service.spec.cluster_ip) and service.spec.cluster_ip != "None"


def service_variables(services: Iterable[Service]) -> dict[str, str]:
    """The Docker-link style variables of each service with a cluster address."""
    result: dict[str, str] = {}
    for service in services:
        address = service.spec.cluster_ip or ""
        if not has_address(service) or not service.spec.ports:
            continue
        name = _variable_name(service.metadata.name or "")
        host = f"[{address}]" if ":" in address else address
        result[f"{name}_SERVICE_HOST"] = address
        result[f"{name}_SERVICE_PORT"] = str(service.spec.ports[0].port)
        for index, port in enumerate(service.spec.ports):
            if port.name:
                result[f"{name}_SERVICE_PORT_{_variable_name(port.name)}"] = str(port.port)
            protocol = (port.protocol or "TCP").lower()
            prefix = f"{name}_PORT_{port.port}_{protocol.upper()}"
            url = f"{protocol}://{host}:{port.port}"
            if index == 0:
                result[f"{name}_PORT"] = url
            result[prefix] = url
            result[f"{prefix}_PROTO"] = protocol
            result[f"{prefix}_PORT"] = str(port.port)
            result[f"{prefix}_ADDR"] = address
    return result


def _variable_name(name: str) -> str:
    return name.upper().replace("-", "_")
