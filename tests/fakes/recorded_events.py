"""An event sink that remembers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.api.types import PersistentVolumeClaim, Pod


class RecordedEvents:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        """Kind, reason and message of every event about a pod."""
        self.node: list[tuple[str, str]] = []
        """Reason and message of every event about the node."""
        self.claims: list[tuple[str, str, str]] = []
        """Name of the claim, reason and message."""
        self.paths: set[str] = set()
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
        self.seen.append((kind, reason, message))
        self.paths.add(field_path)
        self.on_event()

    def node_event(self, kind: str, reason: str, message: str) -> None:
        self.node.append((reason, message))

    def claim_event(self, claim: PersistentVolumeClaim, kind: str, reason: str, message: str) -> None:
        self.claims.append((claim.metadata.name or "", reason, message))

    @property
    def pods(self) -> list[tuple[str, str]]:
        return [(reason, message) for _, reason, message in self.seen]

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.seen]
