"""One event sink that tells several: the node's own memory and the API server."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.api.types import PersistentVolumeClaim, Pod
from pykubelet.model.events import AnnotatedSink


class EventFan:
    def __init__(self, *sinks: AnnotatedSink) -> None:
        self._sinks = sinks

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
        for sink in self._sinks:
            sink.pod_event(pod, kind, reason, message, field_path=field_path, annotations=annotations)

    def node_event(self, kind: str, reason: str, message: str) -> None:
        for sink in self._sinks:
            sink.node_event(kind, reason, message)

    def claim_event(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None:
        for sink in self._sinks:
            sink.claim_event(claim, kind, reason, message)
