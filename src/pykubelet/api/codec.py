"""Read and write Kubernetes objects: JSON or plain values in, JSON out.

Covers: a fast JSON decoder that also takes the nulls Go writes for empty lists, conversion of plain values
into types with field paths in errors, unknown fields.
Does not cover: texts in YAML (documents.py), defaults and validation of the values, or choosing the type for a kind
(types.KINDS).
Every failure is a ManifestError.
"""

import copy
import functools
import re
import types
import typing
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct, field

from pykubelet.api.times import nearest_time
from pykubelet.api.types import ApiStruct
from pykubelet.kit.text import plain

NOT_READ: Final = "managedFields"
"""A field of every object that our types leave out on purpose."""


def unknown_fields(type_: Any, obj: Any) -> list[str]:
    """Paths of the fields of plain values that the type does not have."""
    return list(_unknown(shape_of(type_), obj, ""))


class Shape(Struct, frozen=True, kw_only=True):
    """What a type expects at one place: fields of a struct, items of a list or map, or a plain value.

    It holds types: the shapes below it are made when a value gets there, since no object has all of a pod's fields.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    is_struct: bool = False
    items: Any = None
    values: Any = None
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
        return Shape(items=arguments[0], zero=[])
    if origin is dict:
        return Shape(values=arguments[1], zero={})
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        fields = {info.encode_name: info.type for info in msgspec.structs.fields(type_)}
        return Shape(fields=fields, is_struct=True, zero={})
    return Shape(zero={str: "", int: 0, float: 0.0, bool: False}.get(type_), is_time=type_ is datetime)


def without_nulls(shape: Shape, obj: Any) -> Any:
    """A copy in which null fields are gone and nulls in lists and maps are zero values, as Go reads them."""
    if obj is None:
        return shape.zero
    if isinstance(obj, dict) and shape.is_struct:
        return {
            key: without_nulls(shape_of(shape.fields[key]), value) if key in shape.fields else value
            for key, value in obj.items()
            if value is not None
        }
    if isinstance(obj, dict) and shape.values is not None:
        values = shape_of(shape.values)
        return {key: without_nulls(values, value) for key, value in obj.items()}
    if isinstance(obj, list) and shape.items is not None:
        items = shape_of(shape.items)
        return [without_nulls(items, value) for value in obj]
    return obj


def as_stored(shape: Shape, obj: Any) -> Any:
    """A copy of what an API server stores that Python can hold too: only known fields, no nulls, times in its range."""
    if obj is None:
        return shape.zero
    if isinstance(obj, dict) and shape.is_struct:
        return {
            key: as_stored(shape_of(shape.fields[key]), value)
            for key, value in obj.items()
            if value is not None and key in shape.fields
        }
    if isinstance(obj, dict) and shape.values is not None:
        values = shape_of(shape.values)
        return {key: as_stored(values, value) for key, value in obj.items()}
    if isinstance(obj, list) and shape.items is not None:
        items = shape_of(shape.items)
        return [as_stored(items, value) for value in obj]
    if shape.is_time and isinstance(obj, str):
        return nearest_time(obj) or obj  # what is no time at all stays for the conversion to refuse
    return obj


def _unknown(shape: Shape, obj: Any, path: str) -> Iterator[str]:
    if isinstance(obj, dict) and shape.is_struct:
        for key, value in obj.items():
            here = f"{path}.{key}" if path else str(key)
            if key in shape.fields:
                yield from _unknown(shape_of(shape.fields[key]), value, here)
            elif key != NOT_READ:
                yield here
    elif isinstance(obj, dict) and shape.values is not None:
        for key, value in obj.items():
            yield from _unknown(shape_of(shape.values), value, f"{path}[{key}]")
    elif isinstance(obj, list) and shape.items is not None:
        for index, value in enumerate(obj):
            yield from _unknown(shape_of(shape.items), value, f"{path}[{index}]")


T = TypeVar("T")


class ManifestError(ValueError):
    """What was read is not what it should be; names the field or the line where that is known."""

    def __init__(self, message: str, *, path: str = "", line: int | None = None) -> None:
        super().__init__(message, path, line)
        self.message = message
        self.path = path
        self.line = line

    def __str__(self) -> str:
        if self.path:
            return f"{self.path}: {self.message}"
        return self.message if self.line is None else f"line {self.line}: {self.message}"


@functools.cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


_ENCODER: Final = msgspec.json.Encoder()


def decode_json(type_: type[T], data: bytes | str) -> T:
    """The object in a JSON text. Unknown fields are ignored, null means absent."""
    try:
        try:
            return cast(T, _decoder(cast(Any, type_)).decode(data))
        except msgspec.ValidationError as problem:  # nulls, or an error whose map keys only convert() can name
            first = problem
        tree = msgspec.json.decode(data)
    except msgspec.ValidationError:  # a number too large for any type: the first error has the better path
        raise _field_error(first, None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise _json_error(problem) from None
    return convert(type_, tree)


def encode_json(obj: Any) -> bytes:
    """The JSON of an object or of plain values. What is absent or empty by default is left out."""
    try:
        whole = _without_empty_parts(obj)
        try:
            return _ENCODER.encode(whole)
        except UnicodeEncodeError:  # a text with bytes that are no UTF-8; one field must not keep back the rest
            return _ENCODER.encode(_sendable(msgspec.to_builtins(whole)))
    except RecursionError:
        raise ManifestError("nested too deeply to be written as JSON") from None


def _sendable(value: Any) -> Any:
    if isinstance(value, dict):
        return {plain(key): _sendable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_sendable(each) for each in value]
    return plain(value) if isinstance(value, str) else value


def convert(type_: type[T], obj: Any) -> T:
    """Plain values (from YAML or JSON) as the given type; an error names the field."""
    try:
        try:
            return msgspec.convert(obj, type_)
        except msgspec.ValidationError:  # perhaps only because of nulls
            if obj is None:
                raise
            obj = without_nulls(shape_of(cast(Any, type_)), obj)
            return msgspec.convert(obj, type_)
    except msgspec.ValidationError as problem:
        raise _field_error(problem, obj) from None
    except RecursionError:
        raise ManifestError("nested too deeply") from None


def _json_error(problem: Exception) -> ManifestError:
    if isinstance(problem, RecursionError):
        return ManifestError("nested too deeply")
    if isinstance(problem, UnicodeDecodeError):
        return ManifestError("invalid JSON: not UTF-8 text")
    return ManifestError(f"invalid JSON: {_lower_first(str(problem))}")


@functools.cache
def _parts_that_default_to_empty(type_: type[ApiStruct]) -> tuple[tuple[str, ApiStruct], ...]:
    """The metadata, spec and status of a kind: they are never None, but may hold nothing."""
    return tuple(
        (info.name, info.default_factory())
        for info in msgspec.structs.fields(type_)
        if isinstance(info.default_factory, type) and issubclass(info.default_factory, ApiStruct)
    )


def _without_empty_parts(obj: Any) -> Any:
    # msgspec leaves out empty lists and maps, but not a Struct that equals a new one.
    if isinstance(obj, list):
        return [_without_empty_parts(item) for item in obj]
    if not isinstance(obj, ApiStruct):
        return obj
    replaced: dict[str, Any] = {
        name: msgspec.UNSET for name, empty in _parts_that_default_to_empty(type(obj)) if getattr(obj, name) == empty
    }
    if isinstance(items := getattr(obj, "items", None), list):
        replaced["items"] = _without_empty_parts(items)
    if not replaced:
        return obj
    sparse = copy.copy(obj)
    for name, value in replaced.items():
        setattr(sparse, name, value)
    return sparse


_MSGSPEC_ERROR: Final = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>[0-9]+)\]|(?P<any>\[\.\.\.\])")
_GOT: Final = re.compile(r"got (\w+)$")
_JSON_NAMES: Final = {dict: "object", list: "array", type(None): "null"}


def _field_error(problem: msgspec.ValidationError, obj: Any) -> ManifestError:
    match = _MSGSPEC_ERROR.fullmatch(str(problem))
    assert match is not None  # the first part takes any text
    what = match["what"].replace("`", "").replace(" | null", "")
    got = _GOT.search(what)
    steps = list(_STEP.finditer(match["path"] or ""))
    path = _locate(steps, obj, got[1] if got and not match["key"] else None)
    path = (match["path"] or "" if path is None else path).removeprefix(".")
    return ManifestError(("key of a map: " if match["key"] else "") + _lower_first(what), path=path)


def _locate(steps: list[re.Match[str]], obj: Any, got: str | None) -> str | None:
    """The path with the real keys where msgspec only says [...]; None if it does not lead to that error."""
    if not steps:
        name = _JSON_NAMES.get(type(obj), type(obj).__name__)
        return "" if got is None or got == name else None
    step = steps[0]
    ways: list[tuple[str, Any]] = []
    if step["any"]:
        ways = [(f"[{key}]", value) for key, value in obj.items()] if isinstance(obj, dict) else []
    elif step["name"] and isinstance(obj, dict) and step["name"] in obj:
        ways = [(step[0], obj[step["name"]])]
    elif step["index"] and isinstance(obj, list) and int(step["index"]) < len(obj):
        ways = [(step[0], obj[int(step["index"])])]
    for text, value in ways:
        if (rest := _locate(steps[1:], value, got)) is not None:
            return text + rest
    return None


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
