"""Values of the downward API: fields of the pod and container resources, as texts. Pure.

Used for variables and for volumes (PodFields); which paths a variable or a file may have is validated with
the pod.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from pykubelet.api.pod_resources import is_huge_pages
from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Pod, ResourceFieldSelector
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import AnyContainer, find_container, name_of, namespace_of, uid_of
from pykubelet.runtime.errors import ConfigProblem

KEYED_FIELD = re.compile(r"^metadata\.(labels|annotations)\['(.*)'\]$")
DEFAULTED = ("cpu", "memory", "ephemeral-storage")
"""Resources whose unset limit shows what the node can give; huge pages are never overcommitted."""
POD_LEVEL_DEFAULTED = ("cpu", "memory")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"} | {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\v": "\\v",
}


class Addresses(Struct, frozen=True, kw_only=True):
    pod: tuple[str, ...] = ()
    """In the order of the node's family preference."""
    host: tuple[str, ...] = ()


def field_value(pod: Pod, path: str, addresses: Addresses) -> str:
    keyed = KEYED_FIELD.match(path)
    if keyed:
        holder = pod.metadata.labels if keyed.group(1) == "labels" else pod.metadata.annotations
        return holder.get(keyed.group(2), "")
    match path:
        case "metadata.name":
            return name_of(pod)
        case "metadata.namespace":
            return namespace_of(pod)
        case "metadata.uid":
            return uid_of(pod)
        case "metadata.labels":
            return as_lines(pod.metadata.labels)
        case "metadata.annotations":
            return as_lines(pod.metadata.annotations)
        case "spec.nodeName":
            return pod.spec.node_name or ""
        case "spec.serviceAccountName":
            return pod.spec.service_account_name or ""
        case "status.hostIP":
            return addresses.host[0] if addresses.host else ""
        case "status.hostIPs":
            return ",".join(addresses.host)
        case "status.podIP":
            return addresses.pod[0] if addresses.pod else ""
        case "status.podIPs":
            return ",".join(addresses.pod)
    raise ConfigProblem(f"unsupported fieldPath: {path}")


def as_lines(values: Mapping[str, str]) -> str:
    """Labels and annotations as one text: sorted, values quoted."""
    return "\n".join(f"{key}={quote(value)}" for key, value in sorted(values.items()))


def quote(value: str) -> str:
    """A double-quoted text with Go's escapes."""
    out = []
    for char in value:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif char.isprintable():
            out.append(char)
        else:
            code = ord(char)
            out.append(f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'


def resource_value(
    pod: Pod, container: AnyContainer, selector: ResourceFieldSelector, allocatable: Mapping[str, Quantity]
) -> str:
    """A request or limit in units of the divisor, rounded up; an unset limit shows what there is at most."""
    which, _, resource = (selector.resource or "").partition(".")
    if which not in ("limits", "requests") or not (resource in DEFAULTED or is_huge_pages(resource)):
        raise ConfigProblem(f"unsupported container resource : {selector.resource}")
    wanted = _selected(pod, container, selector.container_name)
    own = wanted.resources
    raw = (own.limits if which == "limits" else own.requests).get(resource) if own is not None else None
    amount = Quantity.parse(raw) if raw is not None else ZERO
    if which == "limits" and amount.is_zero() and resource in DEFAULTED:
        amount = _most(pod, resource, allocatable)
    return divide_up(amount, Quantity.parse(selector.divisor or 1), milli=resource == "cpu")


def _selected(pod: Pod, container: AnyContainer, name: str | None) -> AnyContainer:
    if not name or name == container.name:
        return container
    found = find_container(pod, name)
    if found is None:
        raise ConfigProblem(f"container {name} not found")
    return found[1]


def _most(pod: Pod, resource: str, allocatable: Mapping[str, Quantity]) -> Quantity:
    if resource in POD_LEVEL_DEFAULTED and pod.spec.resources is not None:
        limit = Quantity.parse(pod.spec.resources.limits.get(resource, 0))
        if not limit.is_zero():
            return limit
    return allocatable.get(resource, ZERO)


def divide_up(amount: Quantity, divisor: Quantity, *, milli: bool) -> str:
    unit = divisor.milli_value() if milli else divisor.value()
    total = amount.milli_value() if milli else amount.value()
    if unit == 0:
        unit = 1000 if milli else 1
    return str(-(-total // unit))


class PodFields:
    """Fields of a pod as files of a downward API volume, by the same rules as in the environment."""

    def __init__(self, allocatable: Mapping[str, Quantity]) -> None:
        self._allocatable = allocatable

    def field(self, pod: Pod, path: str) -> str:
        return field_value(pod, path, Addresses())

    def resource(self, pod: Pod, selector: ResourceFieldSelector) -> str:
        found = find_container(pod, selector.container_name or "")
        if found is None:
            raise PykubeletError(f"resourceFieldRef: container {selector.container_name} not found")
        return resource_value(pod, found[1], selector, self._allocatable)
