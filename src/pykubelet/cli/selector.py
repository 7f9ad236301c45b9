"""Label selectors as kubectl takes them with `-l`: `app=web,tier!=db,track in (a,b),!old`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import click

Fits = Callable[[Mapping[str, str]], bool]
_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<verb>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<verb>==|=|!=)\s*(?P<value>[^\s!=,()]*)")
_THERE = re.compile(r"(?P<no>!\s*)?(?P<key>[^\s!=,()]+)")
_BETWEEN = re.compile(r",(?![^()]*\))")


def parse(text: str) -> Fits:
    """Raises click.UsageError for what is no selector."""
    parts = [_requirement(part.strip()) for part in _BETWEEN.split(text)] if text.strip() else []
    return lambda labels: all(fits(labels) for fits in parts)


def _requirement(text: str) -> Fits:
    if found := _SET.fullmatch(text):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["verb"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.fullmatch(text):
        key, value = found["key"], found["value"]
        if found["verb"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _THERE.fullmatch(text):
        key, wanted = found["key"], found["no"] is None
        return lambda labels: (key in labels) is wanted
    raise click.UsageError(f"-l {text!r} is no label selector; examples: app=web, tier!=db, track in (a,b), !old")
