"""Names and short texts (DNS labels, qualified names, ports, paths, addresses), and the metadata made of them.

The functions for texts return a complaint ("must be ...") or None and know nothing about pods. Metadata is
names, labels, annotations, owners and finalizers. Does not cover: annotations that configure security (security.py).
"""

import ipaddress
import re

from pykubelet.api.types import LabelSelector, ObjectMeta, OwnerReference
from pykubelet.api.validation.findings import Findings, key_path, show, spoken

LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{LABEL}(?:\.{LABEL})*")
_SEARCH_LABEL = r"_?[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?"
_DNS_SEARCH = re.compile(rf"{_SEARCH_LABEL}(?:\.{_SEARCH_LABEL})*")
_QUALIFIED = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PORT_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_HEADER = re.compile(r"[-A-Za-z0-9]+")
_SYSCTL_PART = r"[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?"
_SYSCTL = re.compile(rf"(?:{_SYSCTL_PART}[./])*{_SYSCTL_PART}")

MAX_LABEL = 63
MAX_SUBDOMAIN = 253
MAX_PORT_NAME = 15
MAX_ID = 2**31 - 1


def dns_label(value: str) -> str | None:
    if len(value) > MAX_LABEL:
        return f"must be at most {MAX_LABEL} characters long, not {len(value)}"
    if not _DNS_LABEL.fullmatch(value):
        return f"must be lower case letters, digits and inner dashes, not {show(value)}"
    return None


def dns_subdomain(value: str) -> str | None:
    if len(value) > MAX_SUBDOMAIN:
        return f"must be at most {MAX_SUBDOMAIN} characters long, not {len(value)}"
    if not _DNS_SUBDOMAIN.fullmatch(value):
        return f"must be lower case letters, digits, inner dashes and dots, not {show(value)}"
    return None


def dns_search(value: str) -> str | None:
    """A search domain: like a subdomain, but underscores, one closing dot and the bare root are fine."""
    if value == ".":
        return None
    bare = value.removesuffix(".")
    if len(bare) > MAX_SUBDOMAIN:
        return f"must be at most {MAX_SUBDOMAIN} characters long, not {len(bare)}"
    if not _DNS_SEARCH.fullmatch(bare):
        return f"must be a domain of letters, digits, dashes, underscores and dots, not {show(value)}"
    return None


def qualified_name(value: str) -> str | None:
    """A label key, resource or condition name: `[domain/]name`."""
    prefix, slash, name = value.rpartition("/")
    if slash:
        if "/" in prefix:
            return f"must have at most one slash, not {show(value)}"
        if dns_subdomain(prefix) is not None:
            return f"must have a domain name before the slash, not {show(prefix)}"
    if len(name) > MAX_LABEL:
        return f"the name must be at most {MAX_LABEL} characters long, not {len(name)}"
    if not _QUALIFIED.fullmatch(name):
        return f"must be letters, digits and inner dashes, dots or underscores, not {show(value)}"
    return None


def label_value(value: str) -> str | None:
    if not value:
        return None
    if len(value) > MAX_LABEL:
        return f"must be at most {MAX_LABEL} characters long, not {len(value)}"
    if not _QUALIFIED.fullmatch(value):
        return f"must be letters, digits and inner dashes, dots or underscores, not {show(value)}"
    return None


def port_name(value: str) -> str | None:
    if len(value) > MAX_PORT_NAME:
        return f"must be at most {MAX_PORT_NAME} characters long, not {len(value)}"
    if not _PORT_NAME.fullmatch(value) or "--" in value or not any(ch.isalpha() for ch in value):
        return f"must be lower case letters, digits and single inner dashes with a letter, not {show(value)}"
    return None


def port_number_or_name(value: int | str | None) -> str | None:
    if value is None:
        return "required"
    if isinstance(value, int):
        return None if 1 <= value <= 65535 else f"must be 1..65535, not {show(value)}"
    return port_name(value)


def env_name(value: str) -> str | None:
    if not value:
        return "required"
    if any(not " " <= ch <= "~" or ch == "=" for ch in value):
        return f"must be printable ASCII without '=', not {show(value)}"
    return None


def config_key(value: str) -> str | None:
    """A key inside a ConfigMap or Secret."""
    if len(value) > MAX_SUBDOMAIN:
        return f"must be at most {MAX_SUBDOMAIN} characters long, not {len(value)}"
    if not _CONFIG_KEY.fullmatch(value) or value == "." or value.startswith(".."):
        return f"must be letters, digits, dashes, underscores and dots, not {show(value)}"
    return None


def header_name(value: str) -> str | None:
    return None if _HEADER.fullmatch(value) else f"must be letters, digits and dashes, not {show(value)}"


def sysctl_name(value: str) -> str | None:
    if len(value) > MAX_SUBDOMAIN:
        return f"must be at most {MAX_SUBDOMAIN} characters long, not {len(value)}"
    return None if _SYSCTL.fullmatch(value) else f"must be a sysctl name, not {show(value)}"


