"""A container's environment: services, envFrom, env; in upstream's order and with its overriding rules.

Pure: the objects referred to are handed in. A missing object that is not optional raises ConfigProblem, never
an empty value. Keys of envFrom are not judged (relaxed naming).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import (
    ConfigMap,
    EnvFromSource,
    EnvVarSource,
    Pod,
    ResourceFieldSelector,
    Secret,
    Service,
)
from pykubelet.model.pod import AnyContainer, find_container, name_of, namespace_of, uid_of
from pykubelet.runtime.problems import ConfigProblem
from pykubelet.runtime.spec.expand import expand

KEYED_FIELD = re.compile(r"^metadata\.(labels|annotations)\['(.*)'\]$")
FileKeyReader = Callable[[str, str, str, bool], str | None]
"""(volume, path, key, optional) -> value; raises ConfigProblem."""


def no_files(volume: str, path: str, key: str, optional: bool) -> str | None:
    raise ConfigProblem(f"fileKeyRef: volume {volume} is not available")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvInputs:
    pod_ips: tuple[str, ...] = ()
    host_ips: tuple[str, ...] = ()
    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    """Those of the pod's namespace that it refers to and that exist."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    services: Sequence[Service] = ()
    """Services whose variables the pod gets, the master's included."""
    allocatable: Mapping[str, Quantity] = field(default_factory=dict)
    file_key: FileKeyReader = no_files


def build_env(pod: Pod, container: AnyContainer, inputs: EnvInputs) -> dict[str, str]:
    """All variables; those from the spec first, then service variables that nothing overrides."""
    services = service_variables(inputs.services)
    result: dict[str, str] = {}
    for source in container.env_from:
        result.update(_from_source(source, inputs, namespace_of(pod)))

    def lookup(name: str) -> str | None:
        return result.get(name, services.get(name))

    for variable in container.env:
        name = variable.name or ""
        if variable.value:
            result[name] = expand(variable.value, lookup)
        elif variable.value_from is not None:
            value = _value_from(pod, container, variable.value_from, inputs)
            if value is not None:
                result[name] = value
        else:
            result[name] = ""
    return result | {name: value for name, value in services.items() if name not in result}


def literal_env(container: AnyContainer) -> dict[str, str]:
    """Only values written out in the spec, which is all that exec probes may expand."""
    return {variable.name or "": variable.value or "" for variable in container.env if variable.value_from is None}


# --- whole objects --------------------------------------------------------------------------------


def _from_source(source: EnvFromSource, inputs: EnvInputs, namespace: str) -> dict[str, str]:
    prefix = source.prefix or ""
    if source.config_map_ref is not None:
        reference = source.config_map_ref
        found = inputs.config_maps.get(reference.name or "")
        if found is None:
            return _missing_whole("configmap", reference.name, bool(reference.optional))
        return {prefix + key: value for key, value in found.data.items()}
    if source.secret_ref is not None:
        secret = inputs.secrets.get(source.secret_ref.name or "")
        if secret is None:
            return _missing_whole("secret", source.secret_ref.name, bool(source.secret_ref.optional))
        return {
            prefix + key: decode_text(value, f"secret {namespace}/{secret.metadata.name}", key)
            for key, value in secret.data.items()
        }
    return {}


def _missing_whole(kind: str, name: str | None, optional: bool) -> dict[str, str]:
    if optional:
        return {}
    raise ConfigProblem(f'{kind} "{name}" not found')


