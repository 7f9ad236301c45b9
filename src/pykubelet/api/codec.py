"""Read and write Kubernetes objects: JSON and YAML in, JSON out.

Covers: a fast JSON decoder that also takes the nulls Go writes for empty lists, conversion of plain values
into types with field paths in errors, unknown fields, and a YAML loader that is safe on hostile input.
Does not cover: defaults and validation of the values, or choosing the type for a kind (types.KINDS).
Every failure is a ManifestError.
"""

import copy
import functools
import itertools
import json
import math
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, Final, TypeVar, cast

import msgspec
import yaml

from pykubelet.api.times import nearest_time
from pykubelet.api.types import ApiStruct
from pykubelet.kit.text import plain

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


T = TypeVar("T")

MAX_MANIFEST_BYTES: Final = 10 * 1024 * 1024
# Nodes are counted after aliases are expanded; real manifests have a few thousand at most.
MAX_NODES: Final = 500_000
MAX_DEPTH: Final = 100


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


# What the Go tools read as something else than text; YAML 1.1 with y and n, without base 60 and dates.
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_INT: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)")
_OCTAL: Final = re.compile(r"[-+]?0[0-7]*")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_A_NUMBER: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_TAG: Final = "tag:yaml.org,2002:"
_TAGGED: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),),
}  # fmt: skip


