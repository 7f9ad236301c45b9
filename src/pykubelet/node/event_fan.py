"""One event sink that tells several: the node's own memory and the API server."""

from __future__ import annotations

from pykubelet.api.types import Pod
from pykubelet.model.events import EventSink


class EventFan:
    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def pod_event(self, pod: Pod, kind: str, reason: str, message: str, *, field_path: str = "") -> None:
        for sink in self._sinks:
            sink.pod_event(pod, kind, reason, message, field_path=field_path)

    def node_event(self, kind: str, reason: str, message: str) -> None:
        for sink in self._sinks:
            sink.node_event(kind, reason, message)
