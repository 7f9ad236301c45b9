"""What probes found, as values that several components share."""

from __future__ import annotations

import enum


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


ProbeKey = tuple[ProbeKind, str]
"""The probe of one kind of the container with this bare id."""
