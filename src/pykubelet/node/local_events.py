"""Events kept on the node itself: the last ones of each pod, counted when they repeat, and one log line each.

This is what a node without an API server has, and what `events` and `describe` show there. Sending events to an
API server is another sink behind the same seam.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from msgspec import Struct

from pykubelet.api.types import PersistentVolumeClaim, Pod
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import Recent
from pykubelet.kit.text import shortened
from pykubelet.model.pod import name_of, namespace_of, readable, uid_of
from pykubelet.model.reasons import WARNING

logger = logging.getLogger(__name__)

EVENTS_KEPT = 1000
LONGEST_MESSAGE = 2048
"""Characters; what a pod answers may be in it."""


class LocalEvent(Struct, kw_only=True):
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


class LocalEvents:
    def __init__(self, *, clock: Clock, node_name: str) -> None:
        self._clock = clock
        self._node_name = node_name
        self._events: Recent[tuple[str, ...], LocalEvent] = Recent(EVENTS_KEPT)
        self._listeners: list[Callable[[LocalEvent], None]] = []

    def listen(self, listener: Callable[[LocalEvent], None]) -> None:
        self._listeners.append(listener)

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
        self._note(
            LocalEvent(
                kind=kind,
                reason=reason,
                message=message,
                object_kind="Pod",
                namespace=namespace_of(pod),
                name=name_of(pod),
                uid=uid_of(pod),
                field_path=field_path,
                first=self._clock.now(),
                last=self._clock.now(),
            ),
            shown=readable(pod),
        )

    def node_event(self, kind: str, reason: str, message: str) -> None:
        self._note(
            LocalEvent(
                kind=kind,
                reason=reason,
                message=message,
                object_kind="Node",
                namespace="",
                name=self._node_name,
                uid=self._node_name,
                first=self._clock.now(),
                last=self._clock.now(),
            ),
            shown=f"node {self._node_name}",
        )

    def claim_event(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None:
        namespace, name = claim.metadata.namespace or "", claim.metadata.name or ""
        self._note(
            LocalEvent(
                kind=kind,
                reason=reason,
                message=message,
                object_kind="PersistentVolumeClaim",
                namespace=namespace,
                name=name,
                uid=claim.metadata.uid or "",
                first=self._clock.now(),
                last=self._clock.now(),
            ),
            shown=f"claim {namespace}/{name}",
        )

    def all(self) -> list[LocalEvent]:
        """Oldest first, by when they last happened."""
        return sorted(self._events.values(), key=lambda event: event.last)

    def of_pod(self, uid: str) -> list[LocalEvent]:
        return [event for event in self.all() if event.uid == uid]

    def _note(self, event: LocalEvent, *, shown: str) -> None:
        event.message = shortened(event.message, LONGEST_MESSAGE)
        key = (event.uid, event.kind, event.reason, event.field_path, event.message)
        known = self._events.get(key)
        if known is not None:
            known.count += 1
            known.last = event.last
            event = known
        else:
            self._events.put(key, event)
        level = logging.DEBUG if event.count > 1 else logging.WARNING if event.kind == WARNING else logging.INFO
        fields = {"object": shown, "reason": event.reason, "message_text": event.message, "count": event.count}
        logger.log(level, "event", extra=fields)
        for listener in self._listeners:
            listener(event)