def user_or_group_id(value: int) -> str | None:
    return None if 0 <= value <= MAX_ID else f"must be 0..{MAX_ID}, not {show(value)}"


def ip_address(value: str) -> str | None:
    # Python's parser takes a zone ("fe80::1%eth0") and IPv4 dressed up as IPv6; the API server takes neither.
    try:
        parsed = ipaddress.ip_address(value)
    except ValueError:
        parsed = None
    if parsed is None or "%" in value or getattr(parsed, "ipv4_mapped", None) is not None:
        return f"must be an IP address, not {show(value)}"
    return None


def no_backsteps(value: str) -> str | None:
    return f"must not contain '..', not {show(value)}" if ".." in value.split("/") else None


def relative_path(value: str) -> str | None:
    """A path that stays below its root."""
    if value.startswith("/"):
        return f"must be a relative path, not {show(value)}"
    return no_backsteps(value)


def projected_path(value: str) -> str | None:
    """A file inside a volume we write: relative, and clear of our own `..data` names."""
    if value.startswith("..") and not value.startswith("../") and value != "..":
        return f"must not start with '..', not {show(value)}"
    return relative_path(value)


MAX_ANNOTATIONS = 256 * 1024
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def validate_metadata(meta: ObjectMeta, at: str, found: Findings) -> None:
    if found.required(f"{at}.name", meta.name):
        found.check(f"{at}.name", dns_subdomain(meta.name or ""))
    if meta.namespace:
        # An absent namespace is no error here: a manifest on a node gets "default" from its source.
        found.check(f"{at}.namespace", dns_label(meta.namespace))
    found.at_least(f"{at}.generation", meta.generation, 0)
    validate_labels(meta.labels, f"{at}.labels", found)
    validate_annotations(meta.annotations, f"{at}.annotations", found)
    _validate_owners(meta.owner_references, f"{at}.ownerReferences", found)
    for i, finalizer in enumerate(meta.finalizers):
        path = f"{at}.finalizers[{i}]"
        found.check(path, qualified_name(finalizer))
        if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            found.add(path, f"must have a domain or be {spoken(STANDARD_FINALIZERS)}, not {show(finalizer)}")
    if {"orphan", "foregroundDeletion"} <= set(meta.finalizers):
        found.add(f"{at}.finalizers", "orphan and foregroundDeletion cannot both be set")


def validate_labels(labels: dict[str, str], at: str, found: Findings) -> None:
    for key, value in labels.items():
        path = key_path(at, key)
        complaint = qualified_name(key)
        if complaint is not None:
            found.add(path, f"the key {complaint}")
        complaint = label_value(value)
        if complaint is not None:
            found.add(path, f"the value {complaint}")


def validate_annotations(annotations: dict[str, str], at: str, found: Findings) -> None:
    size = 0
    for key, value in annotations.items():
        size += len(key.encode(errors="replace")) + len(value.encode(errors="replace"))
        complaint = qualified_name(key.lower())
        if complaint is not None:
            found.add(key_path(at, key), f"the key {complaint}")
    if size > MAX_ANNOTATIONS:
        found.add(at, f"must be at most {MAX_ANNOTATIONS} bytes together, not {size}")
    cost = annotations.get(DELETION_COST)
    if cost is not None and not _is_int32(cost):
        found.add(key_path(at, DELETION_COST), f"must be a 32 bit number, not {show(cost)}")


def _is_int32(text: str) -> bool:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return False
    return (digits == "0" or not digits.startswith("0")) and -(2**31) <= int(text) < 2**31


def validate_selector(selector: LabelSelector | None, at: str, found: Findings) -> None:
    if selector is None:
        return
    validate_labels(selector.match_labels, f"{at}.matchLabels", found)
    for i, rule in enumerate(selector.match_expressions):
        path = f"{at}.matchExpressions[{i}]"
        if rule.operator in ("In", "NotIn"):
            found.required(f"{path}.values", rule.values)
        elif rule.operator in ("Exists", "DoesNotExist"):
            if rule.values:
                found.add(f"{path}.values", f"must be empty with operator {rule.operator}")
        else:
            found.choice(f"{path}.operator", rule.operator or "", ("In", "NotIn", "Exists", "DoesNotExist"))
        found.check(f"{path}.key", qualified_name(rule.key or ""))
        for j, value in enumerate(rule.values):
            found.check(f"{path}.values[{j}]", label_value(value))


def _validate_owners(owners: list[OwnerReference], at: str, found: Findings) -> None:
    controllers = 0
    for i, owner in enumerate(owners):
        path = f"{at}[{i}]"
        for name, value in (
            ("apiVersion", owner.api_version),
            ("kind", owner.kind),
            ("name", owner.name),
            ("uid", owner.uid),
        ):
            found.required(f"{path}.{name}", value)
        if owner.controller:
            controllers += 1
            if controllers == 2:
                found.add(f"{path}.controller", "only one owner may be the controller")
