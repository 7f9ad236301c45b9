"""Names, labels, annotations, owners and finalizers: what every object of Kubernetes carries.

Does not cover: annotations that configure security (security.py).
"""

from pykubelet.api.types import LabelSelector, ObjectMeta, OwnerReference
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import Findings, key_path, show, spoken

MAX_ANNOTATIONS = 256 * 1024
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def validate_metadata(meta: ObjectMeta, at: str, found: Findings) -> None:
    if found.required(f"{at}.name", meta.name):
        found.check(f"{at}.name", names.dns_subdomain(meta.name or ""))
    if meta.namespace:
        # An absent namespace is no error here: a manifest on a node gets "default" from its source.
        found.check(f"{at}.namespace", names.dns_label(meta.namespace))
    found.at_least(f"{at}.generation", meta.generation, 0)
    validate_labels(meta.labels, f"{at}.labels", found)
    validate_annotations(meta.annotations, f"{at}.annotations", found)
    _validate_owners(meta.owner_references, f"{at}.ownerReferences", found)
    for i, finalizer in enumerate(meta.finalizers):
        path = f"{at}.finalizers[{i}]"
        found.check(path, names.qualified_name(finalizer))
        if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            found.add(path, f"must have a domain or be {spoken(STANDARD_FINALIZERS)}, not {show(finalizer)}")
    if {"orphan", "foregroundDeletion"} <= set(meta.finalizers):
        found.add(f"{at}.finalizers", "orphan and foregroundDeletion cannot both be set")


def validate_labels(labels: dict[str, str], at: str, found: Findings) -> None:
    for key, value in labels.items():
        path = key_path(at, key)
        complaint = names.qualified_name(key)
        if complaint is not None:
            found.add(path, f"the key {complaint}")
        complaint = names.label_value(value)
        if complaint is not None:
            found.add(path, f"the value {complaint}")


def validate_annotations(annotations: dict[str, str], at: str, found: Findings) -> None:
    size = 0
    for key, value in annotations.items():
        size += len(key.encode(errors="replace")) + len(value.encode(errors="replace"))
        complaint = names.qualified_name(key.lower())
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
        found.check(f"{path}.key", names.qualified_name(rule.key or ""))
        for j, value in enumerate(rule.values):
            found.check(f"{path}.values[{j}]", names.label_value(value))


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
