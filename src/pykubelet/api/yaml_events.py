"""YAML into plain values from the parser's events, counting as it goes so that it can stop in time.

The words and numbers are those that the Go tools read. Does not cover the size of the text (documents.py).
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml
from msgspec import Struct

from pykubelet.api.codec import ManifestError
from pykubelet.api.documents import number_in

# What the Go tools read as something else than text; YAML 1.1 with y and n, without base 60 and dates.
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NOT_A_NUMBER: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TAG: Final = "tag:yaml.org,2002:"
_TAGGED: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),),
}  # fmt: skip


def yaml_documents(text: str, *, max_nodes: int, max_depth: int) -> list[Any]:
    """Every document of the text, None for an empty one."""
    try:
        return list(_Builder(text, max_nodes=max_nodes, max_depth=max_depth).documents())
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        what = ", ".join(filter(None, (problem.context, problem.problem)))
        raise ManifestError(f"invalid YAML: {what}", line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as problem:
        raise ManifestError(f"invalid YAML: {problem}") from None


class _Built(Struct, frozen=True):
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
        number = number_in(text)
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
