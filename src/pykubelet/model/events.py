"""The port through which components record events, named after client-go's EventRecorder.

Where events go (memory, log, API server) is decided in `events/`. For containers an event names the field path that
upstream uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pykubelet.api.types import PersistentVolumeClaim, Pod


class EventRecorder(Protocol):
    """Records that something happened. `kind` is Normal or Warning. Never blocks and never fails."""

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

    def node_event(self, kind: str, reason: str, message: str) -> None:
        """Record an event about this node."""
        ...

    def claim_event(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None: ...