def load_yaml_documents(
    source: bytes | BinaryIO,
    *,
    max_bytes: int = MAX_MANIFEST_BYTES,
    max_nodes: int = MAX_NODES,
    max_depth: int = MAX_DEPTH,
) -> list[Any]:
    """The documents of a YAML or JSON text as plain values; empty documents are left out.

    A source with more than max_bytes is refused after reading that much of it.
    """
    data = source if isinstance(source, bytes) else source.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ManifestError(f"larger than {max_bytes} bytes")
    text = _text(data)
    if (document := _load_json(text, max_nodes, max_depth)) is not None:
        return [document]
    _refuse_control_characters(text)
    try:
        documents = list(_Builder(text, max_nodes=max_nodes, max_depth=max_depth).documents())
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        what = ", ".join(filter(None, (problem.context, problem.problem)))
        raise ManifestError(f"invalid YAML: {what}", line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as problem:
        raise ManifestError(f"invalid YAML: {problem}") from None
    return [document for document in documents if document is not None]


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise ManifestError("not UTF-8 text (a binary file?)", line=line) from None


def _refuse_control_characters(text: str) -> None:
    if junk := _CONTROL.search(text):
        line = text.count("\n", 0, junk.start()) + 1
        raise ManifestError(f"control character U+{ord(junk[0]):04X} is not allowed (a binary file?)", line=line)


def _load_json(text: str, max_nodes: int, max_depth: int) -> Any:
    """The value if the text is one sound JSON list or object, else None.

    JSON is nearly YAML, but libyaml knows no surrogate pairs in escapes. What is wrong here is left
    to the YAML way, which knows line numbers.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    # Bounds first, so that nothing huge is built; punctuation inside strings may only send it the YAML way.
    if 1 + sum(map(text.count, ",:[{")) > max_nodes or not _shallow(text, max_depth):
        return None
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_json_number,
            parse_int=_json_number,
            parse_float=_json_number,
        )
    except (ValueError, RecursionError):
        return None


def _shallow(text: str, max_depth: int) -> bool:
    depths = itertools.accumulate(1 if bracket[0] in "[{" else -1 for bracket in re.finditer(r"[\[{\]}]", text))
    return all(depth <= max_depth for depth in depths)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _json_number(text: str) -> int | float:
    number = _number(text)
    if number is None:
        raise ValueError("no number")
    return number


def _number(text: str) -> int | float | None:
    """The number a plain scalar stands for, None if it is text."""
    plain = text.replace("_", "")
    if _INT.fullmatch(plain) and len(plain) < 80:
        # A leading zero means octal in YAML 1.1 (defaultMode: 0644); Python's base 0 refuses it.
        number = int(plain, 8 if _OCTAL.fullmatch(plain) else 0)
        if -(2**63) <= number < 2**64:
            return number
    if not _FLOAT.fullmatch(plain):
        return None
    value = float(plain)
    if not math.isfinite(value):
        return None
    # Go writes whole floats below 1e21 as integers when it turns YAML into JSON.
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


@dataclass(frozen=True, slots=True)
class _Built:
    """A value with what it counts for, needed again when an alias repeats it."""

    value: Any
    nodes: int
    height: int
    is_merge_key: bool = False


class _Builder:
    """Builds plain values from YAML events, counting as it goes so that it can stop in time."""

    def __init__(self, text: str, *, max_nodes: int, max_depth: int) -> None:
        self._events = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._max_nodes = max_nodes
        self._max_depth = max_depth
        self._nodes = 0
        self._anchors: dict[str, _Built | None] = {}  # None while the anchor's node is being built

    def documents(self) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield self._build(next(self._events), 0).value

    def _build(self, event: Any, depth: int) -> _Built:
        line: int = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), line, depth)
        self._count(1, depth, line)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            built = _scalar(event, line)
        elif event.tag not in (None, "!", f"{_TAG}seq", f"{_TAG}map"):
            raise ManifestError(f"tag {_short(event.tag)} is not allowed", line=line)
        else:
            built = self._sequence(depth) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = built
        return built

    def _count(self, nodes: int, depth: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > self._max_nodes:
            raise ManifestError(f"more than {self._max_nodes} values after expanding aliases", line=line)
        if depth > self._max_depth:
            raise ManifestError(f"nested more than {self._max_depth} levels deep", line=line)

    def _alias(self, anchor: str, line: int, depth: int) -> _Built:
        if anchor not in self._anchors:
            raise ManifestError(f"alias *{anchor} has no anchor before it", line=line)
        built = self._anchors[anchor]
        if built is None:
            raise ManifestError(f"anchor &{anchor} contains itself", line=line)
        self._count(built.nodes, depth + built.height, line)
        return built

    def _sequence(self, depth: int) -> _Built:
        items: list[Any] = []
        nodes, height = 1, 0
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item = self._build(event, depth + 1)
            items.append(item.value)
            nodes, height = nodes + item.nodes, max(height, item.height + 1)
        return _Built(items, nodes, height)

    def _mapping(self, depth: int) -> _Built:
        entries: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        nodes, height = 1, 0
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._build(event, depth + 1)
            item = self._build(next(self._events), depth + 1)
            nodes += key.nodes + item.nodes
            height = max(height, key.height + 1, item.height + 1)
            if key.is_merge_key:
                merged = {**_merge_source(item.value, line), **merged}
                continue
            name = _key(key.value, line)
            if name in entries:
                raise ManifestError(f'duplicate key "{_short(name)}"', line=line)
            entries[name] = item.value
        # A merge copies entries, which must count like an alias or merges could be stacked into a bomb.
        self._count(len(merged), depth, line if merged else 0)
        return _Built({**merged, **entries} if merged else entries, nodes + len(merged), height)


def _scalar(event: Any, line: int) -> _Built:
    text: str = event.value
    if event.tag in (None, "!"):
        if not event.implicit[0]:
            return _Built(text, 1, 0)
        return _Built(_plain(text, line), 1, 0, is_merge_key=text == "<<")
    tag = event.tag.removeprefix(_TAG)
    if tag in ("str", "timestamp"):
        return _Built(text, 1, 0)
    if tag not in _TAGGED:
        raise ManifestError(f"tag {_short(event.tag)} is not allowed", line=line)
    value = _plain(text, line)
    # bool is an int to isinstance, not to YAML.
    if not isinstance(value, _TAGGED[tag]) or (isinstance(value, bool) and tag != "bool"):
        raise ManifestError(f'"{_short(text)}" is no {tag}', line=line)
    return _Built(value, 1, 0)


def _plain(text: str, line: int) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "+-.0123456789":
        if _NOT_A_NUMBER.fullmatch(text):
            raise ManifestError(f"{text} cannot be used: JSON has no such number", line=line)
        number = _number(text)
        return text if number is None else number
    return text


def _merge_source(value: Any, line: int) -> dict[str, Any]:
    sources = value if isinstance(value, list) else [value]
    merged: dict[str, Any] = {}
    for source in sources:
        if not isinstance(source, dict):
            raise ManifestError("<< needs a map or a list of maps", line=line)
        merged = {**source, **merged}
    return merged


def _key(value: Any, line: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value).lower()  # true and false, as in JSON
    raise ManifestError("a key must be text, not a map, a list or null", line=line)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "..."
