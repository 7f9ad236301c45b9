"""An event recorder that remembers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pykubelet.api.types import PersistentVolumeClaim, Pod


class RecordedEvent(NamedTuple):
    about: str
    """The name of a pod or claim, or `node`."""
    kind: str
    reason: str
    message: str
    field_path: str = ""

    def __str__(self) -> str:
        path = f" {self.field_path}:" if self.field_path else ""
        return f"{self.kind} {self.reason}{path} {self.message}"


class RecordedEvents:
    def __init__(self) -> None:
        self.all: list[RecordedEvent] = []
        self.of_pods: list[RecordedEvent] = []
        self.of_node: list[RecordedEvent] = []
        self.of_claims: list[RecordedEvent] = []
        self.on_event: Callable[[], None] = lambda: None

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
        self._add(self.of_pods, RecordedEvent(pod.metadata.name or "", kind, reason, message, field_path))

    def node_event(self, kind: str, reason: str, message: str) -> None:
        self._add(self.of_node, RecordedEvent("node", kind, reason, message))

    def claim_event(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None:
        self._add(self.of_claims, RecordedEvent(claim.metadata.name or "", kind, reason, message))

    def _add(self, events: list[RecordedEvent], event: RecordedEvent) -> None:
        self.all.append(event)
        events.append(event)
        self.on_event()

    @property
    def recorded(self) -> list[tuple[str, str, str]]:
        """Kind, reason and message of every event about a pod."""
        return [event[1:4] for event in self.of_pods]

    @property
    def pods(self) -> list[tuple[str, str]]:
        """Reason and message of every event about a pod."""
        return [event[2:4] for event in self.of_pods]

    @property
    def claims(self) -> list[tuple[str, str, str]]:
        """Name of the claim, reason and message of every event about a claim."""
        return [(event.about, event.reason, event.message) for event in self.of_claims]

    @property
    def node(self) -> list[tuple[str, str]]:
        """Reason and message of every event about the node."""
        return [event[2:4] for event in self.of_node]

    @property
    def texts(self) -> list[str]:
        return [str(event) for event in self.all]

    @property
    def about(self) -> list[tuple[str, str]]:
        """What every event is about, and its reason."""
        return [(event.about, event.reason) for event in self.all]

    @property
    def paths(self) -> set[str]:
        return {event.field_path for event in self.of_pods}

    def reasons(self) -> list[str]:
        return [event.reason for event in self.of_pods]

    @property
    def node_reasons(self) -> list[str]:
        return [event.reason for event in self.of_node]
