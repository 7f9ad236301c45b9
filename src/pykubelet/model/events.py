"""Events as values, and the seam through which components tell them.

Who listens (the API server, a local store, the log) is decided where the agent is wired. An event
names the object it is about and, for containers, the field path upstream uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pykubelet.api.types import PersistentVolumeClaim, Pod


class EventSink(Protocol):
    def pod_event(self, pod: Pod, kind: str, reason: str, message: str, *, field_path: str = "") -> None:
        """Tell something about a pod. `kind` is Normal or Warning. Never blocks and never fails."""
        ...

    def node_event(self, kind: str, reason: str, message: str) -> None:
        """Tell something about this node."""
        ...


class ClaimSink(EventSink, Protocol):
    """One that hears of claims as well."""

    def claim_event(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None: ...


class AnnotatedSink(Protocol):
    """An EventSink that takes annotations of an event as well."""

    def pod_event(
        self,
        pod: Pod,
        kind: str,
        reason: str,
        message: str,
        *,
        field_path: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None: ...

    def node_event(self, kind: str, reason: str, message: str) -> None: ...

    def claim_event(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None: ...
