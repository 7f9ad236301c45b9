"""How the text of a command-line flag becomes a value: pflag's rules and the kubelet's special forms.

Covers the small objects in lists of the configuration (taints, memory reservations, ...) as well. Each form turns one
text into a value, given what an earlier use of the same flag produced: lists and maps grow, everything else is
replaced. A bad text raises WrongValue. Does not cover splitting the command line (flags.py).
"""

from __future__ import annotations

import csv
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from pykubelet.settings.kinds import (
    BOOL,
    DURATION,
    FLUSH_FREQUENCY,
    INT32,
    INT64,
    QUANTITY,
    STRING,
    STRING_MAP,
    STRINGS,
    UINT32,
    Kind,
    MapOf,
    Scalar,
    SettingsGroup,
    WrongValue,
    duration_of,
    quantity_of,
    setting,
)


class NodeTaint(SettingsGroup):
    """A taint put on the Node when it registers for the first time."""

    key: str = setting("key", STRING, "", "Name of the taint.")
    value: str = setting("value", STRING, "", "Value of the taint.")
    effect: str = setting("effect", STRING, "", "NoSchedule, PreferNoSchedule or NoExecute.")
    time_added: str = setting("timeAdded", STRING, "", "Not allowed here; the validation says so.")


class MemoryReservation(SettingsGroup):
    """Memory of one NUMA node that pods never get."""

    numa_node: int = setting("numaNode", INT32, 0, "Number of the NUMA node.")
    limits: Mapping[str, str] = setting("limits", MapOf(QUANTITY), {}, "Reserved amounts: memory and hugepages-<size>.")


class PriorityGracePeriod(SettingsGroup):
    """How long pods of at least this priority get when the machine shuts down."""

    priority: int = setting("priority", INT32, 0, "Lowest pod priority of the range.")
    shutdown_grace_period_seconds: int = setting("shutdownGracePeriodSeconds", INT64, 0, "Seconds these pods get.")


class VModuleItem(SettingsGroup):
    """A log verbosity for the source files that match a pattern."""

    file_pattern: str = setting(
        "filePattern",
        STRING,
        "",
        "Name of the source file without its ending, or its path below the package; * and ? allowed.",
    )
    verbosity: int = setting("verbosity", UINT32, 0, "Verbosity for these files.")


TRUE_WORDS = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE_WORDS = frozenset({"0", "f", "F", "FALSE", "false", "False"})
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

# What Go's ParseInt with base 0 takes: decimal, 0x, 0o, 0b, and a leading zero for octal.
_INTEGER = re.compile(r"[+-]?(0[xX](_?[0-9a-fA-F])+|0[oO]?(_?[0-7])+|0[bB](_?[01])+|0|[1-9](_?[0-9])*)")


class FlagForm(Struct, frozen=True):
    """`parse(text, earlier)` where `earlier` is None for the first use of the flag on this line."""

    name: str
    """The type word shown by --help."""
    parse: Callable[[str, Any], Any]
    without_value: str = ""
    """What a bare `--flag` means; "" when the flag needs a value."""
    secret: bool = False
    """The text may hold a password and must not appear in messages."""


def _replacing(parse: Callable[[str], object]) -> Callable[[str, Any], object]:
    return lambda text, earlier: parse(text)


def parse_bool(text: str) -> bool:
    if text in TRUE_WORDS:
        return True
    if text in FALSE_WORDS:
        return False
    raise WrongValue("must be true or false")


def parse_integer(text: str) -> int:
    if len(text) > 100 or not _INTEGER.fullmatch(text):
        raise WrongValue("must be an integer")
    digits = text.lstrip("+-")
    # Python writes Go's plain leading zero as 0o.
    if len(digits) > 1 and digits[0] == "0" and (digits[1].isdigit() or digits[1] == "_"):
        digits = "0o" + digits[1:].lstrip("_")
    return -int(digits, 0) if text.startswith("-") else int(digits, 0)


