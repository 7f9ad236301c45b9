"""What probes found, shared by several components.

`ProbeResults` is written by probe workers and read by the plan, the status and the loop. It keeps only
the newest outcome per container and probe kind and tells listeners when one changes. It runs no probe.
"""

from __future__ import annotations

import enum
from collections.abc import Callable


class ProbeKind(enum.Enum):
    """Upstream's words, as in `pod.probes_of`."""

    LIVENESS = "liveness"
    READINESS = "readiness"
    STARTUP = "startup"

    @property
    def title(self) -> str:
        """As events write it: `Readiness probe failed`."""
        return self.value.capitalize()


class ProbeOutcome(enum.Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


ProbeListener = Callable[[ProbeKind, str, str, ProbeOutcome], None]
"""Called with kind, container id, pod UID and the new outcome."""


class ProbeResults:
    """Newest probe outcomes by kind and bare container id."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[ProbeKind, str], ProbeOutcome] = {}
        self._listeners: list[ProbeListener] = []

    def listen(self, listener: ProbeListener) -> None:
        self._listeners.append(listener)

    def get(self, kind: ProbeKind, container_id: str) -> ProbeOutcome | None:
        """None when no probe of this kind has said anything about the container."""
        return self._outcomes.get((kind, container_id))

    def set(self, kind: ProbeKind, container_id: str, pod_uid: str, outcome: ProbeOutcome) -> None:
        """Keep the outcome; listeners hear of it only if it differs from the one before."""
        key = (kind, container_id)
        if self._outcomes.get(key) is outcome:
            return
        self._outcomes[key] = outcome
        for listener in self._listeners:
            listener(kind, container_id, pod_uid, outcome)

    def remove(self, container_id: str, kind: ProbeKind | None = None) -> None:
        """Forget the container, or one kind of outcome about it. Nobody is told."""
        for each in ProbeKind if kind is None else (kind,):
            self._outcomes.pop((each, container_id), None)

    def __len__(self) -> int:
        return len(self._outcomes)
