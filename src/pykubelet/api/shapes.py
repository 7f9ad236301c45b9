"""What a type expects where: the walk over plain values beside the type they shall become.

Covers: nulls as Go reads them, times that Python cannot hold, unknown fields.
Does not cover: the conversion itself and its errors (codec.py).
"""

import functools
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from pykubelet.api.times import nearest_time

NOT_READ: Final = "managedFields"
"""A field of every object that our types leave out on purpose."""


def unknown_fields(type_: Any, obj: Any) -> list[str]:
    """Paths of the fields of plain values that the type does not have."""
    return list(_unknown(shape_of(type_), obj, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a type expects at one place: fields of a struct, items of a list or map, or a plain value."""

    fields: dict[str, "Shape"] = field(default_factory=dict)
    is_struct: bool = False
    items: "Shape | None" = None
    values: "Shape | None" = None
    zero: Any = None  # what Go makes of a null inside a list or map
    is_time: bool = False


@functools.cache
def shape_of(type_: Any) -> Shape:
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Annotated:
        return shape_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        others = [a for a in arguments if a is not type(None)]
        if len(others) == 1:
            return shape_of(others[0])
        return Shape(zero="0" if float in others else 0)  # a quantity, an int-or-string
    if origin is list:
        return Shape(items=shape_of(arguments[0]), zero=[])
    if origin is dict:
        return Shape(values=shape_of(arguments[1]), zero={})
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        fields = {info.encode_name: shape_of(info.type) for info in msgspec.structs.fields(type_)}
        return Shape(fields=fields, is_struct=True, zero={})
    return Shape(zero={str: "", int: 0, float: 0.0, bool: False}.get(type_), is_time=type_ is datetime)


def without_nulls(shape: Shape, obj: Any) -> Any:
    """A copy in which null fields are gone and nulls in lists and maps are zero values, as Go reads them."""
    if obj is None:
        return shape.zero
    if isinstance(obj, dict) and shape.is_struct:
        return {
            key: without_nulls(shape.fields[key], value) if key in shape.fields else value
            for key, value in obj.items()
            if value is not None
        }
    if isinstance(obj, dict) and shape.values is not None:
        return {key: without_nulls(shape.values, value) for key, value in obj.items()}
    if isinstance(obj, list) and shape.items is not None:
        return [without_nulls(shape.items, value) for value in obj]
    return obj


def as_stored(shape: Shape, obj: Any) -> Any:
    """A copy of what an API server stores that Python can hold too: only known fields, no nulls, times in its range."""
    if obj is None:
        return shape.zero
    if isinstance(obj, dict) and shape.is_struct:
        return {
            key: as_stored(shape.fields[key], value)
            for key, value in obj.items()
            if value is not None and key in shape.fields
        }
    if isinstance(obj, dict) and shape.values is not None:
        return {key: as_stored(shape.values, value) for key, value in obj.items()}
    if isinstance(obj, list) and shape.items is not None:
        return [as_stored(shape.items, value) for value in obj]
    if shape.is_time and isinstance(obj, str):
        return nearest_time(obj) or obj  # what is no time at all stays for the conversion to refuse
    return obj


def _unknown(shape: Shape, obj: Any, path: str) -> Iterator[str]:
    if isinstance(obj, dict) and shape.is_struct:
        for key, value in obj.items():
            here = f"{path}.{key}" if path else str(key)
            if key in shape.fields:
                yield from _unknown(shape.fields[key], value, here)
            elif key != NOT_READ:
                yield here
    elif isinstance(obj, dict) and shape.values is not None:
        for key, value in obj.items():
            yield from _unknown(shape.values, value, f"{path}[{key}]")
    elif isinstance(obj, list) and shape.items is not None:
        for index, value in enumerate(obj):
            yield from _unknown(shape.items, value, f"{path}[{index}]")
