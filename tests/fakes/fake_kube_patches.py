"""How a server applies patches: JSON patch, JSON merge and strategic merge, on plain JSON values.

Used by the fake API server; the strategic rules are checked against the real one in the contract tests.
"""

from __future__ import annotations

import copy
from typing import Any

from pykubelet.api.types import ApiStruct
from pykubelet.clients.kube.patch import Schema, schema_of

Plain = dict[str, Any]
_LEAF = Schema()
_ORDER, _DELETE = "$setElementOrder/", "$deleteFromPrimitiveList/"


class BadPatch(ValueError):
    """The patch cannot be applied."""


def apply_merge(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge(result.get(name), value)
    return result


def apply_json(target: Plain, operations: Any) -> Plain:
    """RFC 6902."""
    result: Any = copy.deepcopy(target)
    for operation in operations:
        verb = operation["op"]
        if verb == "test":
            if _find(result, operation["path"]) != operation["value"]:
                raise BadPatch(f"testing value {operation['path']} failed")
        elif verb in ("add", "replace"):
            result = _put(result, operation["path"], operation["value"], replace=verb == "replace")
        elif verb == "remove":
            _take(result, operation["path"])
        elif verb in ("move", "copy"):
            value = copy.deepcopy(_find(result, operation["from"]))
            if verb == "move":
                _take(result, operation["from"])
            result = _put(result, operation["path"], value, replace=False)
        else:
            raise BadPatch(f"unknown operation {verb}")
    return dict(result)


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _find(value: Any, path: str) -> Any:
    for step in _steps(path):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise BadPatch(f"there is no {path}") from None
    return value


def _parent(value: Any, path: str) -> tuple[Any, str]:
    *above, last = _steps(path)
    return _find(value, "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in above)), last


def _put(root: Any, path: str, value: Any, *, replace: bool) -> Any:
    if not path:
        return value
    holder, last = _parent(root, path)
    if isinstance(holder, list):
        index = len(holder) if last == "-" else int(last)
        if replace:
            holder[index] = value
        else:
            holder.insert(index, value)
    else:
        holder[last] = value  # the real server lets "replace" make a missing field, too
    return root


def _take(root: Any, path: str) -> None:
    holder, last = _parent(root, path)
    try:
        del holder[int(last) if isinstance(holder, list) else last]
    except (KeyError, IndexError):
        raise BadPatch(f"there is no {path}") from None


def apply_strategic(kind: type[ApiStruct], target: Plain, patch: Plain) -> Plain:
    return _merge_maps(schema_of(kind), target, patch)


def _merge_maps(schema: Schema, target: Plain, patch: Plain) -> Plain:
    patch = dict(patch)
    directive = patch.pop("$patch", "merge")
    if directive == "replace":
        return patch
    if directive == "delete":
        return {}
    retain = patch.pop("$retainKeys", None)
    result = {name: value for name, value in target.items() if retain is None or name in retain}
    orders = {name.removeprefix(_ORDER): patch.pop(name) for name in list(patch) if name.startswith(_ORDER)}
    gone = {name.removeprefix(_DELETE): patch.pop(name) for name in list(patch) if name.startswith(_DELETE)}
    for name, values in gone.items():
        result[name] = [value for value in result.get(name, []) if value not in values]
    for name, value in patch.items():
        inner = schema.fields.get(name) or schema.items or _LEAF
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            before = result.get(name)
            result[name] = _merge_maps(inner, before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list) and inner.merges:
            result[name] = _merge_lists(inner, result.get(name) or [], value)
        elif isinstance(value, list):
            result[name] = [element for element in value if element != {"$patch": "replace"}]
        else:
            result[name] = value
    for name, order in orders.items():
        if isinstance(result.get(name), list):
            inner = schema.fields.get(name) or _LEAF
            result[name] = _ordered(inner.key, result[name], order)
    return result


def _merge_lists(schema: Schema, target: list[Any], patch: list[Any]) -> list[Any]:
    if not schema.key:
        return target + [value for value in patch if value not in target]
    if {"$patch": "replace"} in patch:
        return [element for element in patch if element != {"$patch": "replace"}]
    key = schema.key
    result = list(target)
    for element in patch:
        if key not in element:
            raise BadPatch(f"map: {element} does not contain declared merge key: {key}")
        places = [index for index, known in enumerate(result) if known.get(key) == element[key]]
        if element.get("$patch") == "delete":
            result = [known for index, known in enumerate(result) if index not in places]
        elif places:
            result[places[0]] = _merge_maps(schema.items or _LEAF, result[places[0]], element)
        else:
            result.append(_merge_maps(schema.items or _LEAF, {}, element))
    return result


def _ordered(key: str, values: list[Any], order: list[Any]) -> list[Any]:
    """Elements named in `order` in that order; others keep their place after the one they followed."""
    wanted = [element.get(key) if key else element for element in order]
    rank = {value: index for index, value in enumerate(wanted)}
    named = sorted((value for value in values if _id(key, value) in rank), key=lambda value: rank[_id(key, value)])
    queue = iter(named)
    return [next(queue) if _id(key, value) in rank else value for value in values]


def _id(key: str, value: Any) -> Any:
    return value.get(key) if key else value
