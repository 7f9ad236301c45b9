"""Finds what still mentions a pod that is gone, anywhere in the agent's memory."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from msgspec import Struct

ALLOWED = frozenset(
    {
        "LifeRecorder",  # tells what happened to the last pods, bounded in number
        "EventBroadcaster",
        "ApiEventSink",
        "WhyNotReady",
        "Registry",
        "DnsWarnings",
        "StatsProvider",  # has the figures of its last reading
        "CrashBackoff",  # forgets ten minutes after a container's last restart, as upstream's does
    }
)
"""Classes that remember pods on purpose, for a time or up to a number."""

ONE_POD = frozenset({"_fresh", "_points"})
"""Fields that hold the last pod, whichever it was, or the mount points of the last measurement."""


def mentions(root: object, uids: Collection[str]) -> list[str]:
    """Where one of the UIDs is a key or a member, as paths of attributes from the root."""
    found, seen = [], {id(root)}
    todo: deque[tuple[str, object]] = deque([("node", root)])
    while todo:
        path, thing = todo.popleft()
        for name, inside in _parts(thing):
            here = f"{path}.{name}"
            if name in ONE_POD:
                continue
            if isinstance(inside, str):
                if any(uid in inside for uid in uids):
                    found.append(f"{here} = {inside}")
            elif id(inside) not in seen and not isinstance(inside, int | float | bytes | type | types.ModuleType):
                seen.add(id(inside))
                todo.append((here, inside))
    return found


def _parts(thing: object) -> Iterator[tuple[str, object]]:
    kind = type(thing)
    if isinstance(thing, dict):
        for key, value in thing.items():
            if isinstance(key, str | tuple):
                yield "key", key
            yield str(key), value
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        for inside in thing:
            yield "member", inside
    elif isinstance(thing, types.MethodType):
        yield "self", thing.__self__
    elif isinstance(thing, types.FunctionType):
        for cell in thing.__closure__ or ():
            try:
                yield "closure", cell.cell_contents
            except ValueError:  # not filled yet
                continue
    elif kind.__module__.startswith("pykubelet.") and kind.__name__ not in ALLOWED:
        yield from _fields(thing)


def _fields(thing: Any) -> Iterator[tuple[str, object]]:
    if isinstance(thing, Struct):
        for name in thing.__struct_fields__:
            yield name, getattr(thing, name)
    yield from vars(thing).items() if hasattr(thing, "__dict__") else ()
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(thing, name):
                yield name, getattr(thing, name)
