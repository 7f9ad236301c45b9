"""Patches from two states of an object: strategic merge as the API server merges its own types, and JSON merge.

Lists with a merge key become lists of changed elements with `$setElementOrder`, as upstream's client sends them;
other lists are sent whole. Works on plain JSON values; `pod_status_patch` and `node_status_patch` take objects.
Does not cover: applying patches, which only servers do (tests/fakes).
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from pykubelet.api.codec import encode_json
from pykubelet.api.types import (
    PATCH_MERGE_KEYS,
    ApiStruct,
    Node,
    ObjectMeta,
    PersistentVolumeClaim,
    PersistentVolumeClaimStatus,
    Pod,
    PodStatus,
)

Plain = dict[str, Any]


class Schema(Struct, frozen=True, kw_only=True):
    """Merge rules of a type: its fields, and for lists the key that identifies elements."""

    fields: Mapping[str, Schema] = field(default_factory=dict)
    items: Schema | None = None
    """Of a list or a map."""
    merges: bool = False
    """A list whose elements are merged; without a key its elements are plain values."""
    key: str = ""
    retain_keys: bool = False


_LEAF = Schema()


@functools.cache
def schema_of(kind: type[ApiStruct]) -> Schema:
    keys = PATCH_MERGE_KEYS.get(kind.__name__, {})
    fields: dict[str, Schema] = {}
    for info in msgspec.structs.fields(kind):
        merge_key, strategy = keys.get(info.encode_name, ("", ""))
        fields[info.encode_name] = _schema(info.type, merge_key, strategy)
    return Schema(fields=fields)


def _schema(type_: Any, merge_key: str = "", strategy: str = "") -> Schema:
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Annotated:
        return _schema(arguments[0], merge_key, strategy)
    if origin in (typing.Union, types.UnionType):
        others = [each for each in arguments if each is not type(None)]
        return _schema(others[0], merge_key, strategy) if len(others) == 1 else _LEAF
    if origin is list:
        return Schema(
            items=_schema(arguments[0]),
            merges="merge" in strategy.split(","),
            key=merge_key,
            retain_keys="retainKeys" in strategy.split(","),
        )
    if origin is dict:
        return Schema(items=_schema(arguments[1]))
    if isinstance(type_, type) and issubclass(type_, ApiStruct):
        return schema_of(type_)
    return _LEAF


def plain(obj: Any) -> Any:
    """An object as JSON values."""
    return msgspec.json.decode(encode_json(obj))


def strategic_diff(kind: type[ApiStruct], old: Plain, new: Plain) -> Plain:
    """The patch that makes `new` of `old`; empty when they are equal."""
    return _diff_maps(schema_of(kind), old, new)


def merge_diff(old: Plain, new: Plain) -> Plain:
    """The JSON merge patch (RFC 7396) that makes `new` of `old`."""
    patch: Plain = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := merge_diff(before, value):
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch


def _diff_maps(schema: Schema, old: Plain, new: Plain) -> Plain:
    patch: Plain = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
            continue
        before = old[name]
        if before == value:
            continue
        inner = schema.fields.get(name) or schema.items or _LEAF
        if isinstance(before, dict) and isinstance(value, dict):
            patch[name] = _diff_maps(inner, before, value)
        elif inner.merges and isinstance(before, list) and isinstance(value, list):
            patch.update(_diff_lists(name, inner, before, value))
        else:
            patch[name] = value
    return patch


def _diff_lists(name: str, schema: Schema, old: list[Any], new: list[Any]) -> Plain:
    if not schema.key:
        patch: Plain = {f"$setElementOrder/{name}": new}
        if gone := [value for value in old if value not in new]:
            patch[f"$deleteFromPrimitiveList/{name}"] = gone
        if added := [value for value in new if value not in old]:
            patch[name] = added
        return patch
    key = schema.key
    before = {element.get(key): element for element in old}
    after = {element.get(key): element for element in new}
    elements: list[Plain] = []
    for value, element in after.items():
        known = before.get(value)
        if known is None:
            elements.append(element)
        elif known != element:
            change = _diff_maps(schema.items or _LEAF, known, element)
            if schema.retain_keys:
                change["$retainKeys"] = sorted(element)
            elements.append({**change, key: value})
    elements += [{"$patch": "delete", key: value} for value in before if value not in after]
    patch = {f"$setElementOrder/{name}": [{key: value} for value in after]}
    if elements:
        patch[name] = elements
    return patch


def pod_status_patch(pod: Pod, status: PodStatus) -> Plain | None:
    """The strategic merge patch that gives the pod this status, with its UID as precondition; None if it has it."""
    return _status_patch(Pod, pod.metadata, pod.status, status)


def claim_status_patch(claim: PersistentVolumeClaim, status: PersistentVolumeClaimStatus) -> Plain | None:
    """The same for a claim."""
    return _status_patch(PersistentVolumeClaim, claim.metadata, claim.status, status)


def _status_patch(kind: type[ApiStruct], metadata: ObjectMeta, old: ApiStruct, new: ApiStruct) -> Plain | None:
    if old == new:
        return None
    before, after = {"status": _without_empty(plain(old))}, {"status": _without_empty(plain(new))}
    patch = strategic_diff(kind, before, after)
    return {"metadata": {"uid": metadata.uid}, **patch} if patch else None


def node_status_patch(old: Node, new: Node) -> Plain | None:
    """The strategic merge patch of metadata and status, for the status subresource; None when nothing differs."""
    before, after = _without_spec(old), _without_spec(new)
    patch = strategic_diff(Node, before, after)
    if "addresses" in (status := patch.get("status") or {}) or "$setElementOrder/addresses" in status:
        # Their merge key is the type, but a node may have several addresses of one type: replace them all.
        status.pop("$setElementOrder/addresses", None)
        status["addresses"] = [*after["status"].get("addresses", ()), {"$patch": "replace"}]
    return patch or None


def _without_spec(node: Node) -> Plain:
    value = plain(node)
    metadata = value.get("metadata", {})
    kept = {name: metadata[name] for name in ("labels", "annotations") if metadata.get(name)}
    return {"metadata": kept, "status": _without_empty(value.get("status", {}))}


def _without_empty(value: Any) -> Any:
    """A status without texts, lists and maps that are empty: Go writes many of them where we write nothing."""
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    cleaned: Plain = {}
    for name, item in value.items():
        kept = _without_empty(item) if isinstance(item, dict | list) else item
        if kept or isinstance(kept, int | float) or name in _MEANT_EMPTY:
            cleaned[name] = kept
    return cleaned


_MEANT_EMPTY = frozenset({"running", "waiting", "terminated", "resources"})
"""A container state that says nothing more is still that state; resources that are empty are known to be."""