def decode_text(encoded: str, owner: str, key: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ConfigProblem(f"key {key} of {owner} is not text: {error}") from error


# --- single values --------------------------------------------------------------------------------


def _value_from(pod: Pod, container: AnyContainer, source: EnvVarSource, inputs: EnvInputs) -> str | None:
    if source.field_ref is not None:
        return field_value(pod, source.field_ref.field_path or "", inputs)
    if source.resource_field_ref is not None:
        return resource_value(pod, container, source.resource_field_ref, inputs.allocatable)
    if source.config_map_key_ref is not None:
        reference = source.config_map_key_ref
        config_map = inputs.config_maps.get(reference.name or "")
        if config_map is not None and reference.key in config_map.data:
            return config_map.data[reference.key]
        return _missing_key(
            "configmap",
            "ConfigMap",
            config_map is None,
            reference.name,
            reference.key,
            bool(reference.optional),
            namespace_of(pod),
        )
    if source.secret_key_ref is not None:
        key_ref = source.secret_key_ref
        secret = inputs.secrets.get(key_ref.name or "")
        if secret is not None and key_ref.key in secret.data:
            return decode_text(secret.data[key_ref.key], f"secret {key_ref.name}", key_ref.key)
        return _missing_key(
            "secret", "Secret", secret is None, key_ref.name, key_ref.key, bool(key_ref.optional), namespace_of(pod)
        )
    if source.file_key_ref is not None:
        file = source.file_key_ref
        return inputs.file_key(file.volume_name or "", file.path or "", file.key or "", bool(file.optional))
    return None


def _missing_key(
    kind: str, title: str, whole: bool, name: str | None, key: str | None, optional: bool, namespace: str
) -> None:
    if optional:
        return None
    if whole:
        raise ConfigProblem(f'{kind} "{name}" not found')
    raise ConfigProblem(f"couldn't find key {key} in {title} {namespace}/{name}")


def field_value(pod: Pod, path: str, inputs: EnvInputs) -> str:
    """The value of a downward API field."""
    keyed = KEYED_FIELD.match(path)
    if keyed:
        holder = pod.metadata.labels if keyed.group(1) == "labels" else pod.metadata.annotations
        return holder.get(keyed.group(2), "")
    values: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: name_of(pod),
        "metadata.namespace": lambda: namespace_of(pod),
        "metadata.uid": lambda: uid_of(pod),
        "metadata.labels": lambda: _as_lines(pod.metadata.labels),
        "metadata.annotations": lambda: _as_lines(pod.metadata.annotations),
        "spec.nodeName": lambda: pod.spec.node_name or "",
        "spec.serviceAccountName": lambda: pod.spec.service_account_name or "",
        "status.hostIP": lambda: inputs.host_ips[0] if inputs.host_ips else "",
        "status.hostIPs": lambda: ",".join(inputs.host_ips),
        "status.podIP": lambda: inputs.pod_ips[0] if inputs.pod_ips else "",
        "status.podIPs": lambda: ",".join(inputs.pod_ips),
    }
    if path not in values:
        raise ConfigProblem(f"unsupported fieldPath: {path}")
    return values[path]()


def _as_lines(values: Mapping[str, str]) -> str:
    """How labels and annotations look as one text: sorted, values quoted."""
    return "\n".join(f"{key}={quote(value)}" for key, value in sorted(values.items()))


def quote(value: str) -> str:
    """A double-quoted text with Go's escapes."""
    special = {
        '"': '\\"',
        "\\": "\\\\",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\v": "\\v",
    }
    out = []
    for char in value:
        if char in special:
            out.append(special[char])
        elif char.isprintable():
            out.append(char)
        else:
            code = ord(char)
            out.append(f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'


def resource_value(
    pod: Pod, container: AnyContainer, selector: ResourceFieldSelector, allocatable: Mapping[str, Quantity]
) -> str:
    """A request or limit in units of the divisor, rounded up; an unset limit shows the node's allocatable."""
    wanted: AnyContainer = container
    if selector.container_name and selector.container_name != container.name:
        found = find_container(pod, selector.container_name)
        if found is None:
            raise ConfigProblem(f"container {selector.container_name} not found")
        wanted = found[1]
    which, _, resource = (selector.resource or "").partition(".")
    if which not in ("limits", "requests") or not resource:
        raise ConfigProblem(f"unsupported container resource: {selector.resource}")
    held = wanted.resources
    values = (held.limits if which == "limits" else held.requests) if held is not None else {}
    raw = values.get(resource)
    if raw is None and which == "limits" and pod.spec.resources is not None:
        raw = pod.spec.resources.limits.get(resource)
    amount = Quantity.parse(raw) if raw is not None else Quantity.parse(0)
    if raw is None and which == "limits":
        amount = allocatable.get(resource, amount)
    return divide_up(amount, Quantity.parse(selector.divisor or 1), milli=resource == "cpu")


def divide_up(amount: Quantity, divisor: Quantity, *, milli: bool) -> str:
    unit = divisor.milli_value() if milli else divisor.value()
    if unit == 0:
        unit = 1000 if milli else 1
    total = amount.milli_value() if milli else amount.value()
    share = Fraction(total, unit)
    return str(-(-share.numerator // share.denominator))


# --- services -------------------------------------------------------------------------------------


def service_variables(services: Sequence[Service]) -> dict[str, str]:
    """The Docker-link style variables of each service with a cluster address."""
    result: dict[str, str] = {}
    for service in services:
        address = service.spec.cluster_ip if service.spec else None
        if not address or address == "None" or not service.spec.ports:
            continue
        name = _variable_name(service.metadata.name or "")
        result[f"{name}_SERVICE_HOST"] = address
        result[f"{name}_SERVICE_PORT"] = str(service.spec.ports[0].port)
        for port in service.spec.ports:
            if port.name:
                result[f"{name}_SERVICE_PORT_{_variable_name(port.name)}"] = str(port.port)
        host = f"[{address}]" if ":" in address else address
        for index, port in enumerate(service.spec.ports):
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
