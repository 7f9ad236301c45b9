"""Which events are told and how: repeats are counted, floods of similar ones combined, spam left out.

The rules and numbers are those of every Kubernetes event recorder: the tenth different message of one reason within
ten minutes makes a combined event; an equal event becomes a patch of the first one's count; an object gets 25 events
at once and then one in five minutes. Pure bookkeeping; sending is in events.py.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct, field

from pykubelet.api.times import format_time
from pykubelet.api.types import Event, EventSource, ObjectReference

MAX_SIMILAR = 10
SIMILAR_WITHIN = 600.0
SPAM_BURST = 25
SPAM_REFILL = 1.0 / 300.0
REMEMBERED = 4096
LONGEST_KEPT = 128
COMBINED = "(combined from similar events): "

V = TypeVar("V")
Key = tuple[str, ...]


class Told(Struct, frozen=True):
    """An event to create, or with a patch one to count up."""

    event: Event
    patch: dict[str, Any] | None


class _Recent(Generic[V]):
    """A table that forgets what was not used for longest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, V] = OrderedDict()

    def get(self, key: Key) -> V | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)


class _Similar(Struct):
    messages: set[str] = field(default_factory=set)
    last: float = 0.0


class _Known(Struct, frozen=True):
    name: str | None
    count: int
    first: datetime | None


class _Allowance(Struct):
    tokens: float
    updated: float


class Namer(Protocol):
    def __call__(self, object_name: str) -> str: ...


class Correlator:
    def __init__(self, name_event: Namer) -> None:
        self._name_event = name_event
        self._similar: _Recent[_Similar] = _Recent(REMEMBERED)
        self._told: _Recent[_Known] = _Recent(REMEMBERED)
        self._allowances: _Recent[_Allowance] = _Recent(REMEMBERED)

    def judge(self, event: Event, now: float) -> Told | None:
        """What to tell of a new event at `now` (unix seconds); None when it is spam."""
        event, key = self._combine(event, now)
        known = self._told.get(key)
        patch: dict[str, Any] | None = None
        if known is not None:
            count = known.count + 1
            metadata = msgspec.structs.replace(event.metadata, name=known.name)
            event = msgspec.structs.replace(event, metadata=metadata, count=count, first_timestamp=known.first)
            stamp = format_time(event.last_timestamp) if event.last_timestamp is not None else None
            patch = {"count": count, "lastTimestamp": stamp, "message": event.message}
        self._told.put(key, _Known(event.metadata.name, event.count or 1, event.first_timestamp))
        return Told(event, patch) if self._allowed(event, now) else None

    def _combine(self, event: Event, now: float) -> tuple[Event, Key]:
        key = _similar_key(event)
        similar = self._similar.get(key)
        if similar is None or now - similar.last > SIMILAR_WITHIN:
            similar = _Similar()
        similar.messages.add(_kept(event.message))
        similar.last = now
        self._similar.put(key, similar)
        if len(similar.messages) < MAX_SIMILAR:
            return event, _exact_key(event)
        similar.messages.pop()
        involved = event.involved_object or ObjectReference()
        metadata = msgspec.structs.replace(event.metadata, name=self._name_event(involved.name or ""))
        return msgspec.structs.replace(event, metadata=metadata, message=COMBINED + (event.message or "")), key

    def _allowed(self, event: Event, now: float) -> bool:
        key = _object_key(event)
        allowance = self._allowances.get(key) or _Allowance(SPAM_BURST, now)
        tokens = min(float(SPAM_BURST), allowance.tokens + (now - allowance.updated) * SPAM_REFILL)
        good = tokens >= 1.0
        self._allowances.put(key, _Allowance(tokens - 1.0 if good else tokens, now))
        return good


def _kept(message: str | None) -> str:
    """What is remembered of a message to know it again: thousands are, for as long as the agent runs."""
    text = message or ""
    return text if len(text) <= LONGEST_KEPT else hashlib.blake2b(text.encode(errors="replace")).hexdigest()


def _object_key(event: Event) -> Key:
    source, on = event.source or EventSource(), event.involved_object or ObjectReference()
    parts = (source.component, source.host, on.kind, on.namespace, on.name, on.uid, on.api_version)
    return tuple(part or "" for part in parts)


def _similar_key(event: Event) -> Key:
    return (*_object_key(event), event.type or "", event.reason or "")


def _exact_key(event: Event) -> Key:
    on = event.involved_object or ObjectReference()
    return (*_similar_key(event), on.field_path or "", _kept(event.message))