def _parse_ip(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError as err:
        raise WrongValue("must be an IP address") from err
    return text


def _parse_strings(text: str, earlier: tuple[str, ...] | None) -> tuple[str, ...]:
    """A comma list; a part may be quoted as in CSV."""
    if not text:
        return earlier or ()
    if "\n" in text or "\r" in text or "\0" in text:
        raise WrongValue("must be one line of comma-separated values")
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as err:
        raise WrongValue(f"is not a comma-separated list: {err}") from err
    return (earlier or ()) + tuple(rows[0] if rows else ())


def _pairs(text: str, separator: str) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split(","):
        if not part:
            continue
        key, found, value = part.partition(separator)
        if not found:
            raise WrongValue(f"has a malformed pair {part!r}, expected key{separator}value")
        pairs.append((key.strip(), value.strip()))
    return pairs


def _map_with(separator: str) -> Callable[[str, Mapping[str, str] | None], dict[str, str]]:
    return lambda text, earlier: {**(earlier or {}), **dict(_pairs(text, separator))}


def _one_pair(text: str, earlier: Mapping[str, str] | None) -> dict[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise WrongValue(f"has a malformed pair {text!r}, expected key=value")
    return {**(earlier or {}), key.strip(): value.strip()}


def _labels(text: str, earlier: Mapping[str, str] | None) -> dict[str, str]:
    """Like a map, but a key alone is allowed and means an empty value."""
    labels = dict(earlier or {})
    for part in text.split(","):
        if part:
            key, _, value = part.partition("=")
            labels[key.strip()] = value.strip()
    return labels


def _bool_map(text: str, earlier: Mapping[str, bool] | None) -> dict[str, bool]:
    gates = dict(earlier or {})
    for key, value in _pairs(text, "="):
        try:
            gates[key] = parse_bool(value)
        except WrongValue as err:
            raise WrongValue(f"has {key}={value}: the value {err}") from err
    return gates


def _headers(text: str, earlier: Mapping[str, tuple[str, ...]] | None) -> dict[str, tuple[str, ...]]:
    headers = dict(earlier or {})
    for key, value in _pairs(text, ":"):
        headers[key] = (*headers.get(key, ()), value)
    return headers


def _parse_taint(text: str) -> NodeTaint:
    spec, found, effect = text.partition(":")
    if not found or effect not in TAINT_EFFECTS:
        raise WrongValue(f"has a malformed taint {text!r}, expected key=value:effect with {', '.join(TAINT_EFFECTS)}")
    key, _, value = spec.partition("=")
    if not key:
        raise WrongValue(f"has a taint without a key: {text!r}")
    return NodeTaint(key=key, value=value, effect=effect)


def _taints(text: str) -> tuple[NodeTaint, ...]:
    taints = tuple(_parse_taint(part) for part in text.split(",")) if text else ()
    seen = [(taint.key, taint.effect) for taint in taints]
    if len(set(seen)) != len(seen):
        raise WrongValue("has the same key and effect twice")
    return taints


def _reservation(text: str) -> MemoryReservation:
    expected = "expected numaNode:type=quantity[,type=quantity...]"
    node, found, amounts = text.partition(":")
    if not found or ":" in amounts:
        raise WrongValue(f"has {text!r}, {expected}")
    limits = {}
    for part in amounts.split(","):
        resource, separator, amount = part.partition("=")
        if not separator or "=" in amount:
            raise WrongValue(f"has {part!r}, {expected}")
        if resource != "memory" and not resource.startswith("hugepages-"):
            raise WrongValue(f"has the unknown memory type {resource!r}; memory and hugepages-<size> are known")
        quantity_of(amount)
        limits[resource] = amount
    return MemoryReservation(numa_node=INT32.read(parse_integer(node)), limits=limits)


def _reserved_memory(text: str, earlier: tuple[MemoryReservation, ...] | None) -> tuple[MemoryReservation, ...]:
    if not text:
        return ()
    return (earlier or ()) + tuple(_reservation(part) for part in text.split(";"))


def _vmodule(text: str) -> tuple[VModuleItem, ...]:
    items = []
    for pattern, level in _pairs(text, "="):
        items.append(VModuleItem(file_pattern=pattern, verbosity=UINT32.read(parse_integer(level))))
    return tuple(items)


def _number(kind: Scalar) -> FlagForm:
    return FlagForm(kind.name, _replacing(lambda text: kind.read(parse_integer(text))))


def _quantity_text(text: str) -> str:
    quantity_of(text)
    return text


TEXT = FlagForm("string", _replacing(str))
IP_ADDRESS = FlagForm("ip", _replacing(_parse_ip))
SWITCH = FlagForm("bool", _replacing(parse_bool), without_value="true")
SECONDS = FlagForm("duration", _replacing(duration_of))
LANGLE_MAP = FlagForm("signal<value,...", _map_with("<"))
EQUALS_MAP = FlagForm("key=value,...", _map_with("="))
ONE_PAIR = FlagForm("key=value", _one_pair)
LABELS = FlagForm("key=value,...", _labels)
GATES = FlagForm("Gate=true|false,...", _bool_map)
HEADERS = FlagForm("name:value,...", _headers, secret=True)
TAINTS = FlagForm("key=value:effect,...", _replacing(_taints))
RESERVED_MEMORY = FlagForm("node:type=quantity,...;...", _reserved_memory)
VMODULE = FlagForm("pattern=N,...", _replacing(_vmodule))
STRING_LIST = FlagForm("string,...", _parse_strings)

_PLAIN: tuple[tuple[Kind, FlagForm], ...] = (
    (BOOL, SWITCH),
    (STRING, TEXT),
    (INT32, _number(INT32)),
    (INT64, _number(INT64)),
    (UINT32, _number(UINT32)),
    (DURATION, SECONDS),
    (FLUSH_FREQUENCY, SECONDS),
    (QUANTITY, FlagForm("quantity", _replacing(_quantity_text))),
    (STRINGS, STRING_LIST),
    (STRING_MAP, EQUALS_MAP),
    (MapOf(BOOL), GATES),
)


def plain_form(kind: Kind) -> FlagForm:
    """The form a flag has when its field does not name a special one."""
    for known, form in _PLAIN:
        if kind == known:
            return form
    return TEXT
