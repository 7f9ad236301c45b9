"""Objects as an API server stores them, read as Go reads them.

A server stores what its own types can hold: unread fields of any depth, times of the year 0, nulls for
empty lists. Such an object is as good as any other here. What still cannot be read has at least its name taken out.
Slow for a large object that is odd: callers on the loop's thread must limit the size.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from pykubelet.api.codec import ManifestError, as_stored, convert, decode_json, shape_of
from pykubelet.api.times import nearest_time

T = TypeVar("T")

DEEPEST: Final = 100
"""Types nest some twenty deep. Decoders give up below a thousand, servers store ten thousand."""
LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{\]}]', re.DOTALL)
_LARGEST: Final = 2**63


def decode_stored(type_: type[T], data: bytes) -> T:
    """The object in a JSON text of an API server; ManifestError if there is no way to read it."""
    try:
        return decode_json(type_, data)
    except ManifestError as problem:
        first = problem
    try:
        return convert(type_, as_stored(shape_of(cast(Any, type_)), _tree(data)))
    except ValueError:  # ManifestError too: the first one names the place in the text as it came
        raise first from None


def without_depths(data: bytes, deepest: int = DEEPEST) -> bytes:
    """The same JSON text with null for everything that is nested deeper."""
    parts: list[bytes] = []
    depth = kept = cut = 0
    for token in _TOKEN.finditer(data):
        match data[token.start()]:
            case 0x5B | 0x7B:  # [ {
                depth += 1
                if depth == deepest + 1:
                    cut = token.start()
            case 0x5D | 0x7D:
                if depth == deepest + 1:
                    parts += (data[kept:cut], b"null")
                    kept = token.end()
                depth -= 1
    return b"".join((*parts, data[kept:]))


def loose_metadata(data: bytes) -> dict[str, Any]:
    """What is known of an object that cannot be read: the plain values of its metadata, and its node as nodeName.

    A deletionTimestamp of any form counts as a time.
    """
    try:
        tree = _tree(data)
    except ValueError:
        return {}
    found = _map(_map(tree).get("metadata"))
    known: dict[str, Any] = {key: value for key, value in found.items() if isinstance(value, str | int)}
    if "deletionTimestamp" in known:
        known["deletionTimestamp"] = nearest_time(str(known["deletionTimestamp"])) or LONG_AGO
    node = _map(_map(tree).get("spec")).get("nodeName")
    return {**known, "nodeName": node if isinstance(node, str) else ""}


def split_list(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The parts of a list as texts of their own: ("metadata", …) and for each item ("items", …), one after the other.

    Slower than a decoder that takes the list as one, but no step is longer than one item. ValueError for what is no
    list, RecursionError for what is nested too deeply.
    """
    text = data.decode()
    scan, space = json.JSONDecoder(parse_int=_number, parse_float=_number).raw_decode, re.compile(r"[ \t\r\n]*")

    def at(position: int) -> int:
        found = space.match(text, position)
        return found.end() if found is not None else position

    def expect(position: int, signs: str) -> int:
        if text[position : position + 1] not in tuple(signs):
            raise ValueError(f"no list of objects at character {position}")
        return at(position + 1)

    position = expect(at(0), "{")
    while text[position : position + 1] != "}":
        key, position = scan(text, position)
        position = expect(at(position), ":")
        if key == "items" and text[position : position + 1] == "[":
            position = at(position + 1)
            while text[position : position + 1] != "]":
                _, end = scan(text, position)
                yield "items", text[position:end].encode()
                position = at(end)
                if text[position : position + 1] != "]":
                    position = expect(position, ",")
            position = at(position + 1)
        else:
            _, end = scan(text, position)
            if key == "metadata":
                yield "metadata", text[position:end].encode()
            position = at(end)
        if text[position : position + 1] != "}":
            position = expect(position, ",")


def _tree(data: bytes) -> Any:
    try:
        # Not msgspec: it refuses numbers that no type holds even in unread fields.
        return json.loads(without_depths(data), parse_int=_number, parse_float=_number)
    except RecursionError:
        raise ManifestError("nested too deeply") from None


def _number(text: str) -> int | float:
    if len(text) > 400:  # int() of endless digits is not even tried
        return float("inf")
    number = float(text)
    return int(text) if abs(number) < _LARGEST and text.lstrip("-").isdigit() else number


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
