"""Texts in YAML or JSON as plain values, safely: what a stranger wrote is bounded in size, depth and aliases.

JSON needs no YAML library, which is loaded with the first text that is not JSON (yaml_events.py). Every failure is a
ManifestError. Does not cover types and unknown fields (codec.py).
"""

import itertools
import json
import math
import re
from typing import Any, BinaryIO, Final

from pykubelet.api.codec import ManifestError

MAX_MANIFEST_BYTES: Final = 10 * 1024 * 1024
# Nodes are counted after aliases are expanded; real manifests have a few thousand at most.
MAX_NODES: Final = 500_000
MAX_DEPTH: Final = 100
_INT: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)")
_OCTAL: Final = re.compile(r"[-+]?0[0-7]*")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")


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
    from pykubelet.api.yaml_events import yaml_documents

    documents = yaml_documents(text, max_nodes=max_nodes, max_depth=max_depth)
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
    number = number_in(text)
    if number is None:
        raise ValueError("no number")
    return number


def number_in(text: str) -> int | float | None:
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
