"""Records events about pods, claims and the node: remembers the last ones, logs each, sends them to the API server.

The memory is what `events` and `describe` show on the node itself, and all that a node without an API server has. An
event that repeats is counted. How events are sent is in sink.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Struct

from pykubelet.api.types import ObjectReference, PersistentVolumeClaim, Pod
from pykubelet.events.sink import ApiEventSink
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import Recent
from pykubelet.kit.text import plain, shortened
from pykubelet.model.pod import name_of, namespace_of, uid_of
from pykubelet.model.reasons import WARNING

logger = logging.getLogger(__name__)

EVENTS_KEPT = 1000
LONGEST_MESSAGE = 2048
"""Characters; what a pod answers may be in it."""


class RecordedEvent(Struct, kw_only=True):
    kind: str
    """Normal or Warning."""
    reason: str
    message: str
    object_kind: str
    namespace: str
    name: str
    uid: str
    field_path: str = ""
    first: float
    last: float
    count: int = 1


class EventBroadcaster:
    """Implements `model.events.EventRecorder`."""

    def __init__(self, *, clock: Clock, node_name: str, sink: ApiEventSink | None = None) -> None:
        self._clock = clock
        self._node_name = node_name
        self._sink = sink
        self._events: Recent[tuple[str, ...], RecordedEvent] = Recent(EVENTS_KEPT)

    def pod_event(
        self,
        pod: Pod,
        kind: str,
        reason: str,
        message: str,
        *,
        field_path: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        involved = ObjectReference(
            kind="Pod",
            api_version="v1",
            namespace=namespace_of(pod),
            name=name_of(pod),
            uid=uid_of(pod),
            resource_version=pod.metadata.resource_version,
            field_path=field_path or None,
        )
        self._record(involved, kind, reason, message, annotations)

    def node_event(self, kind: str, reason: str, message: str) -> None:
        # The node's name stands for its UID, as tools expect that look for a node's events.
        involved = ObjectReference(kind="Node", api_version="v1", name=self._node_name, uid=self._node_name)
        self._record(involved, kind, reason, message)

    def claim_event(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None:
        involved = ObjectReference(
            kind="PersistentVolumeClaim",
            api_version="v1",
            namespace=claim.metadata.namespace,
            name=claim.metadata.name,
            uid=claim.metadata.uid,
            resource_version=claim.metadata.resource_version,
        )
        self._record(involved, kind, reason, message)

    def all(self) -> list[RecordedEvent]:
        """Oldest first, by when they last happened."""
        return sorted(self._events.values(), key=lambda event: event.last)

    def of_pod(self, uid: str) -> list[RecordedEvent]:
        return sorted((event for event in self._events.values() if event.uid == uid), key=lambda event: event.last)

    def _record(
        self,
        involved: ObjectReference,
        kind: str,
        reason: str,
        message: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        message = plain(message)
        event = self._remember(involved, kind, reason, shortened(message, LONGEST_MESSAGE))
        level = logging.DEBUG if event.count > 1 else logging.WARNING if kind == WARNING else logging.INFO
        fields = {"object": _shown(event), "reason": reason, "message_text": event.message, "count": event.count}
        logger.log(level, "event", extra=fields)
        if self._sink is not None:
            self._sink.put(involved, kind, reason, message, annotations)

    def _remember(self, involved: ObjectReference, kind: str, reason: str, message: str) -> RecordedEvent:
        uid, field_path, now = involved.uid or "", involved.field_path or "", self._clock.now()
        key = (uid, kind, reason, field_path, message)
        event = self._events.get(key)
        if event is not None:
            event.count += 1
            event.last = now
            return event
        event = RecordedEvent(
            kind=kind,
            reason=reason,
            message=message,
            object_kind=involved.kind or "",
            namespace=involved.namespace or "",
            name=involved.name or "",
            uid=uid,
            field_path=field_path,
            first=now,
            last=now,
        )
        self._events.put(key, event)
        return event


def _shown(event: RecordedEvent) -> str:
    if event.object_kind == "Node":
        return f"node {event.name}"
    name = f"{event.namespace}/{event.name}"
    return f"claim {name}" if event.object_kind == "PersistentVolumeClaim" else name
