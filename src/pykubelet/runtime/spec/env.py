"""A container's environment: services, envFrom, env; in upstream's order and with its overriding rules.

Pure: the objects referred to are passed in. A missing object that is not optional raises ConfigProblem, never
an empty value. Keys of envFrom are not judged (relaxed naming). Values may hold any bytes: what is not UTF-8
travels as surrogate escapes and leaves as the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import errno
import logging
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ConfigMap, EnvFromSource, EnvVarSource, FileKeySelector, Pod, Secret, Service
from pykubelet.kit.files import reopen_checked
from pykubelet.model.errors import PykubeletError
from pykubelet.model.expand import MOST_EXPANDED, ExpansionTooLong, expand
from pykubelet.model.pod import AnyContainer, namespace_of
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.downward import Addresses, field_value, resource_value

_NOTHING: Final = Addresses()


class References(Protocol):
    """Objects of the API server that containers refer to."""

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        """The object; None when there is none. Trouble with the API server is an error."""
        ...

    async def secret(self, namespace: str, name: str) -> Secret | None: ...

    async def services(self, namespace: str) -> Sequence[Service] | None:
        """All services of a namespace; None while they have never been read."""
        ...


class NoReferences:
    """Without an API server there is no object to refer to, and no service."""

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        return None

    async def secret(self, namespace: str, name: str) -> Secret | None:
        return None

    async def services(self, namespace: str) -> Sequence[Service] | None:
        return ()


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
        name = variable.name
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
    # Upstream does not distinguish an empty value from a missing one.
    if value:
        return value
    if not selector.optional:
        raise ConfigProblem(f'environment variable key "{selector.key}" not found in file "{file.path}"')
    return None


logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
MAX_LINKS = 40
_BLANKS = " \t"


class EnvFileProblem(PykubeletError):
    """The file cannot be read or does not follow the syntax; the message is for the log."""


class EnvFile(Struct, frozen=True, kw_only=True):
    path: str
    """As messages name it."""
    text: str = ""
    error: str = ""
    """Why it could not be read; raised when a variable refers to it."""

    def value(self, key: str) -> str:
        """The variable's value; '' when the file does not have it."""
        try:
            if self.error:
                raise EnvFileProblem(self.error)
            return find_value(self.text, key)
        except EnvFileProblem as problem:
            logger.warning("cannot take %s from %s: %s", key, self.path, problem)
            raise ConfigProblem("couldn't parse env file") from problem


def find_value(text: str, key: str) -> str:
    """The value of the first assignment of `key`. What follows it is not judged, as upstream does not either."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    number = 0
    while number < len(lines):
        line = lines[number].removesuffix("\r").lstrip(_BLANKS)
        number += 1
        if not line or line.startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        if not equals:
            raise EnvFileProblem(f"line {number}: missing '='")
        if not name or name != name.rstrip(_BLANKS):
            raise EnvFileProblem(f"line {number}: a name must stand directly before '='")
        if rest[:1] in (" ", "\t"):
            # What a shell makes of it: an empty value, and the rest is another word.
            if name == key:
                return ""
            continue
        if not rest.startswith("'"):
            raise EnvFileProblem(f"line {number}: the value must be in single quotes")
        value, number = _quoted(rest[1:], lines, number)
        if name == key:
            return value
    return ""


def _quoted(rest: str, lines: list[str], number: int) -> tuple[str, int]:
    """The text up to the closing quote, and the number of lines used so far."""
    first, parts = number, []
    while True:
        head, quote, tail = rest.partition("'")
        parts.append(head)
        if quote:
            tail = tail.lstrip(_BLANKS)
            if tail and not tail.startswith("#"):
                raise EnvFileProblem(f"line {number}: text after the closing quote")
            return "\n".join(parts), number
        if number >= len(lines):
            raise EnvFileProblem(f"line {first}: the quote is never closed")
        rest = lines[number].removesuffix("\r")
        number += 1


def read_env_file(root: str, path: str) -> EnvFile:
    """The file below `root`; trouble is kept in the result, for it only matters if a variable needs it."""
    shown = os.path.join(root, path.lstrip("/"))
    try:
        descriptor = open_beneath(root, path)
    except OSError as error:
        return EnvFile(path=shown, error=f"cannot open {shown}: {error.strerror}")
    try:
        content = _read(descriptor)
    except OSError as error:
        return EnvFile(path=shown, error=f"cannot read {shown}: {error.strerror}")
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        return EnvFile(path=shown, error=f"{shown} is larger than {MAX_BYTES} bytes")
    return EnvFile(path=shown, text=content.decode(errors="surrogateescape"))


def _read(descriptor: int) -> bytes:
    content = b""
    while len(content) <= MAX_BYTES and (more := os.read(descriptor, MAX_BYTES + 1 - len(content))):
        content += more
    return content


def open_beneath(root: str, path: str) -> int:
    """Open a file for reading as if `root` were the file system's root, also through links in the path."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    way = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    todo = [part for part in reversed(path.split("/")) if part]
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                if len(way) > 1:
                    os.close(way.pop())
                continue
            way.append(os.open(part, flags, dir_fd=way[-1]))
            if not stat.S_ISLNK(os.fstat(way[-1]).st_mode):
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part)
            link = way.pop()
            try:
                target = os.readlink("", dir_fd=link)
            finally:
                os.close(link)
            if target.startswith("/"):
                while len(way) > 1:
                    os.close(way.pop())
            todo += [step for step in reversed(target.split("/")) if step]
        return reopen_checked(way[-1], path)
    finally:
        for descriptor in way:
            os.close(descriptor)


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
