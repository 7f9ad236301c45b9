"""A container's environment: services, envFrom, env; in upstream's order and with its overriding rules.

Pure: the objects referred to are handed in. A missing object that is not optional raises ConfigProblem, never
an empty value. Keys of envFrom are not judged (relaxed naming). Values may hold any bytes: what is not UTF-8
travels as surrogate escapes and leaves as the same bytes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ConfigMap, EnvFromSource, EnvVarSource, FileKeySelector, Pod, Secret, Service
from pykubelet.model.expand import MOST_EXPANDED, ExpansionTooLong, expand
from pykubelet.model.pod import AnyContainer, namespace_of
from pykubelet.runtime.problems import ConfigProblem
from pykubelet.runtime.spec.downward import Addresses, field_value, resource_value
from pykubelet.runtime.spec.env_files import EnvFile
from pykubelet.runtime.spec.services import service_variables

_NOTHING: Final = Addresses()


class EnvInputs(Struct, frozen=True, kw_only=True):
    addresses: Addresses = _NOTHING
    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    """Those of the pod's namespace that it refers to and that exist."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    services: Sequence[Service] = ()
    """Services whose variables the pod gets, the API server's included."""
    allocatable: Mapping[str, Quantity] = field(default_factory=dict)
    files: Mapping[tuple[str, str], EnvFile] | None = field(default_factory=dict)
    """Files of variables by volume and path, of volumes that are there; None = the feature is off."""


def build_env(pod: Pod, container: AnyContainer, inputs: EnvInputs) -> dict[str, str]:
    """All variables; those from the spec first, then service variables that nothing overrides."""
    services = service_variables(inputs.services)
    result: dict[str, str] = {}
    size = 0

    def put(name: str, value: str) -> None:
        nonlocal size
        size += len(value) - len(result[name]) if name in result else len(name) + len(value)
        if size > MOST_EXPANDED:
            raise _too_large(name)
        result[name] = value

    def lookup(name: str) -> str | None:
        return result.get(name, services.get(name))

    for source in container.env_from:
        for name, value in _from_source(source, inputs, namespace_of(pod)).items():
            put(name, value)
    for variable in container.env:
        name = variable.name or ""
        if variable.value:
            try:
                put(name, expand(variable.value, lookup, limit=MOST_EXPANDED - size))
            except ExpansionTooLong as error:
                raise _too_large(name) from error
        elif variable.value_from is not None:
            found = _value_from(pod, container, variable.value_from, inputs)
            if found is not None:
                put(name, found)
        else:
            put(name, "")
    for name, value in services.items():
        result.setdefault(name, value)
    return result


def _too_large(name: str) -> ConfigProblem:
    return ConfigProblem(
        f'environment variable "{name}" makes all variables together larger than {MOST_EXPANDED >> 20} MiB, '
        "which no program can be started with"
    )


# --- whole objects --------------------------------------------------------------------------------


def _from_source(source: EnvFromSource, inputs: EnvInputs, namespace: str) -> dict[str, str]:
    prefix = source.prefix or ""
    if source.config_map_ref is not None:
        name = source.config_map_ref.name or ""
        config_map = inputs.config_maps.get(name)
        if config_map is None:
            _require_optional("configmap", name, source.config_map_ref.optional)
            return {}
        return {prefix + key: value for key, value in config_map.data.items()}
    if source.secret_ref is not None:
        name = source.secret_ref.name or ""
        secret = inputs.secrets.get(name)
        if secret is None:
            _require_optional("secret", name, source.secret_ref.optional)
            return {}
        return {prefix + key: decoded(value, f"{namespace}/{name}", key) for key, value in secret.data.items()}
    return {}


def _require_optional(kind: str, name: str, optional: bool | None) -> None:
    if not optional:
        raise ConfigProblem(f'{kind} "{name}" not found', missing=f"{kind} {name}")


def decoded(encoded: str, secret: str, key: str) -> str:
    """The bytes of a secret's value, as text that gives them back when encoded with surrogate escapes."""
    try:
        return base64.b64decode(encoded, validate=True).decode(errors="surrogateescape")
    except (binascii.Error, ValueError) as error:
        raise ConfigProblem(f"key {key} of Secret {secret} is not base64: {error}") from error


# --- single values --------------------------------------------------------------------------------


def _value_from(pod: Pod, container: AnyContainer, source: EnvVarSource, inputs: EnvInputs) -> str | None:
    """The value; None = the variable is left out."""
    if source.field_ref is not None:
        return field_value(pod, source.field_ref.field_path or "", inputs.addresses)
    if source.resource_field_ref is not None:
        return resource_value(pod, container, source.resource_field_ref, inputs.allocatable)
    if source.config_map_key_ref is not None:
        of_map = source.config_map_key_ref
        config_map = inputs.config_maps.get(of_map.name or "")
        if config_map is None:
            _require_optional("configmap", of_map.name or "", of_map.optional)
            return None
        return _key(config_map.data, of_map.key, of_map.optional, f"ConfigMap {namespace_of(pod)}/{of_map.name}")
    if source.secret_key_ref is not None:
        of_secret = source.secret_key_ref
        secret = inputs.secrets.get(of_secret.name or "")
        if secret is None:
            _require_optional("secret", of_secret.name or "", of_secret.optional)
            return None
        place = f"{namespace_of(pod)}/{of_secret.name}"
        found = _key(secret.data, of_secret.key, of_secret.optional, f"Secret {place}")
        return found if found is None else decoded(found, place, of_secret.key or "")
    if source.file_key_ref is not None:
        return _from_file(source.file_key_ref, inputs)
    return ""


def _key(data: Mapping[str, str], key: str | None, optional: bool | None, holder: str) -> str | None:
    value = data.get(key or "")
    if value is None and not optional:
        raise ConfigProblem(f"couldn't find key {key} in {holder}", missing=f"key {key} in {holder}")
    return value


def _from_file(selector: FileKeySelector, inputs: EnvInputs) -> str | None:
    if inputs.files is None:
        return ""
    file = inputs.files.get((selector.volume_name or "", selector.path or ""))
    if file is None:
        raise ConfigProblem(f'cannot find the volume "{selector.volume_name}" referenced by FileKeyRef')
    value = file.value(selector.key or "")
    # Upstream does not tell an empty value from a missing one.
    if value:
        return value
    if not selector.optional:
        raise ConfigProblem(f'environment variable key "{selector.key}" not found in file "{file.path}"')
    return None
