"""Correlates events: repeats are counted, floods of similar ones combined, spam left out.

The rules and numbers are those of every Kubernetes event recorder: the tenth different message of one reason within
ten minutes makes a combined event; an equal event becomes a patch of the first one's count; an object gets 25 events
at once and then one in five minutes. Does not send (sink.py).
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from pykubelet.api.times import format_time
from pykubelet.api.types import Event, EventSource, ObjectReference
from pykubelet.kit.limits import Recent, TokenBucket

MAX_SIMILAR = 10
SIMILAR_WITHIN = 600.0
SPAM_BURST = 25
SPAM_REFILL = 1.0 / 300.0
REMEMBERED = 4096
LONGEST_KEPT = 128
COMBINED = "(combined from similar events): "

Key = tuple[str, ...]


class Correlated(Struct, frozen=True):
    """An event to create, or with a patch one to count up."""

    event: Event
    patch: dict[str, Any] | None


class _Similar(Struct):
    messages: set[str] = field(default_factory=set)
    last: float = 0.0


class _Known(Struct, frozen=True):
    name: str | None
    count: int
    first: datetime | None


class Namer(Protocol):
    def __call__(self, object_name: str) -> str: ...


class Correlator:
    def __init__(self, name_event: Namer) -> None:
        self._name_event = name_event
        self._similar: Recent[Key, _Similar] = Recent(REMEMBERED)
        self._sent: Recent[Key, _Known] = Recent(REMEMBERED)
        self._buckets: Recent[Key, TokenBucket] = Recent(REMEMBERED)

    def correlate(self, event: Event, now: float) -> Correlated | None:
        """What to send for a new event at `now` (unix seconds); None when it is spam."""
        event, key = self._combine(event, now)
        known = self._sent.get(key)
        patch: dict[str, Any] | None = None
        if known is not None:
            count = known.count + 1
            metadata = msgspec.structs.replace(event.metadata, name=known.name)
            event = msgspec.structs.replace(event, metadata=metadata, count=count, first_timestamp=known.first)
            stamp = format_time(event.last_timestamp) if event.last_timestamp is not None else None
            patch = {"count": count, "lastTimestamp": stamp, "message": event.message}
        self._sent.put(key, _Known(event.metadata.name, event.count or 1, event.first_timestamp))
        return Correlated(event, patch) if self._allowed(event, now) else None

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
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = TokenBucket(rate=SPAM_REFILL, burst=SPAM_BURST)
            self._buckets.put(key, bucket)
        return bucket.try_take(now)


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
